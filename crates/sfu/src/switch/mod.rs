//! Selective forwarding unit (SFU): forwards the media of each member of a room to the others, without decoding.
//!
//! - this file: rooms and members; how members join, are found and leave
//! - [`lines`]: assignment of tracks to the lines of each member's SDP
//! - [`relay`]: forwarding of packets and of keyframe requests
//! - [`member`]: one connection; offers and answers
//! - [`feed`]: the one stream that a receiver sees, whichever layer is forwarded
//! - [`track`]: a published track, its layers and their bit rates
//! - [`allocate`]: choice of the layer of each video within a member's bandwidth estimate
//! - [`floor`]: active speaker
//! - [`data`]: data channels on the same connection as the media
//! - [`mix`]: rooms with mixed audio
//!
//! Only the SFU requests keyframes from a publisher: one request serves all receivers. The bandwidth of each receiver
//! is estimated separately; the reports of one receiver change nothing for another.

mod allocate;
mod data;
mod feed;
mod floor;
mod lines;
mod member;
mod mix;
mod relay;
mod track;

#[cfg(test)]
mod tests;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    net::SocketAddr,
    time::{Duration, Instant},
};

use millrace_rtc::{BadOffer, Broken, Candidates, ufrag};
use slab::Slab;
use str0m::media::MediaKind;

pub use crate::member_id::MemberId;
use crate::mixer::Input;
pub use allocate::Reason;
use floor::Floor;
use member::{LibraryOutput, Line, Member};
pub use mix::MIX;
use track::Track;

/// Maximum time from the answer until the connection is established.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum time without a valid datagram from a member. Source: RFC 7675, section 5.1.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Maximum time for a member that has lost its network path to restore it.
const RESTART_MAX: Duration = Duration::from_secs(15);
/// Maximum number of authenticated addresses kept per member; the oldest is evicted.
const ADDRESSES_MAX: usize = 4;
/// Interval at which layers are chosen. They are also chosen whenever an estimate changes.
const TICK: Duration = Duration::from_secs(1);
/// Maximum number of tracks that one member sends, and of lines in a viewer's own offer. A member in role
/// [`Role::Member`] receives at most the square of it.
const TRACKS_MAX: usize = 8;

/// One track of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source {
    member: MemberId,
    track: usize,
}

/// Direction of a member's media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends, and receives the tracks of the others, which are offered by [`Event::Offer`].
    Member,
    /// Sends only (WHIP).
    Publisher,
    /// Receives tracks over the lines of its own offer (WHEP).
    Viewer,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Media can flow.
    Connected(MemberId),
    /// Offer for a member; the answer goes to [`Switch::accept_answer`].
    Offer(MemberId, String),
    /// The member was removed. `panicked`: the cause was a panic in the library.
    Left { id: MemberId, panicked: bool },
}

/// SFU of one shard, with all its rooms.
pub struct Switch {
    candidates: Candidates,
    members_max: usize,
    room_members_max: usize,
    members: Slab<Box<Member>>,
    serial: u32,
    rooms: Slab<Room>,
    rooms_by_name: HashMap<Box<str>, u32>,
    by_address: HashMap<SocketAddr, u32>,
    by_ufrag: HashMap<Box<str>, u32>,
    timers: BinaryHeap<Reverse<(Instant, MemberId)>>,
    events: VecDeque<Event>,
    data: VecDeque<(MemberId, millrace_rtc::Event)>,
    /// Time of the next choice of layers. `None` while there are no members.
    next_tick: Option<Instant>,
    /// Reusable buffer for the output of library calls, so that no packet needs an allocation.
    brought: LibraryOutput,
    forwarded: u64,
}

struct Room {
    name: Box<str>,
    members: Vec<MemberId>,
    floor: Floor,
    /// Receives the audio of the room for mixing. `None`: audio is forwarded.
    mixer: Option<ToMixer>,
}

/// Callback that receives the audio of a mixed room.
pub type ToMixer = Box<dyn FnMut(Input)>;

