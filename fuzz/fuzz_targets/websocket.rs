//! Fuzzes frames of a client. The messages must not depend on how the bytes are split, the buffer must stay within
//! its limit, and another implementation must agree. Then the server's own decoder reads the frames that the server
//! compresses.
//!
//! Input: a byte of choices, a byte that determines the split, then the data of the client.

#![no_main]

use std::io::{self, Read, Write};

use libfuzzer_sys::fuzz_target;
use millrace_protocol::websocket::{BINARY, CloseFrame, Decoder, DecoderLimits, Deflate, Message, encode};
use tungstenite::protocol::{Role, WebSocket, WebSocketConfig};

const LIMITS: [usize; 4] = [10, 200, 4096, 1 << 18];
/// Longest frame header, plus a whole control frame between the fragments of a message.
const HEADS_BYTES: usize = 14 + CONTROL_BYTES_MAX + 6;
/// Maximum payload of a control frame. Source: RFC 6455, section 5.5.
const CONTROL_BYTES_MAX: usize = 125;
/// Size that a compressed message may always inflate to. Source: docs/reference/limits.md, "Messages of a WebSocket".
const INFLATED_BYTES_FREE: usize = 4096;

#[derive(Debug, PartialEq, Eq)]
enum Received {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong,
    Close,
}

fuzz_target!(|data: &[u8]| {
    let [choices, cut, bytes @ ..] = data else { return };
    let message_bytes_max = LIMITS[usize::from(choices >> 1) % LIMITS.len()];
    let mut limits = DecoderLimits::new(message_bytes_max, choices & 1 == 1);
    // Messages with more fragments or a higher inflate ratio are refused. The reference implementation has no such
    // limits.
    if limits.deflate && choices & 8 == 8 {
        (limits.fragments_max, limits.inflate_ratio_max) = (3, 10);
    }
    let whole = decode(bytes, limits, |rest| rest);
    let mut seed = u32::from(*cut);
    let in_pieces = decode(bytes, limits, |rest| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        rest.min(1 + (seed >> 16) as usize % (1 + usize::from(*cut)))
    });
    assert_eq!(whole, in_pieces);
    assert_eq!(whole, decode(bytes, limits, |_| 1));
    if !limits.deflate {
        compare(&whole, &tungstenite(bytes, message_bytes_max));
    }
    round_trip(bytes, 8 + cut % 8);
});

/// Decodes the bytes in pieces. `step` receives the number of remaining bytes and returns the size of the next piece.
fn decode(
    bytes: &[u8],
    limits: DecoderLimits,
    mut step: impl FnMut(usize) -> usize,
) -> (Vec<Received>, Option<CloseFrame>) {
    let (mut decoder, mut received) = (Decoder::default(), Vec::new());
    let sent_bytes = bytes.len();
    let mut bytes = bytes.to_vec();
    let mut rest = &mut bytes[..];
    while !rest.is_empty() && !matches!(received.last(), Some(Received::Close)) {
        let (now, later) = rest.split_at_mut(step(rest.len()));
        let decoded = decoder.decode(now, limits, |message| {
            received.push(match message {
                Message::Text(text) => Received::Text(text.into()),
                Message::Binary(data) => Received::Binary(data.into()),
                Message::Ping(data) => Received::Ping(data.into()),
                Message::Pong => Received::Pong,
                Message::Close(_) => Received::Close,
            });
            let length = match received.last() {
                Some(Received::Text(text)) => text.len(),
                Some(Received::Binary(data)) => data.len(),
                _ => 0,
            };
            let inflated_bytes_max = limits.inflate_ratio_max.saturating_mul(sent_bytes).max(INFLATED_BYTES_FREE);
            let bytes_max = limits.message_bytes_max.min(inflated_bytes_max);
            assert!(length <= bytes_max, "{length} bytes in one message");
            true
        });
        if let Err(close) = decoded {
            assert!(matches!(close.code, 1002 | 1007 | 1009), "{close:?}");
            return (received, Some(close));
        }
        // Twice the limit, because buffers grow by doubling.
        let bound = 2 * (limits.message_bytes_max + HEADS_BYTES);
        assert!(decoder.buffered_bytes() <= bound, "{} bytes are buffered", decoder.buffered_bytes());
        rest = later;
    }
    (received, None)
}

