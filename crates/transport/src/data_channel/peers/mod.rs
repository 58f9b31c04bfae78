//! The peers of one shard behind one socket. A datagram finds its peer by the address it comes from, or, the first time, by the name in
//! it; a timer by its time. Nothing is looked for among all of them.
//!
//! - this file: the peers and the switch behind the socket
//! - [`carried`]: sessions of the switch's members

mod carried;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    io::ErrorKind,
    net::SocketAddr,
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use millrace_delivery::ConnId;
use millrace_node::Metrics;
use millrace_protocol::{Code, Error};
use millrace_rtc::{
    Broken, Candidates, Event, Lane, Output, Peer,
    egress::is_media,
    switch::{MemberId, Switch},
    ufrag,
};
use slab::Slab;
use tokio::{io::Interest, net::UdpSocket, sync::Notify};

use carried::Carrier;

use super::{
    Guests,
    datagrams::{Arrivals, BATCH, Datagrams},
    lane::Out,
};
use crate::{framed::Outgoing, limits::Limits, session::Waiting};

/// From the answer to the open channel.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(15);
/// Whoever says nothing for so long has gone: a living client asks at least every few seconds whether the way is still there.
/// Source: RFC 7675, section 5.1: 30 s.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long a closed peer may take to read the last words.
const LINGER: Duration = Duration::from_secs(2);
/// What is kept of a client that is not read from: SCTP cannot be told to wait, so whoever goes on sending is ended.
const INBOX_BYTES_MAX: usize = 256 * 1024;
/// Addresses that one peer may come from: of those that have shown its password the last.
const ADDRESSES_MAX: usize = 4;
/// What an idle peer holds, as measured; ICE, DTLS and SCTP do not say.
const PEER_BYTES: usize = 48 * 1024;
/// Those who send and are sent media in one room.
const ROOM_MEMBERS_MAX: usize = 1000;

/// Names a peer, and never another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerId {
    slot: u32,
    serial: u32,
}

/// Where the switch's datagrams go.
pub type Datagram<'a> = dyn FnMut(SocketAddr, Vec<u8>) + 'a;

/// What the session above has to know.
pub enum Happened {
    Event(Event),
    /// It is read from again: there may be something that has come meanwhile.
    Resume,
    /// A blocked channel has room again.
    Writable(Lane),
    /// It is no more; these were its connections.
    Gone([Option<ConnId>; 2]),
}

pub struct Peers {
    socket: Rc<UdpSocket>,
    candidates: Candidates,
    peers_max: usize,
    entries: Slab<Box<Entry>>,
    serial: u32,
    by_address: HashMap<SocketAddr, u32>,
    by_ufrag: HashMap<Box<str>, u32>,
    /// Rooms whose media go through here: what is no session's is theirs.
    switch: Switch,
    /// The sessions that its members carry.
    carried: HashMap<MemberId, PeerId>,
    blocked: Vec<PeerId>,
    timers: BinaryHeap<Reverse<(Instant, PeerId)>>,
    dirty: Vec<PeerId>,
    datagrams: Datagrams,
    events: VecDeque<(PeerId, Happened)>,
    awake: Rc<Notify>,
    /// Taken out while what is in it is looked at.
    arrivals: Option<Arrivals>,
    metrics: Arc<Metrics>,
}

struct Entry {
    id: PeerId,
    carrier: Carrier,
    /// `None` once the session has begun.
    guests: Option<Guests>,
    lanes: [Out; 2],
    has_latest: bool,
    waiting: Option<Box<Waiting>>,
    is_read: bool,
    /// The beginning of a line, and behind it what has come while nothing was read.
    incoming: Vec<u8>,
    addresses: Vec<SocketAddr>,
    /// The earliest of its timers that is in the heap.
    queued: Option<Instant>,
    /// When it was heard last, its ICE included.
    heard: Instant,
    /// It ends then: it has not come, or its last words were not taken.
    ends: Option<Instant>,
    /// Nothing more will be written.
    is_ending: bool,
    is_dirty: bool,
}

/// Where what a peer says goes.
struct Mouth<'a> {
    id: PeerId,
    socket: &'a UdpSocket,
    datagrams: &'a mut Datagrams,
    events: &'a mut VecDeque<(PeerId, Happened)>,
}

