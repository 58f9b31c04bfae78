//! What a gateway does with the messages of its peers: passes one on, gathers those of many into one, splits one into many.
//!
//! No connections and no clock: a message and the time are inputs, and what is to be written to a peer is an output.

mod bundle;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

pub use bundle::{Bundle, Part, parts};

use crate::Lane;

/// The largest message of a device; gathered, it may be six times as long, which every WebRTC of today still takes.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// The largest bundle that is split: what browsers send at most.
pub const BUNDLE_BYTES_MAX: usize = 256 * 1024;
/// Of a name.
pub const NAME_BYTES_MAX: usize = 64;
/// What a message that waits costs besides its bytes.
const WAITING_BYTES: usize = 64;

/// What is done, for all peers.
///
/// | | from a peer that names a receiver (`to`) | from one that does not |
/// |---|---|---|
/// | neither | goes to it as it is | goes nowhere |
/// | `gathers` | waits for others to the same receiver, and goes with them | goes nowhere |
/// | `splits` | goes to it as it is | is a bundle: each part goes to the peer that it names |
/// | both | gathered | split |
#[derive(Clone, Debug)]
pub struct Config {
    pub gathers: bool,
    pub splits: bool,
    /// From the first message of a bundle until it goes.
    pub window: Duration,
    /// A bundle that would grow beyond this goes before. One message that alone is longer goes alone.
    pub bundle_bytes_max: usize,
    /// What may wait for a receiver that takes less than comes; then the oldest give way.
    pub waiting_bytes_max: usize,
    pub peers_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            gathers: false,
            splits: false,
            window: Duration::from_millis(250),
            bundle_bytes_max: 16 * 1024,
            waiting_bytes_max: 1 << 20,
            peers_max: 256,
        }
    }
}

/// Names a peer, and never another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId(u64);

/// How a peer comes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    pub name: String,
    /// Whom what it sends is for.
    pub to: Option<String>,
    /// Messages that begin with this are not kept waiting: the bundle that they are gathered into goes at once.
    pub urgent: Option<Vec<u8>>,
}

/// Why a peer cannot join.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("a name has 1 to {NAME_BYTES_MAX} bytes and no control characters")]
    BadName,
    #[error("there is a peer of this name already")]
    Taken,
    #[error("the gateway has as many peers as it may; try again")]
    Full,
}

/// To be written to a peer.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    pub lane: Lane,
    /// Whatever is UTF-8.
    pub is_text: bool,
    pub bytes: Vec<u8>,
    /// Messages of devices in it.
    count: u64,
    /// How many lost ones it tells of.
    told: u64,
}

/// Messages, counted since the beginning. A gathered message counts as one when it comes and when it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    pub received: u64,
    pub received_bytes: u64,
    pub sent: u64,
    pub sent_bytes: u64,
    pub gathered_bundles: u64,
    pub split_bundles: u64,
    /// Of messages that went at once because of their urgency.
    pub urgent: u64,
    /// Gave way because their receiver took too little.
    pub lost: u64,
    /// Their receiver was not there.
    pub nowhere: u64,
    /// Too large, or no bundle where one was due.
    pub refused: u64,
}

/// All peers of a gateway.
///
/// ```text
///   handle_message ──► to it as it is ─────────────────────────┐
///        │                                                     ▼
///        ├──────────► Bundle of its receiver ── window, ──► waiting ── poll_output
///        │                                      size, urgent   ▲
///        └──────────► parts of a bundle ───────────────────────┘
/// ```
pub struct Forwarder {
    config: Config,
    peers: HashMap<PeerId, Entry>,
    by_name: HashMap<String, PeerId>,
    serial: u64,
    /// When which bundle is due, the next one first: all windows are equally long. One that went before is still in here.
    dues: VecDeque<(Instant, PeerId)>,
    ready: VecDeque<PeerId>,
    stats: Stats,
}

#[derive(Default)]
struct Entry {
    ticket: Ticket,
    waiting: VecDeque<Message>,
    waiting_bytes: usize,
    bundle: Bundle,
    due: Option<Instant>,
    /// Gave way, and its bundles have not said so.
    untold: u64,
    is_ready: bool,
}

impl Forwarder {
    pub fn new(config: Config) -> Self {
        let (peers, by_name, dues, ready, stats) = Default::default();
        Self { config, peers, by_name, serial: 0, dues, ready, stats }
    }

    /// From now on messages for it wait for it.
    ///
    /// Errors: it cannot be taken.
    pub fn join(&mut self, ticket: Ticket) -> Result<PeerId, Refused> {
        let is_name = |name: &str| (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control);
        if !is_name(&ticket.name) || !ticket.to.as_deref().is_none_or(is_name) {
            return Err(Refused::BadName);
        }
        if self.by_name.contains_key(&ticket.name) {
            return Err(Refused::Taken);
        }
        if self.peers.len() >= self.config.peers_max {
            return Err(Refused::Full);
        }
        self.serial += 1;
        let id = PeerId(self.serial);
        self.by_name.insert(ticket.name.clone(), id);
        self.peers.insert(id, Entry { ticket, ..Entry::default() });
        Ok(id)
    }

    /// What was gathered of it goes its way; what waits for it goes nowhere.
    pub fn leave(&mut self, id: PeerId) {
        let Some(entry) = self.peers.remove(&id) else { return };
        self.by_name.remove(&entry.ticket.name);
        let waiting = entry.waiting.iter().map(|message| message.count).sum::<u64>();
        self.stats.nowhere += waiting + entry.bundle.count();
    }

