//! A message that waits for the server, and its line in a batch.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Maximum length of a channel name and of an idempotency key, in bytes, as in the server.
const NAME_BYTES_MAX: usize = 255;
/// Maximum size of a message in bytes: as in the server, with its key and some quotes.
const MESSAGE_BYTES_MAX: usize = (1 << 20) + 1024;

/// Message of a local publisher.
///
/// `members` is the rest of its line in a batch: JSON members without braces, such as `"data":{"speed":3},"key":"a"`.
/// So a message is stored and sent without being encoded again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message<'a> {
    #[serde(borrow)]
    pub channel: Cow<'a, str>,
    /// Key of the publisher, by which a repeated message is detected.
    #[serde(borrow)]
    pub idempotency_key: Option<Cow<'a, str>>,
    /// Time to live in milliseconds. The time in the buffer counts.
    pub ttl_ms: Option<u64>,
    #[serde(borrow)]
    pub members: Cow<'a, str>,
}

/// Reason why a message of a local publisher is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("expected an object with `channel` and `data`, as in a batch for the server: {0}")]
    Malformed(String),
    #[error(
        "`channel` has {0} bytes: expected 1 to {NAME_BYTES_MAX} bytes without control characters, wildcards and \
         empty levels"
    )]
    Channel(usize),
    #[error("`idempotency_key` has {0} bytes: expected 1 to {NAME_BYTES_MAX}")]
    IdempotencyKey(usize),
    #[error("the line has neither `data` nor `\"delete\": true` with a `key`")]
    NoData,
    #[error("`ttl` is not a number of seconds, 1 or more")]
    Ttl,
    #[error("the message has {0} bytes; at most {MESSAGE_BYTES_MAX} are possible")]
    TooLarge(usize),
    #[error("`if_match` needs an answer of the server, and a buffer sends later: publish to the server directly")]
    IfMatch,
}

/// One line of a batch (docs/reference/protocol.md, "Writing").
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    channel: Cow<'a, str>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    ttl: Option<u64>,
    #[serde(borrow)]
    encoding: Option<Cow<'a, str>>,
    #[serde(borrow)]
    idempotency_key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    if_match: Option<&'a RawValue>,
    #[serde(borrow)]
    trace: Option<Cow<'a, str>>,
    #[serde(default)]
    delete: bool,
}

impl Message<'static> {
    /// Parses one line of a batch.
    ///
    /// Errors: the line is malformed. The server checks everything else when it receives the message.
    pub fn parse(line: &str) -> Result<Self, MessageError> {
        let line: Line<'_> = serde_json::from_str(line).map_err(|error| MessageError::Malformed(error.to_string()))?;
        if line.if_match.is_some() {
            return Err(MessageError::IfMatch);
        }
        let mut members = Vec::new();
        match (line.data, line.delete) {
            (Some(data), false) => members.push(format!("\"data\":{}", one_line(data.get()))),
            (None, true) if line.key.is_some() => members.push("\"delete\":true".to_owned()),
            _ => return Err(MessageError::NoData),
        }
        let texts = [("key", &line.key), ("encoding", &line.encoding), ("trace", &line.trace)];
        members
            .extend(texts.into_iter().filter_map(|(name, text)| Some(format!("\"{name}\":{}", json(text.as_ref()?)))));
        Self::new(&line.channel, line.idempotency_key.as_deref(), line.ttl, members.join(","))
    }

    /// Creates a message. `members` must be the members of a JSON object.
    ///
    /// Errors: a name that no server accepts, or a time to live of 0.
    pub fn new(
        channel: &str,
        idempotency_key: Option<&str>,
        ttl_s: Option<u64>,
        members: String,
    ) -> Result<Self, MessageError> {
        let has_bad_char = channel.chars().any(|c| c.is_control() || c == '+' || c == '#');
        if has_bad_char || channel.len() > NAME_BYTES_MAX || channel.split('/').any(str::is_empty) {
            return Err(MessageError::Channel(channel.len()));
        }
        if let Some(length) = idempotency_key.map(str::len).filter(|length| !(1..=NAME_BYTES_MAX).contains(length)) {
            return Err(MessageError::IdempotencyKey(length));
        }
        if ttl_s == Some(0) {
            return Err(MessageError::Ttl);
        }
        if members.len() > MESSAGE_BYTES_MAX {
            return Err(MessageError::TooLarge(members.len()));
        }
        Ok(Self {
            channel: channel.to_owned().into(),
            idempotency_key: idempotency_key.map(|key| key.to_owned().into()),
            ttl_ms: ttl_s.map(|seconds| seconds.saturating_mul(1000)),
            members: members.into(),
        })
    }
}