impl Output for Mouth<'_> {
    fn send(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        self.datagrams.push(to, datagram);
        if self.datagrams.is_due() {
            self.datagrams.send(self.socket);
        }
    }

    fn event(&mut self, event: Event) {
        self.events.push_back((self.id, Happened::Event(event)));
    }
}

impl Peers {
    pub fn new(socket: Rc<UdpSocket>, candidates: Candidates, peers_max: usize, metrics: Arc<Metrics>) -> Self {
        let switch = Switch::new(candidates.clone(), peers_max, ROOM_MEMBERS_MAX);
        Self {
            socket,
            candidates,
            peers_max,
            switch,
            carried: HashMap::new(),
            blocked: Vec::new(),
            entries: Slab::new(),
            serial: 0,
            by_address: HashMap::new(),
            by_ufrag: HashMap::new(),
            timers: BinaryHeap::new(),
            dirty: Vec::new(),
            datagrams: Datagrams::default(),
            events: VecDeque::new(),
            awake: Rc::default(),
            arrivals: Some(Arrivals::new()),
            metrics,
        }
    }

    /// Told whenever there is something to do that no socket and no timer tells of.
    pub fn awake(&self) -> Rc<Notify> {
        self.awake.clone()
    }

    pub fn is_full(&self) -> bool {
        self.peers_max > 0 && self.entries.len() >= self.peers_max
    }

    /// A peer for this offer, and the answer.
    ///
    /// Errors: `bad_request`; `unavailable` if there is no room.
    pub fn answer(&mut self, offer: &str, guests: Guests, now: Instant) -> Result<String, Error> {
        if self.is_full() {
            return Err(Error::new(Code::Unavailable, "this server has as many peers as it may; try again"));
        }
        let (peer, answer) = Peer::answer(offer, &self.candidates, now)
            .map_err(|error| Error::new(Code::BadRequest, error.to_string()))?;
        let ufrag = peer.ufrag().into();
        let id = self.add(Carrier::Peer(peer), guests, Some(now + OPEN_TIMEOUT), now);
        self.by_ufrag.insert(ufrag, id.slot);
        self.run(id, now, |peer, mouth| peer.handle_timeout(now, mouth));
        self.awake.notify_one();
        Ok(answer)
    }

    fn add(&mut self, carrier: Carrier, guests: Guests, ends: Option<Instant>, now: Instant) -> PeerId {
        self.serial = self.serial.wrapping_add(1);
        let id = PeerId { slot: self.entries.vacant_key() as u32, serial: self.serial };
        self.entries.insert(Box::new(Entry {
            id,
            carrier,
            guests: Some(guests),
            lanes: [Out::new(Lane::Session), Out::new(Lane::Latest)],
            has_latest: false,
            waiting: None,
            is_read: false,
            incoming: Vec::new(),
            addresses: Vec::new(),
            queued: None,
            heard: now,
            ends,
            is_ending: false,
            is_dirty: false,
        }));
        self.count();
        id
    }

