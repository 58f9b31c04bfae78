//! Keyed states: the newest value of each key, kept up to date over any transport, and conditional changes.
//!
//! Source: docs/reference/protocol.md, "State"; docs/how-to/keep-a-state.md.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    time::Duration,
};

use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    backoff::FailedAttempt,
    http::query_value,
    problem::Problem,
    publish::{HttpPublisher, PublishError},
    server::Server,
    subscription::{Message, Options, SubscriptionError, Update, read},
};

/// The newest value of a key.
#[derive(Debug)]
pub struct Entry {
    /// Payload as JSON; if `encoding` is `base64`, a string with base64.
    pub data: Box<RawValue>,
    pub encoding: Option<String>,
    /// Position of the publication: the condition [`Change::if_match`] of a change that replaces this entry.
    pub position: String,
    /// Milliseconds since 1970.
    pub time: u64,
}

/// Change of a state by an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The key has a new entry.
    Set(String),
    /// The key was deleted.
    Deleted(String),
    /// All entries are current. Later changes follow one by one.
    Complete,
}

/// Entries of one keyed state, as received so far.
///
/// After lost changes the server sends the whole state again. Meanwhile the known entries stay; those that no longer
/// exist are deleted when the state is complete.
#[derive(Debug, Default)]
pub struct KeyedState {
    entries: BTreeMap<String, Entry>,
    /// Keys whose entries were received before the last gap, and not since.
    stale: BTreeSet<String>,
    is_complete: bool,
}

impl KeyedState {
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Returns the entries, ordered by key.
    pub fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// Returns false while the state is being received.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Applies an update of a reader with `since = state`. Returns the changes, in order.
    pub fn apply(&mut self, update: Update) -> Vec<Changed> {
        match update {
            Update::Message(message) => self.apply_message(message).into_iter().collect(),
            Update::Gap(_) => {
                self.stale = self.entries.keys().cloned().collect();
                self.is_complete = false;
                Vec::new()
            }
            Update::StateComplete(_) => {
                self.is_complete = true;
                let stale = std::mem::take(&mut self.stale);
                stale.iter().for_each(|key| drop(self.entries.remove(key)));
                stale.into_iter().map(Changed::Deleted).chain([Changed::Complete]).collect()
            }
            Update::Lost(_) => Vec::new(),
        }
    }

    fn apply_message(&mut self, message: Message) -> Option<Changed> {
        let Message { position, time, key, data, deleted, encoding, .. } = message;
        let key = key?;
        self.stale.remove(&key);
        if deleted {
            return self.entries.remove(&key).map(|_| Changed::Deleted(key));
        }
        // After a gap, an entry that has not changed is no change.
        let is_new = self.entries.get(&key).is_none_or(|known| known.position != position);
        self.entries.insert(key.clone(), Entry { data, encoding, position, time });
        is_new.then_some(Changed::Set(key))
    }
}

/// Follows one keyed state until `sink` breaks. `sink` receives the state after each change. `options.since` is
/// ignored.
///
/// Errors: those of [`read`]; [`SubscriptionError::Options`] unless `options` has exactly one channel.
pub async fn follow(
    options: &Options,
    state: &mut KeyedState,
    sink: &mut dyn FnMut(&KeyedState, &Changed) -> ControlFlow<()>,
) -> Result<(), SubscriptionError> {
    if options.channels.len() != 1 {
        return Err(SubscriptionError::Options(format!(
            "{} channels: follow one state at a time",
            options.channels.len()
        )));
    }
    let options = Options { since: Some("state".into()), ..options.clone() };
    read(&options, &mut |update| state.apply(update).iter().try_for_each(|changed| sink(state, changed))).await
}

/// A change of one key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change<'a> {
    pub key: &'a str,
    /// The new value; `None` deletes the key.
    pub value: Option<&'a Value>,
    /// Changes the key only if its entry has this position; `0` if the key must not exist.
    pub if_match: Option<&'a str>,
    /// Time after which the server deletes the key, unless a newer value has replaced this one.
    pub ttl: Option<Duration>,
}

/// Reasons why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The entry does not have the position of the condition. `position` is its current one; `0` if the key does not
    /// exist.
    #[error("the entry has changed; its current position is {position}")]
    PreconditionFailed { position: String },
    #[error(transparent)]
    Publish(PublishError),
    #[error("the answer is not JSON with a `position`")]
    Malformed,
}

