//! Live delivery of one shard: which connection reads which channel, and from which position.
//!
//! A reader of a channel is in one of two states:
//!
//! ```text
//!              attach: the log reaches back to its cursor
//!            ┌──────────────────────────────────────────────► Live ── the log has moved past its cursor ──┐
//!   attach ──┤                                                 ▲     or a new epoch has begun             │
//!            └─► Recovering ── history moved its cursor up  ───┘                                          │
//!                  ▲   │       to the start of the log                                                    │
//!                  │   └─ requests one page of history at a time, only while its socket is empty          │
//!                  └──────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Publications that arrive meanwhile wait in the shared log, not with the reader: a slow or recovering reader
//! costs a cursor, not a queue.

mod deliver;
mod heartbeat;
mod lag;
mod memory;
mod recover;
mod subscribe;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    num::NonZeroU16,
};

use millrace_protocol::{ChannelName, Encoding, Epoch, Error, Pattern, PatternMap, Position, Since, session::Policy};
use slab::Slab;
use smallvec::SmallVec;

pub use lag::Lag;
pub use memory::Memory;

use crate::{
    Page,
    log::{Pool, WireLog},
};

/// Output side of the sockets; the only part of a socket that a hub needs.
pub trait Wire {
    /// Writes bytes and returns how many the socket took. Fewer than all means that the connection is blocked: the
    /// hub offers no more bytes until [`Hub::writable`] is called. A dead connection takes all bytes.
    fn write(&mut self, conn: ConnId, bytes: &[u8]) -> usize;

    /// Announces a write to the connection in this slot, for prefetching.
    fn expect(&self, _slot: u32) {}
}

/// Identifies a connection of this hub. The id is never reused after the connection closed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ConnId {
    pub slot: u32,
    pub generation: u32,
}

/// Slot of an open channel in a hub, which saves the lookup by name. The key of a channel that has closed since
/// finds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelKey {
    slot: u32,
    serial: u32,
}

impl ChannelKey {
    /// Returns the key as a number, for storage in an atomic; never 0.
    pub fn to_bits(self) -> u64 {
        u64::from(self.serial) << 32 | u64::from(self.slot)
    }

    /// Returns the key with these bits, or `None` if no key has them.
    pub fn from_bits(bits: u64) -> Option<Self> {
        let (slot, serial) = (bits as u32, (bits >> 32) as u32);
        (serial != 0).then_some(Self { slot, serial })
    }
}

/// Identifies a long poll that waits for the next publication.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WaiterId {
    /// A long poll of a task; the caller chooses the number.
    Task(u64),
    /// A long poll of a connection of this hub; [`Hub::disconnect`] ends the wait.
    Conn(ConnId),
}

/// Identifies one reader's request for history. The hub discards a page whose reader no longer waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadTicket {
    conn: ConnId,
    slot: u32,
    serial: u32,
    /// Epoch of the channel when the page was requested.
    epoch: Option<Epoch>,
}

/// Action that a hub requests. Drain with [`Hub::poll_output`] after every call that changes the hub.
#[derive(Debug, PartialEq)]
pub enum Output {
    /// Read a page of history and pass it to [`Hub::handle_page`].
    ReadHistory { ticket: ReadTicket, channel: ChannelName, since: Since, policy: Policy },
    /// The number of readers of this channel in this hub changed (0: none). Pass `key` to [`Hub::deliver`] with its
    /// publications.
    Interest { channel: ChannelName, key: ChannelKey, readers: u32 },
    /// The number of readers of all channels that match a pattern changed.
    PatternInterest { pattern: Pattern, readers: u32 },
    /// A connection became a reader of a channel with a roster; see [`Hub::set_rosters`].
    Joined { conn: ConnId, channel: ChannelName },
    /// A connection that was reported as [`Output::Joined`] reads the channel no longer.
    Left { conn: ConnId, channel: ChannelName },
    /// A waiting long poll can be answered: a publication arrived or the epoch ended.
    Wake(WaiterId),
    /// Report to a session that an earlier request failed: a pattern matches more channels than the connection may
    /// read.
    Refuse { conn: ConnId, error: Error },
    /// Close this connection: the hub writes nothing more to it.
    Close(ConnId),
}

