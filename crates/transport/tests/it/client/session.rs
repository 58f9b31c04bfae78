//! A session: sends commands, receives replies and pushes.

use std::collections::VecDeque;

use millrace_client::data_channel::Connection;
use serde_json::{Value, json};

use super::{
    item::{Gap, Item, Message},
    websocket::{Incoming, Socket, connect, receive, send_text},
};
use crate::server::{Server, within};

pub const SUBPROTOCOL: &str = "millrace.v1+json";

pub struct Session {
    link: Link,
    /// The `connected` push, which is the first push.
    pub connected: Value,
    heard: VecDeque<Received>,
    last_id: u64,
}

enum Link {
    WebSocket(Box<Socket>),
    DataChannel(Box<Connection>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Received {
    Push(Value),
    Reply(Value),
    Ping,
    Closed(Option<u16>),
}

impl Session {
    pub async fn open(server: &Server) -> Self {
        Self::open_at(server, "/v1/connect").await
    }

    pub async fn open_at(server: &Server, path: &str) -> Self {
        Self::open_offering(server, path, SUBPROTOCOL).await
    }

    pub async fn open_offering(server: &Server, path: &str, subprotocols: &str) -> Self {
        Self::begin(Link::WebSocket(Box::new(connect(server, path, Some(subprotocols)).await))).await
    }

    pub async fn open_data_channel(server: &Server, ticket: Option<&str>) -> Self {
        let request = server.http.post(server.url("/v1/connect"));
        let request = ticket.into_iter().fold(request, |request, ticket| request.header("millrace-resume", ticket));
        Self::begin(Link::DataChannel(Box::new(Connection::open(request).await.expect("data channels")))).await
    }

    async fn begin(mut link: Link) -> Self {
        let Received::Push(connected) = read(&mut link).await else { panic!("the first word is a push") };
        assert_eq!(connected["push"], "connected", "{connected}");
        Self { link, connected, heard: VecDeque::new(), last_id: 0 }
    }

    /// Sends a command and waits for its reply: `ok`, or `error`.
    pub async fn command(&mut self, name: &str, body: Value) -> Result<Value, Value> {
        self.last_id += 1;
        let id = self.last_id;
        self.send_text(&json!({ "id": id, name: body }).to_string()).await;
        self.reply(id).await
    }

    /// Waits for the reply to a command. Queues other items for `receive`.
    pub async fn reply(&mut self, id: u64) -> Result<Value, Value> {
        loop {
            match within(read(&mut self.link)).await {
                Received::Reply(mut reply) => {
                    assert_eq!(reply["id"], id, "a reply to another command: {reply}");
                    return match reply.get("error") {
                        Some(error) => Err(error.clone()),
                        None => Ok(reply["ok"].take()),
                    };
                }
                Received::Closed(code) => panic!("closed ({code:?}) instead of a reply"),
                other => self.heard.push_back(other),
            }
        }
    }

    /// Subscribes and returns the start position of the subscription.
    pub async fn subscribe(&mut self, channel: &str, since: &str, policy: &str) -> String {
        let body = json!({ "channel": channel, "since": since, "policy": policy });
        let ok = self.command("subscribe", body).await.expect("a subscription");
        assert_eq!(ok["channel"], channel);
        assert!(ok["recovered"].is_boolean() && ok["time"].is_u64(), "{ok}");
        ok["position"].as_str().expect("a position").to_owned()
    }

    pub async fn send_text(&mut self, text: &str) {
        match &mut self.link {
            Link::WebSocket(socket) => send_text(socket, text).await,
            Link::DataChannel(connection) => connection.send_line(text).await,
        }
    }

    pub async fn say_binary(&mut self, data: Vec<u8>) {
        use futures_util::SinkExt;
        let Link::WebSocket(socket) = &mut self.link else { panic!("lines are text") };
        socket.send(tokio_tungstenite::tungstenite::Message::binary(data)).await.expect("an open socket");
    }

    /// Returns the next item of any kind.
    pub async fn receive(&mut self) -> Received {
        match self.heard.pop_front() {
            Some(heard) => heard,
            None => read(&mut self.link).await,
        }
    }

    /// Returns the next push. Panics if anything but a push or a ping arrives.
    pub async fn push(&mut self) -> Value {
        loop {
            match within(self.receive()).await {
                Received::Push(push) => return push,
                Received::Ping => {}
                other => panic!("expected a push, got {other:?}"),
            }
        }
    }

    pub async fn next_item(&mut self) -> Item {
        match self.receive().await {
            Received::Push(push) => match push["push"].as_str() {
                Some("message") => Item::Message(Message::from_envelope(&push, "")),
                Some("gap") => Item::Gap(Gap::from_json(&push, "")),
                Some("state") => Item::state_end(&push, ""),
                Some("drain") => Item::Drain,
                _ => panic!("unexpected push {push}"),
            },
            Received::Reply(reply) => panic!("unexpected reply {reply}"),
            Received::Ping => Item::Heartbeat,
            Received::Closed(code) => Item::End(code),
        }
    }
}

async fn read(link: &mut Link) -> Received {
    let text = match link {
        Link::WebSocket(socket) => match receive(socket).await {
            Incoming::Text(text) => text,
            Incoming::Ping => return Received::Ping,
            Incoming::Closed(close) => return Received::Closed(close.map(|(code, _)| code)),
            Incoming::Binary(data) => panic!("a session speaks text, not {data:?}"),
        },
        Link::DataChannel(connection) => match connection.next().await {
            Some(heard) if heard.line.is_empty() => return Received::Ping,
            Some(heard) => heard.line,
            None => return Received::Closed(None),
        },
    };
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("not JSON: {text}"));
    match json["push"].as_str() {
        // The counterpart of a WebSocket's close frame.
        Some("close") => Received::Closed(json["code"].as_u64().map(|code| code as u16)),
        Some(_) => Received::Push(json),
        None => Received::Reply(json),
    }
}
