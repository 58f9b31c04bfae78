//! The live side of one shard: which connection reads which channel, and from where.
//!
//! A reader of a channel is in one of two states:
//!
//! ```text
//!              attach: the log reaches back to its cursor
//!            ┌──────────────────────────────────────────────► Live ── the log has moved past its cursor ──┐
//!   attach ──┤                                                 ▲     or begun a new epoch                 │
//!            └─► Recovering ── history has brought its cursor ─┘                                          │
//!                  ▲   │       to where the log begins                                                    │
//!                  │   └─ asks for one page of history at a time, and only when its socket is empty       │
//!                  └──────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Publications that arrive meanwhile wait in the shared log, not with the reader: a slow or recovering reader costs a cursor, not a queue.

mod deliver;
mod heartbeat;
mod memory;
mod recover;
mod subscribe;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    num::NonZeroU16,
};

use millrace_protocol::{ChannelName, Epoch, Error, Form, Pattern, PatternMap, Position, Since, session::Policy};
use slab::Slab;
use smallvec::SmallVec;

pub use memory::Memory;

use crate::log::{Pool, WireLog};

/// Where frames leave: the one thing a hub needs from a socket.
pub trait Wire {
    /// Hands over bytes and returns how many were taken. Fewer than all means that the connection is blocked: no more will be
    /// offered until [`Hub::writable`] is called. A dead connection takes everything.
    fn write(&mut self, conn: ConnId, bytes: &[u8]) -> usize;

    /// The connection in this slot is about to be written to.
    fn expect(&self, _slot: u32) {}
}

/// A connection of this hub. Never used again once the connection has gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ConnId {
    pub slot: u32,
    pub generation: u32,
}

/// Where a hub keeps an open channel: spares the look-up by name. A key of a channel that has closed since is not found any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelKey {
    slot: u32,
    serial: u32,
}

impl ChannelKey {
    /// As a number, for an atomic; never 0.
    pub fn to_bits(self) -> u64 {
        u64::from(self.serial) << 32 | u64::from(self.slot)
    }

    /// `None` for what no key gives.
    pub fn from_bits(bits: u64) -> Option<Self> {
        let (slot, serial) = (bits as u32, (bits >> 32) as u32);
        (serial != 0).then_some(Self { slot, serial })
    }
}

/// A long poll that waits for the next publication.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WaiterId {
    /// Held by a task, under a number that the caller chooses.
    Task(u64),
    /// Held by a connection of this hub; [`Hub::disconnect`] ends the wait.
    Conn(ConnId),
}

/// Names one reader's wish for history, so that the answer finds it, or nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadTicket {
    conn: ConnId,
    slot: u32,
    serial: u32,
    /// Where the channel was when the page was asked for.
    epoch: Option<Epoch>,
}

/// What a hub wants done. Drained with [`Hub::poll_output`] after every call that changes something.
#[derive(Debug, PartialEq)]
pub enum Output {
    /// Read a page of history and bring it to [`Hub::handle_page`].
    ReadHistory { ticket: ReadTicket, channel: ChannelName, since: Since, policy: Policy },
    /// So many readers of this hub want publications of this channel now (0: none), to be delivered with this key.
    Interest { channel: ChannelName, key: ChannelKey, readers: u32 },
    /// The same for all channels that match a pattern.
    PatternInterest { pattern: Pattern, readers: u32 },
    /// A publication (or the end of an epoch) has come for someone who waits.
    Wake(WaiterId),
    /// Tell a session that something it asked for earlier cannot be had: a pattern matches more channels than it may read.
    Refuse { conn: ConnId, error: Error },
    /// Nothing more will be written to this connection: close it.
    Close(ConnId),
}

/// Bounds of one hub.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most bytes of frames kept per channel and form for readers who are behind; whoever is further behind reads history.
    pub log_bytes_max: usize,
    /// Most bytes of frames kept in all logs; beyond, the longest lose their oldest frames.
    pub logs_bytes_max: usize,
    /// Most channels and patterns that one connection may subscribe to, and most channels that its patterns may open.
    pub subscriptions_max: usize,
    /// Silence after which a heartbeat is sent, in seconds.
    pub heartbeat_s: u32,
    /// A WebSocket that says nothing for so long after a ping is dead, in seconds.
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
/// Call order: inputs ([`Hub::deliver`], [`Hub::writable`], ...) in any order, [`Hub::flush`] once per turn of the loop and whenever
/// [`Hub::is_full`], and drain [`Hub::poll_output`] after each of them.
pub struct Hub {
    config: Config,
    conns: Slab<Conn>,
    generation: u32,
    serial: u32,
    channels: Slab<Channel>,
    by_name: HashMap<ChannelName, u32>,
    patterns: PatternMap<Vec<(ConnId, u32)>>,
    /// Patterns whose first channels are being read: see [`Hub::subscribe_pattern`].
    opening: Vec<Opening>,
    waiters: HashMap<WaiterId, Vec<u32>>,
    dirty: Vec<u32>,
    outputs: VecDeque<Output>,
    /// When which connections are looked at for a heartbeat: each is in one place, so looking costs nothing for those that are not due.
    due: BTreeMap<u32, Vec<ConnId>>,
    now_s: u32,
    scratch: Vec<u8>,
    pool: Pool,
}