/// Limits and timeouts of one hub.
#[derive(Clone, Debug)]
pub struct Config {
    /// Maximum bytes of frames kept per channel and encoding for readers that are behind. A reader that is further
    /// behind reads history.
    pub log_bytes_max: usize,
    /// Maximum bytes of frames kept in all logs. Above this limit the longest logs drop their oldest frames.
    pub logs_bytes_max: usize,
    /// Maximum number of channels and patterns that one connection may subscribe to; channels opened by its
    /// patterns count.
    pub subscriptions_max: usize,
    /// Idle time after which a heartbeat is sent, in seconds.
    pub heartbeat_s: u32,
    /// Ping timeout in seconds: a WebSocket that is silent for this long after a ping is dead.
    pub grace_s: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            log_bytes_max: 4 << 20,
            logs_bytes_max: 256 << 20,
            subscriptions_max: 1000,
            heartbeat_s: 25,
            grace_s: 10,
        }
    }
}

/// Connections, channels and cursors of one shard.
///
/// Call order: call the inputs ([`Hub::deliver`], [`Hub::writable`], ...) in any order. Call [`Hub::flush`] once
/// per turn of the event loop and whenever [`Hub::is_full`] returns true. Drain [`Hub::poll_output`] after each
/// call.
pub struct Hub {
    config: Config,
    conns: Slab<Conn>,
    generation: u32,
    serial: u32,
    channels: Slab<Channel>,
    by_name: HashMap<ChannelName, u32>,
    patterns: PatternMap<Vec<(ConnId, u32)>>,
    /// Patterns whose first history pages are being read: see [`Hub::subscribe_pattern`].
    opening: Vec<Opening>,
    waiters: HashMap<WaiterId, Vec<u32>>,
    dirty: Vec<u32>,
    outputs: VecDeque<Output>,
    /// Connections by the second of their next heartbeat check. Each connection is listed once, so a check costs
    /// nothing for connections that are not due.
    due: BTreeMap<u32, Vec<ConnId>>,
    now_s: u32,
    scratch: Vec<u8>,
    pool: Pool,
    has_roster: Option<HasRoster>,
}

/// Returns true for a channel with a roster.
pub type HasRoster = Box<dyn Fn(&ChannelName) -> bool>;

/// Delivery state of one connection.
struct Conn {
    generation: u32,
    encoding: Encoding,
    /// The socket took fewer bytes than it was offered.
    blocked: bool,
    /// The connection closes once `out` is sent; nothing more is queued.
    closing: bool,
    /// A page of history was requested and has not arrived yet.
    asking: bool,
    /// Idle time in seconds after which this connection gets a heartbeat; `None`: the hub's setting.
    heartbeat_s: Option<NonZeroU16>,
    /// Second of the last ping, or of the last time a pinged peer took bytes. `None` if the peer has sent something
    /// since.
    pinged_s: Option<u32>,
    heard_s: u32,
    wrote_s: u32,
    /// Second since which this connection lacks publications; [`CAUGHT_UP`] if it has all of them. It changes where a
    /// connection blocks, reads history, or has caught up, never with a delivery.
    behind_s: u32,
    /// Number of gaps that were reported to this connection.
    gaps: u16,
    /// Bytes that must be sent first: replies, pages of history, and the rest of a partially sent frame.
    out: Out,
    readers: Vec<Option<ReaderRef>>,
    patterns: Vec<Option<PatternRef>>,
}

/// Value of [`Conn::behind_s`] of a connection that has everything.
const CAUGHT_UP: u32 = u32::MAX;

#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    sent: usize,
}

/// Location of a reader of a connection in its channel.
struct ReaderRef {
    channel: u32,
    group: u32,
    index: u32,
    live: bool,
    /// The reader wants the state of the channel: after a gap it gets the whole state again.
    is_state: bool,
    serial: u32,
    /// Slot in `Conn::patterns` of the pattern that created this reader; `None` if the channel was subscribed by
    /// name.
    pattern: Option<u32>,
}

