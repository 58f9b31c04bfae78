//! Peers of one shard behind one socket. A datagram is matched to its peer by source address, or by the ICE name in it
//! when the address is new. Timers are kept in a heap. No operation scans all peers, except for metrics.
//!
//! - this file: the peers and the switch behind the socket
//! - [`carried`]: sessions of the switch's participants

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
use millrace_rtc::{Broken, Candidates, Event, Lane, Output, Peer, ufrag};
use millrace_sfu::{
    egress::is_media,
    switch::{MemberId, Switch},
};
use slab::Slab;
use tokio::{io::Interest, net::UdpSocket, sync::Notify};

use carried::Carrier;

use super::{
    Guests,
    datagrams::{Arrivals, BATCH, Datagrams},
    lane::Out,
};
use crate::{admission::limits::Limits, framed::Outgoing, session::Waiting};

/// Maximum time from the answer until the channel opens.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(15);
/// Silent peer timeout. A live client sends a consent check at least every few seconds. Source: RFC 7675, section 5.1:
/// 30 s.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Maximum time for a closing peer to acknowledge its last data.
const LINGER: Duration = Duration::from_secs(2);
/// Maximum bytes kept from a client while reading is paused. SCTP has no way to stop the sender, so a client that sends
/// more is closed.
const INBOX_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of addresses per peer. Only addresses that proved the ICE password are kept, the newest of them.
const ADDRESSES_MAX: usize = 4;
/// Memory of an idle peer, in bytes, as measured; the libraries for ICE, DTLS and SCTP do not report it.
const PEER_BYTES: usize = 48 * 1024;
/// Maximum number of participants in one room that send or receive media.
const ROOM_MEMBERS_MAX: usize = 1000;

/// Id of a peer. An id is never reused for another peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerId {
    slot: u32,
    serial: u32,
}

/// Callback that sends a datagram of the switch to an address.
pub type Datagram<'a> = dyn FnMut(SocketAddr, Vec<u8>) + 'a;

/// Event for the session layer.
pub enum PeerEvent {
    Event(Event),
    /// Reading has resumed; data may have arrived in the meantime.
    Resume,
    /// A blocked channel has room again.
    Writable(Lane),
    /// The peer was removed; the ids are those of its connections.
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
    /// Rooms whose media pass through this shard. Handles every datagram that belongs to no peer.
    switch: Switch,
    /// Sessions carried by participants of the switch.
    carried: HashMap<MemberId, PeerId>,
    blocked: Vec<PeerId>,
    timers: BinaryHeap<Reverse<(Instant, PeerId)>>,
    dirty: Vec<PeerId>,
    datagrams: Datagrams,
    events: VecDeque<(PeerId, PeerEvent)>,
    awake: Rc<Notify>,
    /// `None` while its datagrams are handled.
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
    /// Received bytes not yet handled: the beginning of a line, or everything received while reading is paused.
    incoming: Vec<u8>,
    addresses: Vec<SocketAddr>,
    /// Earliest timer of this peer in the heap.
    queued: Option<Instant>,
    /// Time of the last valid datagram from the peer, ICE included.
    heard: Instant,
    /// Deadline at which the peer is removed: to open its channel, or to acknowledge its last data.
    ends: Option<Instant>,
    /// True once nothing more will be written.
    is_ending: bool,
    is_dirty: bool,
}

/// Output of a peer: datagrams to send and events.
struct PeerOutput<'a> {
    id: PeerId,
    socket: &'a UdpSocket,
    datagrams: &'a mut Datagrams,
    events: &'a mut VecDeque<(PeerId, PeerEvent)>,
}

