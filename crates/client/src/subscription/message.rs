//! Messages of a subscription, and the updates that a reader reports.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    backoff::{FailedAttempt, GaveUp},
    problem::Problem,
};

/// Maximum bytes of one message with its envelope: 1 MiB as base64 plus room for the rest.
pub(super) const MESSAGE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Publication with its envelope, as in `docs/reference/protocol.md`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Message {
    pub channel: String,
    pub position: String,
    /// Milliseconds since 1970.
    pub time: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Trace context of the publisher: the value of a `traceparent` header (W3C Trace Context).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Payload as JSON; if `encoding` is `base64`, a string with base64. `null` if the key is deleted.
    #[serde(default = "null")]
    pub data: Box<RawValue>,
    /// The publication deletes its key from a keyed state.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
}

pub(super) fn null() -> Box<RawValue> {
    RawValue::NULL.to_owned()
}

impl Message {
    /// Returns the payload on one line: text without quotes unless it has line breaks, JSON with line breaks
    /// replaced by spaces, binary as base64.
    pub fn line(&self) -> String {
        let json = self.data.get();
        match serde_json::from_str::<String>(json) {
            Ok(text) if !text.contains(['\n', '\r']) => text,
            _ => json.replace(['\n', '\r'], " "),
        }
    }
}

/// Gap: the publications after `from`, up to and including `to`, are missing.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Gap {
    pub channel: String,
    pub from: String,
    pub to: String,
}

/// Mark: the whole state of `channel` was sent.
#[derive(Deserialize)]
pub(super) struct StateComplete {
    pub channel: String,
    pub position: String,
}

impl std::fmt::Display for Gap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { channel, from, to } = self;
        write!(f, "gap in {channel}: what came after {from} up to and including {to} is missing")
    }
}

#[derive(Debug)]
pub enum Update {
    Message(Message),
    /// Publications are missing. With `since = state`, the state is void, and the whole state follows.
    Gap(Gap),
    /// With `since = state`: the whole state of this channel was received, and its changes follow.
    StateComplete(String),
    /// The connection was lost; the reader will reconnect.
    Lost(FailedAttempt),
}

#[derive(Debug, thiserror::Error)]
pub enum SubscriptionError {
    #[error("the server refuses: {0}")]
    Refused(Problem),
    #[error("the server does not speak this: {0}")]
    Protocol(String),
    #[error("{0}")]
    Options(String),
    #[error(transparent)]
    GaveUp(#[from] GaveUp),
}

/// Callback that receives each update. `Break` ends the subscription.
pub type Sink<'a> = dyn FnMut(Update) -> ControlFlow<()> + 'a;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_one_line_and_keeps_its_payload() {
        let line = |data: &str| {
            let text = format!(r#"{{"channel":"a","position":"e:1","time":1,"data":{data}}}"#);
            let message: Message = serde_json::from_str(&text).expect("a message");
            assert_eq!(serde_json::to_string(&message).expect("JSON"), text);
            message.line()
        };
        assert_eq!(line(r#""hello""#), "hello");
        assert_eq!(line(r#"{"a":  1}"#), r#"{"a":  1}"#);
        assert_eq!(line("[1,\n2]"), "[1, 2]");
        assert_eq!(line(r#""two\nlines""#), r#""two\nlines""#);
    }
}