struct PatternRef {
    pattern: Pattern,
    policy: Policy,
    /// Start time in milliseconds since 1970 for channels from which this pattern has no publication yet. A session
    /// that resumes the pattern reads those channels from this time on.
    since_ms: u64,
    /// The session was already notified that the pattern matches more channels than one connection may read.
    told_full: bool,
}

/// Pattern that does not attach to channels by itself yet, because the history pages it resumes from are still
/// being read.
struct Opening {
    conn: ConnId,
    slot: u32,
    /// Start position in each channel that received a publication meanwhile.
    heard: BTreeMap<ChannelName, Position>,
}

/// Channel with at least one reader, waiter or pending subscription in this hub.
struct Channel {
    name: ChannelName,
    /// Serial number in the channel's key.
    serial: u32,
    /// Newest known position; `None` until the first page or publication arrives.
    head: Option<Position>,
    /// A publication arrived since the channel was opened, so pattern subscribers read the channel.
    heard: bool,
    /// Usually only one group; storing it inline saves a pointer lookup.
    groups: SmallVec<[Group; 1]>,
    /// Pending subscriptions. They keep the channel open although it has no reader yet.
    opening: u32,
    waiters: Vec<WaiterId>,
    told_readers: u32,
    dirty: bool,
    /// Reports each new reader and each that leaves.
    has_roster: bool,
}

/// Readers of one channel that are sent the same bytes.
struct Group {
    encoding: Encoding,
    policy: Policy,
    log: WireLog,
    live: SmallVec<[Live; 1]>,
    recovering: Vec<Recovering>,
}

/// Reader that is caught up or nearly caught up; 16 bytes.
struct Live {
    conn: u32,
    slot: u32,
    /// Next offset to send.
    cursor: u64,
}

#[derive(Clone, Copy)]
struct Recovering {
    conn: u32,
    slot: u32,
    /// The reader has everything up to this position.
    at: Position,
    /// The log keeps the frames after this offset until the requested page arrives.
    hold: u64,
    /// History reaches at least to this offset. A publication beyond the channel's head may still be on its way to
    /// this hub, or may have passed before the hub had a reader. So the reader reads it from history.
    top: u64,
    snapshot: Snapshot,
}

/// Whether a recovering reader reads the state of its channel or the log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Snapshot {
    /// The reader reads the log.
    Outside,
    /// The reader begins with the state.
    Begin,
    /// The reader is inside the state. The log ended at `began` when it began.
    Inside { began: u64 },
}

/// First page of a new reader.
#[derive(Clone, Debug)]
pub struct FirstPage {
    pub channel: ChannelName,
    /// Start that the reader has requested.
    pub since: Since,
    pub page: Page,
}

impl FirstPage {
    /// Returns the place up to which the reader has everything before this page. A reader whose connection breaks
    /// before the page arrives resumes from there.
    pub fn start(&self) -> Since {
        match (self.since, self.page.gap) {
            (Since::State | Since::StateAfter { .. }, Some(_)) => Since::State,
            (Since::State | Since::StateAfter { .. }, None) => self.since,
            (Since::StateOr(_), Some(_)) => Since::State,
            (_, Some(gap)) => Since::Position(gap.from),
            (_, None) => Since::Position(self.page.start()),
        }
    }
}

impl Hub {
    pub fn new(config: Config) -> Self {
        Self {
            config,
            conns: Slab::new(),
            generation: 0,
            serial: 0,
            channels: Slab::new(),
            by_name: HashMap::new(),
            patterns: PatternMap::default(),
            opening: Vec::new(),
            waiters: HashMap::new(),
            dirty: Vec::new(),
            outputs: VecDeque::new(),
            due: BTreeMap::new(),
            now_s: 0,
            scratch: Vec::new(),
            pool: Pool::default(),
            has_roster: None,
        }
    }

    /// Reports the readers of these channels by [`Output::Joined`] and [`Output::Left`]. Channels that are open already
    /// are not reported.
    pub fn set_rosters(&mut self, has_roster: HasRoster) {
        self.has_roster = Some(has_roster);
    }