/// Reason why a request of a client or a member is rejected.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error(transparent)]
    Offer(#[from] BadOffer),
    #[error("the room has as many members as it may")]
    RoomFull,
    #[error("the switching unit has as many members as it may")]
    Full,
    #[error("there is no such member")]
    Gone,
}

/// Statistics of one member's connection.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Report {
    pub name: String,
    pub is_connected: bool,
    /// The member is the active speaker, or was the last one.
    pub has_floor: bool,
    /// Bandwidth estimate of the path to the member in kbit/s.
    pub estimate_kbps: Option<u64>,
    pub sends: Vec<Sends>,
    pub receives: Vec<Receives>,
}

#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Sends {
    pub kind: &'static str,
    /// Bit rate of each layer, in the order of their first packets.
    pub layers_kbps: Vec<u64>,
    /// A moderator has muted this track: it is not forwarded.
    pub is_muted: bool,
}

#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Receives {
    pub from: String,
    pub kind: &'static str,
    /// Index of the source's layer that is being sent.
    pub layer: Option<usize>,
    pub layer_switches: u64,
    /// Last change of the selected layer.
    pub last_switch: Option<LayerSwitch>,
    /// The receiver waits for a keyframe.
    pub is_waiting: bool,
    pub packets: u64,
    pub bytes: u64,
}

