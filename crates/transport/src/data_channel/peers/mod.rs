//! Peers of one shard. A datagram is matched to its peer by source address, or by the ICE name in it when the address
//! is new. Timers are kept in a heap. No operation scans all peers, except for metrics.
//!
//! - this file: the peers, from the offer to their removal
//! - [`receive`]: datagrams and timers
//! - [`channels`]: the two channels of a peer, and their connections
//! - [`carried`]: sessions on connections of another protocol

mod carried;
mod channels;
mod receive;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    net::SocketAddr,
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use millrace_delivery::ConnId;
use millrace_node::Metrics;
use millrace_protocol::{Code, Error};
use millrace_rtc::{Candidates, ConnectionError, Event, Lane, Output, Peer};
use slab::Slab;

use carried::Carrier;
pub use carried::{SessionCarrier, SessionCarriers};

use super::{AdmittedSession, lane::Out};
use crate::{
    SocketMetrics,
    datagram::{DatagramSender, OPEN_TIMEOUT, SILENCE_MAX},
};

/// Maximum time for a closing peer to acknowledge its last data.
const LINGER: Duration = Duration::from_secs(2);
/// Memory of an idle peer, in bytes, as measured; the libraries for ICE, DTLS and SCTP do not report it.
const PEER_BYTES: usize = 48 * 1024;

/// Id of a peer. An id is never reused for another peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerId {
    slot: u32,
    serial: u32,
}

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

/// Peers of one shard.
pub struct Peers {
    sender: Rc<DatagramSender>,
    candidates: Candidates,
    peers_max: usize,
    entries: Slab<Box<Entry>>,
    serial: u32,
    by_address: HashMap<SocketAddr, u32>,
    by_ufrag: HashMap<Box<str>, u32>,
    /// Another protocol whose connections carry sessions, if there is one.
    carriers: Option<Rc<dyn SessionCarriers>>,
    /// Carried sessions that accepted fewer bytes than were written.
    blocked: Vec<PeerId>,
    timers: BinaryHeap<Reverse<(Instant, PeerId)>>,
    dirty: Vec<PeerId>,
    events: VecDeque<(PeerId, PeerEvent)>,
    metrics: Arc<SocketMetrics>,
}

struct Entry {
    id: PeerId,
    carrier: Carrier,
    /// `None` once the session has begun.
    admitted: Option<AdmittedSession>,
    lanes: [Out; 2],
    has_latest: bool,
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
    sender: &'a DatagramSender,
    events: &'a mut VecDeque<(PeerId, PeerEvent)>,
}

impl Output for PeerOutput<'_> {
    fn send(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        self.sender.send(to, datagram);
    }

    fn event(&mut self, event: Event) {
        self.events.push_back((self.id, PeerEvent::Event(event)));
    }
}

impl Peers {
    /// Creates the peers of a port.
    pub fn new(
        sender: Rc<DatagramSender>,
        candidates: Candidates,
        peers_max: usize,
        metrics: Arc<SocketMetrics>,
    ) -> Self {
        Self {
            sender,
            candidates,
            peers_max,
            carriers: None,
            blocked: Vec::new(),
            entries: Slab::new(),
            serial: 0,
            by_address: HashMap::new(),
            by_ufrag: HashMap::new(),
            timers: BinaryHeap::new(),
            dirty: Vec::new(),
            events: VecDeque::new(),
            metrics,
        }
    }

    /// Sets another protocol of the port whose connections carry sessions.
    pub fn set_carriers(&mut self, carriers: Rc<dyn SessionCarriers>) {
        self.carriers = Some(carriers);
    }

    /// Returns true if the shard has no room for another peer.
    pub fn is_full(&self) -> bool {
        self.peers_max > 0 && self.entries.len() >= self.peers_max
    }

    /// Creates a peer for an offer and returns the SDP answer.
    ///
    /// Errors: `bad_request` for an invalid offer; `unavailable` if the shard is full.
    pub fn answer(&mut self, offer: &str, admitted: AdmittedSession, now: Instant) -> Result<String, Error> {
        if self.is_full() {
            return Err(Error::new(Code::Unavailable, "this server has its maximum number of peers; try again later"));
        }
        let (peer, answer) = Peer::answer(offer, &self.candidates, now)
            .map_err(|error| Error::new(Code::BadRequest, error.to_string()))?;
        let ufrag = peer.ufrag().into();
        let id = self.add(Carrier::Peer(peer), admitted, Some(now + OPEN_TIMEOUT), now);
        self.by_ufrag.insert(ufrag, id.slot);
        self.run(id, now, |peer, out| peer.handle_timeout(now, out));
        self.sender.wake();
        Ok(answer)
    }

