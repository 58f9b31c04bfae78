//! Clients on every transport, as an application uses them: the reader of `millrace_client`, and a bare WebSocket.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ops::ControlFlow,
    rc::Rc,
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use millrace_client::{
    clock::now_ms,
    random::Random,
    server::Server,
    subscription::{self, Message, Options, Transport, Update},
};
use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio_tungstenite::{connect_async, tungstenite::Message as Frame};

use crate::judge::{Id, Position, ReceivedItem, Run};

/// Polling interval of a polling client.
const POLL_INTERVAL: Duration = Duration::from_millis(750);
/// Maximum delay before a bare WebSocket reconnects.
const BARE_RETRY: Duration = Duration::from_secs(1);

/// Kind of client, one per row of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientKind {
    Polling,
    LongPolling,
    Sse,
    Stream,
    Session,
    Bare,
}

impl ClientKind {
    pub const ALL: [Self; 6] = [Self::Polling, Self::LongPolling, Self::Sse, Self::Stream, Self::Session, Self::Bare];

    pub fn name(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::LongPolling => "long polling",
            Self::Sse => "SSE",
            Self::Stream => "HTTP streaming",
            Self::Session => "WebSocket session",
            Self::Bare => "WebSocket, bare",
        }
    }

    /// Returns the transport of the `millrace_client` reader, or `None` for a bare WebSocket, which does not use that
    /// reader.
    fn transport(self) -> Option<Transport> {
        match self {
            Self::Polling => Some(Transport::Polling),
            Self::LongPolling => Some(Transport::LongPolling),
            Self::Sse => Some(Transport::Sse),
            Self::Stream => Some(Transport::Stream),
            Self::Session => Some(Transport::WebSocket),
            Self::Bare => None,
        }
    }
}

/// A client that reads until it is dropped.
pub struct Client {
    pub kind: ClientKind,
    pub name: String,
    pub channels: Vec<String>,
    pub seen: Rc<RefCell<Observations>>,
    task: JoinHandle<()>,
}

/// Messages, gaps and connection losses that a client has observed so far.
pub struct Observations {
    pub heard: BTreeMap<String, Vec<ReceivedItem>>,
    pub runs: Vec<Run>,
    pub messages: u64,
    pub gaps: u64,
    /// Number of lost connections. The client reconnects after each.
    pub reconnects: u64,
    /// Reason for the last loss.
    pub why: String,
    /// Time of the last message. `silence` is the longest interval between messages.
    pub last: Instant,
    pub silence: Duration,
    /// True while silence counts. Silence does not count after the publishers have stopped.
    pub listening: bool,
    /// Error that an application would receive.
    pub error: Option<String>,
    /// Arrival time of each message and its age in milliseconds, counted from its scheduled time.
    pub ages: Vec<(Instant, u32)>,
}

/// Payload of a publication.
#[derive(Deserialize)]
pub struct Payload {
    pub publisher: u32,
    pub number: u32,
    /// Scheduled time, in milliseconds since 1970.
    pub due: u64,
}

impl Client {
    /// Starts a client that reads these channels from their beginning. The task belongs to the thread's `LocalSet`.
    pub fn start(name: String, kind: ClientKind, server: &Server, channels: Vec<String>) -> Self {
        let seen = Rc::new(RefCell::new(Observations::new()));
        let (server, of, into) = (server.clone(), channels.clone(), seen.clone());
        let task = match kind.transport() {
            Some(transport) => tokio::task::spawn_local(read(server, of, transport, into)),
            None => tokio::task::spawn_local(read_bare(server, of[0].clone(), into)),
        };
        Self { kind, name, channels, seen, task }
    }

