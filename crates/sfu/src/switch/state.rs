//! The SFU of one shard: its rooms and members, and how work on one member is done.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    net::SocketAddr,
    time::{Duration, Instant},
};

use millrace_rtc::{Candidates, ConnectionError};
use slab::Slab;

use super::{
    floor::Floor,
    member::{CollectedOutput, Held, Member},
    remote::Remotes,
    source::{Role, Source},
    track::Track,
};
use crate::{
    cascade::{self, NodeId},
    compositor,
    congestion::Algorithm,
    member_id::MemberId,
    mixer::Input,
};

/// Maximum time without a valid datagram from a member. Source: RFC 7675, section 5.1.
pub const SILENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which the lines of a member that has lost its connection are kept. Servers hold the seat of a page that
/// reloads for this time by default.
pub(super) const HELD_MAX: Duration = Duration::from_secs(15);

#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Media can flow.
    Connected(MemberId),
    /// Offer for a member; the answer goes to [`Switch::accept_answer`].
    Offer(MemberId, String),
    /// The member was removed. `panicked`: the cause was a panic in the library.
    Left { id: MemberId, panicked: bool },
    /// The link to a node is dead, or was refused for this reason; it was removed.
    LinkLost(NodeId, Option<cascade::Refused>),
    /// The link to a node has had no use for a while; it may be removed.
    LinkUnused(NodeId),
}

/// SFU of one shard, with all its rooms.
pub struct Switch {
    pub(super) candidates: Candidates,
    pub(super) members_max: usize,
    pub(super) room_members_max: usize,
    pub(super) members: Slab<Box<Member>>,
    pub(super) serial: u32,
    pub(super) rooms: Slab<Room>,
    pub(super) rooms_by_name: HashMap<Box<str>, u32>,
    pub(super) by_address: HashMap<SocketAddr, u32>,
    pub(super) by_ufrag: HashMap<Box<str>, u32>,
    pub(super) timers: BinaryHeap<Reverse<(Instant, MemberId)>>,
    pub(super) events: VecDeque<Event>,
    pub(super) data: VecDeque<(MemberId, millrace_rtc::Event)>,
    /// Time of the next choice of layers. `None` while there are no members.
    pub(super) next_tick: Option<Instant>,
    /// Reusable buffer for the output of library calls, so that no packet needs an allocation.
    pub(super) collected: CollectedOutput,
    pub(super) forwarded: u64,
    /// Links to other nodes; `None`: each room is on one node.
    pub(super) remotes: Option<Box<Remotes>>,
    pub(super) congestion_control: Algorithm,
}

pub struct Room {
    pub name: Box<str>,
    pub members: Vec<MemberId>,
    pub floor: Floor,
    /// Receives the audio of the room for mixing. `None`: audio is forwarded.
    pub mixer: Option<MixerSender>,
    /// Receives the cameras of the room for one composite video. `None`: video is forwarded.
    pub compositor: Option<CompositorSender>,
}

/// Callback that receives the audio of a mixed room.
pub type MixerSender = Box<dyn FnMut(Input)>;
/// Callback that receives the video of a room with composite video.
pub type CompositorSender = Box<dyn FnMut(compositor::Input)>;

/// Callback that sends a datagram to an address.
pub trait Send: FnMut(SocketAddr, Vec<u8>) {}
impl<F: FnMut(SocketAddr, Vec<u8>) + ?Sized> Send for F {}

impl Switch {
    /// Creates an SFU without rooms. `candidates`: addresses at which its socket can be reached.
    pub fn new(candidates: Candidates, members_max: usize, room_members_max: usize) -> Self {
        Self {
            candidates,
            members_max,
            room_members_max,
            members: Slab::new(),
            serial: 0,
            rooms: Slab::new(),
            rooms_by_name: HashMap::new(),
            by_address: HashMap::new(),
            by_ufrag: HashMap::new(),
            timers: BinaryHeap::new(),
            events: VecDeque::new(),
            data: VecDeque::new(),
            next_tick: None,
            collected: CollectedOutput::default(),
            forwarded: 0,
            remotes: None,
            congestion_control: Algorithm::default(),
        }
    }