    /// Works on the switch; what it has to send leaves with the next [`Peers::flush`].
    pub fn with_switch<T>(&mut self, work: impl FnOnce(&mut Switch, &mut Datagram<'_>) -> T) -> T {
        let done = self.turn_switch(work);
        self.awake.notify_one();
        done
    }

    pub fn poll_switch(&mut self) -> Option<millrace_rtc::switch::Event> {
        self.switch.poll_event()
    }

    fn turn_switch<T>(&mut self, work: impl FnOnce(&mut Switch, &mut Datagram<'_>) -> T) -> T {
        let Self { switch, socket, datagrams, .. } = self;
        work(switch, &mut |to, datagram| {
            datagrams.push(to, datagram);
            if datagrams.is_due() {
                datagrams.send(&**socket);
            }
        })
    }

    /// Takes datagrams that have come, a batch at most; gives how many.
    pub fn receive(&mut self, limits: &Limits) -> usize {
        let Some(mut arrivals) = self.arrivals.take() else { return 0 };
        // Whether or not the runtime knows already that something has come.
        let (taken, is_emptied) = match arrivals.receive(&*self.socket) {
            Ok(taken) => (taken, taken < BATCH),
            // Else it is what somebody has answered to an earlier datagram: that nobody is there. Its peer finds out by itself.
            Err(error) => (0, error.kind() == ErrorKind::WouldBlock),
        };
        if is_emptied {
            // The runtime tells what comes from now on.
            let _ = self.socket.try_io(Interest::READABLE, || Err::<(), _>(ErrorKind::WouldBlock.into()));
        }
        Metrics::add(&self.metrics.rtc_received, taken as u64);
        // What is passed on goes first, and leaves before the rest is looked at.
        for is_first in [true, false] {
            let of_this_kind = |(_, datagram): &(SocketAddr, &[u8])| is_media(datagram) == is_first;
            for (from, datagram) in arrivals.iter().take(taken).filter(of_this_kind) {
                self.bring(SocketAddr::new(from.ip().to_canonical(), from.port()), datagram, limits);
            }
            if is_first {
                self.datagrams.send(&*self.socket);
            }
        }
        self.arrivals = Some(arrivals);
        taken
    }

    /// A stream stands for this address from now on; gives what it is to send. `None`: somebody else does already.
    pub fn connect_stream(&mut self, from: SocketAddr) -> Option<Rc<Outgoing>> {
        let streams = &mut self.datagrams.streams;
        if streams.contains_key(&from) || self.by_address.contains_key(&from) || self.switch.knows(&from) {
            return None;
        }
        let stream = streams.entry(from).or_default().clone();
        self.metrics.rtc_streams.store(streams.len() as u64, Relaxed);
        Some(stream)
    }

    pub fn disconnect_stream(&mut self, from: SocketAddr) {
        self.datagrams.streams.remove(&from);
        self.metrics.rtc_streams.store(self.datagrams.streams.len() as u64, Relaxed);
    }

    /// A datagram that came over a stream. True if it was somebody's.
    pub fn take(&mut self, from: SocketAddr, datagram: &[u8], limits: &Limits) -> bool {
        Metrics::add(&self.metrics.rtc_received, 1);
        self.awake.notify_one();
        self.bring(from, datagram, limits)
    }

    /// True if it was somebody's.
    fn bring(&mut self, source: SocketAddr, datagram: &[u8], limits: &Limits) -> bool {
        let is_somebodys = self.hand(source, datagram, limits).unwrap_or(false);
        Metrics::add(&self.metrics.rtc_dropped, u64::from(!is_somebodys));
        is_somebodys
    }

    fn hand(&mut self, source: SocketAddr, datagram: &[u8], limits: &Limits) -> Option<bool> {
        let known = self.by_address.get(&source).copied();
        if known.is_none() && !self.switch.knows(&source) && !limits.take_datagram(source.ip()) {
            return None;
        }
        // A request says whom it is for: somebody may begin anew from where somebody else was.
        let slot = match ufrag(datagram) {
            Some(name) => self.by_ufrag.get(name).copied(),
            None => known,
        };
        let Some(slot) = slot else {
            return Some(
                self.turn_switch(|switch, send| switch.handle_datagram(Instant::now(), source, datagram, send)),
            );
        };
        let id = self.entries.get(slot as usize)?.id;
        let to = self.candidates.local(source)?;
        let now = Instant::now();
        let is_good = self.run(id, now, |peer, mouth| peer.handle_datagram(now, source, to, datagram, mouth))?;
        if let Some(entry) = self.entry(id).filter(|_| is_good) {
            entry.heard = now;
        }
        if is_good && known != Some(slot) {
            self.learn(id, source);
        }
        Some(is_good)
    }

    /// The peer has proved that it is behind this address.
    fn learn(&mut self, id: PeerId, source: SocketAddr) {
        let Some(entry) = self.entries.get_mut(id.slot as usize).filter(|entry| entry.id == id) else { return };
        if entry.addresses.len() >= ADDRESSES_MAX {
            let oldest = entry.addresses.remove(0);
            self.by_address.remove(&oldest);
        }
        entry.addresses.push(source);
        self.by_address.insert(source, id.slot);
    }

    /// When [`Peers::handle_timeouts`] wants to be called; `None` while there is nothing to wait for.
    pub fn timeout(&self) -> Option<Instant> {
        let first = self.timers.peek().map(|Reverse((at, _))| *at);
        first.into_iter().chain(self.switch.timeout()).min()
    }

    pub fn handle_timeouts(&mut self, now: Instant) {
        if self.switch.timeout().is_some_and(|timeout| timeout <= now) {
            self.turn_switch(|switch, send| switch.handle_timeouts(now, send));
        }
        let mut due = Vec::new();
        while let Some(Reverse((at, id))) = self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.timers.pop();
            if let Some(entry) = self.entry(id).filter(|entry| entry.queued == Some(at)) {
                entry.queued = None;
                due.push(id);
            }
        }
        for id in due {
            let Some(entry) = self.entry(id) else { continue };
            match entry.ends {
                Some(ends) if ends <= now && entry.is_ending => self.finish(id),
                Some(ends) if ends <= now => self.remove(id),
                _ if entry.is_silent(now) => self.remove(id),
                _ if entry.peer().is_some_and(|peer| peer.timeout() <= now) => {
                    self.run(id, now, |peer, mouth| peer.handle_timeout(now, mouth));
                }
                _ => self.settle(id, now),
            }
        }
    }

    /// Sends what was written since the last time, and looks for what has come between many of them.
    pub fn flush(&mut self, limits: &Limits) {
        let dirty = std::mem::take(&mut self.dirty);
        let now = Instant::now();
        for (i, id) in dirty.iter().enumerate() {
            if i > 0 && i.is_multiple_of(BATCH) {
                while self.receive(limits) == BATCH {}
            }
            let Some(entry) = self.entry(*id) else { continue };
            entry.is_dirty = false;
            let mut wrote = false;
            for lane in Lane::ALL {
                wrote |= self.flush_lane(*id, lane, now);
            }
            if wrote || self.entry(*id).is_some_and(|entry| entry.is_ending) {
                self.settle(*id, now);
            }
        }
        if self.dirty.is_empty() {
            self.dirty = dirty;
            self.dirty.clear();
        }
        self.datagrams.send(&*self.socket);
        Metrics::add(&self.metrics.rtc_dropped, std::mem::take(&mut self.datagrams.lost));
    }

    /// True if there was something.
    fn flush_lane(&mut self, id: PeerId, lane: Lane, now: Instant) -> bool {
        let (mut from, mut bytes) = (0, 0);
        while let Some(message) = self.entry(id).and_then(|entry| entry.lanes[lane as usize].next_message(&mut from)) {
            bytes += message.len();
            let written = match self.entry(id).map(|entry| &entry.carrier) {
                Some(Carrier::Member(member)) => {
                    let member = *member;
                    Some(self.write_carried(member, lane, &message, now))
                }
                _ => self.work(id, |peer, mouth| peer.write(now, lane, true, &message, mouth)),
            };
            match written {
                Some(true) => {}
                // There is always room for as much as was taken; so the channel has gone, and with it the session.
                Some(false) if lane == Lane::Session => {
                    self.remove(id);
                    return false;
                }
                Some(false) => break,
                None => return false,
            }
        }
        if let Some(entry) = self.entry(id).filter(|_| from > 0) {
            entry.lanes[lane as usize].sent(bytes, now);
        }
        from > 0
    }

    /// The system takes no more datagrams for now.
    pub fn is_stuck(&self) -> bool {
        self.datagrams.is_stuck()
    }

    pub fn poll_event(&mut self) -> Option<(PeerId, Happened)> {
        self.take_carried();
        self.events.pop_front()
    }

    /// A channel is open. Gives whom the session is for, once.
    pub fn open(&mut self, id: PeerId, lane: Lane) -> Option<Guests> {
        let entry = self.entry(id)?;
        match lane {
            Lane::Session => {
                entry.ends = None;
                entry.guests.take()
            }
            Lane::Latest => {
                entry.has_latest = true;
                None
            }
        }
    }

    pub fn wants_latest(&mut self, id: PeerId) -> bool {
        let conns = [Lane::Session, Lane::Latest].map(|lane| self.conn(id, lane));
        self.entry(id).is_some_and(|entry| entry.has_latest) && matches!(conns, [Some(_), None])
    }

    pub fn connect(&mut self, id: PeerId, lane: Lane, conn: ConnId) {
        if let Some(entry) = self.entry(id) {
            entry.lanes[lane as usize].conn = Some(conn);
        }
    }

    pub fn conn(&self, id: PeerId, lane: Lane) -> Option<ConnId> {
        let entry = self.entries.get(id.slot as usize).filter(|entry| entry.id == id)?;
        entry.lanes[lane as usize].conn
    }

    pub fn waiting(&mut self, id: PeerId) -> Option<&mut Option<Box<Waiting>>> {
        Some(&mut self.entry(id)?.waiting)
    }

    pub fn incoming_bytes(&self, id: PeerId) -> usize {
        let entry = self.entries.get(id.slot as usize).filter(|entry| entry.id == id);
        entry.map_or(0, |entry| entry.incoming.len())
    }

    /// Whether what comes of it is looked at.
    pub fn watch(&mut self, id: PeerId, read: bool) {
        let Some(entry) = self.entry(id) else { return };
        let begins = read && !std::mem::replace(&mut entry.is_read, read);
        if begins && !entry.incoming.is_empty() {
            self.events.push_back((id, Happened::Resume));
            self.awake.notify_one();
        }
    }

    /// Puts what has come behind what was there, and gives the whole lines of it, if they are to be looked at now.
    ///
    /// Errors: the session whose line is longer than `max`, or that goes on although nothing of it is read.
    pub fn take_lines(&mut self, id: PeerId, data: Vec<u8>, max: usize) -> Result<Option<(ConnId, Vec<u8>)>, ConnId> {
        let Some(entry) = self.entry(id) else { return Ok(None) };
        let Some(conn) = entry.lanes[Lane::Session as usize].conn else { return Ok(None) };
        entry.incoming.extend_from_slice(&data);
        if !entry.is_read {
            return if entry.incoming.len() > INBOX_BYTES_MAX.max(max) { Err(conn) } else { Ok(None) };
        }
        let end = memchr::memrchr(b'\n', &entry.incoming).map_or(0, |at| at + 1);
        let rest = entry.incoming.split_off(end);
        let lines = std::mem::replace(&mut entry.incoming, rest);
        match entry.incoming.len() > max {
            true => Err(conn),
            false => Ok(Some((conn, lines)).filter(|(_, lines)| !lines.is_empty())),
        }
    }

    /// Takes what leaves with the next [`Peers::flush`]; gives how much there was room for.
    pub fn write(&mut self, id: PeerId, lane: Lane, bytes: &[u8]) -> usize {
        let Some(entry) = self.entry(id) else { return bytes.len() };
        // A heartbeat: ICE has its own, and the session's channel carries one.
        if lane == Lane::Latest && bytes == b"\n" {
            return bytes.len();
        }
        let taken = entry.lanes[lane as usize].take(bytes, Instant::now());
        self.mark_dirty(id);
        if taken < bytes.len() {
            self.watch_blocked(id);
        }
        taken
    }

    fn mark_dirty(&mut self, id: PeerId) {
        let Some(entry) = self.entry(id) else { return };
        if !std::mem::replace(&mut entry.is_dirty, true) {
            self.dirty.push(id);
            if self.dirty.len() == 1 {
                self.awake.notify_one();
            }
        }
    }

    /// Nothing more will be written to this connection: what was goes first, then the peer.
    pub fn end(&mut self, id: PeerId, lane: Lane) {
        let Some(entry) = self.entry(id) else { return };
        entry.lanes[lane as usize].conn = None;
        match lane {
            Lane::Latest => entry.has_latest = false,
            Lane::Session => {
                entry.is_ending = true;
                entry.ends = Some(Instant::now() + LINGER);
                self.mark_dirty(id);
            }
        }
    }

    /// It has gone.
    pub fn remove(&mut self, id: PeerId) {
        if self.entry(id).is_none() {
            return;
        }
        let entry = self.entries.remove(id.slot as usize);
        match &entry.carrier {
            Carrier::Peer(peer) => drop(self.by_ufrag.remove(peer.ufrag())),
            Carrier::Member(member) => drop(self.carried.remove(member)),
        }
        for address in &entry.addresses {
            if self.by_address.get(address) == Some(&id.slot) {
                self.by_address.remove(address);
            }
        }
        if entry.guests.is_some() && entry.peer().is_some() {
            Metrics::add(&self.metrics.rtc_failed, 1);
        }
        self.events.push_back((id, Happened::Gone(entry.lanes.each_ref().map(|out| out.conn))));
        self.awake.notify_one();
        self.count();
    }

    /// Says good-bye to it.
    fn finish(&mut self, id: PeerId) {
        let Self { entries, socket, datagrams, events, .. } = self;
        if let Some(entry) = entries.get_mut(id.slot as usize).filter(|entry| entry.id == id) {
            match &mut entry.carrier {
                Carrier::Peer(peer) => peer.close(&mut Mouth { id, socket, datagrams, events }),
                Carrier::Member(member) => {
                    let member = *member;
                    self.turn_switch(|switch, send| switch.close_data(member, Instant::now(), send));
                }
            }
            self.remove(id);
        }
    }

    /// Does something to a peer, and what follows from it; `None` if it has gone, or goes now.
    fn run<T>(
        &mut self,
        id: PeerId,
        now: Instant,
        work: impl FnOnce(&mut Peer, &mut Mouth<'_>) -> Result<T, Broken>,
    ) -> Option<T> {
        let done = self.work(id, work)?;
        self.settle(id, now);
        Some(done)
    }

    /// The same; what follows has to be seen to.
    fn work<T>(&mut self, id: PeerId, work: impl FnOnce(&mut Peer, &mut Mouth<'_>) -> Result<T, Broken>) -> Option<T> {
        let Self { entries, socket, datagrams, events, .. } = self;
        let entry = entries.get_mut(id.slot as usize).filter(|entry| entry.id == id)?;
        let Carrier::Peer(peer) = &mut entry.carrier else { return None };
        match work(peer, &mut Mouth { id, socket, datagrams, events }) {
            Ok(done) => Some(done),
            Err(broken) => {
                if matches!(broken, Broken::Panicked) {
                    Metrics::add(&self.metrics.rtc_panicked, 1);
                    tracing::debug!("a peer's library has panicked; the peer is ended");
                }
                tracing::debug!(%broken, "a peer has ended");
                self.remove(id);
                None
            }
        }
    }

    /// A peer has been worked on: its channels may have room again, its next timer may be earlier, and it may have nothing left to say.
    fn settle(&mut self, id: PeerId, now: Instant) {
        let Self { entries, events, timers, switch, .. } = self;
        let Some(entry) = entries.get_mut(id.slot as usize).filter(|entry| entry.id == id) else { return };
        let Entry { carrier, lanes, is_ending, .. } = &mut **entry;
        for (lane, out) in Lane::ALL.into_iter().zip(lanes) {
            if !*is_ending && !out.is_watched(now) {
                continue;
            }
            let buffered = match carrier {
                Carrier::Peer(peer) => peer.buffered(lane),
                Carrier::Member(member) => switch.buffered_data(*member, lane),
            };
            if out.set_buffered(buffered, now) {
                events.push_back((id, Happened::Writable(lane)));
            }
        }
        let wanted = match &entry.carrier {
            Carrier::Peer(peer) => Some(peer.timeout().min(entry.ends.unwrap_or(entry.heard + SILENCE_MAX))),
            Carrier::Member(_) => entry.ends,
        };
        if let Some(wanted) = wanted.filter(|wanted| entry.queued.is_none_or(|queued| *wanted < queued)) {
            entry.queued = Some(wanted);
            timers.push(Reverse((wanted, id)));
        }
        if entry.is_ending && entry.lanes[Lane::Session as usize].is_empty() {
            self.finish(id);
        }
    }

    fn entry(&mut self, id: PeerId) -> Option<&mut Entry> {
        Some(self.entries.get_mut(id.slot as usize).filter(|entry| entry.id == id)?)
    }

    fn count(&self) {
        self.metrics.rtc_peers.store(self.entries.len() as u64, Relaxed);
    }

    /// Memory held here, in bytes: of what the library holds of a peer that is idle, an estimate.
    pub fn bytes(&self) -> usize {
        let lanes = |entry: &Entry| entry.lanes.iter().map(Out::bytes).sum::<usize>() + entry.incoming.capacity();
        let own = |entry: &Entry| if entry.peer().is_some() { PEER_BYTES } else { 0 };
        self.entries.iter().map(|(_, entry)| own(entry) + lanes(entry)).sum()
    }
}