    /// Applies new limits. Existing subscriptions stay; logs shrink with their next turn.
    pub fn configure(&mut self, config: Config) {
        self.config = config;
    }

    /// Divides the log memory of the node among this number of hubs.
    pub fn share_logs(&mut self, hubs: usize) {
        self.config.logs_bytes_max /= hubs.max(1);
    }

    /// Returns the next requested action, oldest first.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Adds a connection whose frames have this encoding.
    pub fn connect(&mut self, encoding: Encoding) -> ConnId {
        self.connect_with(encoding, None)
    }

    /// Adds a connection with its own heartbeat interval in seconds.
    pub fn connect_with(&mut self, encoding: Encoding, heartbeat_s: Option<NonZeroU16>) -> ConnId {
        self.generation = self.generation.wrapping_add(1);
        let conn = Conn {
            generation: self.generation,
            encoding,
            blocked: false,
            closing: false,
            asking: false,
            heartbeat_s,
            pinged_s: None,
            heard_s: self.now_s,
            wrote_s: self.now_s,
            behind_s: CAUGHT_UP,
            gaps: 0,
            out: Out::default(),
            readers: Vec::new(),
            patterns: Vec::new(),
        };
        let id = ConnId { slot: self.conns.insert(conn) as u32, generation: self.generation };
        self.look_at(id, self.now_s + heartbeat_s.map_or(self.config.heartbeat_s, |own| own.get().into()));
        id
    }

    /// Removes a closed connection and its readers. Returns the number of subscriptions that ended, which is the
    /// cost of this call.
    pub fn disconnect(&mut self, id: ConnId) -> usize {
        let Some(conn) = self.conn(id) else { return 0 };
        let ended = conn.readers.len() + conn.patterns.len();
        if conn.encoding == Encoding::WholeResponses {
            self.forget(WaiterId::Conn(id));
        }
        self.drop_readers(id);
        self.conns.remove(id.slot as usize);
        ended
    }

    /// Returns the seconds since the hub started, as passed to the last [`Hub::tick`].
    pub fn now_s(&self) -> u32 {
        self.now_s
    }

    /// Records that the peer sent something. One call between two ticks is enough.
    pub fn heard(&mut self, id: ConnId) {
        let now_s = self.now_s;
        if let Some(conn) = self.conn_mut(id) {
            conn.heard_s = now_s;
            conn.pinged_s = None;
        }
    }

    /// Sends bytes for this connection only (a reply, a pong) between two frames.
    pub fn send(&mut self, id: ConnId, bytes: &[u8], wire: &mut impl Wire) {
        let now_s = self.now_s;
        if let Some(conn) = self.conn_mut(id) {
            conn.send(id, bytes, now_s, wire);
        }
    }

    /// Sends the last bytes (a close frame), then requests the close of the connection.
    pub fn close(&mut self, id: ConnId, last: &[u8], wire: &mut impl Wire) {
        let now_s = self.now_s;
        let Some(conn) = self.conn_mut(id) else { return };
        if conn.closing {
            return;
        }
        if conn.encoding.closes_at_once() {
            (conn.blocked, conn.out) = (false, Out::default());
        }
        conn.send(id, last, now_s, wire);
        conn.closing = true;
        let done = conn.out.is_empty();
        self.drop_readers(id);
        if done {
            self.outputs.push_back(Output::Close(id));
        }
    }

    /// Asks a client to reconnect after its own delay; a session also gets its resume ticket. The connection itself
    /// is closed later.
    pub fn tell_drain(&mut self, id: ConnId, after_ms: u64, resume: Option<&str>, wire: &mut impl Wire) {
        let Some(encoding) = self.conn(id).map(|conn| conn.encoding) else { return };
        let mut frame = Vec::new();
        encoding.encode_drain(&mut frame, after_ms, resume);
        self.send(id, &frame, wire);
    }

    /// Returns the bytes queued for this connection only. While this value is high, do not read from its peer.
    pub fn out_bytes(&self, id: ConnId) -> usize {
        self.conn(id).map_or(0, |conn| conn.out.len())
    }