    /// Sets the congestion control algorithm of members that join later.
    pub fn set_congestion_control(&mut self, algorithm: Algorithm) {
        self.congestion_control = algorithm;
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns whether a member is known at this address, which it has proven by a valid datagram.
    pub fn knows(&self, address: &SocketAddr) -> bool {
        self.by_address.contains_key(address)
    }

    /// Returns the total number of packets forwarded to receivers.
    pub fn forwarded(&self) -> u64 {
        self.forwarded
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Runs `work` on a member, then sends the datagrams and handles the events that it produced. `None`: the member
    /// does not exist, or it failed and was removed.
    pub(super) fn work<T>(
        &mut self,
        id: MemberId,
        now: Instant,
        send: &mut (impl Send + ?Sized),
        work: impl FnOnce(&mut Member, &mut CollectedOutput) -> Result<T, ConnectionError>,
    ) -> Option<T> {
        let mut collected = std::mem::take(&mut self.collected);
        let done = self.member(id).map(|member| work(member, &mut collected));
        self.collected = collected;
        match done? {
            Ok(done) => {
                self.flush_output(id, now, send);
                Some(done)
            }
            Err(error) => {
                self.collected.datagrams.clear();
                self.collected.events.clear();
                self.remove(id, matches!(error, ConnectionError::Panicked), now, send);
                None
            }
        }
    }

    /// Sends the datagrams and handles the events that work on a member has produced.
    pub(super) fn flush_output(&mut self, id: MemberId, now: Instant, send: &mut (impl Send + ?Sized)) {
        let Self { collected, members, .. } = self;
        let mut member = members.get_mut(id.slot as usize).filter(|member| member.id == id);
        if let Some(member) = &mut member {
            member.update_egress(self.congestion_control, now);
        }
        for (to, mut datagram) in collected.datagrams.drain(..) {
            if member.as_mut().is_none_or(|member| member.correct(&mut datagram, now)) {
                send(to, datagram);
            }
        }
        if !self.collected.events.is_empty() {
            let mut events = std::mem::take(&mut self.collected.events);
            for event in events.drain(..) {
                self.handle_event(id, event, now, send);
            }
            if self.collected.events.is_empty() {
                self.collected.events = events;
            }
        }
        self.queue(id);
    }

    pub(super) fn queue(&mut self, id: MemberId) {
        let Self { members, timers, .. } = self;
        let Some(member) = members.get_mut(id.slot as usize).filter(|member| member.id == id) else { return };
        let wanted = member.timeout().min(member.deadline(SILENT_TIMEOUT));
        if member.queued.is_none_or(|queued| wanted < queued) {
            member.queued = Some(wanted);
            timers.push(Reverse((wanted, id)));
        }
    }

    /// Returns the track of the active speaker of a room.
    pub(super) fn holder(&self, room: u32) -> Option<Source> {
        self.rooms.get(room as usize)?.floor.holder()
    }

    pub(super) fn track(&mut self, source: Source) -> Option<&mut Track> {
        if source.member.is_remote() {
            return self.remotes.as_mut()?.track(source);
        }
        self.member(source.member)?.tracks.get_mut(source.track)
    }

    pub(super) fn remove(&mut self, id: MemberId, panicked: bool, now: Instant, send: &mut (impl Send + ?Sized)) {
        if self.member(id).is_none() {
            return;
        }
        let member = self.members.remove(id.slot as usize);
        self.by_ufrag.remove(&member.ufrag);
        for address in &member.addresses {
            if self.by_address.get(address) == Some(&id.slot) {
                self.by_address.remove(address);
            }
        }
        self.events.push_back(Event::Left { id, panicked });
        self.withdraw(id, &member.tracks, now);
        if let Some(remotes) = &mut self.remotes {
            remotes.remove_receiver(member.room, id);
            let sources: Vec<Source> = member.slots.iter().filter_map(|slot| slot.source).collect();
            sources.into_iter().for_each(|source| self.update_want(source, now));
        }
        let room = &mut self.rooms[member.room as usize];
        room.send_to_mixer(Input::Left(id));
        room.send_to_compositor(compositor::Input::Left(id));
        room.members.retain(|other| *other != id);
        if room.members.is_empty() {
            self.rooms_by_name.remove(&room.name);
            self.rooms.remove(member.room as usize);
            self.remove_remotes(member.room, now);
            return;
        }
        for other in room.members.clone() {
            let Some(other_member) = self.member(other) else { continue };
            for track in &mut other_member.tracks {
                track.receivers.retain(|(receiver, _)| *receiver != id);
            }
            let mut lost = false;
            let may_return = member.role == Role::Member && other_member.role == Role::Member;
            for slot in &mut other_member.slots {
                if let Some(source) = slot.source.filter(|source| source.member == id) {
                    slot.attach(None);
                    let is_screen = member.tracks.get(source.track).is_some_and(|track| track.is_screen);
                    slot.held =
                        may_return.then(|| Held { name: member.name.clone(), is_screen, until: now + HELD_MAX });
                    lost |= !may_return;
                }
            }
            if lost {
                other_member.wants_offer = true;
                self.update_lines(other, now, send);
            }
        }
    }

    pub(super) fn member(&mut self, id: MemberId) -> Option<&mut Member> {
        Some(self.members.get_mut(id.slot as usize).filter(|member| member.id == id)?)
    }
}

impl Room {
    pub(super) fn send_to_mixer(&mut self, input: Input) {
        if let Some(mixer) = &mut self.mixer {
            mixer(input);
        }
    }

    pub(super) fn send_to_compositor(&mut self, input: compositor::Input) {
        if let Some(compositor) = &mut self.compositor {
            compositor(input);
        }
    }
}