impl Output for PeerOutput<'_> {
    fn send(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        self.datagrams.push(to, datagram);
        if self.datagrams.is_due() {
            self.datagrams.send(self.socket);
        }
    }

    fn event(&mut self, event: Event) {
        self.events.push_back((self.id, PeerEvent::Event(event)));
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

    /// Returns a notification for work that neither the socket nor a timer reports.
    pub fn awake(&self) -> Rc<Notify> {
        self.awake.clone()
    }

    pub fn is_full(&self) -> bool {
        self.peers_max > 0 && self.entries.len() >= self.peers_max
    }

    /// Creates a peer for an offer and returns the SDP answer.
    ///
    /// Errors: `bad_request` for an invalid offer; `unavailable` if the shard is full.
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

    /// Runs `work` on the switch. Its datagrams leave with the next [`Peers::flush`] at the latest.
    pub fn with_switch<T>(&mut self, work: impl FnOnce(&mut Switch, &mut Datagram<'_>) -> T) -> T {
        let done = self.turn_switch(work);
        self.awake.notify_one();
        done
    }

    pub fn poll_switch(&mut self) -> Option<millrace_sfu::switch::Event> {
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

    /// Receives up to one batch of datagrams and returns their number.
    pub fn receive(&mut self, limits: &Limits) -> usize {
        let Some(mut arrivals) = self.arrivals.take() else { return 0 };
        // Read the socket directly: the runtime may not have reported it as readable yet.
        let (taken, is_emptied) = match arrivals.receive(&*self.socket) {
            Ok(taken) => (taken, taken < BATCH),
            // Any other error is an ICMP error for an earlier datagram: its destination is unreachable. The peer's
            // timeout handles that.
            Err(error) => (0, error.kind() == ErrorKind::WouldBlock),
        };
        if is_emptied {
            // Clear the readiness, so that the runtime reports the next datagram.
            let _ = self.socket.try_io(Interest::READABLE, || Err::<(), _>(ErrorKind::WouldBlock.into()));
        }
        Metrics::add(&self.metrics.rtc_received, taken as u64);
        // Forward media first, and send it before the other datagrams are handled.
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

    /// Registers a TCP stream for this remote address and returns its send queue. Returns `None` if a peer, a
    /// participant or another stream already uses the address.
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

    /// Handles a datagram received over a stream. Returns true if it belongs to a peer and is valid.
    pub fn take(&mut self, from: SocketAddr, datagram: &[u8], limits: &Limits) -> bool {
        Metrics::add(&self.metrics.rtc_received, 1);
        self.awake.notify_one();
        self.bring(from, datagram, limits)
    }

    /// Handles a datagram and counts it as dropped if it is invalid or belongs to no peer. Returns true if it is valid.
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
        // A STUN request names its peer, which takes precedence: a new peer may use the address of an earlier one.
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

    /// Adds an address at which the peer has proved its identity.
    fn learn(&mut self, id: PeerId, source: SocketAddr) {
        let Some(entry) = self.entries.get_mut(id.slot as usize).filter(|entry| entry.id == id) else { return };
        if entry.addresses.len() >= ADDRESSES_MAX {
            let oldest = entry.addresses.remove(0);
            self.by_address.remove(&oldest);
        }
        entry.addresses.push(source);
        self.by_address.insert(source, id.slot);
    }

    /// Returns the deadline of the next [`Peers::handle_timeouts`]; `None` if there is no timer.
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

    /// Sends what was written since the last flush. Between batches of peers, receives the datagrams that have arrived.
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

    /// Writes the queued messages of one channel. Returns true if there were any.
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
                // The queue never accepts more than the channel can, so the channel is closed, and the session with it.
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

    /// Returns true if the socket accepts no datagrams at the moment.
    pub fn is_stuck(&self) -> bool {
        self.datagrams.is_stuck()
    }

    pub fn poll_event(&mut self) -> Option<(PeerId, PeerEvent)> {
        self.take_carried();
        self.events.pop_front()
    }

    /// Marks a channel as open. Returns the connecting client's state when the session channel first opens.
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

    /// Pauses or resumes the reading of a peer's data.
    pub fn watch(&mut self, id: PeerId, read: bool) {
        let Some(entry) = self.entry(id) else { return };
        let begins = read && !std::mem::replace(&mut entry.is_read, read);
        if begins && !entry.incoming.is_empty() {
            self.events.push_back((id, PeerEvent::Resume));
            self.awake.notify_one();
        }
    }

    /// Appends received data and returns its whole lines, or `None` while reading is paused.
    ///
    /// Errors: the session's connection, if its line is longer than `max`, or if too much arrives while reading is
    /// paused.
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

    /// Queues bytes for the next [`Peers::flush`]. Returns the number of bytes accepted.
    pub fn write(&mut self, id: PeerId, lane: Lane, bytes: &[u8]) -> usize {
        let Some(entry) = self.entry(id) else { return bytes.len() };
        // A heartbeat is not needed here: ICE has its own, and the session channel carries one.
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

    /// Ends a connection. Data already written is sent first; when the session ends, the peer is then closed.
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

    /// Removes a peer and reports its connections as gone.
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
        self.events.push_back((id, PeerEvent::Gone(entry.lanes.each_ref().map(|out| out.conn))));
        self.awake.notify_one();
        self.count();
    }

    /// Closes the connection of a peer and removes the peer.
    fn finish(&mut self, id: PeerId) {
        let Self { entries, socket, datagrams, events, .. } = self;
        if let Some(entry) = entries.get_mut(id.slot as usize).filter(|entry| entry.id == id) {
            match &mut entry.carrier {
                Carrier::Peer(peer) => peer.close(&mut PeerOutput { id, socket, datagrams, events }),
                Carrier::Member(member) => {
                    let member = *member;
                    self.turn_switch(|switch, send| switch.close_data(member, Instant::now(), send));
                }
            }
            self.remove(id);
        }
    }

    /// Runs `work` on a peer, then updates its state. Returns `None` if the peer is gone or was removed by an error.
    fn run<T>(
        &mut self,
        id: PeerId,
        now: Instant,
        work: impl FnOnce(&mut Peer, &mut PeerOutput<'_>) -> Result<T, Broken>,
    ) -> Option<T> {
        let done = self.work(id, work)?;
        self.settle(id, now);
        Some(done)
    }

    /// Runs `work` on a peer like [`Peers::run`]. The caller must call [`Peers::settle`] afterwards.
    fn work<T>(
        &mut self,
        id: PeerId,
        work: impl FnOnce(&mut Peer, &mut PeerOutput<'_>) -> Result<T, Broken>,
    ) -> Option<T> {
        let Self { entries, socket, datagrams, events, .. } = self;
        let entry = entries.get_mut(id.slot as usize).filter(|entry| entry.id == id)?;
        let Carrier::Peer(peer) = &mut entry.carrier else { return None };
        match work(peer, &mut PeerOutput { id, socket, datagrams, events }) {
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

    /// Updates a peer after work on it: reports channels that have room again, sets the next timer, and finishes an
    /// ending peer whose data was acknowledged.
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
                events.push_back((id, PeerEvent::Writable(lane)));
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

    /// Returns the memory held here, in bytes. The memory of the libraries per peer is an estimate.
    pub fn bytes(&self) -> usize {
        let lanes = |entry: &Entry| entry.lanes.iter().map(Out::bytes).sum::<usize>() + entry.incoming.capacity();
        let own = |entry: &Entry| if entry.peer().is_some() { PEER_BYTES } else { 0 };
        self.entries.iter().map(|(_, entry)| own(entry) + lanes(entry)).sum()
    }
}
