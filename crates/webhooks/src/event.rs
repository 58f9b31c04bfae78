//! Events: which publications of which logs they are, and their JSON.

use std::fmt::Write as _;

use millrace_protocol::{ChannelName, Position, Publication, encoding::write_data, roster_of};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::{EventKind, EventSets};

/// State of all occupied channels; its keys are channels.
pub const CHANNELS: &str = ":millrace/channels";
/// State of all open connections; its keys are ids of connections.
pub const CONNECTIONS: &str = ":millrace/connections";
/// State of the cursors; its keys are the channels whose logs are read.
pub const CURSORS: &str = ":millrace/webhooks";
/// State of the registered channels.
pub const REGISTRATIONS: &str = ":millrace/webhooks/channels";
/// State of the dead letters; its keys are ids of events.
pub const DEAD_LETTERS: &str = ":millrace/webhooks/letters";

/// A log that contains events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log<'a> {
    Channels,
    Connections,
    /// Members of this channel.
    Members(&'a str),
    /// Dead letters to replay.
    DeadLetters,
    /// Publications of a channel.
    Publications,
}

impl<'a> Log<'a> {
    pub fn of(channel: &'a ChannelName) -> Self {
        match channel.as_str() {
            CHANNELS => Log::Channels,
            CONNECTIONS => Log::Connections,
            DEAD_LETTERS => Log::DeadLetters,
            name => match roster_of(name) {
                Some(channel) => Log::Members(channel),
                None => Log::Publications,
            },
        }
    }
}

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventType {
    Occupied,
    Vacated,
    Joined,
    Left,
    Opened,
    Closed,
    Publication,
}

impl EventType {
    pub const ALL: [EventType; 7] = [
        EventType::Occupied,
        EventType::Vacated,
        EventType::Joined,
        EventType::Left,
        EventType::Opened,
        EventType::Closed,
        EventType::Publication,
    ];

    /// Returns the name in events and metrics.
    pub fn name(self) -> &'static str {
        match self {
            EventType::Occupied => "occupied",
            EventType::Vacated => "vacated",
            EventType::Joined => "joined",
            EventType::Left => "left",
            EventType::Opened => "opened",
            EventType::Closed => "closed",
            EventType::Publication => "publication",
        }
    }
}

/// An event as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Id that is the same whenever the event is sent, from whatever node.
    pub id: String,
    pub event_type: EventType,
    pub time_ms: u64,
    /// The event as a JSON object.
    pub json: Vec<u8>,
    /// True if the event was a dead letter, which is deleted once the event is acknowledged.
    pub is_letter: bool,
}

/// Content of an entry in the lists of channels, connections and members.
#[derive(Deserialize)]
struct Entry<'a> {
    /// True in the first entry of a key. Later entries of the key are changes, which are no events.
    #[serde(default)]
    new: bool,
    #[serde(borrow)]
    info: Option<&'a RawValue>,
}

/// Info of an entry in the list of connections.
#[derive(Default, Deserialize)]
struct ConnectionInfo {
    subject: Option<String>,
    transport: Option<String>,
}

/// Parts of the JSON of a dead letter that decide about it.
#[derive(Deserialize)]
pub(crate) struct Letter<'a> {
    #[serde(default)]
    pub replay: bool,
    #[serde(borrow)]
    pub event: &'a RawValue,
}

#[derive(Deserialize)]
struct EventHead {
    #[serde(rename = "type")]
    event_type: EventType,
    time_ms: u64,
}

