//! Publishing over ZeroMQ, like Pushpin's own libraries: ZMTP 3.0 without security, a `PUSH` socket (ZeroMQ RFC 23).

use anyhow::ensure;

use crate::load::{Dialect, Event};

const GREETING_BYTES: usize = 64;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// ```text
///   open ──greeting──► (server's greeting) ──READY──► (server's READY) ready
/// ```
pub struct Push {
    /// JSON text before a payload.
    before: String,
    is_greeted: bool,
}

impl Push {
    pub fn new(channel: &str) -> Self {
        Self {
            before: format!(r#"J{{"channel":"{channel}","formats":{{"http-stream":{{"content":"data: "#),
            is_greeted: false,
        }
    }
}

impl Dialect for Push {
    fn open(&mut self, out: &mut Vec<u8>) -> bool {
        self.is_greeted = false;
        let mut greeting = [0; GREETING_BYTES];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        out.extend_from_slice(&greeting);
        frame(COMMAND, &[b"\x05READY\x0bSocket-Type\0\0\0\x04PUSH"], out);
        false
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        _: u64,
        _: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        let mut at = 0;
        if !self.is_greeted {
            let Some(greeting) = bytes.first_chunk::<GREETING_BYTES>() else { return Ok(0) };
            ensure!(greeting[0] == 0xff && greeting[10] >= 3, "no ZeroMQ of version 3");
            (at, self.is_greeted) = (GREETING_BYTES, true);
        }
        // The server only sends READY. A PUSH socket ignores everything else.
        while let Some(&[flags, length]) = bytes.get(at..at + 2) {
            ensure!(flags & LONG == 0, "a long frame from one who only hears");
            let Some(body) = bytes.get(at + 2..at + 2 + usize::from(length)) else { break };
            if flags & COMMAND != 0 && body.starts_with(b"\x05READY") {
                emit(Event::Ready);
            }
            at += 2 + body.len();
        }
        Ok(at)
    }

    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        frame(0, &[self.before.as_bytes(), &escaped(payload), br#"\n\n"}}}"#], out);
    }
}

/// Escapes a payload for a JSON string. Only its quotes need escaping.
fn escaped(payload: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(payload.len() + 2);
    for byte in payload {
        if *byte == b'"' {
            text.push(b'\\');
        }
        text.push(*byte);
    }
    text
}

fn frame(flags: u8, parts: &[&[u8]], out: &mut Vec<u8>) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    match u8::try_from(length) {
        Ok(short) => out.extend_from_slice(&[flags, short]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::script::in_pieces;

    #[test]
    fn handshake_survives_splits_and_publication_is_event() {
        let mut script = vec![0; GREETING_BYTES];
        (script[0], script[9], script[10]) = (0xff, 0x7f, 3);
        frame(COMMAND, &[b"\x05READY\x0bSocket-Type\0\0\0\x04PULL"], &mut script);
        assert_eq!(in_pieces(|| Box::new(Push::new("c")), &script).events, ["Ready"]);
        let (mut push, mut out) = (Push::new("c"), Vec::new());
        push.publish(b"[\"mr1 x\"]", &mut out);
        assert_eq!((out[0], usize::from(out[1])), (0, out.len() - 2));
        let json: serde_json::Value = serde_json::from_slice(&out[3..]).unwrap();
        assert_eq!(json["channel"], "c");
        assert_eq!(json["formats"]["http-stream"]["content"], "data: [\"mr1 x\"]\n\n");
        out.clear();
        push.publish(&[b'x'; 200], &mut out);
        assert_eq!((out[0], out[1..9].to_vec()), (LONG, (out.len() as u64 - 9).to_be_bytes().to_vec()));
    }
}
