//! State machine of one link between two nodes.
//!
//! ```text
//!   greeting ── frame of the other node, which knows this epoch   ──► established ── silent for 1 s ──► silent
//!      ▲                                                                  │  ▲                            │ │
//!      │                                                                  │  └────────── any frame ───────┘ │
//!      └───────────────── hello with a later epoch ───────────────────────┘                   for 5 s: dead ◄┘
//! ```

mod receive;
mod send;

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use super::{
    DEAD_TIMEOUT, Handle, KEEPALIVE, LAYERS_MAX, LINGER, Layers, NodeId, OVERHEAD_BYTES, Packet, SILENT_TIMEOUT,
    UNUSED_TIMEOUT,
    arrivals::Arrivals,
    bandwidth::Bandwidth,
    earlier,
    frame::{self, FrameError, Head, SenderReport, Table, TrackInfo, Want},
    sent::SentFrames,
    tables::{Received, Repeated},
};
use crate::{congestion::Algorithm, loudness::Loudness};

/// Maximum number of tracks that a node offers over one link.
pub const TRACKS_MAX: usize = 4096;
/// Interval at which the bit rates of layers are sent, and the levels of tracks that are not carried.
const RATES_INTERVAL: Duration = Duration::from_secs(1);
const LEVELS_INTERVAL: Duration = Duration::from_millis(200);
/// Minimum interval between two repetitions of a table.
const REPEAT_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The layers are chosen again if the estimate differs by more than one part in this number.
const ESTIMATE_STEP: u64 = 50;
/// Bandwidth reserved for an audio track that is carried, in bit/s.
const AUDIO_BITS_PER_S: u64 = 50_000;

/// Reason why a node refuses a link. The link must be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("the link belongs to node {expected}, but the other end says that it is node {said}")]
    Node { expected: String, said: String },
    #[error("the table of tracks names the track {0} twice")]
    DuplicateTrack(u32),
    #[error("the table has {0} tracks; at most {TRACKS_MAX} are allowed")]
    TooManyTracks(usize),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Both nodes know each other's epoch.
    Established,
    /// The tracks of the other node have changed, or their layers that cross the link.
    Tracks,
    /// The bit rates of the other node's layers were updated.
    Rates,
    Media(Handle, Packet),
    /// The other node needs a keyframe of a local layer.
    KeyframeWanted(Handle, u8),
    /// Audio levels of tracks of the other node that are not carried, in decibels below the maximum.
    Levels(Vec<(Handle, u8)>),
    SenderReport(SenderReport),
    /// No frame has arrived for [`SILENT_TIMEOUT`].
    Silent,
    /// A frame has arrived on a silent link.
    Alive,
    /// No frame has arrived for [`DEAD_TIMEOUT`].
    Dead,
    /// No track was offered or wanted for [`UNUSED_TIMEOUT`].
    Unused,
}

/// Counters since the link was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub sent_packets: u64,
    pub sent_bytes: u64,
    pub received_packets: u64,
    pub retransmitted: u64,
    /// Frames that arrived twice, or too late.
    pub duplicates: u64,
    /// Media packets of tracks or layers that this node does not want.
    pub unwanted: u64,
    /// Frames of an earlier epoch.
    pub stale: u64,
}

/// One link to another node.
#[derive(Debug)]
pub struct Link {
    local: NodeId,
    remote: NodeId,
    epoch: u32,
    remote_epoch: u32,
    is_established: bool,
    hello_at: Instant,
    sent: SentFrames,
    arrivals: Arrivals,
    bandwidth: Bandwidth,
    /// Estimate in bit/s at the last choice of layers.
    chosen_at_bits_per_s: u64,
    outgoing: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    /// Tracks of this node that the other node may want.
    tracks: BTreeMap<Handle, LocalTrack>,
    tracks_table: Repeated,
    wanted_by_remote: Received,
    carried_table: Repeated,
    /// Tracks of the other node.
    remote_tracks: BTreeMap<Handle, OfferedTrack>,
    remote_table: Received,
    wants: BTreeMap<Handle, OwnWant>,
    wants_table: Repeated,
    remote_carried: Received,
    last_sent: Instant,
    last_received: Instant,
    is_silent: bool,
    is_dead: bool,
    unused_since: Option<Instant>,
    rates_at: Instant,
    levels_at: Instant,
    counters: Counters,
}

#[derive(Debug)]
struct LocalTrack {
    info: TrackInfo,
    /// Bit rates of the layers in bit/s.
    rates: [u64; LAYERS_MAX],
    wanted: Layers,
    has_priority: bool,
    carried: Layers,
    loudness: Loudness,
    /// Last audio level, in decibels below the maximum.
    level: Option<u8>,
}

