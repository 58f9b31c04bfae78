use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Instant,
};

use millrace_delivery::ChannelKey;
use millrace_protocol::{Epoch, Position, Publication};
use tokio::sync::Notify;

use crate::router::Route;

/// Maximum entries of one mailbox. At the maximum, only the newest publication of each channel is kept, and readers
/// fetch the others from history.
const ENTRIES_MAX: usize = 65_536;
/// A mailbox with this many entries is congested until it is emptied. Publishers into it are slowed down, so that it
/// does not overflow.
const HIGH_WATER: usize = 8_192;

/// A publication or change of a channel, on its way to a shard.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub route: Arc<Route>,
    /// Key of the channel in the shard's hub, if known.
    pub key: Option<ChannelKey>,
    pub event: ChannelEvent,
}

#[derive(Clone, Debug)]
pub enum ChannelEvent {
    Published(Epoch, Publication),
    /// The log has moved, and the publications between the two positions were not delivered.
    Moved(Box<Moved>),
}

/// Content of [`ChannelEvent::Moved`], see [`millrace_engine::Deliver::moved`].
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    pub from: Position,
    pub top: Position,
}

/// The only way into a shard from another thread. It is bounded: an overflow costs a read of history, but loses no
/// publication.
#[derive(Debug, Default)]
pub struct Mailbox {
    entries: Mutex<Entries>,
    /// True while the shard is about to check the mailbox itself, so that no wake-up is needed.
    attended: AtomicBool,
    congested: AtomicBool,
    /// Number of congested mailboxes of the node.
    all_congested: Arc<AtomicUsize>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct Entries {
    deliveries: Vec<Delivery>,
    /// Time at which the oldest entry arrived. `None` if the shard attended then: it knows the time itself.
    since: Option<Instant>,
}

impl Mailbox {
    /// Creates a mailbox. All mailboxes of a node share the counter of congested ones.
    pub fn new(all_congested: Arc<AtomicUsize>) -> Self {
        Self { all_congested, ..Self::default() }
    }

    /// Returns true if the mailbox has too many entries.
    pub fn is_congested(&self) -> bool {
        self.congested.load(Relaxed)
    }

    pub fn push(&self, delivery: Delivery) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.deliveries.len() >= ENTRIES_MAX {
            keep_newest_per_channel(&mut entries.deliveries);
        }
        let wakes = entries.deliveries.is_empty() && !self.attended.load(SeqCst);
        if wakes {
            entries.since = Some(Instant::now());
        }
        entries.deliveries.push(delivery);
        if entries.deliveries.len() == HIGH_WATER {
            self.set_congested(true);
        }
        drop(entries);
        if wakes {
            self.notify.notify_one();
        }
    }

    /// Suppresses wake-ups until [`Mailbox::leave`], because the shard checks the mailbox itself.
    pub fn attend(&self) {
        self.attended.store(true, SeqCst);
    }

    /// Ends [`Mailbox::attend`]. Wakes the shard if entries have arrived since it last checked.
    pub fn leave(&self) {
        self.attended.store(false, SeqCst);
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if !entries.deliveries.is_empty() {
            entries.since.get_or_insert_with(Instant::now);
            drop(entries);
            self.notify.notify_one();
        }
    }

    /// Returns all entries, oldest first, and the time at which the oldest arrived, unless the shard attended then.
    /// `spare` (empty) takes their place, so that no memory is allocated per turn.
    pub fn take(&self, spare: Vec<Delivery>) -> (Vec<Delivery>, Option<Instant>) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_congested() {
            self.set_congested(false);
        }
        (std::mem::replace(&mut entries.deliveries, spare), entries.since.take())
    }

    /// Must be called with the entries locked.
    fn set_congested(&self, congested: bool) {
        if self.congested.swap(congested, Relaxed) != congested {
            match congested {
                true => self.all_congested.fetch_add(1, Relaxed),
                false => self.all_congested.fetch_sub(1, Relaxed),
            };
        }
    }

    /// Waits until entries may have arrived.
    pub async fn filled(&self) {
        self.notify.notified().await;
    }
}

