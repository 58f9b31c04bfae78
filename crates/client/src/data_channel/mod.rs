//! Session over data channels: an offer by HTTP, then lines over UDP.
//!
//! Source: docs/reference/protocol.md, "Data channels".

mod socket;

use std::{collections::VecDeque, time::Duration};

use millrace_rtc::{Event, Lane};

pub use socket::{AnswerError, OPEN_TIMEOUT, PeerSocket, SDP};

use crate::problem::Problem;

/// Maximum size of one message, in bytes. A longer command is split, which the stream of lines allows.
const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Maximum length of a received line, in bytes.
const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Polling interval while the send queue is full.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Session over data channels. Dropping it closes the connection.
pub struct Connection {
    socket: PeerSocket,
    /// Beginning of an incomplete line.
    rest: Vec<u8>,
    received: VecDeque<ReceivedLine>,
    /// Number of the newest message on the lossy channel.
    newest: u64,
    lost: u64,
    is_over: bool,
}

/// Received line, without its line end, and its channel. An empty line only shows that the server is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedLine {
    pub line: String,
    pub lane: Lane,
}

/// Reason why no session was opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The server refused the request.
    #[error("{0}")]
    Refused(Problem),
    #[error("{0}")]
    Lost(String),
}

impl Connection {
    /// Opens a session. `request` is a `POST` to `/v1/connect` with its credentials and, to resume, its ticket.
    ///
    /// Errors: the server refused the request, or does not answer.
    pub async fn open(request: reqwest::RequestBuilder) -> Result<Self, OpenError> {
        let socket = PeerSocket::open(request).await?;
        let (rest, received) = Default::default();
        Ok(Self { socket, rest, received, newest: 0, lost: 0, is_over: false })
    }

    /// Returns the next line, or `None` once the connection is over.
    pub async fn next(&mut self) -> Option<ReceivedLine> {
        loop {
            self.handle_events();
            if let Some(line) = self.received.pop_front() {
                return Some(line);
            }
            if self.is_over() {
                return None;
            }
            self.socket.wait().await;
        }
    }

    /// Sends one command; lines received meanwhile are kept for [`Connection::next`]. Does nothing if the
    /// connection is over.
    pub async fn send_line(&mut self, line: &str) {
        let line = format!("{line}\n");
        let mut rest = line.as_str();
        while !rest.is_empty() && !self.is_over() {
            let mut end = rest.len().min(MESSAGE_BYTES_MAX);
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            match self.socket.write(Lane::Session, true, &rest.as_bytes()[..end]) {
                true => rest = &rest[end..],
                false => drop(tokio::time::timeout(POLL_INTERVAL, self.socket.wait()).await),
            }
            self.socket.flush().await;
            self.handle_events();
        }
    }

    /// Returns the number of messages on the lossy channel that did not arrive, or arrived after a newer one.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn is_over(&self) -> bool {
        self.is_over || self.socket.is_over()
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.socket.poll_event() {
            self.handle_event(event);
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Data(Lane::Session, data) => {
                self.rest.extend_from_slice(&data);
                self.is_over |= self.rest.len() > LINE_BYTES_MAX;
                let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                let rest = self.rest.split_off(end);
                let lines = std::mem::replace(&mut self.rest, rest);
                self.keep(&lines, Lane::Session);
            }
            Event::Data(Lane::Latest, data) => {
                let head = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
                let Some(number) = std::str::from_utf8(&data[..head]).ok().and_then(|text| text.parse::<u64>().ok())
                else {
                    return;
                };
                // A message that arrives after a newer one is stale and was already counted as lost.
                if number > self.newest {
                    self.lost += number - self.newest - 1;
                    self.newest = number;
                    self.keep(data.get(head + 1..).unwrap_or_default(), Lane::Latest);
                }
            }
            Event::Closed => self.is_over = true,
            Event::Open(_) | Event::Low(_) => {}
        }
    }

    fn keep(&mut self, lines: &[u8], lane: Lane) {
        let lines = lines.strip_suffix(b"\n").into_iter().flat_map(|lines| lines.split(|byte| *byte == b'\n'));
        self.received.extend(lines.map(|line| ReceivedLine { line: String::from_utf8_lossy(line).into_owned(), lane }));
    }
}
