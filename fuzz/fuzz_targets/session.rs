//! A whole session: commands as text, one a line, through a real connection of a real shard. Each that has an id gets one reply with it, all
//! that is heard is JSON in good frames, and nothing is left behind.

#![no_main]

mod world;

use libfuzzer_sys::fuzz_target;
use millrace_protocol::{
    session::decode_command,
    websocket::{self, encode},
};
use serde_json::Value;
use world::MESSAGE_BYTES_MAX;

const HELLO: &str = "GET /v1/connect HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: millrace.v1+json\r\n\r\n";
/// The last command, whose reply comes after all others.
const LAST: u64 = u64::MAX;

fuzz_target!(|text: &str| {
    let lines: Vec<_> = text.split('\n').take(40).filter(|line| line.len() <= MESSAGE_BYTES_MAX).collect();
    let mut asked: Vec<u64> = lines.iter().filter_map(|line| decode_command(line).0).collect();
    if asked.contains(&LAST) {
        return;
    }
    let mut said = HELLO.as_bytes().to_vec();
    lines.iter().for_each(|line| say(&mut said, line));
    say(&mut said, &format!("{{\"id\":{LAST},\"ping\":{{}}}}"));
    world::with(|world| {
        let last = format!("{{\"id\":{LAST},");
        let heard = world.talk(&said, |heard| contains(heard, last.as_bytes()));
        let mut answered: Vec<u64> = frames(&heard).iter().filter_map(|frame| reply(frame)).collect();
        assert_eq!(answered.pop(), Some(LAST), "{}", String::from_utf8_lossy(&heard));
        asked.sort_unstable();
        answered.sort_unstable();
        assert_eq!(answered, asked);
    });
});

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    let tail = bytes.len().saturating_sub(4096);
    bytes[tail..].windows(wanted.len()).any(|window| window == wanted)
}

/// As a client sends it, masked with zeros.
fn say(out: &mut Vec<u8>, text: &str) {
    let mut frame = Vec::new();
    encode(&mut frame, websocket::TEXT, text.as_bytes());
    let head = frame.len() - text.len();
    frame[1] |= 0x80;
    frame.splice(head..head, [0; 4]);
    out.extend(frame);
}

/// The texts of a server's frames, after its `101`.
fn frames(heard: &[u8]) -> Vec<Value> {
    let head = heard.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    assert!(heard.starts_with(b"HTTP/1.1 101 "));
    let (mut rest, mut texts) = (&heard[head + 4..], Vec::new());
    while let [first, second, after @ ..] = rest {
        let (length, after) = match second {
            126 => (usize::from(u16::from_be_bytes([after[0], after[1]])), &after[2..]),
            127 => (u64::from_be_bytes(after[..8].try_into().expect("eight bytes")) as usize, &after[8..]),
            n => (usize::from(*n), after),
        };
        let (payload, after) = after.split_at(length);
        match first {
            0x81 => texts.push(serde_json::from_slice(payload).expect("JSON")),
            0x89 => {}
            other => panic!("frame {other:#x}: {}", String::from_utf8_lossy(payload)),
        }
        rest = after;
    }
    texts
}

/// The id of a reply; pushes have none.
fn reply(said: &Value) -> Option<u64> {
    match said.get("push") {
        Some(push) => {
            let known = ["connected", "message", "gap", "error", "drain"];
            assert!(push.as_str().is_some_and(|push| known.contains(&push)), "{said}");
            None
        }
        None => {
            assert!(said.get("ok").is_some() != said.get("error").is_some(), "{said}");
            Some(said["id"].as_u64().expect("an id"))
        }
    }
}