/// Change of the selected layer of one video.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct LayerSwitch {
    pub from: usize,
    pub to: usize,
    pub why: Reason,
    pub ago_ms: u64,
}

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
            brought: LibraryOutput::default(),
            forwarded: 0,
        }
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

    /// Adds a member for this offer. Returns its identifier and the answer. `name`: the name that the other members
    /// see.
    ///
    /// Errors: [`Refused::Offer`] if the offer is invalid; [`Refused::Full`] and [`Refused::RoomFull`] at the limit of
    /// members.
    pub fn join(
        &mut self,
        room: &str,
        (name, role): (&str, Role),
        offer: &str,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) -> Result<(MemberId, String), Refused> {
        if self.members.len() >= self.members_max {
            return Err(Refused::Full);
        }
        let known = self.rooms_by_name.get(room).copied();
        if known.is_some_and(|room| self.rooms[room as usize].members.len() >= self.room_members_max) {
            return Err(Refused::RoomFull);
        }
        let room_at = known.unwrap_or_else(|| self.rooms.vacant_key() as u32);
        self.serial = self.serial.wrapping_add(1);
        let id = MemberId { slot: self.members.vacant_key() as u32, serial: self.serial };
        let mut brought = std::mem::take(&mut self.brought);
        let who = (id, room_at, name, role);
        let made = Member::answer(who, offer, &self.candidates, now, &mut brought);
        self.brought = brought;
        let (member, answer) = match made {
            Ok(made) => made,
            Err(error) => {
                self.brought.events.clear();
                return Err(error.into());
            }
        };
        self.by_ufrag.insert(member.ufrag.clone(), id.slot);
        self.members.insert(Box::new(member));
        self.next_tick.get_or_insert(now + TICK);
        if known.is_none() {
            self.rooms.insert(Room { name: room.into(), members: Vec::new(), floor: Floor::default(), mixer: None });
            self.rooms_by_name.insert(room.into(), room_at);
        }
        self.rooms[room_at as usize].members.push(id);
        self.settle(id, now, send);
        self.work(id, now, send, |member, brought| {
            member.connection.handle_timeout(now, |_, said| {
                brought.tell(said);
                Ok(())
            })
        });
        Ok((id, answer))
    }

    /// Accepts another offer of a member, which changes its tracks or restarts ICE. Returns the answer.
    ///
    /// Errors: [`Refused::Offer`] if the offer is invalid; [`Refused::Gone`] if the member does not exist.
    pub fn accept_offer(
        &mut self,
        id: MemberId,
        offer: &str,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) -> Result<String, Refused> {
        let mut brought = std::mem::take(&mut self.brought);
        let Some(member) = self.member(id) else { return Err(Refused::Gone) };
        let before = member.ufrag.clone();
        let answer = member.accept_offer(offer, &mut brought);
        let after = member.ufrag.clone();
        self.brought = brought;
        self.by_ufrag.remove(&before);
        self.by_ufrag.insert(after, id.slot);
        self.settle(id, now, send);
        // The client's offer may have rolled back a pending offer of the server: make that offer again.
        self.offer(id, now, send);
        Ok(answer?)
    }

    /// Restarts ICE for a publisher or viewer with the client's new ICE credentials, `(ufrag, password)`. Returns an
    /// SDP fragment with the server's new credentials and its candidates.
    ///
    /// Errors: [`Refused::Gone`] if the member does not exist or has the role [`Role::Member`]; [`Refused::Offer`] if
    /// the credentials are invalid.
    pub fn restart(
        &mut self,
        id: MemberId,
        (ufrag, password): (&str, &str),
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) -> Result<String, Refused> {
        let Some(offer) = self.member(id).and_then(|member| member.offer.clone()) else { return Err(Refused::Gone) };
        let renamed = offer.lines().map(|line| match line {
            _ if line.starts_with("a=ice-ufrag:") => format!("a=ice-ufrag:{ufrag}\r\n"),
            _ if line.starts_with("a=ice-pwd:") => format!("a=ice-pwd:{password}\r\n"),
            _ => format!("{line}\r\n"),
        });
        let answer = self.accept_offer(id, &renamed.collect::<String>(), now, send)?;
        // The lines are bundled, so one of them stands for all.
        let line = answer.split_inclusive("\r\n").skip_while(|line| !line.starts_with("m="));
        let line = line.enumerate().take_while(|(at, line)| *at == 0 || !line.starts_with("m="));
        let told = ["m=", "a=mid:", "a=ice-ufrag:", "a=ice-pwd:", "a=candidate:", "a=end-of-candidates"];
        // Only UDP candidates: whip-whep, the client that browsers use, puts commas between several candidates.
        let is_told = |line: &&str| told.iter().any(|name| line.starts_with(name)) && !line.contains(" tcptype ");
        let line = line.map(|(_, line)| line).filter(is_told);
        Ok(std::iter::once("a=ice-lite\r\n").chain(line).collect())
    }

    /// Accepts the answer to an [`Event::Offer`].
    ///
    /// Errors: [`Refused::Offer`] if the answer is invalid; [`Refused::Gone`] if the member does not exist.
    pub fn accept_answer(
        &mut self,
        id: MemberId,
        answer: &str,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) -> Result<(), Refused> {
        let mut brought = std::mem::take(&mut self.brought);
        let Some(member) = self.member(id) else { return Err(Refused::Gone) };
        let made = member.accept_answer(answer, &mut brought);
        self.brought = brought;
        self.settle(id, now, send);
        let lines = made?;
        let first = self.member(id).map_or(0, |member| member.slots.len() - lines.len());
        for (at, Line { kind, source, .. }) in lines.into_iter().enumerate() {
            let is_there =
                source.member == MemberId::MIXER || self.track(source).is_some_and(|track| track.kind == kind);
            if is_there {
                self.attach(id, first + at, source, now, send);
            } else if let Some(member) = self.member(id) {
                // The track ended while the offer was unanswered.
                member.wants_offer = true;
            }
        }
        self.offer(id, now, send);
        Ok(())
    }

    /// Removes a member and notifies the client.
    pub fn leave(&mut self, id: MemberId, now: Instant, send: &mut (impl Send + ?Sized)) {
        let mut brought = std::mem::take(&mut self.brought);
        if let Some(member) = self.member(id) {
            member.connection.close(|_, said| {
                brought.tell(said);
                Ok(())
            });
            brought.events.clear();
        }
        self.brought = brought;
        self.settle(id, now, send);
        self.remove(id, false, now, send);
    }

    /// Handles a datagram. Returns true if it belongs to a member.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        from: SocketAddr,
        datagram: &[u8],
        send: &mut (impl Send + ?Sized),
    ) -> bool {
        let known = self.by_address.get(&from).copied();
        let slot = match ufrag(datagram) {
            Some(name) => self.by_ufrag.get(name).copied(),
            None => known,
        };
        let Some(id) = slot.and_then(|slot| self.members.get(slot as usize)).map(|member| member.id) else {
            return false;
        };
        let Some(to) = self.candidates.local(from) else { return false };
        let work = |member: &mut Member, brought: &mut LibraryOutput| {
            member.handle_datagram(now, (from, to), datagram, brought)
        };
        let is_good = self.work(id, now, send, work);
        if is_good != Some(true) {
            return false;
        }
        if let Some(member) = self.member(id) {
            member.last_received = now;
            if known != Some(id.slot) {
                if member.addresses.len() >= ADDRESSES_MAX {
                    let oldest = member.addresses.remove(0);
                    self.by_address.remove(&oldest);
                }
                if let Some(member) = self.member(id) {
                    member.addresses.push(from);
                }
                self.by_address.insert(from, id.slot);
            }
        }
        if self.member(id).is_some_and(|member| member.has_estimate_changed()) {
            self.choose_layers(id, now, send);
        }
        true
    }

    /// Returns when [`Switch::handle_timeouts`] must be called.
    pub fn timeout(&self) -> Option<Instant> {
        let first = self.timers.peek().map(|Reverse((at, _))| *at);
        first.into_iter().chain(self.next_tick).min()
    }

    pub fn handle_timeouts(&mut self, now: Instant, send: &mut (impl Send + ?Sized)) {
        let mut due = Vec::new();
        while let Some(Reverse((at, id))) = self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.timers.pop();
            if let Some(member) = self.member(id).filter(|member| member.queued == Some(at)) {
                member.queued = None;
                due.push(id);
            }
        }
        if self.next_tick.is_some_and(|at| at <= now) {
            self.next_tick = (!self.members.is_empty()).then_some(now + TICK);
            self.tick(now, send);
        }
        for id in due {
            let Some(member) = self.member(id) else { continue };
            if member.deadline(SILENCE_MAX) <= now {
                self.leave(id, now, send);
            } else if member.timeout() <= now {
                self.work(id, now, send, |member, brought| member.handle_timeout(now, brought));
            } else {
                self.queue(id);
            }
        }
    }

    /// Returns the reports of all members of a room, in the order of joining.
    pub fn reports(&self, room: &str, now: Instant) -> Vec<Report> {
        let Some(room) = self.rooms_by_name.get(room) else { return Vec::new() };
        let members = self.rooms[*room as usize].members.iter().filter_map(|id| self.members.get(id.slot as usize));
        members.map(|member| self.report(member, now)).collect()
    }

    /// Returns the report of one member. `None`: the member does not exist.
    pub fn report_of(&self, id: MemberId, now: Instant) -> Option<Report> {
        let member = self.members.get(id.slot as usize).filter(|member| member.id == id)?;
        Some(self.report(member, now))
    }

    fn report(&self, member: &Member, now: Instant) -> Report {
        let sends = member.tracks.iter().map(|track| Sends {
            kind: kind_name(track.kind),
            layers_kbps: track.layers.iter().map(|layer| layer.bits_per_s(now) / 1000).collect(),
            is_muted: track.is_muted,
        });
        let receives = member.slots.iter().filter_map(|slot| {
            let from = match slot.source?.member {
                MemberId::MIXER => MIX,
                from => &*self.members.get(from.slot as usize)?.name,
            };
            Some(Receives {
                from: from.to_owned(),
                kind: kind_name(slot.kind),
                layer: slot.feed.layer(),
                layer_switches: slot.feed.switches,
                last_switch: slot.switched.map(|(switch, at)| LayerSwitch {
                    ago_ms: now.saturating_duration_since(at).as_millis() as u64,
                    ..switch
                }),
                is_waiting: slot.feed.is_waiting(),
                packets: slot.sent_packets,
                bytes: slot.sent_bytes,
            })
        });
        Report {
            name: member.name.to_string(),
            is_connected: member.is_connected,
            has_floor: self.holder(member.room).is_some_and(|holder| holder.member == member.id),
            estimate_kbps: member.estimate.map(|estimate| estimate / 1000),
            sends: sends.collect(),
            receives: receives.collect(),
        }
    }

    /// Runs `work` on a member, then sends the datagrams and handles the events that it produced. `None`: the member
    /// does not exist, or it failed and was removed.
    fn work<T>(
        &mut self,
        id: MemberId,
        now: Instant,
        send: &mut (impl Send + ?Sized),
        work: impl FnOnce(&mut Member, &mut LibraryOutput) -> Result<T, Broken>,
    ) -> Option<T> {
        let mut brought = std::mem::take(&mut self.brought);
        let done = self.member(id).map(|member| work(member, &mut brought));
        self.brought = brought;
        match done? {
            Ok(done) => {
                self.settle(id, now, send);
                Some(done)
            }
            Err(error) => {
                self.brought.datagrams.clear();
                self.brought.events.clear();
                self.remove(id, matches!(error, Broken::Panicked), now, send);
                None
            }
        }
    }

    /// Sends the datagrams and handles the events that work on a member has produced.
    fn settle(&mut self, id: MemberId, now: Instant, send: &mut (impl Send + ?Sized)) {
        let Self { brought, members, .. } = self;
        let mut member = members.get_mut(id.slot as usize).filter(|member| member.id == id);
        if let Some(member) = &mut member {
            member.settle(now);
        }
        for (to, mut datagram) in brought.datagrams.drain(..) {
            if member.as_mut().is_none_or(|member| member.correct(&mut datagram, now)) {
                send(to, datagram);
            }
        }
        if !self.brought.events.is_empty() {
            let mut events = std::mem::take(&mut self.brought.events);
            for event in events.drain(..) {
                self.handle_event(id, event, now, send);
            }
            if self.brought.events.is_empty() {
                self.brought.events = events;
            }
        }
        self.queue(id);
    }

    fn queue(&mut self, id: MemberId) {
        let Self { members, timers, .. } = self;
        let Some(member) = members.get_mut(id.slot as usize).filter(|member| member.id == id) else { return };
        let wanted = member.timeout().min(member.deadline(SILENCE_MAX));
        if member.queued.is_none_or(|queued| wanted < queued) {
            member.queued = Some(wanted);
            timers.push(Reverse((wanted, id)));
        }
    }

    /// Returns the track of the active speaker of a room.
    fn holder(&self, room: u32) -> Option<Source> {
        self.rooms.get(room as usize)?.floor.holder()
    }

    fn track(&mut self, source: Source) -> Option<&mut Track> {
        self.member(source.member)?.tracks.get_mut(source.track)
    }

    fn remove(&mut self, id: MemberId, panicked: bool, now: Instant, send: &mut (impl Send + ?Sized)) {
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
        let room = &mut self.rooms[member.room as usize];
        room.tell_mixer(Input::Left(id));
        room.members.retain(|other| *other != id);
        if room.members.is_empty() {
            self.rooms_by_name.remove(&room.name);
            self.rooms.remove(member.room as usize);
            return;
        }
        for other in room.members.clone() {
            let Some(other_member) = self.member(other) else { continue };
            for track in &mut other_member.tracks {
                track.receivers.retain(|(receiver, _)| *receiver != id);
            }
            let mut lost = false;
            for slot in &mut other_member.slots {
                if slot.source.is_some_and(|source| source.member == id) {
                    slot.attach(None);
                    lost = true;
                }
            }
            if lost {
                other_member.wants_offer = true;
                self.wish(other, now, send);
            }
        }
    }

    fn member(&mut self, id: MemberId) -> Option<&mut Member> {
        Some(self.members.get_mut(id.slot as usize).filter(|member| member.id == id)?)
    }
}

impl Room {
    fn tell_mixer(&mut self, input: Input) {
        if let Some(tell) = &mut self.mixer {
            tell(input);
        }
    }
}

fn kind_name(kind: MediaKind) -> &'static str {
    match kind {
        MediaKind::Audio => "audio",
        MediaKind::Video => "video",
    }
}
