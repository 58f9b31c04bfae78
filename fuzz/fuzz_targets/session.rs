//! Fuzzes a whole session: commands as text, one per line, through a real connection of a real shard. Each command
//! with an id gets one reply with that id, all received data is JSON in valid frames, and no state is left behind.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_fuzz::world::{self, MESSAGE_BYTES_MAX};
use millrace_protocol::{
    session::decode_command,
    websocket::{self, encode},
};
use serde::{Deserialize, de::IgnoredAny};

const HELLO: &str = "GET /v1/connect HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: millrace.v1+json\r\n\r\n";
/// The checked fields of a server message. Other fields are ignored: a payload may contain numbers that `Value`
/// cannot hold.
#[derive(Debug, Deserialize)]
struct Said {
    push: Option<String>,
    id: Option<u64>,
    ok: Option<IgnoredAny>,
    error: Option<IgnoredAny>,
}

/// Id of the last command. Its reply arrives after all others.
const LAST: u64 = u64::MAX;

fuzz_target!(|text: &str| {
    let lines: Vec<_> = text.split('\n').take(40).filter(|line| line.len() <= MESSAGE_BYTES_MAX).collect();
    let mut asked: Vec<u64> = lines.iter().filter_map(|line| decode_command(line).0).collect();
    if asked.contains(&LAST) || world::knows(text.as_bytes()) {
        return;
    }
    let mut said = HELLO.as_bytes().to_vec();
    lines.iter().for_each(|line| say(&mut said, line));
    say(&mut said, &format!("{{\"id\":{LAST},\"ping\":{{}}}}"));
    world::with(&mut |world| {
        let last = format!("{{\"id\":{LAST},");
        let heard = world.talk(&said, &|heard| has_reply(heard, last.as_bytes()));
        let Some(frames) = frames(&heard) else { return };
        let mut answered: Vec<u64> = frames.iter().filter_map(reply).collect();
        assert_eq!(answered.pop(), Some(LAST), "{}", String::from_utf8_lossy(&heard));
        asked.sort_unstable();
        answered.sort_unstable();
        assert_eq!(answered, asked);
    });
});

/// Returns true if the whole reply with this beginning has arrived.
fn has_reply(heard: &[u8], beginning: &[u8]) -> bool {
    let tail = &heard[heard.len().saturating_sub(4096)..];
    let place = tail.windows(beginning.len()).position(|window| window == beginning);
    place.is_some_and(|place| tail[place..].windows(2).any(|end| end == b"}}"))
}

/// Appends a client's text frame, masked with zeros.
fn say(out: &mut Vec<u8>, text: &str) {
    let mut frame = Vec::new();
    encode(&mut frame, websocket::TEXT, text.as_bytes());
    let head = frame.len() - text.len();
    frame[1] |= 0x80;
    frame.splice(head..head, [0; 4]);
    out.extend(frame);
}

/// Returns the texts of a server's frames after its `101`, or `None` if the server has closed because the token
/// expired.
fn frames(heard: &[u8]) -> Option<Vec<Said>> {
    let head = heard.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    assert!(heard.starts_with(b"HTTP/1.1 101 "));
    let (mut rest, mut texts) = (&heard[head + 4..], Vec::new());
    // The last frame may be incomplete.
    while let Some((first, payload, after)) = frame(rest) {
        match first {
            0x81 => texts.push(serde_json::from_slice(payload).expect("JSON")),
            0x89 => {}
            0x88 => {
                assert_eq!(payload.get(..2), Some(&websocket::CLOSE_EXPIRED.to_be_bytes()[..]), "{payload:?}");
                return None;
            }
            other => panic!("frame {other:#x}: {}", String::from_utf8_lossy(payload)),
        }
        rest = after;
    }
    Some(texts)
}

/// Returns the first byte of a frame, its payload and the bytes after it, or `None` if the frame is incomplete.
fn frame(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[first, second], after) = bytes.split_first_chunk()?;
    let (length, after) = match second {
        126 => after.split_first_chunk().map(|(length, after)| (usize::from(u16::from_be_bytes(*length)), after))?,
        127 => after.split_first_chunk().map(|(length, after)| (u64::from_be_bytes(*length) as usize, after))?,
        n => (usize::from(n), after),
    };
    after.split_at_checked(length).map(|(payload, after)| (first, payload, after))
}

/// Returns the id of a reply, or `None` for a push.
fn reply(said: &Said) -> Option<u64> {
    if let Some(push) = &said.push {
        assert!(["connected", "message", "gap", "error", "drain"].contains(&&**push), "{said:?}");
        return None;
    }
    assert!(said.ok.is_some() != said.error.is_some(), "{said:?}");
    Some(said.id.expect("an id"))
}
