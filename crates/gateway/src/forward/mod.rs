//! Message forwarding of a gateway: forwards single messages, gathers messages of many peers into one bundle,
//! and splits a bundle for many peers.
//!
//! No connections and no clock: messages and the time are inputs, messages to write to a peer are outputs.

mod bundle;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

pub use bundle::{Bundle, BundledMessage, parts};

use millrace_rtc::Lane;

/// Maximum size of a device's message, in bytes. In a bundle it can become six times as long, which all current
/// WebRTC implementations still accept.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Maximum size of a bundle to be split, in bytes: the largest message that browsers send.
pub const BUNDLE_BYTES_MAX: usize = 256 * 1024;
/// Maximum length of a name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Cost of a queued message in bytes, in addition to its content.
const MESSAGE_OVERHEAD: usize = 64;

/// Mode and limits of forwarding, the same for all peers.
///
/// | mode | message of a peer that names a receiver (`to`) | message of a peer that names none |
/// |---|---|---|
/// | neither | is forwarded unchanged | is discarded |
/// | `gathers` | waits for other messages to the same receiver, and is sent in one bundle with them | is discarded |
/// | `splits` | is forwarded unchanged | is a bundle: each part goes to the peer that it names |
/// | both | is gathered | is split |
#[derive(Clone, Debug)]
pub struct Config {
    pub gathers: bool,
    pub splits: bool,
    /// Time from the first message of a bundle until the bundle is sent.
    pub window: Duration,
    /// Maximum size of a bundle, in bytes. A bundle is sent before it exceeds this size. A single longer message is
    /// sent alone.
    pub bundle_bytes_max: usize,
    /// Maximum bytes queued for a slow receiver; when the queue is full, the oldest messages are dropped.
    pub queue_bytes_max: usize,
    pub peers_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            gathers: false,
            splits: false,
            window: Duration::from_millis(250),
            bundle_bytes_max: 16 * 1024,
            queue_bytes_max: 1 << 20,
            peers_max: 256,
        }
    }
}

/// Id of a peer, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId(u64);

/// Name and options of a peer that joins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerOptions {
    pub name: String,
    /// Receiver of the messages of this peer.
    pub to: Option<String>,
    /// Prefix of urgent messages. The bundle into which an urgent message is gathered is sent at once.
    pub urgent: Option<Vec<u8>>,
}

/// Reason why a peer cannot join.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("a name has 1 to {NAME_BYTES_MAX} bytes and no control characters")]
    BadName,
    #[error("another peer with this name is connected; choose another name")]
    NameTaken,
    #[error("the gateway has reached its maximum number of peers; try again later")]
    Full,
}

/// Message to be written to a peer.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    pub lane: Lane,
    /// Whether to send a text message. Messages that are valid UTF-8 are sent as text.
    pub is_text: bool,
    pub bytes: Vec<u8>,
    /// Number of device messages that it contains.
    count: u64,
    /// Number of dropped messages that it reports.
    reported_lost: u64,
}

/// Message counters since the start. A gathered message counts as one when it is received and when it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    pub received: u64,
    pub received_bytes: u64,
    pub sent: u64,
    pub sent_bytes: u64,
    pub gathered_bundles: u64,
    pub split_bundles: u64,
    /// Messages that were sent at once because they are urgent.
    pub urgent: u64,
    /// Messages that were dropped because their receiver was too slow.
    pub lost: u64,
    /// Messages that were discarded because they had no receiver, or it was not connected.
    pub nowhere: u64,
    /// Messages that were too large, or were not a bundle where a bundle was expected.
    pub refused: u64,
}

/// Forwarder between all peers of a gateway.
///
/// ```text
///   handle_message ──► unchanged ──────────────────────────────┐
///        │                                                     ▼
///        ├──────────► bundle of its receiver ── window, ──► queue ── poll_output
///        │                                      size, urgent   ▲
///        └──────────► parts of a bundle ───────────────────────┘
/// ```
pub struct Forwarder {
    config: Config,
    peers: HashMap<PeerId, Entry>,
    by_name: HashMap<String, PeerId>,
    serial: u64,
    /// Deadlines of bundles, earliest first, because all windows are equally long. The entry of a bundle that was
    /// sent early stays until it is polled.
    deadlines: VecDeque<(Instant, PeerId)>,
    ready: VecDeque<PeerId>,
    stats: Stats,
}

#[derive(Default)]
struct Entry {
    options: PeerOptions,
    queue: VecDeque<Message>,
    queue_bytes: usize,
    bundle: Bundle,
    due: Option<Instant>,
    /// Number of dropped messages that no bundle has reported yet.
    unreported_lost: u64,
    is_ready: bool,
}

impl Forwarder {
    pub fn new(config: Config) -> Self {
        let (peers, by_name, deadlines, ready, stats) = Default::default();
        Self { config, peers, by_name, serial: 0, deadlines, ready, stats }
    }