/// A track of the other node, as this node knows it.
#[derive(Clone, Debug)]
pub struct OfferedTrack {
    pub info: TrackInfo,
    /// Layers that cross the link.
    pub carried: Layers,
    pub rates_kbps: [u32; LAYERS_MAX],
    /// Newest sequence number and timestamp of each layer.
    newest: [Option<(u64, u64)>; LAYERS_MAX],
    keyframe_requested: [Option<Instant>; LAYERS_MAX],
}

#[derive(Debug)]
struct OwnWant {
    layers: Layers,
    /// End of the time for which a layer stays wanted that no member wants any more.
    lingers: [Option<Instant>; LAYERS_MAX],
    has_priority: bool,
}

impl OwnWant {
    fn effective(&self) -> Layers {
        let mut layers = self.layers;
        (0..LAYERS_MAX).filter(|layer| self.lingers[*layer].is_some()).for_each(|layer| layers.insert(layer));
        layers
    }
}

impl Link {
    /// Creates a link. `epoch`: a number above 0 that is greater than that of every earlier link between the two nodes.
    pub fn new((local, remote): (NodeId, NodeId), epoch: u32, algorithm: Algorithm, now: Instant) -> Self {
        let bandwidth = Bandwidth::new(algorithm, now);
        Self {
            local,
            remote,
            epoch,
            remote_epoch: 0,
            is_established: false,
            hello_at: now,
            sent: SentFrames::new(),
            arrivals: Arrivals::new(now),
            chosen_at_bits_per_s: bandwidth.bits_per_s(),
            bandwidth,
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            tracks: BTreeMap::new(),
            tracks_table: Repeated::default(),
            wanted_by_remote: Received::default(),
            carried_table: Repeated::default(),
            remote_tracks: BTreeMap::new(),
            remote_table: Received::default(),
            wants: BTreeMap::new(),
            wants_table: Repeated::default(),
            remote_carried: Received::default(),
            last_sent: now,
            last_received: now,
            is_silent: false,
            is_dead: false,
            unused_since: Some(now),
            rates_at: now + RATES_INTERVAL,
            levels_at: now + LEVELS_INTERVAL,
            counters: Counters::default(),
        }
    }

    pub fn is_established(&self) -> bool {
        self.is_established
    }

    /// Returns whether no frame has arrived for [`SILENT_TIMEOUT`].
    pub fn is_silent(&self) -> bool {
        self.is_silent
    }

    pub fn bits_per_s(&self) -> u64 {
        self.bandwidth.bits_per_s()
    }

    pub fn loss(&self) -> Option<f64> {
        self.bandwidth.loss()
    }

    pub fn round_trip_time(&self) -> Duration {
        self.sent.rtt
    }

    pub fn counters(&self) -> Counters {
        Counters { retransmitted: self.sent.retransmitted, ..self.counters }
    }

    pub fn remote_tracks(&self) -> impl Iterator<Item = &OfferedTrack> {
        self.remote_tracks.values()
    }

    pub fn remote_track(&self, handle: Handle) -> Option<&OfferedTrack> {
        self.remote_tracks.get(&handle)
    }

    /// Returns the layers of a local track that cross the link.
    pub fn carried(&self, handle: Handle) -> Layers {
        self.tracks.get(&handle).map_or(Layers::NONE, |track| track.carried)
    }

