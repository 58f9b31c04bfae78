//! An operator page as the server sees it: the views that the page follows over one WebSocket.

use std::{
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, anyhow, ensure};
use millrace_lab::load::http::exchange;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{self, Message, WebSocket, client::IntoClientRequest};

/// Maximum wait for the next message. Every page receives some each second.
const PATIENCE: Duration = Duration::from_secs(20);

/// A page and its requests, as in `web/src/pages/ui`.
pub struct Kind {
    pub name: &'static str,
    /// Requests that the page sends once.
    once: &'static [&'static str],
    /// Requests that the page follows.
    views: &'static [&'static str],
}

pub const KINDS: [Kind; 4] = [
    Kind { name: "overview", once: &["samples"], views: &["overview", "events"] },
    Kind { name: "connections", once: &[], views: &["connections?sort=behind&limit=100"] },
    Kind { name: "channels", once: &[], views: &["channels?limit=100"] },
    Kind { name: "one channel", once: &[], views: &["channel?channel=bench/0", "tail?channel=bench/0&count=50"] },
];

/// Updates of rows, and bytes of their messages.
#[derive(Default)]
pub struct Received {
    pub updates: AtomicU64,
    pub bytes: AtomicU64,
}

/// An open page.
pub struct Page {
    stream: TcpStream,
    pub received: Arc<Received>,
    is_closing: Arc<AtomicBool>,
    reader: JoinHandle<anyhow::Result<()>>,
}

impl Page {
    /// Opens a page, and returns once the page has all its rows.
    ///
    /// Errors: the server refuses a request or the WebSocket.
    pub fn open(address: SocketAddr, kind: &Kind) -> anyhow::Result<Self> {
        for request in kind.once {
            ask(address, "GET", request, "")?;
        }
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut request = format!("ws://{address}/v1/connect").into_client_request()?;
        request.headers_mut().insert("origin", format!("http://{address}").parse()?);
        request.headers_mut().insert("sec-websocket-protocol", "millrace.v1+json".parse()?);
        let (mut socket, _) = tungstenite::client(request, stream.try_clone()?).map_err(|error| anyhow!("{error}"))?;
        for (view, id) in kind.views.iter().zip(1..) {
            let answer = ask(address, "POST", "follow", &json!({ "request": view }).to_string())?;
            let command = json!({ "id": id, "subscribe": { "channel": answer["channel"], "since": "state" } });
            socket.send(Message::text(command.to_string()))?;
        }
        let received = Arc::new(Received::default());
        let mut incomplete = kind.views.len();
        while incomplete > 0 {
            incomplete -= usize::from(next(&mut socket, &received)?["push"] == "state");
        }
        let is_closing = Arc::new(AtomicBool::new(false));
        let (counts, is_over) = (received.clone(), is_closing.clone());
        let reader = std::thread::spawn(move || {
            loop {
                match next(&mut socket, &counts) {
                    Ok(_) => {}
                    Err(_) if is_over.load(Relaxed) => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        });
        Ok(Self { stream, received, is_closing, reader })
    }

    /// Closes the connection of the page.
    ///
    /// Errors: the server has closed the connection before, or has refused a subscription.
    pub fn close(self) -> anyhow::Result<()> {
        self.is_closing.store(true, Relaxed);
        // Fails if the server has closed the connection; the reader then has the reason.
        let _ = self.stream.shutdown(Shutdown::Both);
        self.reader.join().map_err(|_| anyhow!("the thread of a page has panicked"))?
    }
}

/// Reads the next message of a session. Returns null for a frame without text.
fn next(socket: &mut WebSocket<TcpStream>, received: &Received) -> anyhow::Result<Value> {
    let Message::Text(text) = socket.read()? else { return Ok(Value::Null) };
    let message: Value = serde_json::from_str(&text)?;
    ensure!(message.get("error").is_none() && message["push"] != "error", "refused: {message}");
    if message["push"] == "message" {
        ensure!(message["data"].get("error").is_none(), "a view has failed: {message}");
        received.updates.fetch_add(1, Relaxed);
        received.bytes.fetch_add(text.len() as u64, Relaxed);
    }
    Ok(message)
}

/// Sends an operator request as a page of the server itself.
fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> anyhow::Result<Value> {
    let request = format!(
        "{method} /v1/admin/{path} HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\n\
         Sec-Fetch-Site: same-origin\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    exchange(&mut TcpStream::connect(address)?, request.as_bytes(), |answer| Ok(serde_json::from_slice(&answer.body)?))
        .with_context(|| format!("{method} {path}"))
}
