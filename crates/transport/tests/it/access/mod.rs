//! Permissions on every entry point over HTTP and WebSocket, and what happens when a token expires, is revoked, or is
//! refreshed.

mod admin;
mod expiry;
mod follow;
mod operators;
mod origin;
mod permissions;

use std::{
    net::SocketAddr,
    time::{SystemTime, UNIX_EPOCH},
};

use futures_util::{SinkExt as _, StreamExt as _};
use millrace_server::{auth::SigningKey, config::Secret};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{self, Message, client::IntoClientRequest as _};

use crate::server::{BOUND, Server, within};

const SECRET: &str = "a secret of thirty-two bytes or more";
/// All permissions, as a test token grants them.
const ALL: &[&str] = &["subscribe", "publish", "presence", "history"];

const JSON: &str = "application/json";
const SSE: &str = "text/event-stream";
const NDJSON: &str = "application/x-ndjson";

fn start() -> Server {
    start_with(|_| {})
}

fn start_with(change: impl FnOnce(&mut millrace_server::Config)) -> Server {
    Server::with(|config| {
        config.auth.secret = Secret::from(SECRET);
        config.server.public_metrics = true;
        change(config);
    })
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_secs()
}

/// Returns a token of `subject` that grants `permissions` on the channels that match `pattern`, valid for `seconds`.
fn token(subject: &str, permissions: &[&str], pattern: &str, seconds: u64) -> String {
    let granted: serde_json::Map<String, Value> =
        permissions.iter().map(|permission| ((*permission).to_owned(), json!([pattern]))).collect();
    let claims = json!({
        "sub": subject, "jti": format!("id-of-{subject}"), "iat": now_s(), "exp": now_s() + seconds, "millrace": granted,
    });
    SigningKey::parse(SECRET.as_bytes()).expect("a key").sign(&claims, None).expect("a token")
}

type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

/// Opens a WebSocket, or returns the HTTP status that refused the upgrade. `offers` are the subprotocols to offer; the
/// token is one of them.
async fn open(server: &Server, path: &str, offers: &[String], origin: Option<&str>) -> Result<Socket, u16> {
    open_at(server.address, path, offers, origin).await
}

async fn open_at(address: SocketAddr, path: &str, offers: &[String], origin: Option<&str>) -> Result<Socket, u16> {
    let mut request = format!("ws://{address}{path}").into_client_request().expect("a request");
    if !offers.is_empty() {
        request.headers_mut().insert("sec-websocket-protocol", offers.join(", ").parse().expect("a header"));
    }
    if let Some(origin) = origin {
        request.headers_mut().insert("origin", origin.parse().expect("a header"));
    }
    match within(tokio_tungstenite::connect_async(request)).await {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => panic!("{path}: {error}"),
    }
}

async fn session(server: &Server, token: &str) -> Socket {
    let offers = ["millrace.v1+json".to_owned(), format!("bearer.{token}")];
    let mut socket = open(server, "/v1/connect", &offers, None).await.expect("a session");
    assert_eq!(receive(&mut socket).await["push"], "connected");
    socket
}

async fn receive(socket: &mut Socket) -> Value {
    loop {
        match within(socket.next()).await.expect("more").expect("a message") {
            Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
            Message::Close(close) => panic!("closed: {close:?}"),
            _ => {}
        }
    }
}

async fn command(socket: &mut Socket, command: Value) -> Value {
    within(socket.send(Message::text(command.to_string()))).await.expect("sent");
    loop {
        let received = receive(socket).await;
        if received["id"] == command["id"] {
            return received;
        }
    }
}

async fn close_code(socket: &mut Socket) -> u16 {
    let closed = async {
        while let Some(Ok(message)) = socket.next().await {
            if let Message::Close(Some(close)) = message {
                return u16::from(close.code);
            }
        }
        0
    };
    tokio::time::timeout(BOUND, closed).await.expect("closed in time")
}