/// Returns the event that a publication of a log is, if it is any.
pub fn decode(channel: &ChannelName, at: Position, publication: &Publication, wanted: &EventSets) -> Option<Event> {
    let key = publication.key.as_deref();
    let entry = || serde_json::from_slice::<Entry<'_>>(publication.data()).ok().filter(|entry| entry.new);
    let is_deletion = publication.is_deletion;
    let event = |event_type: EventType| EventBuilder::new(channel, at, event_type, publication.time_ms);
    match Log::of(channel) {
        Log::Channels => {
            let occupied = key.filter(|key| wanted.wants(EventKind::Channel, key))?;
            if !is_deletion {
                entry()?;
            }
            let event_type = if is_deletion { EventType::Vacated } else { EventType::Occupied };
            Some(event(event_type).field("channel", occupied).finish())
        }
        Log::Connections => {
            let id = key.filter(|_| wanted.all.contains(EventKind::Connection))?;
            if is_deletion {
                return Some(event(EventType::Closed).field("connection", id).finish());
            }
            let info: ConnectionInfo =
                entry()?.info.and_then(|info| serde_json::from_str(info.get()).ok()).unwrap_or_default();
            let opened = event(EventType::Opened).field("connection", id);
            let opened = opened.optional("subject", info.subject.as_deref());
            Some(opened.optional("transport", info.transport.as_deref()).finish())
        }
        Log::Members(of) => {
            let member = key.filter(|_| wanted.wants(EventKind::Member, of))?;
            if is_deletion {
                return Some(event(EventType::Left).field("channel", of).field("member", member).finish());
            }
            let entry = entry()?;
            let joined = event(EventType::Joined).field("channel", of).field("member", member);
            Some(joined.optional("info", entry.info).finish())
        }
        Log::DeadLetters => {
            let letter: Letter<'_> = serde_json::from_slice(publication.data()).ok()?;
            let EventHead { event_type, time_ms } = serde_json::from_str(letter.event.get()).ok()?;
            let id = key.filter(|_| letter.replay)?.to_owned();
            Some(Event { id, event_type, time_ms, json: letter.event.get().into(), is_letter: true })
        }
        Log::Publications => {
            if !wanted.wants(EventKind::Publication, channel.as_str()) {
                return None;
            }
            let published = event(EventType::Publication).field("channel", channel.as_str());
            let published = published.field("position", &at.to_string()).optional("key", key);
            let trace = publication.trace().map(|trace| trace.to_string());
            let published = published.optional("trace", trace.as_deref());
            Some(match is_deletion {
                true => published.field("deleted", &true).finish(),
                false => published.data(publication).finish(),
            })
        }
    }
}

/// Returns the id of the event at a position of a log: 32 hexadecimal digits, the same on every node.
pub fn event_id(channel: &ChannelName, at: Position) -> String {
    digest([channel.as_str().as_bytes(), at.to_string().as_bytes()])
}

/// Returns the id of a batch: it is the same for the same events.
pub fn batch_id(events: &[Event]) -> String {
    digest(events.iter().map(|event| event.id.as_bytes()))
}

fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
        hash.update([0]);
    }
    hash.finalize().iter().take(16).fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Writes the JSON of an event, with its fields in a fixed order.
struct EventBuilder(Event);

impl EventBuilder {
    fn new(channel: &ChannelName, at: Position, event_type: EventType, time_ms: u64) -> Self {
        let id = event_id(channel, at);
        let json = format!("{{\"id\":\"{id}\",\"type\":\"{}\",\"time_ms\":{time_ms}", event_type.name()).into();
        Self(Event { id, event_type, time_ms, json, is_letter: false })
    }

    fn field(mut self, name: &str, value: &(impl Serialize + ?Sized)) -> Self {
        let _ = write!(Text(&mut self.0.json), ",\"{name}\":");
        serde_json::to_writer(&mut self.0.json, value).expect("text and JSON always serialize into memory");
        self
    }

    fn optional(self, name: &str, value: Option<&(impl Serialize + ?Sized)>) -> Self {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }

    fn data(mut self, publication: &Publication) -> Self {
        write_data(&mut self.0.json, publication.kind(), publication.data());
        self
    }

    fn finish(mut self) -> Event {
        self.0.json.push(b'}');
        self.0
    }
}

/// Writes text into bytes.
struct Text<'a>(&'a mut Vec<u8>);

