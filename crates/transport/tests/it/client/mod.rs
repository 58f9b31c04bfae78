//! One small reader per transport, as a user would write it: real sockets, and no code shared with the server except
//! the protocol.

mod item;
mod lines;
mod poll;
pub mod raw;
mod read_options;
mod session;
pub mod websocket;

use std::collections::VecDeque;

pub use item::{Data, Gap, Item, Message, Positions, after, parts};
pub use read_options::{Http, ReadOptions, ReaderKind};
pub use session::{Received, SUBPROTOCOL, Session};

use crate::server::{BOUND, Server};

pub struct Reader {
    pub way: ReaderKind,
    ask: ReadOptions,
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

impl Reader {
    /// Opens the reader and returns once the server has reported its start position.
    pub async fn open(way: ReaderKind, server: &Server, ask: &ReadOptions) -> Self {
        let link = async {
            match way {
                ReaderKind::Polling(http) => Link::Poll(poll::Poll::open(server, ask, http, false).await),
                ReaderKind::LongPolling(http) => Link::Poll(poll::Poll::open(server, ask, http, true).await),
                ReaderKind::Sse(http) => Link::Lines(lines::Lines::open(server, ask, http, lines::Format::Sse).await),
                ReaderKind::Stream(http) => {
                    Link::Lines(lines::Lines::open(server, ask, http, lines::Format::Ndjson).await)
                }
                ReaderKind::Bare => Link::Bare(Box::new(websocket::Bare::open(server, ask).await)),
                ReaderKind::Session => Link::Session(Session::open(server).await),
                ReaderKind::DataChannel => Link::Session(Session::open_data_channel(server, None).await),
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
            Item::StateEnd { channel, position } => drop(self.positions.insert(channel.clone(), position.clone())),
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

async fn bounded<T>(way: ReaderKind, what: &str, future: impl Future<Output = T>) -> T {
    let late = |_| panic!("{way:?}: not within {BOUND:?}: {what}");
    tokio::time::timeout(BOUND, future).await.unwrap_or_else(late)
}
