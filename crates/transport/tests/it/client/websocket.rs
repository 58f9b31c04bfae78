//! WebSocket: the socket, and the bare way to talk over it.

use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Error, Message as Frame, client::ClientRequestBuilder},
};

use super::{Ask, Data, Gap, Item, Message, Positions};
use crate::server::Server;

pub type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// What a socket says.
pub enum Said {
    Text(String),
    Binary(Vec<u8>),
    Ping,
    /// Close code and reason; `None` if the connection ended without a close frame.
    Closed(Option<(u16, String)>),
}

pub async fn connect(server: &Server, path: &str, subprotocol: Option<&str>) -> Socket {
    let url = format!("ws://{}{path}", server.address);
    let mut request = ClientRequestBuilder::new(url.parse().expect("a URL"));
    if let Some(subprotocol) = subprotocol {
        request = request.with_sub_protocol(subprotocol);
    }
    let (socket, _) = connect_async(request).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    socket
}

/// Pings are answered by the library with the next read.
pub async fn hear(socket: &mut Socket) -> Said {
    loop {
        return match socket.next().await {
            Some(Ok(Frame::Text(text))) => Said::Text(text.as_str().to_owned()),
            Some(Ok(Frame::Binary(data))) => Said::Binary(data.to_vec()),
            Some(Ok(Frame::Ping(_))) => {
                // Without traffic there may be no next write that takes the pong along.
                let _ = socket.flush().await;
                Said::Ping
            }
            Some(Ok(Frame::Close(close))) => Said::Closed(close.map(|c| (c.code.into(), c.reason.as_str().to_owned()))),
            Some(Ok(Frame::Pong(_) | Frame::Frame(_))) => continue,
            None | Some(Err(Error::ConnectionClosed | Error::AlreadyClosed | Error::Io(_) | Error::Protocol(_))) => {
                Said::Closed(None)
            }
            Some(Err(error)) => panic!("{error}"),
        };
    }
}

/// A reader of payloads. After a gap it connects again with the position it was told, as the protocol says.
pub struct Bare {
    address: String,
    ask: Ask,
    socket: Socket,
}

impl Bare {
    pub async fn open(server: &Server, ask: &Ask) -> Self {
        assert!(!ask.many, "a bare WebSocket reads one channel");
        let address = server.address.to_string();
        Self { socket: open(&address, ask, &ask.positions).await, address, ask: ask.clone() }
    }

    /// Only a reader that asked for a position knows where it is.
    pub fn started_at(&self) -> Positions {
        match self.ask.since.contains(':') && !self.ask.since.contains('T') {
            true => [(self.ask.channels[0].clone(), self.ask.since.clone())].into(),
            false => Positions::new(),
        }
    }

    pub async fn next(&mut self) -> Vec<Item> {
        let channel = self.ask.channels[0].clone();
        let data = match hear(&mut self.socket).await {
            Said::Text(text) => Data::Raw(text.into_bytes()),
            Said::Binary(data) => Data::Binary(data),
            Said::Ping => return vec![Item::Heartbeat],
            Said::Closed(Some((4000, to))) => {
                self.socket = open(&self.address, &self.ask, &[(channel.clone(), to.clone())].into()).await;
                return vec![Item::Gap(Gap { channel, from: None, to })];
            }
            Said::Closed(close) => return vec![Item::End(close.map(|(code, _)| code))],
        };
        vec![Item::Message(Message { channel, position: None, key: None, data, id: None })]
    }
}

async fn open(address: &str, ask: &Ask, positions: &Positions) -> Socket {
    let url = format!("ws://{address}{}", ask.path(positions));
    connect_async(url.as_str()).await.unwrap_or_else(|error| panic!("{url}: {error}")).0
}

/// Sends a text message.
pub async fn say(socket: &mut Socket, text: &str) {
    socket.send(Frame::text(text)).await.expect("an open socket");
}
