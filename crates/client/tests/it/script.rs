//! A server that fails on command: it cuts a connection, stays silent, or answers 503. One connection per step.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Reaction to one request.
pub enum Step {
    /// Close without an answer.
    Cut,
    /// Send these bytes after `HTTP/1.1 `, then close.
    Answer(String),
    /// Send these bytes after `HTTP/1.1 `, and keep the connection open.
    Hold(String),
}

impl Step {
    pub fn json(status: &str, body: &str) -> Self {
        Self::Answer(format!(
            "{status}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    /// Returns an answer whose body ends with the connection.
    pub fn stream(content_type: &str, body: &str) -> Self {
        Self::Answer(format!("200 OK\r\nContent-Type: {content_type}\r\nConnection: close\r\n\r\n{body}"))
    }
}

/// Starts the server and returns its URL. The task returns all requests as text, once all steps are done.
pub async fn serve(steps: Vec<Step>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let task = tokio::spawn(async move {
        let (mut requests, mut held) = (Vec::new(), Vec::new());
        for step in steps {
            let (mut socket, _) = listener.accept().await.expect("a connection");
            let mut bytes = Vec::new();
            while !is_whole(&bytes) {
                if socket.read_buf(&mut bytes).await.expect("bytes") == 0 {
                    break;
                }
            }
            requests.push(String::from_utf8(bytes).expect("a request is text"));
            if let Step::Answer(answer) | Step::Hold(answer) = &step {
                socket.write_all(format!("HTTP/1.1 {answer}").as_bytes()).await.expect("room for an answer");
            }
            if let Step::Hold(_) = step {
                held.push(socket);
            }
        }
        requests
    });
    (url, task)
}

pub fn header<'a>(request: &'a str, name: &str) -> &'a str {
    let lines = request.lines().filter_map(|line| line.split_once(": "));
    let mut values = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    values.next().unwrap_or_default()
}

fn is_whole(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    body.len() >= header(head, "content-length").parse().unwrap_or(0)
}
