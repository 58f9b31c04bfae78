//! Polling and long polling: one request after the other, each from the position of the last response.

use std::time::Duration;

use anyhow::Context;

use crate::load::{
    Dialect, Event,
    http::{Answer, get},
    payload::payloads,
};

/// Maximum number of messages in one response; the server's limit.
const LIMIT: usize = 1000;

pub struct Poll {
    path: String,
    /// Interval between polls. `None`: long polling, where the server holds the request.
    every: Option<Duration>,
    position: String,
    is_ready: bool,
    /// Time of the next request.
    next_ns: Option<u64>,
}

impl Poll {
    pub fn long(path: &str) -> Self {
        Self { path: path.into(), every: None, position: String::new(), is_ready: false, next_ns: None }
    }

    pub fn every(path: &str, every: Duration) -> Self {
        Self { every: Some(every), ..Self::long(path) }
    }

    fn ask(&self, out: &mut Vec<u8>) {
        let wait = if self.every.is_none() && !self.position.is_empty() { "&wait=30" } else { "" };
        let since = if self.position.is_empty() { "now" } else { &self.position };
        get(&format!("{}?limit={LIMIT}{wait}&since={since}", self.path), "Accept: application/json\r\n", out);
    }
}

impl Dialect for Poll {
    /// Sends the first request without a wait: its response contains the position from which no message is missed.
    fn open(&mut self, out: &mut Vec<u8>) -> bool {
        self.is_ready = false;
        self.next_ns = None;
        self.ask(out);
        !self.position.is_empty() && {
            self.is_ready = true;
            true
        }
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        now_ns: u64,
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        let mut at = 0;
        while let Some(answer) = Answer::read(&bytes[at..])? {
            at += answer.used;
            answer.check()?;
            let position = answer.head.header("millrace-position").context("an answer without a position")?;
            self.position.clear();
            self.position.push_str(position);
            if answer.body[..answer.body.len().min(300)].windows(6).any(|bytes| bytes == b"\"gap\":") {
                emit(Event::Gap);
            }
            let mut messages = 0;
            payloads(&answer.body, |payload| {
                messages += 1;
                emit(Event::Message(payload));
            });
            if !std::mem::replace(&mut self.is_ready, true) {
                emit(Event::Ready);
            }
            match self.every {
                Some(every) if messages < LIMIT => self.next_ns = Some(now_ns + every.as_nanos() as u64),
                _ => self.ask(out),
            }
        }
        Ok(at)
    }

    fn publish(&mut self, _: &[u8], _: &mut Vec<u8>) {
        unreachable!("who polls does not publish");
    }

    fn wake_at_ns(&self) -> Option<u64> {
        self.next_ns
    }

    fn wake(&mut self, _: u64, out: &mut Vec<u8>) {
        self.next_ns = None;
        self.ask(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::script::in_pieces;

    const SCRIPT: &[u8] = b"HTTP/1.1 204 No Content\r\nmillrace-position: e:0\r\n\r\n\
        HTTP/1.1 200 OK\r\nmillrace-position: e:2\r\ncontent-length: 105\r\n\r\n\
        {\"position\":\"e:2\",\"messages\":[{\"position\":\"e:1\",\"time\":1,\"data\":[\"a\"]},{\"position\":\"e:2\",\"time\":1,\"data\":[\"b\"]}]}";

    #[test]
    fn each_poll_continues_after_the_last_answer() {
        let script = std::str::from_utf8(SCRIPT).unwrap();
        let body = script.rsplit_once("\r\n\r\n").unwrap().1.len();
        let script = script.replace("105", &body.to_string());
        let heard = in_pieces(|| Box::new(Poll::long("/c")), script.as_bytes());
        assert_eq!(heard.events, ["Ready", "[\"a\"]", "[\"b\"]"]);
        let asked: Vec<&str> = heard.sent.lines().filter(|line| line.starts_with("GET")).collect();
        assert_eq!(
            asked,
            [
                "GET /c?limit=1000&since=now HTTP/1.1",
                "GET /c?limit=1000&wait=30&since=e:0 HTTP/1.1",
                "GET /c?limit=1000&wait=30&since=e:2 HTTP/1.1"
            ]
        );
    }

    #[test]
    fn poll_waits_for_its_interval() {
        let (mut poll, mut out) = (Poll::every("/c", Duration::from_secs(5)), Vec::new());
        assert!(!poll.open(&mut out));
        out.clear();
        let head = b"HTTP/1.1 204 No Content\r\nMillrace-Position: e:0\r\n\r\n";
        poll.feed(head, 7, &mut out, &mut |event| assert_eq!(event, Event::Ready)).unwrap();
        assert_eq!((poll.wake_at_ns(), out.len()), (Some(5_000_000_007), 0));
        poll.wake(5_000_000_007, &mut out);
        assert!(out.starts_with(b"GET /c?limit=1000&since=e:0 ") && poll.wake_at_ns().is_none());
    }
}
