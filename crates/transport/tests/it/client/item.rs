//! Messages, gaps and positions that a reader receives.

use std::collections::BTreeMap;

use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub channel: String,
    /// `None` on a bare WebSocket.
    pub position: Option<String>,
    pub key: Option<String>,
    pub data: Data,
    /// Trace context of the publisher.
    pub trace: Option<String>,
    /// True if the publication deletes its key.
    pub deleted: bool,
    /// Id of the server-sent event, unparsed. SSE only.
    pub id: Option<String>,
}

/// Received payload, as precisely as the transport reports its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    Json(Value),
    Text(String),
    Binary(Vec<u8>),
    /// Bytes of a type that the transport does not report.
    Raw(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    pub channel: String,
    /// `None` on a bare WebSocket: its close frame carries only the position from which to resume.
    pub from: Option<String>,
    pub to: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Message(Message),
    Gap(Gap),
    /// The reader has the whole state of the channel as of this position.
    StateEnd {
        channel: String,
        position: String,
    },
    /// All publications up to these positions have been delivered.
    At(Positions),
    Heartbeat,
    Drain,
    /// The server ended the stream. Carries the close code of a WebSocket.
    End(Option<u16>),
}

/// Channel → position.
pub type Positions = BTreeMap<String, String>;

impl Data {
    pub fn into_text(self) -> String {
        match self {
            Data::Json(Value::String(text)) | Data::Text(text) => text,
            Data::Json(value) => value.to_string(),
            Data::Binary(bytes) | Data::Raw(bytes) => String::from_utf8(bytes).expect("text"),
        }
    }

    /// Decodes the payload of an envelope from its `data` and `encoding`.
    pub fn from_envelope(envelope: &Value) -> Self {
        use base64::prelude::{BASE64_STANDARD, Engine as _};
        if envelope["deleted"] == true {
            assert!(envelope.get("data").is_none(), "{envelope}");
            return Data::Raw(Vec::new());
        }
        match (&envelope["data"], envelope["encoding"].as_str()) {
            (Value::String(text), Some("base64")) => Data::Binary(BASE64_STANDARD.decode(text).expect("base64")),
            (data, Some(other)) => panic!("unknown encoding {other} of {data}"),
            (Value::String(text), None) => Data::Text(text.clone()),
            (data, None) => Data::Json(data.clone()),
        }
    }
}

impl Message {
    pub fn from_envelope(envelope: &Value, channel: &str) -> Self {
        Self {
            channel: envelope["channel"].as_str().unwrap_or(channel).to_owned(),
            position: Some(
                envelope["position"].as_str().unwrap_or_else(|| panic!("no position: {envelope}")).to_owned(),
            ),
            key: envelope["key"].as_str().map(str::to_owned),
            trace: envelope["trace"].as_str().map(str::to_owned),
            data: Data::from_envelope(envelope),
            deleted: envelope["deleted"] == true,
            id: None,
        }
    }
}

impl Item {
    /// Parses the end of a state, `{"channel"?, "position"}`.
    pub fn state_end(end: &Value, channel: &str) -> Self {
        let position = end["position"].as_str().unwrap_or_else(|| panic!("no position: {end}")).to_owned();
        Item::StateEnd { channel: end["channel"].as_str().unwrap_or(channel).to_owned(), position }
    }
}

impl Gap {
    pub fn from_json(gap: &Value, channel: &str) -> Self {
        let text = |name: &str| gap[name].as_str().unwrap_or_else(|| panic!("no {name}: {gap}")).to_owned();
        let channel = gap["channel"].as_str().unwrap_or(channel).to_owned();
        Self { channel, from: Some(text("from")), to: text("to") }
    }
}

/// Splits a position `epoch:offset` into its parts.
pub fn parts(position: &str) -> (&str, u64) {
    let (epoch, offset) = position.split_once(':').unwrap_or_else(|| panic!("not a position: {position}"));
    (epoch, offset.parse().expect("an offset"))
}

/// Returns the position `count` publications later.
pub fn after(position: &str, count: u64) -> String {
    let (epoch, offset) = parts(position);
    format!("{epoch}:{}", offset + count)
}