impl Message<'_> {
    /// Returns the line of a batch, with a line feed. `ttl_ms` is what remains of the time to live.
    pub(crate) fn line(&self, idempotency_key: &str, ttl_ms: Option<u64>) -> String {
        let (channel, key) = (json(&self.channel), json(idempotency_key));
        let ttl = ttl_ms.map(|ms| format!("\"ttl\":{},", ms.div_ceil(1000).max(1))).unwrap_or_default();
        format!("{{\"channel\":{channel},\"idempotency_key\":{key},{ttl}{}}}\n", self.members)
    }
}

/// Replaces line breaks in JSON by spaces. A valid text has them only between its tokens: a string cannot contain one.
pub fn one_line(json: &str) -> String {
    json.replace(['\n', '\r'], " ")
}

fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Channels whose messages are sent first and dropped last: patterns with the wildcards `+` (one level) and `#` (all
/// further levels).
#[derive(Clone, Debug, Default)]
pub struct Urgent(Vec<String>);

impl Urgent {
    pub fn new(patterns: Vec<String>) -> Self {
        Self(patterns)
    }

    pub fn contains(&self, channel: &str) -> bool {
        self.0.iter().any(|pattern| matches(pattern, channel))
    }
}

fn matches(pattern: &str, channel: &str) -> bool {
    let mut levels = channel.split('/');
    for part in pattern.split('/') {
        match (part, levels.next()) {
            ("#", Some(_)) => return true,
            ("+", Some(_)) => {}
            (part, Some(level)) if part == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_keeps_its_members_and_gains_a_key() {
        let line = "{\"data\": {\"a\":\r 1}, \"channel\": \"cars/1\", \"ttl\": 60, \"key\": \"k\\n\"}";
        let message = Message::parse(line).unwrap();
        let sent = message.line("id-7", Some(1_001));
        let expected =
            "{\"channel\":\"cars/1\",\"idempotency_key\":\"id-7\",\"ttl\":2,\"data\":{\"a\":  1},\"key\":\"k\\n\"}\n";
        assert_eq!(sent, expected);
        let deletion = Message::parse(r#"{"channel":"fleet","key":"a","delete":true}"#).unwrap();
        assert_eq!(
            deletion.line("x", None),
            "{\"channel\":\"fleet\",\"idempotency_key\":\"x\",\"delete\":true,\"key\":\"a\"}\n"
        );
    }

    #[test]
    fn malformed_lines_are_refused_with_a_reason() {
        let long = format!(r#"{{"channel":"{}","data":1}}"#, "x".repeat(256));
        for (line, reason) in [
            ("", "expected an object"),
            ("[]", "expected an object"),
            (r#"{"channel":"a"}"#, "neither `data`"),
            (r#"{"channel":"a","data":1,"delete":true}"#, "neither `data`"),
            (r#"{"channel":"a","delete":true}"#, "neither `data`"),
            (r#"{"channel":"","data":1}"#, "`channel` has 0 bytes"),
            (r#"{"channel":"a//b","data":1}"#, "`channel` has 4 bytes"),
            (r#"{"channel":"a/+","data":1}"#, "`channel` has 3 bytes"),
            (&long, "`channel` has 256 bytes"),
            (r#"{"channel":"a","data":1,"idempotency_key":""}"#, "`idempotency_key` has 0 bytes"),
            (r#"{"channel":"a","data":1,"ttl":0}"#, "`ttl` is not"),
            (r#"{"channel":"a","data":1,"if_match":"0"}"#, "`if_match`"),
            (r#"{"channel":"a","data":1,"other":1}"#, "unknown field `other`"),
        ] {
            let error = Message::parse(line).expect_err(line).to_string();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn urgent_patterns_match_levels() {
        let urgent = Urgent::new(["cars/+/events", "alarms/#"].map(str::to_owned).into());
        for (channel, expected) in [
            ("cars/1/events", true),
            ("cars/1/telemetry", false),
            ("cars/1/events/x", false),
            ("cars/events", false),
            ("alarms/a/b", true),
            ("alarms", false),
        ] {
            assert_eq!(urgent.contains(channel), expected, "{channel}");
        }
    }
}
