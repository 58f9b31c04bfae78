//! Publishes with `POST` requests that are repeated on the next connection until they are accepted.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
};

use super::{
    dialect::{Dialect, Event},
    http::{Answer, post},
};

/// Maximum number of unanswered requests.
const UNANSWERED_MAX: usize = 32;
const TOO_MANY_REQUESTS: u16 = 429;

/// Publishes each message with its own `POST` request and an `Idempotency-Key`. A request without an answer, or with
/// one that asks to try again, is repeated with the same key on the next connection. A server that remembers keys thus
/// publishes each message once, also if it dies between the publication and the answer.
pub struct RetryingPoster {
    path: String,
    /// Complete header lines with their line ends.
    headers: String,
    /// Requests without an answer, oldest first, with their keys.
    unanswered: VecDeque<(u64, Vec<u8>)>,
}

impl RetryingPoster {
    /// `headers`: complete lines with their line ends.
    pub fn new(path: &str, headers: &str) -> Self {
        Self { path: path.into(), headers: headers.into(), unanswered: VecDeque::new() }
    }
}

impl Dialect for RetryingPoster {
    /// Repeats all requests that were not answered on the previous connection.
    fn open(&mut self, out: &mut Vec<u8>) -> bool {
        self.unanswered.iter().for_each(|(_, request)| out.extend_from_slice(request));
        true
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        _: u64,
        _: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        let mut at = 0;
        while let Some(answer) = Answer::read(&bytes[at..])? {
            at += answer.used;
            if answer.head.status >= 500 || answer.head.status == TOO_MANY_REQUESTS {
                // The request stays unanswered. The requests behind it must not overtake it.
                emit(Event::Closed);
                return Ok(at);
            }
            self.unanswered.pop_front();
            emit(if answer.head.is_success() { Event::Accepted } else { Event::Refused });
            if answer.head.closes() {
                emit(Event::Closed);
            }
        }
        Ok(at)
    }

    /// Publishes a payload. Each payload of the generator differs from all others, so its hash is its key. A payload
    /// that was encoded for an earlier connection, which broke before it was sent, was already repeated by
    /// [`Dialect::open`].
    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        let mut hasher = DefaultHasher::new();
        payload.hash(&mut hasher);
        let key = hasher.finish();
        if self.unanswered.iter().any(|(unanswered, _)| *unanswered == key) {
            return;
        }
        let headers = format!("{}Idempotency-Key: {key:x}\r\n", self.headers);
        let mut request = Vec::new();
        post(&self.path, &headers, payload, &mut request);
        out.extend_from_slice(&request);
        self.unanswered.push_back((key, request));
    }

    fn can_publish(&self) -> bool {
        self.unanswered.len() < UNANSWERED_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(sent: &[u8]) -> Vec<String> {
        let text = String::from_utf8_lossy(sent).into_owned();
        text.lines().filter_map(|line| line.strip_prefix("Idempotency-Key: ").map(str::to_owned)).collect()
    }

    #[test]
    fn unanswered_requests_are_repeated_with_their_keys() {
        let (mut poster, mut out, mut events) = (RetryingPoster::new("/c", ""), Vec::new(), Vec::new());
        assert!(poster.open(&mut out) && out.is_empty());
        [b"[1]", b"[2]", b"[3]"].into_iter().for_each(|payload| poster.publish(payload, &mut out));
        let (first, all) = (out.clone(), keys(&out));
        assert!(all.len() == 3 && all[0] != all[1] && all[1] != all[2], "{all:?}");
        let answers =
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n";
        poster.feed(answers, 0, &mut out, &mut |event| events.push(format!("{event:?}"))).unwrap();
        assert_eq!(events, ["Accepted", "Closed"]);
        out.clear();
        assert!(poster.open(&mut out));
        assert_eq!(keys(&out), all[1..], "the answered request is not repeated");
        assert!(first.ends_with(&out), "the repeated requests are the same");
        poster.publish(b"[3]", &mut out);
        assert_eq!(keys(&out), all[1..], "it was already repeated");
        poster.publish(b"[4]", &mut out);
        assert_eq!(keys(&out).len(), 3);
    }

    #[test]
    fn refusal_of_the_application_is_final() {
        let (mut poster, mut out, mut events) = (RetryingPoster::new("/c", ""), Vec::new(), Vec::new());
        poster.publish(b"[1]", &mut out);
        let refused = b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        poster.feed(refused, 0, &mut out, &mut |event| events.push(format!("{event:?}"))).unwrap();
        assert_eq!(events, ["Refused", "Closed"]);
        out.clear();
        poster.open(&mut out);
        assert!(out.is_empty());
    }
}
