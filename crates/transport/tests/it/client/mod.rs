//! One small reader per transport, as a user would write it: real sockets, and no code shared with the server except
//! the protocol.

mod lines;
mod poll;
pub mod raw;
mod session;
pub mod websocket;

use std::collections::{BTreeMap, VecDeque};

use millrace_protocol::Transport;
use millrace_transport::TRANSPORTS;
use serde_json::Value;

pub use session::{Heard, SUBPROTOCOL, Session};

use crate::server::{BOUND, Server};

/// HTTP version of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    One,
    Two,
}

/// Transport and encoding in which a reader reads a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Polling(Http),
    LongPolling(Http),
    Sse(Http),
    Stream(Http),
    /// WebSocket with payloads only. Its messages carry no positions, so the reader counts from its start position.
    Bare,
    Session,
    /// A session over data channels.
    DataChannel,
}

/// Parameters of a reader.
#[derive(Clone, Debug)]
pub struct Ask {
    pub channels: Vec<String>,
    /// Reads through `/v1/stream`, or through several subscriptions of one session.
    pub many: bool,
    pub since: String,
    /// Start positions of single channels, where they differ from `since`.
    pub positions: Positions,
    pub policy: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub channel: String,
    /// `None` on a bare WebSocket.
    pub position: Option<String>,
    pub key: Option<String>,
    pub data: Data,
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
    /// All publications up to these positions have been delivered.
    At(Positions),
    Heartbeat,
    Drain,
    /// The server ended the stream. Carries the close code of a WebSocket.
    End(Option<u16>),
}

/// Channel → position.
pub type Positions = BTreeMap<String, String>;

pub struct Reader {
    pub way: Way,
    ask: Ask,
    /// Positions after the items that `next` returned.
    positions: Positions,
    link: Link,
    ready: VecDeque<Item>,
}

enum Link {
    Poll(poll::Poll),
    Lines(lines::Lines),
    Bare(Box<websocket::Bare>),
    Session(Session),
}

impl Way {
    /// Returns every way to read over a transport. A new transport does not compile without an entry here.
    fn of(transport: Transport) -> &'static [Way] {
        match transport {
            Transport::Polling => &[Way::Polling(Http::One), Way::Polling(Http::Two)],
            Transport::LongPolling => &[Way::LongPolling(Http::One), Way::LongPolling(Http::Two)],
            Transport::Sse => &[Way::Sse(Http::One), Way::Sse(Http::Two)],
            Transport::Stream => &[Way::Stream(Http::One), Way::Stream(Http::Two)],
            Transport::WebSocket => &[Way::Bare],
            Transport::Session => &[Way::Session],
            Transport::DataChannel => &[Way::DataChannel],
        }
    }

    pub fn all() -> impl Iterator<Item = Way> {
        TRANSPORTS.iter().flat_map(|transport| Way::of(*transport)).copied()
    }

    /// Returns the ways that keep a connection open and receive pushes.
    pub fn streams() -> impl Iterator<Item = Way> {
        Way::all().filter(|way| !matches!(way, Way::Polling(_) | Way::LongPolling(_)))
    }

    /// Returns the ways that can read several channels at once.
    pub fn many() -> impl Iterator<Item = Way> {
        Way::all().filter(|way| *way != Way::Bare)
    }
}

impl Ask {
    pub fn one(channel: &str) -> Self {
        Self {
            channels: vec![channel.to_owned()],
            many: false,
            since: "now".into(),
            positions: Positions::new(),
            policy: "every",
        }
    }

    pub fn many(channels: impl IntoIterator<Item = String>) -> Self {
        Self { channels: channels.into_iter().collect(), many: true, ..Self::one("") }
    }

    pub fn since(self, since: impl Into<String>) -> Self {
        Self { since: since.into(), ..self }
    }

    pub fn at(self, positions: Positions) -> Self {
        Self { positions, ..self }
    }

    pub fn latest(self) -> Self {
        Self { policy: "latest", ..self }
    }

    /// Returns the path and query of the URL. Each channel starts from its position, if it has one.
    fn path(&self, positions: &Positions) -> String {
        if self.many {
            let channel = |name: &String| match positions.get(name) {
                Some(position) => format!("channel={name}@{position}&"),
                None => format!("channel={name}&"),
            };
            let channels: String = self.channels.iter().map(channel).collect();
            return format!("/v1/stream?{channels}since={}&policy={}", self.since, self.policy);
        }
        let since = positions.get(&self.channels[0]).unwrap_or(&self.since);
        format!("/v1/channels/{}?since={since}&policy={}", self.channels[0], self.policy)
    }

    /// Parses `P` of a single channel, or `a@P,b@Q`.
    fn read_list(&self, list: &str) -> Positions {
        if !self.many {
            return [(self.channels[0].clone(), list.to_owned())].into();
        }
        let entry = |entry: &str| entry.split_once('@').map(|(name, position)| (name.to_owned(), position.to_owned()));
        list.split(',').map(|text| entry(text).unwrap_or_else(|| panic!("not a list of positions: {list}"))).collect()
    }
}

