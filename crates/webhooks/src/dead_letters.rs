//! Dead letters: events that the back end has rejected, or has not acknowledged for too long.
//!
//! A dead letter is an entry in a keyed state of its own. To replay it, its entry is rewritten with `"replay": true`;
//! the dispatcher reads the log of this state like any other, and deletes the letter once the event is acknowledged.

use std::sync::Arc;

use millrace_engine::Engine;
use millrace_protocol::{ChannelName, Code, Error, Expected, Kind, NewPublication, Position, Publication};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};

use crate::{
    event::{DEAD_LETTERS, Event, Letter},
    store::{channel, read_state, to_json},
};

/// Maximum number of letters of one page.
pub const PAGE_MAX: usize = 1000;

#[derive(Serialize)]
struct NewLetter<'a> {
    reason: &'a str,
    event: &'a RawValue,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    replay: bool,
}

/// Access to the dead letters.
#[derive(Clone)]
pub struct DeadLetters {
    engine: Arc<dyn Engine>,
    channel: ChannelName,
    max: usize,
}

impl DeadLetters {
    pub fn new(engine: Arc<dyn Engine>, max: usize) -> Self {
        Self { engine, channel: channel(DEAD_LETTERS), max }
    }

    /// Returns the number of letters. Cost: reads all of them.
    ///
    /// Errors: those of the engine.
    pub async fn count(&self) -> Result<usize, Error> {
        Ok(self.read().await?.0.len())
    }

    /// Adds an event, or replaces its letter. `reason` names no URL.
    ///
    /// Errors: those of the engine.
    pub async fn add(&self, event: &Event, reason: &str) -> Result<(), Error> {
        let Ok(raw) = serde_json::from_slice::<&RawValue>(&event.json) else { return Ok(()) };
        self.put(&event.id, &NewLetter { reason, event: raw, replay: false }, None).await.map(drop)
    }

    /// Deletes the oldest letters above the maximum. Returns the number of letters, and how many were deleted.
    ///
    /// Errors: those of the engine.
    pub async fn trim(&self) -> Result<(usize, usize), Error> {
        let (letters, _) = self.read().await?;
        let excess = letters.len().saturating_sub(self.max);
        for letter in &letters[..excess] {
            self.delete(letter.key.as_deref().unwrap_or_default()).await?;
        }
        Ok((letters.len() - excess, excess))
    }

    /// Deletes a letter.
    ///
    /// Errors: those of the engine.
    pub async fn delete(&self, id: &str) -> Result<(), Error> {
        self.engine.append(&self.channel, NewPublication::deletion(id.into())).await.map(drop)
    }

    /// Returns a page of letters, oldest first: `{"letters": [{"id", "reason", "dead_ms", "replaying", "event"}],
    /// "more"}`. `after` is the id of the last letter of the previous page.
    ///
    /// Errors: [`Code::NotFound`] if that letter does not exist any more; those of the engine.
    pub async fn page(&self, after: Option<&str>, limit: usize) -> Result<Value, Error> {
        let (letters, _) = self.read().await?;
        let start = match after {
            None => 0,
            Some(after) => {
                let found = letters.iter().position(|letter| letter.key.as_deref() == Some(after));
                let gone = || {
                    let detail = "there is no dead letter with the id of `after` any more; start again without `after`";
                    Error::new(Code::NotFound, detail)
                };
                found.ok_or_else(gone)? + 1
            }
        };
        let rest = &letters[start..];
        let shown: Vec<Value> = rest.iter().take(limit).map(shown).collect();
        Ok(json!({ "letters": shown, "more": rest.len() > limit }))
    }

    /// Requests a replay of the letters with these ids, or of all. Returns their number; unknown ids are not counted.
    ///
    /// Errors: those of the engine. Some letters may be replayed then.
    pub async fn replay(&self, ids: Option<&[String]>) -> Result<usize, Error> {
        let (letters, end) = self.read().await?;
        let mut count = 0;
        for letter in &letters {
            let id = letter.key.as_deref().unwrap_or_default();
            if ids.is_some_and(|ids| !ids.iter().any(|wanted| wanted == id)) {
                continue;
            }
            let Ok(Letter { event, .. }) = serde_json::from_slice(letter.data()) else { continue };
            let reason = serde_json::from_slice::<Value>(letter.data()).unwrap_or_default()["reason"].take();
            let replayed = NewLetter { reason: reason.as_str().unwrap_or_default(), event, replay: true };
            let read = Expected::At(Position { epoch: end.epoch, offset: letter.offset });
            match self.put(id, &replayed, Some(read)).await {
                Ok(_) => count += 1,
                // The letter was deleted or rewritten meanwhile.
                Err(error) if error.code == Code::PreconditionFailed => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    async fn read(&self) -> Result<(Vec<Publication>, Position), Error> {
        read_state(&*self.engine, &self.channel).await
    }

    async fn put(&self, id: &str, letter: &NewLetter<'_>, expected: Option<Expected>) -> Result<Position, Error> {
        let new = NewPublication { key: Some(id.into()), expected, ..NewPublication::new(Kind::Json, to_json(letter)) };
        self.engine.append(&self.channel, new).await
    }
}

fn shown(letter: &Publication) -> Value {
    let mut content: Value = serde_json::from_slice(letter.data()).unwrap_or_default();
    json!({
        "id": letter.key.as_deref(), "reason": content["reason"].take(), "dead_ms": letter.time_ms,
        "replaying": content["replay"] == true, "event": content["event"].take(),
    })
}