/// One connection, as far as delivery cares.
struct Conn {
    generation: u32,
    form: Form,
    /// The socket has taken less than it was offered.
    blocked: bool,
    /// It will be closed once `out` has left; nothing more is said.
    closing: bool,
    /// A page of history is on its way.
    asking: bool,
    /// Seconds of silence after which it wants a heartbeat; `None`: what the hub's bounds say.
    heartbeat_s: Option<NonZeroU16>,
    /// A ping has left then, or a pinged peer has taken bytes; nothing was heard since.
    pinged_s: Option<u32>,
    heard_s: u32,
    wrote_s: u32,
    /// Bytes that must leave before anything else: replies, pages of history, the rest of a frame of which a part has left.
    out: Out,
    readers: Vec<Option<ReaderRef>>,
    patterns: Vec<Option<PatternRef>>,
}

#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    sent: usize,
}

/// Where a connection's reader lives.
struct ReaderRef {
    channel: u32,
    group: u32,
    index: u32,
    live: bool,
    serial: u32,
    /// The pattern (slot in `Conn::patterns`) that brought it, if it was not asked for by name.
    pattern: Option<u32>,
}

struct PatternRef {
    pattern: Pattern,
    policy: Policy,
    /// Channels that it has not heard yet are read from this time on by whoever goes on with it, in milliseconds since 1970.
    since_ms: u64,
    /// It has been told that it matches more channels than one connection may read.
    told_full: bool,
}

/// A pattern that is not attached to any channel by itself yet, because the pages it resumes from are still on their way.
struct Opening {
    conn: ConnId,
    slot: u32,
    /// Where it starts in channels that have spoken meanwhile.
    heard: BTreeMap<ChannelName, Position>,
}

/// One channel that somebody here wants.
struct Channel {
    name: ChannelName,
    /// Of its key.
    serial: u32,
    /// `None` until the first page or publication tells.
    head: Option<Position>,
    /// A publication has come since it was opened, so that who listens by pattern reads it.
    heard: bool,
    /// Seldom more than one: room for it here spares a way to somewhere else.
    groups: SmallVec<[Group; 1]>,
    /// Subscriptions on their way: the channel must stay although it has no reader yet.
    opening: u32,
    waiters: Vec<WaiterId>,
    told_readers: u32,
    dirty: bool,
}

/// Readers of one channel who are sent the same bytes.
struct Group {
    form: Form,
    policy: Policy,
    log: WireLog,
    live: SmallVec<[Live; 1]>,
    recovering: Vec<Recovering>,
}

/// A caught-up, or nearly caught-up reader: sixteen bytes.
struct Live {
    conn: u32,
    slot: u32,
    /// The next offset it is given.
    cursor: u64,
}