impl std::fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::{Epoch, Kind, PublicationHead};
    use serde_json::{Value, json};

    use super::*;
    use crate::EventSet;

    fn publication(key: Option<&str>, data: &str, is_deletion: bool) -> Publication {
        let key = key.map(Into::into);
        let kind = Kind::detect(data.as_bytes());
        Publication::new(
            PublicationHead { offset: 7, time_ms: 1000, key, expires_ms: None, is_traced: false, kind, is_deletion },
            data.as_bytes(),
        )
    }

    fn decoded(channel: &str, publication: &Publication) -> Option<Value> {
        let all = [EventKind::Channel, EventKind::Member, EventKind::Connection, EventKind::Publication];
        let wanted = EventSets { all: EventSet::from_iter(all), ..EventSets::default() };
        let at = Position { epoch: Epoch(1), offset: publication.offset };
        let event = decode(&ChannelName::parse(channel).unwrap(), at, publication, &wanted)?;
        let mut json: Value = serde_json::from_slice(&event.json).unwrap();
        assert_eq!((&json["id"], &json["type"]), (&json!(event.id), &json!(event.event_type.name())));
        json.as_object_mut().unwrap().remove("id");
        Some(json)
    }

    #[test]
    fn entries_of_lists_are_events() {
        let new = r#"{"connections":1,"since_ms":5,"new":true,"info":{"name":"Ann"},"nodes":{"ab":1}}"#;
        let changed = r#"{"connections":2,"since_ms":5,"nodes":{"ab":2}}"#;
        let joined =
            json!({ "type": "joined", "time_ms": 1000, "channel": "a/b", "member": "ann", "info": { "name": "Ann" } });
        assert_eq!(decoded("a/b/:members", &publication(Some("ann"), new, false)), Some(joined));
        assert_eq!(decoded("a/b/:members", &publication(Some("ann"), changed, false)), None, "a change is no event");
        let left = json!({ "type": "left", "time_ms": 1000, "channel": "a/b", "member": "ann" });
        assert_eq!(decoded("a/b/:members", &publication(Some("ann"), "", true)), Some(left));
        let occupied = json!({ "type": "occupied", "time_ms": 1000, "channel": "a" });
        assert_eq!(decoded(CHANNELS, &publication(Some("a"), new, false)), Some(occupied));
        let vacated = json!({ "type": "vacated", "time_ms": 1000, "channel": "a" });
        assert_eq!(decoded(CHANNELS, &publication(Some("a"), "", true)), Some(vacated));
        let opened = r#"{"connections":1,"new":true,"info":{"subject":"ann","transport":"session"}}"#;
        let opened_event = json!({
            "type": "opened", "time_ms": 1000, "connection": "ab-0-1-2", "subject": "ann", "transport": "session",
        });
        assert_eq!(decoded(CONNECTIONS, &publication(Some("ab-0-1-2"), opened, false)), Some(opened_event));
        let closed = json!({ "type": "closed", "time_ms": 1000, "connection": "ab-0-1-2" });
        assert_eq!(decoded(CONNECTIONS, &publication(Some("ab-0-1-2"), "", true)), Some(closed));
    }

    #[test]
    fn publications_are_events_with_their_data() {
        let base = json!({ "type": "publication", "time_ms": 1000, "channel": "a/b", "position": "00000001:7" });
        let with = |more: Value| {
            let mut whole = base.clone();
            whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            Some(whole)
        };
        let keyed = publication(Some("k"), r#"{"x":1}"#, false);
        assert_eq!(decoded("a/b", &keyed), with(json!({ "key": "k", "data": { "x": 1 } })));
        assert_eq!(decoded("a/b", &publication(None, "text", false)), with(json!({ "data": "text" })));
        let deleted = publication(Some("k"), "", true);
        assert_eq!(decoded("a/b", &deleted), with(json!({ "key": "k", "deleted": true })));
    }

    #[test]
    fn unwanted_and_malformed_entries_are_no_events() {
        let at = Position { epoch: Epoch(1), offset: 7 };
        let of = |channel: &str, publication: &Publication| {
            decode(&ChannelName::parse(channel).unwrap(), at, publication, &EventSets::default())
        };
        for channel in ["a", "a/:members", CHANNELS, CONNECTIONS] {
            assert_eq!(of(channel, &publication(Some("k"), r#"{"new":true}"#, false)), None, "{channel}");
            assert_eq!(of(channel, &publication(Some("k"), "", true)), None, "{channel}");
        }
        for data in ["", "{", "[]", r#"{"new":1}"#, r#"{"event":{}}"#, r#"{"replay":true,"event":{"type":"dance"}}"#] {
            assert_eq!(decoded(CHANNELS, &publication(Some("k"), data, false)), None, "{data}");
            assert_eq!(decoded(DEAD_LETTERS, &publication(Some("k"), data, false)), None, "{data}");
        }
    }

    #[test]
    fn ids_depend_on_channel_and_position_alone() {
        let channel = |name| ChannelName::parse(name).unwrap();
        let at = |offset| Position { epoch: Epoch(1), offset };
        assert_eq!(event_id(&channel("a"), at(1)), event_id(&channel("a"), at(1)));
        assert_ne!(event_id(&channel("a"), at(1)), event_id(&channel("a"), at(2)));
        assert_ne!(event_id(&channel("a"), at(1)), event_id(&channel("b"), at(1)));
        assert_eq!(event_id(&channel("a"), at(1)).len(), 32);
    }
}
