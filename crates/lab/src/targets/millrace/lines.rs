//! Reader of an NDJSON stream.

use memchr::memchr;

use crate::load::{
    Dialect, Event,
    http::{Part, Stream, get},
    payload::payloads,
    websocket::between,
};

pub struct Lines {
    path: String,
    stream: Stream,
    position: Vec<u8>,
}

impl Lines {
    pub fn new(path: &str) -> Self {
        Self { path: path.into(), stream: Stream::default(), position: Vec::new() }
    }
}

impl Dialect for Lines {
    fn open(&mut self, out: &mut Vec<u8>) -> bool {
        self.stream.reset();
        let since = String::from_utf8_lossy(&self.position);
        let since = if since.is_empty() { String::new() } else { format!("?since={since}") };
        get(&format!("{}{since}", self.path), "Accept: application/x-ndjson\r\n", out);
        false
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        _: u64,
        _: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        let position = &mut self.position;
        let used = self.stream.feed(bytes, &mut |part| {
            let body = match part {
                Part::Head(_) => {
                    emit(Event::Ready);
                    return Ok(0);
                }
                Part::Body(body) => body,
            };
            let mut used = 0;
            while let Some(length) = memchr(b'\n', &body[used..]) {
                let line = &body[used..used + length];
                used += length + 1;
                let is_gap = line.starts_with(b"{\"gap\"");
                let key: &[u8] = if is_gap { b"\"to\":\"" } else { b"{\"position\":\"" };
                if let Some(now) = between(line, key, b"\"") {
                    position.clear();
                    position.extend_from_slice(now);
                }
                if is_gap {
                    emit(Event::Gap);
                }
                payloads(line, |payload| emit(Event::Message(payload)));
            }
            Ok(used)
        })?;
        if self.stream.is_over() {
            emit(Event::Closed);
        }
        Ok(used)
    }

    fn publish(&mut self, _: &[u8], _: &mut Vec<u8>) {
        unreachable!("a stream goes one way");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::script::{in_pieces, run_script};

    #[test]
    fn lines_survive_any_split_and_resume() {
        let body = "{\"position\":\"e:0\"}\n\n{\"position\":\"e:1\",\"time\":1,\"data\":[\"a\"]}\n{\"gap\":{\"from\":\"e:1\",\"to\":\"e:5\"}}\n\
            {\"position\":\"e:6\",\"time\":1,\"key\":\"k\",\"data\":[\"b\"]}\n";
        let script = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n", body.len());
        let heard = in_pieces(|| Box::new(Lines::new("/c")), script.as_bytes());
        assert_eq!(heard.events, ["Ready", "[\"a\"]", "Gap", "[\"b\"]"]);
        let (mut lines, mut again) = (Lines::new("/c"), Vec::new());
        run_script(&mut lines, script.as_bytes(), 9).unwrap();
        lines.open(&mut again);
        assert!(again.starts_with(b"GET /c?since=e:6 HTTP/1.1"));
    }
}