    /// Returns the number of layers of local tracks that cross the link.
    pub fn carried_layers(&self) -> usize {
        self.tracks.values().map(|track| track.carried.iter().count()).sum()
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the next frame to send.
    pub fn poll_frame(&mut self) -> Option<Vec<u8>> {
        self.outgoing.pop_front()
    }

    /// Replaces the tracks that this node offers. Tracks that remain keep their state.
    pub fn set_tracks(&mut self, tracks: impl Iterator<Item = TrackInfo>, now: Instant) {
        let mut old = std::mem::take(&mut self.tracks);
        for info in tracks.take(TRACKS_MAX) {
            let track = match old.remove(&info.handle) {
                Some(known) => LocalTrack { info, ..known },
                None => LocalTrack {
                    info,
                    rates: [0; LAYERS_MAX],
                    wanted: Layers::NONE,
                    has_priority: false,
                    carried: Layers::NONE,
                    loudness: Loudness::default(),
                    level: None,
                },
            };
            self.tracks.insert(track.info.handle, track);
        }
        let entries = self.tracks.values().map(|track| {
            let mut entry = Vec::new();
            track.info.encode(&mut entry);
            entry
        });
        self.tracks_table.set(entries, now);
        self.choose(now);
        self.update_unused(now);
    }

    /// Sets the bit rates of a local track's layers, in bit/s.
    pub fn set_rates(&mut self, handle: Handle, rates: [u64; LAYERS_MAX]) {
        if let Some(track) = self.tracks.get_mut(&handle) {
            track.rates = rates;
        }
    }

    /// Replaces what this node wants of the other node's tracks. A layer that is no longer wanted lingers.
    pub fn set_wants(&mut self, wants: impl Iterator<Item = Want>, now: Instant) {
        let mut new: BTreeMap<Handle, OwnWant> = BTreeMap::new();
        for Want { handle, layers, has_priority } in wants {
            new.insert(handle, OwnWant { layers, lingers: [None; LAYERS_MAX], has_priority });
        }
        for (handle, old) in std::mem::take(&mut self.wants) {
            let is_there = self.remote_tracks.contains_key(&handle);
            let layers = new.get(&handle).map_or(Layers::NONE, |want| want.layers);
            let mut lingers = [None; LAYERS_MAX];
            for layer in old.effective().without(layers).iter().filter(|_| is_there) {
                lingers[layer] = Some(old.lingers[layer].unwrap_or(now + LINGER));
            }
            let is_lingering = lingers.iter().any(Option::is_some);
            if is_lingering {
                let empty = OwnWant { layers, lingers, has_priority: false };
                new.entry(handle).or_insert(empty).lingers = lingers;
            }
        }
        self.wants = new;
        self.publish_wants(now);
    }

    fn publish_wants(&mut self, now: Instant) {
        let entries = self.wants.iter().map(|(handle, want)| {
            let mut entry = Vec::new();
            Want { handle: *handle, layers: want.effective(), has_priority: want.has_priority }.encode(&mut entry);
            entry
        });
        self.wants_table.set(entries, now);
        self.update_unused(now);
    }

    fn update_unused(&mut self, now: Instant) {
        let is_used = !self.tracks.is_empty() || !self.wants.is_empty() || !self.remote_tracks.is_empty();
        self.unused_since = if is_used { None } else { Some(self.unused_since.unwrap_or(now)) };
    }

    /// Returns when [`Link::handle_timeout`] must be called.
    pub fn timeout(&self) -> Instant {
        let mut timeout = if self.is_established { self.last_sent + KEEPALIVE } else { self.hello_at };
        let mut add = |at: Instant| timeout = timeout.min(at);
        if self.is_established {
            let tables = [&self.tracks_table, &self.wants_table, &self.carried_table];
            let tables = tables.into_iter().filter_map(Repeated::timeout);
            let lingers = self.wants.values().flat_map(|want| want.lingers).flatten();
            let waiting = self.arrivals.timeout(self.sent.rtt).into_iter().chain(self.bandwidth.timeout());
            tables.chain(lingers).chain(waiting).chain([self.rates_at, self.levels_at]).for_each(&mut add);
        }
        if !self.is_silent {
            add(self.last_received + SILENT_TIMEOUT);
        } else if !self.is_dead {
            add(self.last_received + DEAD_TIMEOUT);
        }
        earlier(Some(timeout), self.unused_since.map(|since| since + UNUSED_TIMEOUT)).unwrap_or(timeout)
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.update_liveness(now);
        if !self.is_established {
            if self.hello_at <= now {
                self.send_hello(now);
            }
            return;
        }
        self.expire_wants(now);
        self.send_tables(now);
        self.send_reports(now);
        if self.rates_at <= now {
            self.rates_at = now + RATES_INTERVAL;
            self.choose(now);
            self.send_rates(now);
        }
        if self.levels_at <= now {
            self.levels_at = now + LEVELS_INTERVAL;
            self.choose(now);
            self.send_levels(now);
        }
        self.send_probes(now);
        if self.last_sent + KEEPALIVE <= now {
            self.send(false, now, |head| Some(frame::report(head, 0, u32::MAX, std::iter::empty())));
        }
    }

    fn update_liveness(&mut self, now: Instant) {
        let silent = now.saturating_duration_since(self.last_received);
        if silent >= SILENT_TIMEOUT && !std::mem::replace(&mut self.is_silent, true) {
            self.events.push_back(Event::Silent);
        }
        if silent >= DEAD_TIMEOUT && !std::mem::replace(&mut self.is_dead, true) {
            self.events.push_back(Event::Dead);
        }
        if self.unused_since.is_some_and(|since| since + UNUSED_TIMEOUT <= now) {
            self.unused_since = Some(now);
            self.events.push_back(Event::Unused);
        }
    }

    fn expire_wants(&mut self, now: Instant) {
        let mut is_changed = false;
        for want in self.wants.values_mut() {
            for linger in want.lingers.iter_mut().filter(|linger| linger.is_some_and(|end| end <= now)) {
                (*linger, is_changed) = (None, true);
            }
        }
        if is_changed {
            self.wants.retain(|_, want| !want.effective().is_empty());
            self.publish_wants(now);
        }
    }
}