impl From<PublishError> for ChangeError {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Refused(Problem { code, detail, .. }) if code == "precondition_failed" => {
                let position = detail.rsplit(' ').next().unwrap_or_default().to_owned();
                Self::PreconditionFailed { position }
            }
            error => Self::Publish(error),
        }
    }
}

/// Changes keyed states. A change is repeated with the same idempotency key until it is answered.
pub struct Writer {
    server: Server,
    publisher: HttpPublisher,
}

impl Writer {
    /// Creates a writer. A change fails once the server has not accepted it for `deadline`.
    ///
    /// Errors: [`PublishError::Client`].
    pub fn new(server: Server, deadline: Duration, on_retry: fn(&FailedAttempt)) -> Result<Self, PublishError> {
        Ok(Self { server, publisher: HttpPublisher::new(deadline, on_retry)? })
    }

    /// Makes a change and returns its position.
    ///
    /// Cost: one request. Errors: see [`ChangeError`].
    pub async fn change(&mut self, channel: &str, change: Change<'_>) -> Result<String, ChangeError> {
        #[derive(Deserialize)]
        struct Answer {
            position: String,
        }
        let Change { key, value, if_match, ttl } = change;
        let ttl = ttl.map(|ttl| ttl.as_secs_f64().to_string());
        let path = format!("/v1/channels/{}", query_value(channel));
        let condition = if_match.map(|position| ("If-Match", position));
        let answer = match value {
            Some(value) => {
                let json = [("Content-Type", "application/json"), ("Millrace-Key", key)];
                let ttl = ttl.as_deref().map(|ttl| ("Millrace-TTL", ttl));
                let headers: Vec<_> = json.into_iter().chain(condition).chain(ttl).collect();
                self.publisher.post(&self.server, &path, &headers, value.to_string().into(), |_| Ok(())).await
            }
            None => {
                let path = format!("{path}?key={}", query_value(key));
                let headers: Vec<_> = condition.into_iter().collect();
                self.publisher.send(Method::DELETE, &self.server, &path, &headers, Vec::new(), |_| Ok(())).await
            }
        };
        serde_json::from_slice(&answer?).map(|Answer { position }| position).map_err(|_| ChangeError::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subscription::Gap;

    fn message(position: &str, key: &str, data: Option<&str>) -> Update {
        let value = match data {
            Some(data) => format!(r#"{{"channel":"s","position":"{position}","time":1,"key":"{key}","data":{data}}}"#),
            None => format!(r#"{{"channel":"s","position":"{position}","time":1,"key":"{key}","deleted":true}}"#),
        };
        Update::Message(serde_json::from_str(&value).expect("a message"))
    }

    #[test]
    fn state_after_a_gap_has_only_the_entries_that_exist() {
        let mut state = KeyedState::default();
        for (key, at) in [("kept", "e:1"), ("changed", "e:2"), ("deleted", "e:3")] {
            assert_eq!(state.apply(message(at, key, Some("1"))), [Changed::Set(key.into())]);
        }
        assert_eq!(state.apply(Update::StateComplete("s".into())), [Changed::Complete]);
        assert_eq!(state.apply(message("e:4", "gone", None)), [], "a deletion of an unknown key changes nothing");
        let gap = Gap { channel: "s".into(), from: "e:4".into(), to: "f:0".into() };
        assert_eq!(state.apply(Update::Gap(gap)), []);
        assert!(!state.is_complete() && state.entries().len() == 3);
        assert_eq!(state.apply(message("e:1", "kept", Some("1"))), []);
        assert_eq!(state.apply(message("e:9", "changed", Some("2"))), [Changed::Set("changed".into())]);
        let end = [Changed::Deleted("deleted".into()), Changed::Complete];
        assert_eq!(state.apply(Update::StateComplete("s".into())), end);
        assert_eq!(state.entries().keys().collect::<Vec<_>>(), ["changed", "kept"]);
        assert_eq!(state.apply(message("e:10", "kept", None)), [Changed::Deleted("kept".into())]);
        assert_eq!(state.get("changed").expect("an entry").data.get(), "2");
    }

    #[test]
    fn refused_condition_names_the_current_position() {
        let detail = "the key has changed; its current position is e:7".to_owned();
        let refused = Problem { code: "precondition_failed".into(), detail, retry: false, reason: None };
        let error = ChangeError::from(PublishError::Refused(refused));
        assert!(matches!(&error, ChangeError::PreconditionFailed { position } if position == "e:7"), "{error}");
    }
}