/// A stream over the input that discards all writes.
struct Sent<'a>(&'a [u8]);

impl Read for Sent<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Sent<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Decodes with tungstenite. The flag is true if tungstenite found an error.
fn tungstenite(bytes: &[u8], max: usize) -> (Vec<Received>, bool) {
    use tungstenite::{Error, Message, error::ProtocolError};
    // The limit on frames covers control frames, too. Those may have 125 bytes, whatever the limit on messages.
    let frame_max = Some(max.max(CONTROL_BYTES_MAX));
    let config =
        WebSocketConfig::default().read_buffer_size(4096).max_message_size(Some(max)).max_frame_size(frame_max);
    let mut socket = WebSocket::from_raw_socket(Sent(bytes), Role::Server, Some(config));
    let mut received = Vec::new();
    loop {
        received.push(match socket.read() {
            Ok(Message::Text(text)) => Received::Text(text.as_str().into()),
            Ok(Message::Binary(data)) => Received::Binary(data.to_vec()),
            Ok(Message::Ping(data)) => Received::Ping(data.to_vec()),
            Ok(Message::Pong(_)) => Received::Pong,
            Ok(Message::Close(_)) => {
                received.push(Received::Close);
                return (received, false);
            }
            Ok(Message::Frame(_)) => unreachable!("only ever sent"),
            Err(Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) | Error::Io(_)) => {
                return (received, false);
            }
            Err(_) => return (received, true),
        });
    }
}

/// Compares both results. The decoders may find an error at different bytes, but must not disagree about a data
/// message.
fn compare((ours, close): &(Vec<Received>, Option<CloseFrame>), (theirs, faulty): &(Vec<Received>, bool)) {
    let same = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    let (ours_more, theirs_more) = (&ours[same..], &theirs[same..]);
    let is_data = |received: &Received| matches!(received, Received::Text(_) | Received::Binary(_));
    match (close, faulty) {
        (None, false) => assert!(ours_more.is_empty() && theirs_more.is_empty(), "{ours:?} {theirs:?}"),
        // tungstenite validates text by fragment, ours by message: control frames may come in between.
        (_, true) => assert!(!ours_more.iter().any(is_data), "{ours:?} {theirs:?}"),
        // tungstenite replies to a close frame with an invalid code or reason; our decoder treats it as an error.
        (Some(_), false) => assert!(ours_more.is_empty() && !theirs_more.iter().any(is_data), "{ours:?} {theirs:?}"),
    }
}

/// Checks that the server's decoder can read frames that the server compresses with a window of `bits` bits.
fn round_trip(payload: &[u8], bits: u8) {
    let offer = format!("permessage-deflate; server_max_window_bits={bits}");
    let (deflate, _) = Deflate::negotiate(&offer).expect("a good offer");
    let (mut plain, mut frame) = (Vec::new(), Vec::new());
    encode(&mut plain, BINARY, payload);
    deflate.encode(&mut frame, BINARY, payload);
    assert!(frame.len() <= plain.len(), "compressing has made it larger");
    // Masks the frame with zeros, like a client's frame.
    let head = match frame[1] {
        126 => 4,
        127 => 10,
        _ => 2,
    };
    frame[1] |= 0x80;
    frame.splice(head..head, [0; 4]);
    let limits = DecoderLimits { inflate_ratio_max: usize::MAX, ..DecoderLimits::new(payload.len(), true) };
    let (received, close) = decode(&frame, limits, |rest| rest);
    assert_eq!((received, close), (vec![Received::Binary(payload.into())], None));
}
