//! WebSocket frames (RFC 6455): an encoder of the server's unmasked frames, a decoder of the clients' masked
//! frames, and compression per message (RFC 7692).

mod decoder;
mod deflate;

pub use decoder::{Decoder, DecoderLimits};
pub use deflate::Deflate;

/// Opcodes. Source: RFC 6455, section 5.2.
pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;

/// Close reasons for exceeded limits.
pub const TOO_LARGE: &str = "message larger than the limit";
pub const TOO_MANY_FRAGMENTS: &str = "too many fragments";
pub const TOO_COMPRESSIBLE: &str = "message too compressible";

/// Header bit of the first frame of a compressed message. Source: RFC 7692, section 6.
const RSV1: u8 = 0x40;

pub const PING_FRAME: &[u8] = &[0x80 | PING, 0];

pub const CLOSE_NORMAL: u16 = 1000;
pub const CLOSE_AWAY: u16 = 1001;
pub const CLOSE_PROTOCOL: u16 = 1002;
pub const CLOSE_UNSUPPORTED: u16 = 1003;
pub const CLOSE_NOT_UTF8: u16 = 1007;
/// A bare WebSocket published without permission.
pub const CLOSE_FORBIDDEN: u16 = 1008;
pub const CLOSE_TOO_LARGE: u16 = 1009;
pub const CLOSE_RESTART: u16 = 1012;
pub const CLOSE_TRY_LATER: u16 = 1013;
/// Millrace code: a bare reader missed publications; the reason is the position to continue from.
pub const CLOSE_GAP: u16 = 4000;
/// Millrace code: the token expired; reconnect with a new one.
pub const CLOSE_EXPIRED: u16 = 4001;
/// Millrace code: the token was revoked; do not reconnect with it.
pub const CLOSE_REVOKED: u16 = 4003;
/// Millrace code: the app's back end refused a publication of a bare WebSocket; the reason is `CODE: TEXT`.
pub const CLOSE_REFUSED: u16 = 4008;

/// Appends one whole, unmasked frame.
pub fn encode(out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
    encode_frame(out, 0x80 | opcode, payload);
}

fn encode_frame(out: &mut Vec<u8>, first: u8, payload: &[u8]) {
    out.reserve(payload.len() + 10);
    out.push(first);
    match payload.len() {
        n @ 0..=125 => out.push(n as u8),
        n @ 126..=0xffff => {
            out.push(126);
            out.extend_from_slice(&(n as u16).to_be_bytes());
        }
        n => {
            out.push(127);
            out.extend_from_slice(&(n as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
}

/// Appends a close frame. The reason is cut to the 123 bytes that fit.
pub fn encode_close(out: &mut Vec<u8>, code: u16, reason: &str) {
    let mut end = reason.len().min(123);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend_from_slice(&reason.as_bytes()[..end]);
    encode(out, CLOSE, &payload);
}

/// Message from a client.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a> {
    Text(&'a str),
    Binary(&'a [u8]),
    Ping(&'a [u8]),
    Pong,
    /// Close frame; `None` if it has no code.
    Close(Option<u16>),
}

/// Body of the close frame that ends a connection: the close code and a readable reason. The decoder returns it as
/// its error, because a protocol error ends the connection.
///
/// Source: RFC 6455, section 5.5.1.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct CloseFrame {
    pub code: u16,
    pub reason: &'static str,
}