    /// A message has come from this peer.
    pub fn handle_message(&mut self, now: Instant, from: PeerId, lane: Lane, bytes: Vec<u8>) {
        let Self { config, peers, by_name, stats, .. } = self;
        let Some(Entry { ticket, .. }) = peers.get(&from) else { return };
        stats.received += 1;
        stats.received_bytes += bytes.len() as u64;
        let Some(to) = &ticket.to else {
            match config.splits {
                true => self.split(lane, &bytes),
                false => stats.nowhere += 1,
            }
            return;
        };
        if bytes.len() > MESSAGE_BYTES_MAX {
            stats.refused += 1;
            return;
        }
        let Some(to) = by_name.get(to).copied() else {
            stats.nowhere += 1;
            return;
        };
        if !config.gathers {
            return self.put(to, Message::of(lane, bytes));
        }
        let is_urgent = ticket.urgent.as_ref().is_some_and(|mark| bytes.starts_with(mark));
        let name = ticket.name.clone();
        self.gather(now, &name, to, &bytes, is_urgent);
    }

    fn gather(&mut self, now: Instant, from: &str, to: PeerId, bytes: &[u8], is_urgent: bool) {
        let bundle_bytes_max = self.config.bundle_bytes_max;
        let mut alone = Bundle::default();
        alone.push(from, bytes);
        let held = self.peers.get(&to).map_or(0, |entry| entry.bundle.bytes());
        if held > 0 && held + alone.bytes() + 1 > bundle_bytes_max {
            self.release(to);
        }
        let Some(entry) = self.peers.get_mut(&to) else { return };
        if entry.bundle.count() == 0 {
            let lost = std::mem::take(&mut entry.untold);
            if lost > 0 {
                entry.bundle.push_lost(lost);
            }
        }
        entry.bundle.push(from, bytes);
        self.stats.urgent += u64::from(is_urgent);
        if is_urgent || entry.bundle.bytes() + 1 >= bundle_bytes_max {
            self.release(to);
        } else if entry.due.is_none() {
            let due = now + self.config.window;
            entry.due = Some(due);
            self.dues.push_back((due, to));
        }
    }

    /// The bundle of this receiver goes.
    fn release(&mut self, to: PeerId) {
        let Some(entry) = self.peers.get_mut(&to) else { return };
        entry.due = None;
        let (count, told) = (entry.bundle.count(), entry.bundle.lost());
        if count > 0 {
            self.stats.gathered_bundles += 1;
            let bytes = entry.bundle.take();
            self.put(to, Message { lane: Lane::Session, is_text: true, bytes, count, told });
        }
    }

    fn split(&mut self, lane: Lane, bytes: &[u8]) {
        let parts = Some(bytes).filter(|bytes| bytes.len() <= BUNDLE_BYTES_MAX).and_then(parts);
        let Some(parts) = parts else {
            self.stats.refused += 1;
            return;
        };
        self.stats.split_bundles += 1;
        for Part { peer, message } in parts {
            match self.by_name.get(&peer).copied() {
                Some(to) => self.put(to, Message::of(lane, message)),
                None => self.stats.nowhere += 1,
            }
        }
    }

    fn put(&mut self, to: PeerId, message: Message) {
        let Self { config, peers, ready, stats, .. } = self;
        let Some(entry) = peers.get_mut(&to) else { return };
        entry.waiting_bytes += message.cost();
        entry.waiting.push_back(message);
        while entry.waiting_bytes > config.waiting_bytes_max && entry.waiting.len() > 1 {
            let Some(oldest) = entry.waiting.pop_front() else { break };
            entry.waiting_bytes -= oldest.cost();
            entry.untold += oldest.count + oldest.told;
            stats.lost += oldest.count;
        }
        if !std::mem::replace(&mut entry.is_ready, true) {
            ready.push_back(to);
        }
    }

    /// When [`Forwarder::handle_timeout`] wants to be called; `None`: there is nothing to wait for.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        while let Some((due, id)) = self.dues.front() {
            if self.peers.get(id).is_some_and(|entry| entry.due == Some(*due)) {
                return Some(*due);
            }
            self.dues.pop_front();
        }
        None
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, id)) = self.poll_timeout().filter(|due| *due <= now).and_then(|_| self.dues.pop_front()) {
            self.release(id);
        }
    }

    /// A peer for which something has come to wait since it was told last.
    pub fn poll_ready(&mut self) -> Option<PeerId> {
        self.ready.pop_front()
    }

    /// What is to be written to this peer next.
    pub fn poll_output(&mut self, id: PeerId) -> Option<Message> {
        let entry = self.peers.get_mut(&id)?;
        entry.is_ready = false;
        let message = entry.waiting.pop_front()?;
        entry.waiting_bytes -= message.cost();
        self.stats.sent += message.count;
        self.stats.sent_bytes += message.bytes.len() as u64;
        Some(message)
    }

    pub fn stats(&self) -> Stats {
        self.stats
    }

    pub fn peers(&self) -> usize {
        self.peers.len()
    }
}

impl Message {
    fn of(lane: Lane, bytes: Vec<u8>) -> Self {
        Self { lane, is_text: std::str::from_utf8(&bytes).is_ok(), bytes, count: 1, told: 0 }
    }

    fn cost(&self) -> usize {
        self.bytes.len() + WAITING_BYTES
    }
}
