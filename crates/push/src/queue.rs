//! Messages that are not delivered yet: entries of a keyed state in the engine, so that they survive their node.
//!
//! ```text
//!   Held by a node until `due_ms` ◄── claim ── Waiting until `due_ms` ◄── 429, 5xx, no answer ── Held
//!     │                                          ▲
//!     └─ the node has ended: overdue ────────────┘ any node may claim it
//! ```
//!
//! Each write has the position of the previous one as its condition. So of two nodes that want to send a message, one
//! does.

use std::{sync::Arc, time::Duration};

use millrace_delivery::PageLimit;
use millrace_engine::{Engine, StateChanges, state_changes};
use millrace_protocol::{
    ChannelName, Error, Expected, Kind, NewPublication, Position, Publication, Since, session::Policy,
};
use serde::{Deserialize, Serialize};

/// State with the messages that are not delivered yet.
pub const QUEUE: &str = ":millrace/push";
const PAGE: PageLimit = PageLimit { count: 1000, bytes: 4 << 20 };
/// Time for which the engine keeps an entry beyond its due time and its time to live, if no node removes it.
const KEPT: Duration = Duration::from_secs(60 * 60);

/// A message for one subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub endpoint: String,
    /// Keys of the subscription, in base64url.
    pub p256dh: String,
    pub auth: String,
    /// Channel and key of the subscription.
    pub subscriptions: String,
    pub subscription: String,
    /// The message in base64.
    pub body: String,
    pub urgency: String,
    /// End of the time to live, in milliseconds since 1970.
    pub expires_ms: u64,
    /// Number of attempts that have begun.
    pub attempt: u32,
    /// Until then, in milliseconds since 1970, the node that has written this takes care of the message.
    pub due_ms: u64,
}

/// A message with its key and its position in the queue.
#[derive(Clone, Debug)]
pub struct Entry {
    pub id: Box<str>,
    pub at: Position,
    pub message: Message,
}

/// Change of an entry.
pub struct Change {
    pub id: Box<str>,
    pub at: Position,
    /// `None`: the entry was removed.
    pub due_ms: Option<u64>,
}

/// Changes of the queue.
pub struct Changes {
    pub found: Vec<Change>,
    /// True if the changes are the whole queue.
    pub is_whole: bool,
    /// Where the next read begins.
    pub next: Since,
    pub end: Position,
}

/// Access to the queue.
#[derive(Clone)]
pub struct Queue {
    engine: Arc<dyn Engine>,
    state: ChannelName,
}

/// Part of an entry that is read to find overdue ones.
#[derive(Deserialize)]
struct Due {
    due_ms: u64,
}

impl Queue {
    pub fn new(engine: Arc<dyn Engine>) -> Self {
        Self { engine, state: ChannelName::parse(QUEUE).expect("a channel name") }
    }

    /// Adds a message. A repeated addition with the same id changes nothing, and returns the first entry, which may
    /// have been changed or removed since.
    ///
    /// Errors: [`millrace_protocol::Code::PreconditionFailed`] if the entry exists already; those of the engine.
    pub async fn add(&self, id: Box<str>, message: Message) -> Result<Entry, Error> {
        let mut publication = self.publication(&id, &message, Expected::Absent);
        publication.idempotency_key = Some(format!("push/{id}").into());
        let at = self.engine.append(&self.state, publication).await?;
        Ok(Entry { id, at, message })
    }

    /// Writes a changed message.
    ///
    /// Errors: [`millrace_protocol::Code::PreconditionFailed`] if another node has changed or removed the entry; those
    /// of the engine.
    pub async fn write(&self, entry: &mut Entry) -> Result<(), Error> {
        let publication = self.publication(&entry.id, &entry.message, Expected::At(entry.at));
        entry.at = self.engine.append(&self.state, publication).await?;
        Ok(())
    }

    /// Removes an entry. Errors: see [`Queue::write`].
    pub async fn remove(&self, entry: &Entry) -> Result<(), Error> {
        let deletion = NewPublication::deletion(entry.id.clone()).only_if(Expected::At(entry.at));
        self.engine.append(&self.state, deletion).await.map(drop)
    }

    /// Returns the changes after `since`. Start with [`Since::State`].
    ///
    /// Errors: those of the engine.
    pub async fn changes(&self, since: Since) -> Result<Changes, Error> {
        let StateChanges { publications, next, end, is_whole } =
            state_changes(&*self.engine, &self.state, since).await?;
        let change = |entry: &Publication| {
            // An entry that this version does not understand is left to the node that does.
            let due = || serde_json::from_slice::<Due>(entry.data()).ok().map(|due| due.due_ms);
            let due_ms = if entry.is_deletion { None } else { Some(due()?) };
            Some(Change { id: entry.key.clone()?, at: Position { epoch: end.epoch, offset: entry.offset }, due_ms })
        };
        Ok(Changes { found: publications.iter().filter_map(change).collect(), is_whole, next, end })
    }

    /// Returns the entry at a position; `None` if it was changed or removed. `end` is the end of the log.
    ///
    /// Errors: those of the engine.
    pub async fn find(&self, id: &str, at: Position, end: Position) -> Result<Option<Entry>, Error> {
        let before = Since::StateAfter { epoch: at.epoch, offset: at.offset.saturating_sub(1), began: end.offset };
        let one = PageLimit { count: 1, ..PAGE };
        let page = self.engine.page(&self.state, before, Policy::Every, one).await?;
        let mut all = page.publications.iter();
        let found = all.find(|entry| entry.offset == at.offset && entry.key.as_deref() == Some(id));
        let message = found.and_then(|found| serde_json::from_slice(found.data()).ok());
        Ok(message.filter(|_| page.end.epoch == at.epoch).map(|message| Entry { id: id.into(), at, message }))
    }

    fn publication(&self, id: &str, message: &Message, expected: Expected) -> NewPublication {
        let json = serde_json::to_vec(message).expect("text always serializes into memory");
        let kept_until_ms = message.expires_ms.max(message.due_ms);
        let ttl_ms = kept_until_ms.saturating_sub(self.engine.now_ms()) + KEPT.as_millis() as u64;
        let publication =
            NewPublication { key: Some(id.into()), ttl_ms: Some(ttl_ms), ..NewPublication::new(Kind::Json, json) };
        publication.only_if(expected)
    }
}