    pub fn encoding(&self, id: ConnId) -> Option<Encoding> {
        self.conn(id).map(|conn| conn.encoding)
    }

    pub fn conns(&self) -> impl Iterator<Item = (ConnId, Encoding)> + '_ {
        self.conns.iter().map(|(slot, conn)| (ConnId { slot: slot as u32, generation: conn.generation }, conn.encoding))
    }

    pub fn conn_count(&self) -> usize {
        self.conns.len()
    }

    pub fn channel_count(&self) -> usize {
        self.channels.len()
    }

    /// Frees memory when it is short: frees the spare log memory and closes stuck connections. A connection is
    /// stuck if more than `out_bytes_max` bytes are queued for it and its peer has sent and taken nothing for one
    /// heartbeat. Returns the number of connections closed. Cost: O(connections).
    pub fn give_back(&mut self, out_bytes_max: usize) -> usize {
        self.pool.purge();
        let (now_s, heartbeat_s) = (self.now_s, self.config.heartbeat_s);
        let is_stuck = |conn: &Conn| {
            let stuck_s = now_s.saturating_sub(conn.heard_s.max(conn.wrote_s));
            conn.blocked && conn.out.len() > out_bytes_max && stuck_s >= heartbeat_s
        };
        let stuck = self.conns.iter().filter(|(_, conn)| is_stuck(conn));
        let stuck: Vec<_> =
            stuck.map(|(slot, conn)| ConnId { slot: slot as u32, generation: conn.generation }).collect();
        for id in &stuck {
            self.drop_readers(*id);
            let conn = &mut self.conns[id.slot as usize];
            (conn.closing, conn.out) = (true, Out::default());
            self.outputs.push_back(Output::Close(*id));
        }
        stuck.len()
    }

    fn conn(&self, id: ConnId) -> Option<&Conn> {
        self.conns.get(id.slot as usize).filter(|conn| conn.generation == id.generation)
    }

    fn conn_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(id.slot as usize).filter(|conn| conn.generation == id.generation)
    }
}

impl Conn {
    /// Writes the bytes, or queues in `out` what the socket does not take. A blocked connection writes nothing past
    /// `out`, so the order is kept.
    fn send(&mut self, id: ConnId, bytes: &[u8], now_s: u32, wire: &mut impl Wire) {
        if self.closing || bytes.is_empty() {
            return;
        }
        let taken = if self.blocked { 0 } else { wire.write(id, bytes) };
        if taken > 0 {
            self.wrote_s = now_s;
        }
        if taken < bytes.len() {
            self.block(now_s);
            self.out.push(&bytes[taken..]);
        }
    }

    /// Records that the socket took fewer bytes than it was offered.
    fn block(&mut self, now_s: u32) {
        self.blocked = true;
        self.behind_s = self.behind_s.min(now_s);
    }

    /// Sends the bytes in `out`. Returns true if nothing is left to send.
    fn send_out(&mut self, id: ConnId, now_s: u32, wire: &mut impl Wire) -> bool {
        if !self.out.is_empty() {
            let taken = wire.write(id, &self.out.bytes[self.out.sent..]);
            self.out.sent += taken;
            if taken > 0 {
                self.wrote_s = now_s;
            }
            if self.out.is_empty() {
                self.out = Out::default();
            } else {
                self.block(now_s);
            }
        }
        self.out.is_empty()
    }
}

impl Out {
    /// Queues bytes. Reuses the room of bytes already sent, so that the buffer does not grow for a peer that is
    /// always slightly behind.
    fn push(&mut self, bytes: &[u8]) {
        if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Channel {
    fn readers(&self) -> u32 {
        let readers: usize = self.groups.iter().map(|group| group.live.len() + group.recovering.len()).sum();
        readers as u32 + self.opening + self.waiters.len() as u32
    }

    /// Returns the position of a reader that was sent everything before `cursor`.
    fn before(&self, cursor: u64) -> Position {
        Position { epoch: self.epoch(), offset: cursor - 1 }
    }

    fn epoch(&self) -> Epoch {
        self.head.map_or(Epoch(0), |head| head.epoch)
    }
}
