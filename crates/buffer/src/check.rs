//! A question to the server: which of these messages does the channel already have?
//!
//! The server forgets idempotency keys after some minutes. If a request of the buffer was not answered for longer, its
//! messages are in doubt. Before they are repeated, the history of the channel decides.

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::record::Put;

/// Messages of one channel that are in doubt.
#[derive(Debug)]
pub struct Check {
    pub channel: String,
    pub(crate) seqs: Vec<u64>,
    contents: Vec<Content>,
    found: Vec<bool>,
    /// Messages before this one are decided, because the server received the messages in order.
    next: usize,
    /// Time of the first request, in milliseconds since 1970.
    since_ms: u64,
    reaches_back: bool,
    is_started: bool,
}

/// Key and data, which identify a message in the history.
#[derive(Debug, PartialEq)]
struct Content {
    key: Option<String>,
    data: Value,
    deleted: bool,
}

#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    key: Option<String>,
    #[serde(default)]
    delete: bool,
}

/// A message of the server's history, as in a page of a poll.
#[derive(Debug, Deserialize)]
pub struct HistoryMessage {
    pub position: String,
    /// Milliseconds since 1970, by the clock of the server.
    pub time: u64,
    pub key: Option<String>,
    #[serde(default)]
    pub data: Value,
    #[serde(default)]
    pub deleted: bool,
}

impl Check {
    pub(crate) fn new(channel: &str, since_ms: u64) -> Self {
        Self {
            channel: channel.to_owned(),
            seqs: Vec::new(),
            contents: Vec::new(),
            found: Vec::new(),
            next: 0,
            since_ms,
            reaches_back: false,
            is_started: false,
        }
    }

    pub(crate) fn add(&mut self, put: &Put<'_>) {
        let object = format!("{{{}}}", put.message.members);
        let members = serde_json::from_str::<Members<'_>>(&object);
        let content = members.map_or_else(
            |_| Content { key: None, data: Value::Null, deleted: false },
            |members| Content {
                data: members.data.and_then(|data| serde_json::from_str(data.get()).ok()).unwrap_or_default(),
                key: members.key,
                deleted: members.delete,
            },
        );
        self.seqs.push(put.seq);
        self.contents.push(content);
        self.found.push(false);
    }

    /// Handles the next message of the channel's history, oldest first.
    pub fn handle_message(&mut self, message: HistoryMessage) {
        if !std::mem::replace(&mut self.is_started, true) {
            let is_first = message.position.rsplit(':').next() == Some("1");
            self.reaches_back = is_first || message.time <= self.since_ms;
        }
        let HistoryMessage { key, data, deleted, .. } = message;
        let content = Content { key, data, deleted };
        if let Some(index) = self.contents[self.next..].iter().position(|other| *other == content) {
            self.found[self.next + index] = true;
            self.next += index + 1;
        }
    }

    /// Returns true if no further message of the history can change the result.
    pub fn is_complete(&self) -> bool {
        self.next == self.contents.len()
    }

    pub(crate) fn found(&self) -> impl Iterator<Item = u64> {
        self.seqs.iter().zip(&self.found).filter(|(_, found)| **found).map(|(seq, _)| *seq)
    }

    /// Number of messages that are repeated although the history does not show whether the server had them.
    pub(crate) fn unverified(&self) -> u64 {
        let missing = self.found.iter().filter(|found| !**found).count() as u64;
        if self.reaches_back || !self.is_started { 0 } else { missing }
    }
}
