//! Test helpers that pass a dialect its input in pieces of any size.

use super::{Dialect, Event, websocket::ACCEPT};

/// Received events as text, and all bytes that the dialect sent.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct Transcript {
    pub events: Vec<String>,
    pub sent: String,
}

/// Opens the dialect and feeds it the script in pieces of `size` bytes.
pub fn run_script(dialect: &mut dyn Dialect, script: &[u8], size: usize) -> anyhow::Result<Transcript> {
    let (mut out, mut events, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    dialect.open(&mut out);
    for piece in script.chunks(size) {
        rest.extend_from_slice(piece);
        let used = dialect.feed(&rest, 0, &mut out, &mut |event| {
            events.push(match event {
                Event::Message(payload) => String::from_utf8_lossy(payload).into_owned(),
                other => format!("{other:?}"),
            });
        })?;
        rest.drain(..used);
    }
    Ok(Transcript { events, sent: String::from_utf8_lossy(&out).into_owned() })
}

/// Builds the bytes that a server sends on a WebSocket: the handshake response, then frames. Each frame is given
/// by its first byte and its payload.
pub fn websocket(frames: &[(u8, &[u8])]) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 101 Switching\r\nSec-Websocket-Accept: {ACCEPT}\r\n\r\n").into_bytes();
    for (first, payload) in frames {
        out.push(*first);
        match payload.len() {
            short @ 0..126 => out.push(short as u8),
            long => {
                out.push(126);
                out.extend_from_slice(&(long as u16).to_be_bytes());
            }
        }
        out.extend_from_slice(payload);
    }
    out
}

/// Checks that a dialect produces the same events and output for a whole script and for pieces of 1 to 199 bytes.
/// Returns them.
pub fn in_pieces(dialect: impl Fn() -> Box<dyn Dialect>, script: &[u8]) -> Transcript {
    let whole = run_script(&mut *dialect(), script, script.len().max(1)).expect("a good script");
    for size in 1..script.len().min(200) {
        let heard = run_script(&mut *dialect(), script, size).expect("a good script in pieces");
        assert_eq!(heard, whole, "in pieces of {size} bytes");
    }
    whole
}
