//! WebSocket connections, and the bare protocol over them.

use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    Connector, MaybeTlsStream, WebSocketStream, connect_async_tls_with_config,
    tungstenite::{
        Error, Message as Frame,
        client::{ClientRequestBuilder, IntoClientRequest},
    },
};

use super::{
    item::{Data, Gap, Item, Message, Positions},
    read_options::ReadOptions,
};
use crate::server::{Server, trusting};

pub type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Message or control frame that a WebSocket received.
pub enum Incoming {
    Text(String),
    Binary(Vec<u8>),
    Ping,
    /// Close code and reason; `None` if the connection ended without a close frame.
    Closed(Option<(u16, String)>),
}

pub async fn connect(server: &Server, path: &str, subprotocol: Option<&str>) -> Socket {
    let url = server.websocket_url(path);
    let mut request = ClientRequestBuilder::new(url.parse().expect("a URL"));
    if let Some(subprotocol) = subprotocol {
        request = request.with_sub_protocol(subprotocol);
    }
    socket(request).await
}

async fn socket(request: impl IntoClientRequest + Unpin) -> Socket {
    let connector = Connector::Rustls(trusting(&["http/1.1"]).into());
    connect_async_tls_with_config(request, None, false, Some(connector)).await.expect("a WebSocket").0
}

/// Returns the next message. The library answers pings with the next read.
pub async fn receive(socket: &mut Socket) -> Incoming {
    loop {
        return match socket.next().await {
            Some(Ok(Frame::Text(text))) => Incoming::Text(text.as_str().to_owned()),
            Some(Ok(Frame::Binary(data))) => Incoming::Binary(data.to_vec()),
            Some(Ok(Frame::Ping(_))) => {
                // Without traffic, no later write would carry the pong.
                let _ = socket.flush().await;
                Incoming::Ping
            }
            Some(Ok(Frame::Close(close))) => {
                Incoming::Closed(close.map(|c| (c.code.into(), c.reason.as_str().to_owned())))
            }
            Some(Ok(Frame::Pong(_) | Frame::Frame(_))) => continue,
            None | Some(Err(Error::ConnectionClosed | Error::AlreadyClosed | Error::Io(_) | Error::Protocol(_))) => {
                Incoming::Closed(None)
            }
            Some(Err(error)) => panic!("{error}"),
        };
    }
}

/// A reader of payloads. After a gap it reconnects with the position that the server reported, as the protocol
/// requires.
pub struct Bare {
    base: String,
    ask: ReadOptions,
    socket: Socket,
}

impl Bare {
    pub async fn open(server: &Server, ask: &ReadOptions) -> Self {
        assert!(!ask.many, "a bare WebSocket reads one channel");
        let base = server.websocket_url("");
        Self { socket: open(&base, ask, &ask.positions).await, base, ask: ask.clone() }
    }

    /// Returns the start position. Only a reader that requested a position knows it; other readers get an empty map.
    pub fn started_at(&self) -> Positions {
        match self.ask.since.contains(':') && !self.ask.since.contains('T') {
            true => [(self.ask.channels[0].clone(), self.ask.since.clone())].into(),
            false => Positions::new(),
        }
    }

    pub async fn next(&mut self) -> Vec<Item> {
        let channel = self.ask.channels[0].clone();
        let data = match receive(&mut self.socket).await {
            Incoming::Text(text) => Data::Raw(text.into_bytes()),
            Incoming::Binary(data) => Data::Binary(data),
            Incoming::Ping => return vec![Item::Heartbeat],
            Incoming::Closed(Some((4000, to))) => {
                self.socket = open(&self.base, &self.ask, &[(channel.clone(), to.clone())].into()).await;
                return vec![Item::Gap(Gap { channel, from: None, to })];
            }
            Incoming::Closed(close) => return vec![Item::End(close.map(|(code, _)| code))],
        };
        let (position, key, trace, deleted, id) = Default::default();
        vec![Item::Message(Message { channel, position, key, trace, data, deleted, id })]
    }
}

async fn open(base: &str, ask: &ReadOptions, positions: &Positions) -> Socket {
    socket(format!("{base}{}", ask.path(positions))).await
}

/// Sends a text message.
pub async fn send_text(socket: &mut Socket, text: &str) {
    socket.send(Frame::text(text)).await.expect("an open socket");
}