    fn add(&mut self, carrier: Carrier, admitted: AdmittedSession, ends: Option<Instant>, now: Instant) -> PeerId {
        self.serial = self.serial.wrapping_add(1);
        let id = PeerId { slot: self.entries.vacant_key() as u32, serial: self.serial };
        self.entries.insert(Box::new(Entry {
            id,
            carrier,
            admitted: Some(admitted),
            lanes: [Out::new(Lane::Session), Out::new(Lane::Latest)],
            has_latest: false,
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

    pub fn poll_event(&mut self) -> Option<(PeerId, PeerEvent)> {
        self.take_carried();
        self.events.pop_front()
    }

    /// Removes a peer and reports its connections as gone.
    pub fn remove(&mut self, id: PeerId) {
        if self.entry(id).is_none() {
            return;
        }
        let entry = self.entries.remove(id.slot as usize);
        if let Some(peer) = entry.peer() {
            self.by_ufrag.remove(peer.ufrag());
        }
        for address in &entry.addresses {
            if self.by_address.get(address) == Some(&id.slot) {
                self.by_address.remove(address);
            }
        }
        if entry.admitted.is_some() && entry.peer().is_some() {
            Metrics::add(&self.metrics.rtc_failed, 1);
        }
        self.events.push_back((id, PeerEvent::Gone(entry.lanes.each_ref().map(|out| out.conn))));
        self.sender.wake();
        self.count();
    }

    /// Closes the connection of a peer and removes the peer.
    fn finish(&mut self, id: PeerId) {
        let Self { entries, sender, events, .. } = self;
        if let Some(entry) = entries.get_mut(id.slot as usize).filter(|entry| entry.id == id) {
            match &mut entry.carrier {
                Carrier::Peer(peer) => peer.close(&mut PeerOutput { id, sender, events }),
                Carrier::Shared(connection) => connection.close(Instant::now()),
            }
            self.remove(id);
        }
    }

    /// Runs `work` on a peer, then updates its state. Returns `None` if the peer is gone or was removed by an error.
    fn run<T>(
        &mut self,
        id: PeerId,
        now: Instant,
        work: impl FnOnce(&mut Peer, &mut PeerOutput<'_>) -> Result<T, ConnectionError>,
    ) -> Option<T> {
        let done = self.work(id, work)?;
        self.settle(id, now);
        Some(done)
    }

    /// Runs `work` on a peer like [`Peers::run`]. The caller must call [`Peers::settle`] afterwards.
    fn work<T>(
        &mut self,
        id: PeerId,
        work: impl FnOnce(&mut Peer, &mut PeerOutput<'_>) -> Result<T, ConnectionError>,
    ) -> Option<T> {
        let Self { entries, sender, events, .. } = self;
        let entry = entries.get_mut(id.slot as usize).filter(|entry| entry.id == id)?;
        let Carrier::Peer(peer) = &mut entry.carrier else { return None };
        match work(peer, &mut PeerOutput { id, sender, events }) {
            Ok(done) => Some(done),
            Err(error) => {
                if matches!(error, ConnectionError::Panicked) {
                    Metrics::add(&self.metrics.rtc_panicked, 1);
                    tracing::debug!("a peer's library has panicked; the peer is ended");
                }
                tracing::debug!(%error, "a peer has ended");
                self.remove(id);
                None
            }
        }
    }

    /// Updates a peer after work on it: reports channels that have room again, sets the next timer, and finishes an
    /// ending peer whose data was acknowledged.
    fn settle(&mut self, id: PeerId, now: Instant) {
        let Self { entries, events, timers, .. } = self;
        let Some(entry) = entries.get_mut(id.slot as usize).filter(|entry| entry.id == id) else { return };
        let Entry { carrier, lanes, is_ending, .. } = &mut **entry;
        for (lane, out) in Lane::ALL.into_iter().zip(lanes) {
            if !*is_ending && !out.is_watched(now) {
                continue;
            }
            let buffered = match carrier {
                Carrier::Peer(peer) => peer.buffered(lane),
                Carrier::Shared(connection) => connection.buffered(lane),
            };
            if out.set_buffered(buffered, now) {
                events.push_back((id, PeerEvent::Writable(lane)));
            }
        }
        let wanted = match &entry.carrier {
            Carrier::Peer(peer) => Some(peer.timeout().min(entry.ends.unwrap_or(entry.heard + SILENCE_MAX))),
            Carrier::Shared(_) => entry.ends,
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
