//! Options of a reader: channels, start positions, and the transport.

use millrace_protocol::Transport;
use millrace_transport::TRANSPORTS;

use super::item::Positions;

/// HTTP version of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    One,
    Two,
}

/// Transport and encoding in which a reader reads a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaderKind {
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
pub struct ReadOptions {
    pub channels: Vec<String>,
    /// Reads through `/v1/stream`, or through several subscriptions of one session.
    pub many: bool,
    pub since: String,
    /// Start positions of single channels, where they differ from `since`.
    pub positions: Positions,
    pub policy: &'static str,
    /// Header of an `EventSource` that reconnects.
    pub last_event_id: Option<String>,
}

impl ReaderKind {
    /// Returns every kind of reader of a transport. A new transport does not compile without an entry here.
    pub fn of(transport: Transport) -> &'static [ReaderKind] {
        match transport {
            Transport::Polling => &[ReaderKind::Polling(Http::One), ReaderKind::Polling(Http::Two)],
            Transport::LongPolling => &[ReaderKind::LongPolling(Http::One), ReaderKind::LongPolling(Http::Two)],
            Transport::Sse => &[ReaderKind::Sse(Http::One), ReaderKind::Sse(Http::Two)],
            Transport::Stream => &[ReaderKind::Stream(Http::One), ReaderKind::Stream(Http::Two)],
            Transport::WebSocket => &[ReaderKind::Bare],
            Transport::Session => &[ReaderKind::Session],
            Transport::DataChannel => &[ReaderKind::DataChannel],
            // It has no positions. `crates/cli/tests/it/mqtt.rs` tests it.
            Transport::Mqtt => &[],
        }
    }

    pub fn all() -> impl Iterator<Item = ReaderKind> {
        TRANSPORTS.iter().flat_map(|transport| ReaderKind::of(*transport)).copied()
    }

    /// Returns the kinds that keep a connection open and receive pushes.
    pub fn streams() -> impl Iterator<Item = ReaderKind> {
        ReaderKind::all().filter(|way| !matches!(way, ReaderKind::Polling(_) | ReaderKind::LongPolling(_)))
    }

    /// Returns the kinds that can read several channels at once.
    pub fn many() -> impl Iterator<Item = ReaderKind> {
        ReaderKind::all().filter(|way| *way != ReaderKind::Bare)
    }
}

impl ReadOptions {
    pub fn one(channel: &str) -> Self {
        Self {
            channels: vec![channel.to_owned()],
            many: false,
            since: "now".into(),
            positions: Positions::new(),
            policy: "every",
            last_event_id: None,
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

    pub fn resume(self, last_event_id: String) -> Self {
        Self { last_event_id: Some(last_event_id), ..self }
    }

    pub fn latest(self) -> Self {
        Self { policy: "latest", ..self }
    }

    /// Returns the path and query of the URL. Each channel starts from its position, if it has one.
    pub fn path(&self, positions: &Positions) -> String {
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
    pub fn read_list(&self, list: &str) -> Positions {
        if !self.many {
            return [(self.channels[0].clone(), list.to_owned())].into();
        }
        let entry = |entry: &str| entry.split_once('@').map(|(name, position)| (name.to_owned(), position.to_owned()));
        list.split(',').map(|text| entry(text).unwrap_or_else(|| panic!("not a list of positions: {list}"))).collect()
    }
}