    /// Adds a peer. From now on, messages to this peer are queued.
    ///
    /// Errors: the reason why the peer cannot join.
    pub fn join(&mut self, options: PeerOptions) -> Result<PeerId, Refused> {
        let is_name = |name: &str| (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control);
        if !is_name(&options.name) || !options.to.as_deref().is_none_or(is_name) {
            return Err(Refused::BadName);
        }
        if self.by_name.contains_key(&options.name) {
            return Err(Refused::NameTaken);
        }
        if self.peers.len() >= self.config.peers_max {
            return Err(Refused::Full);
        }
        self.serial += 1;
        let id = PeerId(self.serial);
        self.by_name.insert(options.name.clone(), id);
        self.peers.insert(id, Entry { options, ..Entry::default() });
        Ok(id)
    }

    /// Removes a peer. Messages that were gathered from it are still sent; messages that are queued for it are
    /// discarded.
    pub fn leave(&mut self, id: PeerId) {
        let Some(entry) = self.peers.remove(&id) else { return };
        self.by_name.remove(&entry.options.name);
        let queued = entry.queue.iter().map(|message| message.count).sum::<u64>();
        self.stats.nowhere += queued + entry.bundle.count();
    }

    /// Handles a message from this peer.
    pub fn handle_message(&mut self, now: Instant, from: PeerId, lane: Lane, bytes: Vec<u8>) {
        let Self { config, peers, by_name, stats, .. } = self;
        let Some(Entry { options, .. }) = peers.get(&from) else { return };
        stats.received += 1;
        stats.received_bytes += bytes.len() as u64;
        let Some(to) = &options.to else {
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
            return self.enqueue(to, Message::of(lane, bytes));
        }
        let is_urgent = options.urgent.as_ref().is_some_and(|prefix| bytes.starts_with(prefix));
        let name = options.name.clone();
        self.gather(now, &name, to, &bytes, is_urgent);
    }

    fn gather(&mut self, now: Instant, from: &str, to: PeerId, bytes: &[u8], is_urgent: bool) {
        let bundle_bytes_max = self.config.bundle_bytes_max;
        let mut single = Bundle::default();
        single.push(from, bytes);
        let gathered_bytes = self.peers.get(&to).map_or(0, |entry| entry.bundle.bytes());
        if gathered_bytes > 0 && gathered_bytes + single.bytes() + 1 > bundle_bytes_max {
            self.release(to);
        }
        let Some(entry) = self.peers.get_mut(&to) else { return };
        if entry.bundle.count() == 0 {
            let lost = std::mem::take(&mut entry.unreported_lost);
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
            self.deadlines.push_back((due, to));
        }
    }

    /// Moves the bundle of this receiver to its queue.
    fn release(&mut self, to: PeerId) {
        let Some(entry) = self.peers.get_mut(&to) else { return };
        entry.due = None;
        let (count, reported_lost) = (entry.bundle.count(), entry.bundle.lost());
        if count > 0 {
            self.stats.gathered_bundles += 1;
            let bytes = entry.bundle.take();
            self.enqueue(to, Message { lane: Lane::Session, is_text: true, bytes, count, reported_lost });
        }
    }

    fn split(&mut self, lane: Lane, bytes: &[u8]) {
        let parts = Some(bytes).filter(|bytes| bytes.len() <= BUNDLE_BYTES_MAX).and_then(parts);
        let Some(parts) = parts else {
            self.stats.refused += 1;
            return;
        };
        self.stats.split_bundles += 1;
        for BundledMessage { peer, message } in parts {
            match self.by_name.get(&peer).copied() {
                Some(to) => self.enqueue(to, Message::of(lane, message)),
                None => self.stats.nowhere += 1,
            }
        }
    }

    fn enqueue(&mut self, to: PeerId, message: Message) {
        let Self { config, peers, ready, stats, .. } = self;
        let Some(entry) = peers.get_mut(&to) else { return };
        entry.queue_bytes += message.cost();
        entry.queue.push_back(message);
        while entry.queue_bytes > config.queue_bytes_max && entry.queue.len() > 1 {
            let Some(oldest) = entry.queue.pop_front() else { break };
            entry.queue_bytes -= oldest.cost();
            entry.unreported_lost += oldest.count + oldest.reported_lost;
            stats.lost += oldest.count;
        }
        if !std::mem::replace(&mut entry.is_ready, true) {
            ready.push_back(to);
        }
    }

    /// Returns when [`Forwarder::handle_timeout`] must be called, or `None` if no bundle is pending.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        while let Some((due, id)) = self.deadlines.front() {
            if self.peers.get(id).is_some_and(|entry| entry.due == Some(*due)) {
                return Some(*due);
            }
            self.deadlines.pop_front();
        }
        None
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, id)) = self.poll_timeout().filter(|due| *due <= now).and_then(|_| self.deadlines.pop_front())
        {
            self.release(id);
        }
    }

    /// Returns the next peer whose queue has grown since its last [`Forwarder::poll_output`].
    pub fn poll_ready(&mut self) -> Option<PeerId> {
        self.ready.pop_front()
    }

    /// Returns the next message to write to this peer.
    pub fn poll_output(&mut self, id: PeerId) -> Option<Message> {
        let entry = self.peers.get_mut(&id)?;
        entry.is_ready = false;
        let message = entry.queue.pop_front()?;
        entry.queue_bytes -= message.cost();
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
        Self { lane, is_text: std::str::from_utf8(&bytes).is_ok(), bytes, count: 1, reported_lost: 0 }
    }

    fn cost(&self) -> usize {
        self.bytes.len() + MESSAGE_OVERHEAD
    }
}