impl Reader {
    /// Opens the reader and returns once the server has reported its start position.
    pub async fn open(way: Way, server: &Server, ask: &Ask) -> Self {
        let link = async {
            match way {
                Way::Polling(http) => Link::Poll(poll::Poll::open(server, ask, http, false).await),
                Way::LongPolling(http) => Link::Poll(poll::Poll::open(server, ask, http, true).await),
                Way::Sse(http) => Link::Lines(lines::Lines::open(server, ask, http, lines::Format::Sse).await),
                Way::Stream(http) => Link::Lines(lines::Lines::open(server, ask, http, lines::Format::Ndjson).await),
                Way::Bare => Link::Bare(Box::new(websocket::Bare::open(server, ask).await)),
                Way::Session => Link::Session(Session::open(server).await),
                Way::DataChannel => Link::Session(Session::open_data_channel(server, None).await),
            }
        };
        let mut link = bounded(way, "an open stream", link).await;
        let mut ready = VecDeque::new();
        let mut positions = ask.positions.clone();
        match &mut link {
            Link::Poll(poll) => ready.extend(poll.first()),
            Link::Lines(lines) => positions.extend(lines.started_at()),
            Link::Bare(bare) => positions.extend(bare.started_at()),
            Link::Session(session) => {
                for channel in &ask.channels {
                    let since = ask.positions.get(channel).unwrap_or(&ask.since);
                    let started = bounded(way, "a reply", session.subscribe(channel, since, ask.policy)).await;
                    positions.insert(channel.clone(), started);
                }
            }
        }
        let ask = ask.clone();
        Self { way, ask, positions, link, ready }
    }

    /// Returns the next message, gap or end; skips heartbeats.
    pub async fn next(&mut self) -> Item {
        loop {
            match self.next_of_all().await {
                Item::Heartbeat | Item::At(_) => {}
                item => return item,
            }
        }
    }

    /// Returns the next message. Panics if another item arrives.
    pub async fn message(&mut self) -> Message {
        match self.next().await {
            Item::Message(message) => message,
            other => panic!("{:?}: expected a message, got {other:?}", self.way),
        }
    }

    /// Returns the payloads of the next `count` messages as text.
    pub async fn texts(&mut self, count: usize) -> Vec<String> {
        let mut texts = Vec::with_capacity(count);
        while texts.len() < count {
            texts.push(self.message().await.data.into_text());
        }
        texts
    }

    pub async fn gap(&mut self) -> Gap {
        match self.next().await {
            Item::Gap(gap) => gap,
            other => panic!("{:?}: expected a gap, got {other:?}", self.way),
        }
    }

    /// Returns the next item of any kind.
    pub async fn next_of_all(&mut self) -> Item {
        while self.ready.is_empty() {
            let more = async {
                match &mut self.link {
                    Link::Poll(poll) => poll.next().await,
                    Link::Lines(lines) => lines.next().await,
                    Link::Bare(bare) => bare.next().await,
                    Link::Session(session) => vec![session.next_item().await],
                }
            };
            let more = bounded(self.way, "something", more).await;
            self.ready.extend(more);
        }
        let item = self.ready.pop_front().expect("filled above");
        match &item {
            Item::Message(Message { channel, position: Some(position), .. }) => {
                self.positions.insert(channel.clone(), position.clone());
            }
            // A bare WebSocket delivers every publication in order, or closes, so counting is exact.
            Item::Message(Message { channel, position: None, .. }) => {
                if let Some(position) = self.positions.get_mut(channel) {
                    *position = after(position, 1);
                }
            }
            Item::Gap(gap) => drop(self.positions.insert(gap.channel.clone(), gap.to.clone())),
            Item::At(positions) => self.positions.extend(positions.clone()),
            Item::Heartbeat | Item::Drain | Item::End(_) => {}
        }
        item
    }

    /// Returns the position from which to resume after the items that `next` returned; `None` if this reader cannot
    /// know it.
    pub fn position(&self) -> Option<&str> {
        self.positions.get(&self.ask.channels[0]).map(String::as_str)
    }

    pub fn positions(&self) -> &Positions {
        &self.positions
    }
}

impl Data {
    pub fn into_text(self) -> String {
        match self {
            Data::Json(Value::String(text)) | Data::Text(text) => text,
            Data::Json(value) => value.to_string(),
            Data::Binary(bytes) | Data::Raw(bytes) => String::from_utf8(bytes).expect("text"),
        }
    }

    /// Decodes the payload of an envelope from its `data` and `encoding`.
    fn from_envelope(envelope: &Value) -> Self {
        use base64::prelude::{BASE64_STANDARD, Engine as _};
        match (&envelope["data"], envelope["encoding"].as_str()) {
            (Value::String(text), Some("base64")) => Data::Binary(BASE64_STANDARD.decode(text).expect("base64")),
            (data, Some(other)) => panic!("unknown encoding {other} of {data}"),
            (Value::String(text), None) => Data::Text(text.clone()),
            (data, None) => Data::Json(data.clone()),
        }
    }
}

impl Message {
    fn from_envelope(envelope: &Value, channel: &str) -> Self {
        Self {
            channel: envelope["channel"].as_str().unwrap_or(channel).to_owned(),
            position: Some(
                envelope["position"].as_str().unwrap_or_else(|| panic!("no position: {envelope}")).to_owned(),
            ),
            key: envelope["key"].as_str().map(str::to_owned),
            data: Data::from_envelope(envelope),
            id: None,
        }
    }
}

impl Gap {
    fn from_json(gap: &Value, channel: &str) -> Self {
        let text = |name: &str| gap[name].as_str().unwrap_or_else(|| panic!("no {name}: {gap}")).to_owned();
        let channel = gap["channel"].as_str().unwrap_or(channel).to_owned();
        Self { channel, from: Some(text("from")), to: text("to") }
    }
}

async fn bounded<T>(way: Way, what: &str, future: impl Future<Output = T>) -> T {
    let late = |_| panic!("{way:?}: not within {BOUND:?}: {what}");
    tokio::time::timeout(BOUND, future).await.unwrap_or_else(late)
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
