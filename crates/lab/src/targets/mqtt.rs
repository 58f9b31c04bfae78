//! A client of MQTT 3.1.1 over WebSocket, quality of service 0.

use anyhow::{bail, ensure};

use super::ClientOptions;
use crate::load::{
    Dialect, Event, Role,
    http::join,
    websocket::{BINARY, OverWebSocket, Subprotocol, WebSocket, frame_into, frame_of},
};

/// Creates a client of a broker whose WebSocket is at `/mqtt`.
pub fn client(ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
    let socket = WebSocket::new("/mqtt", Some("mqtt"));
    Box::new(OverWebSocket::new(socket, Client { role: ask.role, topic: ask.channel.into(), rest: Vec::new() }))
}

/// ```text
///   open ──CONNECT──► CONNACK ──SUBSCRIBE──► SUBACK: ready (a client that only publishes is ready after CONNACK)
/// ```
struct Client {
    role: Role,
    topic: String,
    rest: Vec<u8>,
}

impl Subprotocol for Client {
    /// Sends CONNECT with a clean session, without keep-alive; the broker chooses the client id.
    fn opened(&mut self, out: &mut Vec<u8>, _: &mut dyn FnMut(Event<'_>)) {
        self.rest.clear();
        frame_into(BINARY, &packet(0x10, &[b"\0\x04MQTT\x04\x02\0\0\0\0"]), out);
    }

    fn message(&mut self, message: &[u8], out: &mut Vec<u8>, emit: &mut dyn FnMut(Event<'_>)) -> anyhow::Result<()> {
        let Client { role, topic, rest } = self;
        join(rest, message, |bytes| packets(bytes, *role, topic, out, emit))
    }

    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        let length = (self.topic.len() as u16).to_be_bytes();
        let (head, used) = header(0x30, 2 + self.topic.len() + payload.len());
        frame_of(BINARY, &[&head[..used], &length, self.topic.as_bytes(), payload], out);
    }
}

/// Handles complete packets and returns the number of bytes consumed.
fn packets(
    bytes: &[u8],
    role: Role,
    topic: &str,
    out: &mut Vec<u8>,
    emit: &mut dyn FnMut(Event<'_>),
) -> anyhow::Result<usize> {
    let mut at = 0;
    while let Some((kind, start, end)) = next(bytes, at)? {
        let body = &bytes[start..end];
        match kind >> 4 {
            2 => {
                ensure!(body.get(1) == Some(&0), "refused: CONNACK {body:?}");
                if role.subscribes() {
                    let length = (topic.len() as u16).to_be_bytes();
                    frame_into(BINARY, &packet(0x82, &[&[0, 1], &length, topic.as_bytes(), &[0]]), out);
                } else {
                    emit(Event::Ready);
                }
            }
            9 if body.get(2) == Some(&0) => emit(Event::Ready),
            9 => bail!("refused: SUBACK {body:?}"),
            3 => {
                let name = body.first_chunk().map_or(0, |length| usize::from(u16::from_be_bytes(*length)));
                body.get(2 + name..).into_iter().for_each(|payload| emit(Event::Message(payload)));
            }
            _ => {}
        }
        at = end;
    }
    Ok(at)
}

/// Returns the kind, and the start and end of the body, of the packet at `at` if it is complete (MQTT 3.1.1, 2.2).
fn next(bytes: &[u8], at: usize) -> anyhow::Result<Option<(u8, usize, usize)>> {
    let Some(kind) = bytes.get(at) else { return Ok(None) };
    let mut length = 0;
    for n in 0..4 {
        let Some(byte) = bytes.get(at + 1 + n) else { return Ok(None) };
        length |= usize::from(byte & 0x7f) << (7 * n);
        if byte & 0x80 == 0 {
            let start = at + 2 + n;
            return Ok((bytes.len() >= start + length).then_some((*kind, start, start + length)));
        }
    }
    bail!("a length of more than four bytes")
}

/// Returns the fixed header of a packet, and the number of its bytes in use.
fn header(kind: u8, mut length: usize) -> ([u8; 5], usize) {
    let (mut head, mut used) = ([kind, 0, 0, 0, 0], 1);
    loop {
        let more = length > 0x7f;
        head[used] = (length & 0x7f) as u8 | if more { 0x80 } else { 0 };
        (length, used) = (length >> 7, used + 1);
        if !more {
            return (head, used);
        }
    }
}

fn packet(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let (head, used) = header(kind, body.len());
    [&head[..used], &body].concat()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::script::{in_pieces, websocket};

    #[test]
    fn packets_survive_any_split_into_messages() {
        let long = [b"\0\x01t".as_slice(), &[b'x'; 200]].concat();
        let bytes = [packet(0x20, &[&[0, 0]]), packet(0x90, &[&[0, 1, 0]]), packet(0x30, &[&long])].concat();
        let script = websocket(&bytes.chunks(7).map(|part| (0x82, part)).collect::<Vec<_>>());
        let ask = ClientOptions { role: Role::Both, channel: "t", poll_every: Duration::ZERO };
        let heard = in_pieces(|| client(&ask), &script);
        assert_eq!(heard.events, ["Ready".to_owned(), "x".repeat(200)]);
    }

    #[test]
    fn lengths_have_one_to_four_bytes() {
        for length in [0, 127, 128, 16_383, 16_384, 300_000] {
            let bytes = packet(0x30, &[&vec![0; length]]);
            let (kind, start, end) = next(&bytes, 0).unwrap().unwrap();
            assert_eq!((kind, end - start, end), (0x30, length, bytes.len()));
        }
        assert!(next(&[0x30, 0x80, 0x80, 0x80, 0x80], 0).is_err());
    }
}