    /// Returns the client's last position in a channel. Bare WebSockets do not know their position.
    pub fn position(&self, channel: &str) -> Option<Position> {
        match self.seen.borrow().heard.get(channel)?.last()? {
            ReceivedItem::Message(position, _) => Some(position.clone()),
            ReceivedItem::Gap(_, to) => Some(to.clone()),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read(server: Server, channels: Vec<String>, transport: Transport, seen: Rc<RefCell<Observations>>) {
    let options = Options {
        server,
        channels,
        transport,
        since: Some("earliest".into()),
        policy: "every".into(),
        poll_interval: POLL_INTERVAL,
        retry_for: None,
    };
    let mut sink = |update: Update| {
        let mut seen = seen.borrow_mut();
        match update {
            Update::Message(message) => seen.message(message),
            Update::Gap(gap) => {
                seen.gaps += 1;
                let entry = ReceivedItem::Gap(Position::parse(&gap.from), Position::parse(&gap.to));
                seen.heard.entry(gap.channel).or_default().push(entry);
            }
            Update::StateComplete(_) => {}
            Update::Lost(lost) => seen.lost(lost.why),
        }
        ControlFlow::Continue(())
    };
    let end = subscription::read(&options, &mut sink).await;
    seen.borrow_mut().error = Some(end.err().map_or("it ended".into(), |error| error.to_string()));
}

/// Reads payloads only, like a minimal browser client. The client knows only the position that a gap reports.
async fn read_bare(server: Server, channel: String, seen: Rc<RefCell<Observations>>) {
    let mut random = Random::from_system();
    let mut after = None;
    loop {
        let since = after.as_ref().map_or("now".to_owned(), Position::to_string);
        seen.borrow_mut().runs.push(Run { after: after.take(), ids: Vec::new() });
        let url = server.websocket(&format!("/v1/channels/{channel}?since={since}"));
        let why = match connect_async(&url).await {
            Err(error) => error.to_string(),
            Ok((mut socket, _)) => loop {
                match socket.next().await {
                    Some(Ok(Frame::Text(text))) => seen.borrow_mut().bare(&text),
                    Some(Ok(Frame::Close(Some(close)))) if u16::from(close.code) == 4000 => {
                        seen.borrow_mut().gaps += 1;
                        after = Some(Position::parse(&close.reason));
                        break "a gap".to_owned();
                    }
                    Some(Ok(Frame::Close(close))) => break format!("closed: {close:?}"),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break error.to_string(),
                    None => break "the connection ended".into(),
                }
            },
        };
        seen.borrow_mut().lost(why);
        tokio::time::sleep(BARE_RETRY.mul_f64(random.unit())).await;
    }
}

impl Observations {
    fn new() -> Self {
        Self {
            heard: BTreeMap::new(),
            runs: Vec::new(),
            messages: 0,
            gaps: 0,
            reconnects: 0,
            why: String::new(),
            last: Instant::now(),
            silence: Duration::ZERO,
            listening: false,
            error: None,
            ages: Vec::new(),
        }
    }

    /// Returns the arrival time of the first message whose scheduled time is after `moment`.
    pub fn first_due_after(&self, moment: Instant) -> Option<Instant> {
        let is_after = |(at, age): &&(Instant, u32)| *at - Duration::from_millis(u64::from(*age)) > moment;
        let from = self.ages.partition_point(|(at, _)| *at <= moment);
        self.ages[from..].iter().find(is_after).map(|(at, _)| *at)
    }

    fn message(&mut self, message: Message) {
        let payload: Payload = serde_json::from_str(message.data.get()).expect("what publishers say");
        let entry = ReceivedItem::Message(Position::parse(&message.position), self.came(&payload));
        match self.heard.get_mut(&message.channel) {
            Some(heard) => heard.push(entry),
            None => drop(self.heard.insert(message.channel, vec![entry])),
        }
    }

    fn bare(&mut self, text: &str) {
        let payload: Payload = serde_json::from_str(text).expect("what publishers say");
        let id = self.came(&payload);
        self.runs.last_mut().expect("a connection").ids.push(id);
    }

    fn came(&mut self, payload: &Payload) -> Id {
        let now = Instant::now();
        if self.listening {
            self.silence = self.silence.max(now - self.last);
        }
        (self.last, self.listening) = (now, true);
        self.messages += 1;
        self.ages.push((now, now_ms().saturating_sub(payload.due) as u32));
        Id { publisher: payload.publisher, number: payload.number }
    }

    fn lost(&mut self, why: String) {
        self.reconnects += 1;
        self.why = why;
    }
}
