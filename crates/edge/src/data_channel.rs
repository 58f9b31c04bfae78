//! A session over data channels: an offer by HTTP, then lines over UDP.
//!
//! Source: docs/protocol.md, "Data channels".

mod socket;

use std::{collections::VecDeque, time::Duration};

use millrace_rtc::{Event, Lane};

pub use socket::{AnswerError, OPEN_TIMEOUT, PeerSocket, SDP};

use crate::wire::Problem;

/// One message of a command; longer ones are cut, which the stream of lines does not mind.
const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Longest line that is waited for.
const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Between two looks at whether there is room again for what is to be sent.
const LOOK: Duration = Duration::from_millis(5);

/// One session. Dropped, it says good-bye.
pub struct Connection {
    socket: PeerSocket,
    /// The beginning of a line.
    rest: Vec<u8>,
    heard: VecDeque<Heard>,
    /// Number of the newest message that may get lost.
    newest: u64,
    lost: u64,
    is_over: bool,
}

/// A line, without its end, and what it came on. An empty one says no more than that the server is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    pub line: String,
    pub lane: Lane,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The server has answered no.
    #[error("{0}")]
    Refused(Problem),
    #[error("{0}")]
    Lost(String),
}

impl Connection {
    /// Opens one. `request`: a `POST` to `/v1/connect`, with whatever it shows to be let in and goes on with.
    ///
    /// Errors: what the server has said, or that it does not answer.
    pub async fn open(request: reqwest::RequestBuilder) -> Result<Self, OpenError> {
        let socket = PeerSocket::open(request).await?;
        let (rest, heard) = Default::default();
        Ok(Self { socket, rest, heard, newest: 0, lost: 0, is_over: false })
    }

    /// The next line; `None` once the connection is over.
    pub async fn next(&mut self) -> Option<Heard> {
        loop {
            self.hear_all();
            if let Some(heard) = self.heard.pop_front() {
                return Some(heard);
            }
            if self.is_over() {
                return None;
            }
            self.socket.wait().await;
        }
    }

    /// Sends one command; what comes meanwhile is kept for [`Connection::next`]. Nothing if the connection is over.
    pub async fn say(&mut self, line: &str) {
        let line = format!("{line}\n");
        let mut rest = line.as_str();
        while !rest.is_empty() && !self.is_over() {
            let mut end = rest.len().min(MESSAGE_BYTES_MAX);
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            match self.socket.write(Lane::Session, true, &rest.as_bytes()[..end]) {
                true => rest = &rest[end..],
                false => drop(tokio::time::timeout(LOOK, self.socket.wait()).await),
            }
            self.socket.flush().await;
            self.hear_all();
        }
    }

    /// Messages of the lossy channel that have not come, or too late to be news.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn is_over(&self) -> bool {
        self.is_over || self.socket.is_over()
    }

    fn hear_all(&mut self) {
        while let Some(event) = self.socket.poll_event() {
            self.hear(event);
        }
    }

    fn hear(&mut self, event: Event) {
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
                // What comes behind its successor was counted as lost, and is old.
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
        self.heard.extend(lines.map(|line| Heard { line: String::from_utf8_lossy(line).into_owned(), lane }));
    }
}
