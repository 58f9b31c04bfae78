//! Server-sent events and JSON lines: one response that does not end.

use std::pin::Pin;

use futures_util::{Stream, StreamExt};
use serde_json::Value;

use super::{
    item::{Data, Gap, Item, Message, Positions},
    read_options::{Http, ReadOptions},
};
use crate::server::{Server, client};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Sse,
    Ndjson,
}

pub struct Lines {
    format: Format,
    ask: ReadOptions,
    body: Pin<Box<dyn Stream<Item = reqwest::Result<Vec<u8>>>>>,
    started_at: Positions,
    rest: Vec<u8>,
    event: Event,
    last_id: String,
}

/// Partially parsed server-sent event. Source: HTML Living Standard, "Interpreting an event stream".
#[derive(Default)]
struct Event {
    name: String,
    data: Option<String>,
    has_id: bool,
}

impl Lines {
    pub async fn open(server: &Server, ask: &ReadOptions, http: Http, format: Format) -> Self {
        let accept = if format == Format::Sse { "text/event-stream" } else { "application/x-ndjson" };
        let request = client(http == Http::Two).get(server.url(&ask.path(&ask.positions))).header("accept", accept);
        let request = ask.last_event_id.iter().fold(request, |request, id| request.header("last-event-id", id));
        let response = request.send().await.expect("a response");
        assert_eq!(response.status(), 200, "{response:?}");
        assert_eq!(response.headers()["content-type"], accept);
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        let start = response.headers()["millrace-position"].to_str().expect("ASCII").to_owned();
        let body = Box::pin(response.bytes_stream().map(|chunk| chunk.map(|bytes| bytes.to_vec())));
        let (started_at, ask) = (ask.read_list(&start), ask.clone());
        Self { format, ask, body, started_at, rest: Vec::new(), event: Event::default(), last_id: String::new() }
    }

    pub fn started_at(&self) -> Positions {
        self.started_at.clone()
    }

    /// Returns the items of the next chunk.
    pub async fn next(&mut self) -> Vec<Item> {
        let Some(Ok(chunk)) = self.body.next().await else { return vec![Item::End(None)] };
        let mut searched = self.rest.len();
        self.rest.extend_from_slice(&chunk);
        let (mut items, mut start) = (Vec::new(), 0);
        while let Some(length) = self.rest[searched..].iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8(self.rest[start..searched + length].to_vec()).expect("UTF-8");
            (start, searched) = (searched + length + 1, searched + length + 1);
            match self.format {
                Format::Sse => items.extend(self.event_line(&line)),
                Format::Ndjson => items.push(self.json_line(&line)),
            }
        }
        self.rest.drain(..start);
        items
    }

    fn event_line(&mut self, line: &str) -> Option<Item> {
        if line.is_empty() {
            return self.dispatch();
        }
        if line.starts_with(':') {
            return Some(Item::Heartbeat);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => (self.last_id, self.event.has_id) = (value.to_owned(), true),
            "event" => self.event.name = value.to_owned(),
            "data" => match &mut self.event.data {
                Some(data) => *data = format!("{data}\n{value}"),
                None => self.event.data = Some(value.to_owned()),
            },
            "retry" => drop(value.parse::<u32>().expect("milliseconds")),
            other => panic!("unknown field {other}"),
        }
        None
    }

    fn dispatch(&mut self) -> Option<Item> {
        let Event { name, data, has_id } = std::mem::take(&mut self.event);
        let channel = &self.ask.channels[0];
        let Some(data) = data else { return has_id.then(|| Item::At(self.ask.read_list(&self.last_id))) };
        let json = || serde_json::from_str::<Value>(&data).unwrap_or_else(|_| panic!("not JSON: {data}"));
        match name.as_str() {
            "drain" => {
                assert!(json()["after_ms"].is_u64(), "{data}");
                return Some(Item::Drain);
            }
            "gap" => {
                let gap = Gap::from_json(&json(), channel);
                assert!(has_id, "a gap without an id would come again after a cut");
                assert_eq!(self.ask.read_list(&self.last_id).get(&gap.channel), Some(&gap.to));
                return Some(Item::Gap(gap));
            }
            "state" => {
                assert!(has_id, "the end of a state without an id would come again after a cut");
                return Some(Item::state_end(&json(), channel));
            }
            "deleted" => {
                assert!(has_id, "an event without an id would come again after a cut");
                return Some(Item::Message(Message::from_envelope(&json(), channel)));
            }
            "" => assert!(has_id, "an event without an id would come again after a cut"),
            other => panic!("unknown event {other}"),
        }
        let id = Some(self.last_id.clone());
        if self.ask.many {
            let message = Message { id, ..Message::from_envelope(&json(), channel) };
            let listed = self.ask.read_list(&self.last_id).remove(&message.channel);
            let is_inside = listed.as_ref().is_some_and(|listed| listed.starts_with("state:"));
            assert!(is_inside || listed == message.position, "the id names this event: {listed:?} {message:?}");
            return Some(Item::Message(message));
        }
        if self.ask.since.starts_with("state") {
            let message = Message { id, ..Message::from_envelope(&json(), channel) };
            let position = message.position.as_deref().expect("an envelope has a position");
            let is_inside = self.last_id.starts_with(&format!("state:{position}:"));
            assert!(is_inside || self.last_id == position, "the id names this event: {} {message:?}", self.last_id);
            return Some(Item::Message(message));
        }
        let (position, data) = (id.clone(), Data::Raw(data.into_bytes()));
        let (channel, key, trace, deleted) = (channel.clone(), None, None, false);
        Some(Item::Message(Message { channel, position, key, trace, data, deleted, id }))
    }

    fn json_line(&self, line: &str) -> Item {
        if line.is_empty() {
            return Item::Heartbeat;
        }
        let json: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"));
        if let Some(positions) = json.get("positions") {
            return Item::At(serde_json::from_value(positions.clone()).expect("positions"));
        }
        let channel = &self.ask.channels[0];
        if let Some(gap) = json.get("gap") {
            return Item::Gap(Gap::from_json(gap, channel));
        }
        if let Some(end) = json.get("state") {
            return Item::state_end(end, channel);
        }
        if let Some(drain) = json.get("drain") {
            assert!(drain["after_ms"].is_u64(), "{line}");
            return Item::Drain;
        }
        Item::Message(Message::from_envelope(&json, channel))
    }
}