#[derive(Clone, Copy)]
struct Recovering {
    conn: u32,
    slot: u32,
    /// It has everything up to here.
    at: Position,
    /// The log keeps what comes after this offset until the page has come.
    hold: u64,
    /// History reaches at least to this offset. What lies beyond the channel's head may be on its way, or have passed before anyone
    /// here was interested, so it is read from history.
    top: u64,
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
        }
    }

    /// Other bounds, from now on: subscriptions that there are stay, and logs shrink with their next turn.
    pub fn configure(&mut self, config: Config) {
        self.config = config;
    }

    /// This hub is one of so many that share what the logs of a node may hold.
    pub fn share_logs(&mut self, hubs: usize) {
        self.config.logs_bytes_max /= hubs.max(1);
    }

    /// The next wish, oldest first.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// A new connection whose frames have this form.
    pub fn connect(&mut self, form: Form) -> ConnId {
        self.connect_with(form, None)
    }

    /// The same, with a heartbeat of its own, in seconds.
    pub fn connect_with(&mut self, form: Form, heartbeat_s: Option<NonZeroU16>) -> ConnId {
        self.generation = self.generation.wrapping_add(1);
        let conn = Conn {
            generation: self.generation,
            form,
            blocked: false,
            closing: false,
            asking: false,
            heartbeat_s,
            pinged_s: None,
            heard_s: self.now_s,
            wrote_s: self.now_s,
            out: Out::default(),
            readers: Vec::new(),
            patterns: Vec::new(),
        };
        let id = ConnId { slot: self.conns.insert(conn) as u32, generation: self.generation };
        self.look_at(id, self.now_s + heartbeat_s.map_or(self.config.heartbeat_s, |own| own.get().into()));
        id
    }

    /// The connection has gone: forget it and what it read. Gives how many subscriptions that ended: they are what it costs.
    pub fn disconnect(&mut self, id: ConnId) -> usize {
        let Some(conn) = self.conn(id) else { return 0 };
        let ended = conn.readers.len() + conn.patterns.len();
        if conn.form == Form::Answers {
            self.forget(WaiterId::Conn(id));
        }
        self.drop_readers(id);
        self.conns.remove(id.slot as usize);
        ended
    }

    /// Seconds since the hub began, as [`Hub::tick`] was told last.
    pub fn now_s(&self) -> u32 {
        self.now_s
    }

    /// The peer has said something, whatever it was; once between two ticks is enough.
    pub fn heard(&mut self, id: ConnId) {
        let now_s = self.now_s;
        if let Some(conn) = self.conn_mut(id) {
            conn.heard_s = now_s;
            conn.pinged_s = None;
        }
    }

    /// Sends bytes of the connection's own (a reply, a pong) between two frames.
    pub fn send(&mut self, id: ConnId, bytes: &[u8], wire: &mut impl Wire) {
        let now_s = self.now_s;
        if let Some(conn) = self.conn_mut(id) {
            conn.send(id, bytes, now_s, wire);
        }
    }

    /// Sends last bytes (a close frame), then asks for the connection to be closed.
    pub fn close(&mut self, id: ConnId, last: &[u8], wire: &mut impl Wire) {
        let now_s = self.now_s;
        let Some(conn) = self.conn_mut(id) else { return };
        if conn.closing {
            return;
        }
        conn.send(id, last, now_s, wire);
        conn.closing = true;
        let done = conn.out.is_empty();
        self.drop_readers(id);
        if done {
            self.outputs.push_back(Output::Close(id));
        }
    }

    /// Tells a connection to move on after a delay of its own, a session with the ticket to go on with. The closing itself comes later.
    pub fn tell_drain(&mut self, id: ConnId, after_ms: u64, resume: Option<&str>, wire: &mut impl Wire) {
        let Some(form) = self.conn(id).map(|conn| conn.form) else { return };
        let mut frame = Vec::new();
        form.encode_drain(&mut frame, after_ms, resume);
        self.send(id, &frame, wire);
    }

    /// Bytes waiting for this connection alone; while there are many, its peer should not be read from.
    pub fn out_bytes(&self, id: ConnId) -> usize {
        self.conn(id).map_or(0, |conn| conn.out.len())
    }

    pub fn form(&self, id: ConnId) -> Option<Form> {
        self.conn(id).map(|conn| conn.form)
    }

    pub fn conns(&self) -> impl Iterator<Item = (ConnId, Form)> + '_ {
        self.conns.iter().map(|(slot, conn)| (ConnId { slot: slot as u32, generation: conn.generation }, conn.form))
    }

    pub fn conn_count(&self) -> usize {
        self.conns.len()
    }

    pub fn channel_count(&self) -> usize {
        self.channels.len()
    }

    /// Memory is short: what is spare goes, and so do the peers for whom more than `out_bytes_max` has waited for a heartbeat or longer, because
    /// they take nothing. Gives how many those are. Cost: O(connections).
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
    /// Either everything left is in `out` or `out` is empty: order is kept.
    fn send(&mut self, id: ConnId, bytes: &[u8], now_s: u32, wire: &mut impl Wire) {
        if self.closing || bytes.is_empty() {
            return;
        }
        let taken = if self.blocked { 0 } else { wire.write(id, bytes) };
        if taken > 0 {
            self.wrote_s = now_s;
        }
        if taken < bytes.len() {
            self.blocked = true;
            self.out.push(&bytes[taken..]);
        }
    }

    /// True if nothing is left to send.
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
                self.blocked = true;
            }
        }
        self.out.is_empty()
    }
}

impl Out {
    /// What has left makes room, so that a peer who is never quite up to date does not make this grow.
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

    /// Where a reader stands that has been given everything before `cursor`.
    fn before(&self, cursor: u64) -> Position {
        Position { epoch: self.epoch(), offset: cursor - 1 }
    }

    fn epoch(&self) -> Epoch {
        self.head.map_or(Epoch(0), |head| head.epoch)
    }
}