fn keep_newest_per_channel(entries: &mut Vec<Delivery>) {
    let mut seen = HashSet::new();
    let mut newest: Vec<Delivery> =
        entries.drain(..).rev().filter(|entry| seen.insert(entry.route.name.clone())).collect();
    newest.reverse();
    *entries = newest;
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::Router;
    use millrace_engine::Deliver;
    use millrace_protocol::{ChannelName, Kind, PublicationHead};

    /// Returns an empty publication at an offset.
    pub fn publication(offset: u64) -> Publication {
        let head = PublicationHead {
            offset,
            time_ms: 0,
            key: None,
            expires_ms: None,
            is_traced: false,
            kind: Kind::Text,
            is_deletion: false,
        };
        Publication::new(head, b"")
    }

    fn delivery(channel: &str, offset: u64) -> Delivery {
        let publication = publication(offset);
        let route = Router::new(1).route(&ChannelName::parse(channel).unwrap());
        Delivery { route, key: None, event: ChannelEvent::Published(Epoch(1), publication) }
    }

    #[test]
    fn running_shard_is_not_woken_and_misses_nothing() {
        let mailbox = Mailbox::default();
        let woken = |mailbox: &Mailbox| {
            let mut notified = std::pin::pin!(mailbox.filled());
            notified.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
        };
        mailbox.attend();
        mailbox.push(delivery("a", 1));
        assert!(!woken(&mailbox));
        mailbox.take(Vec::new());
        mailbox.leave();
        assert!(!woken(&mailbox), "it has looked");
        mailbox.attend();
        mailbox.push(delivery("a", 2));
        mailbox.leave();
        assert!(woken(&mailbox), "it has not looked since");
    }

    #[test]
    fn oldest_entry_has_its_time_unless_the_shard_attends() {
        let mailbox = Mailbox::default();
        let since = || mailbox.take(Vec::new()).1;
        let before = Instant::now();
        mailbox.push(delivery("a", 1));
        let first = Instant::now();
        mailbox.push(delivery("a", 2));
        assert!(since().is_some_and(|since| (before..=first).contains(&since)));
        mailbox.attend();
        mailbox.push(delivery("a", 3));
        assert_eq!(since(), None);
        mailbox.push(delivery("a", 4));
        mailbox.leave();
        assert!(since().is_some(), "the shard does not attend any more");
    }

    #[test]
    fn mailbox_is_congested_until_it_is_empty() {
        let all = Arc::<AtomicUsize>::default();
        let (one, other) = (Mailbox::new(all.clone()), Mailbox::new(all.clone()));
        let seen = || (one.is_congested(), other.is_congested(), all.load(Relaxed));
        (1..HIGH_WATER as u64).for_each(|offset| one.push(delivery("a", offset)));
        assert_eq!(seen(), (false, false, 0));
        one.push(delivery("a", HIGH_WATER as u64));
        assert_eq!(seen(), (true, false, 1));
        (1..=2 * ENTRIES_MAX as u64).for_each(|offset| other.push(delivery("b", offset)));
        assert_eq!(seen(), (true, true, 2), "once each, overflow or not");
        one.take(Vec::new());
        assert_eq!(seen(), (false, true, 1));
        other.take(Vec::new());
        other.take(Vec::new());
        assert_eq!(seen(), (false, false, 0));
    }

    #[test]
    fn overflowing_mailbox_keeps_newest_per_channel() {
        let mailbox = Mailbox::default();
        mailbox.push(delivery("rare", 1));
        for offset in 1..=ENTRIES_MAX as u64 {
            mailbox.push(delivery("busy", offset));
        }
        let offset = |delivery: &Delivery| match &delivery.event {
            ChannelEvent::Published(_, publication) => publication.offset,
            ChannelEvent::Moved(moved) => moved.top.offset,
        };
        let left: Vec<_> = mailbox.take(Vec::new()).0.iter().map(|d| (d.route.name.to_string(), offset(d))).collect();
        let max = ENTRIES_MAX as u64;
        assert_eq!(left, [("rare".into(), 1), ("busy".into(), max - 1), ("busy".into(), max)]);
    }
}
