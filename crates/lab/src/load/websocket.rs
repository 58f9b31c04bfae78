//! WebSocket client (RFC 6455). Written by hand, because a library would use more CPU than the servers under test.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use anyhow::{Context, bail, ensure};
use memchr::memmem;

use super::{
    dialect::{Dialect, Event},
    http::Head,
};

pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;

/// The fixed key of every client, from RFC 6455, section 1.3, and the matching `Sec-WebSocket-Accept` value.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
pub const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// Maximum size in bytes of a frame, and of a message in several frames.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Framing layer: handshake, pings and fragments.
#[derive(Default)]
pub struct WebSocket {
    path: String,
    protocol: Option<&'static str>,
    is_open: bool,
    fragments: Vec<u8>,
}

/// Input that a [`WebSocket`] has decoded.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    Open,
    Message(&'a [u8]),
    /// Close code and reason.
    Close(u16, &'a [u8]),
}

impl WebSocket {
    pub fn new(path: impl Into<String>, protocol: Option<&'static str>) -> Self {
        Self { path: path.into(), protocol, ..Self::default() }
    }

    /// Sets the path of the next [`WebSocket::open`].
    pub fn set_path(&mut self, path: String) {
        self.path = path;
    }

    pub fn open(&mut self, out: &mut Vec<u8>) {
        (self.is_open, self.fragments) = (false, Vec::new());
        let protocol = self.protocol.map(|name| format!("Sec-WebSocket-Protocol: {name}\r\n")).unwrap_or_default();
        let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";
        super::http::get(&self.path, &format!("{upgrade}Sec-WebSocket-Key: {KEY}\r\n{protocol}"), out);
    }

    /// Decodes received bytes and returns how many were consumed. `emit` may append bytes to send on the same
    /// connection.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Frame<'_>, &mut Vec<u8>) -> anyhow::Result<()>,
    ) -> anyhow::Result<usize> {
        let mut at = 0;
        if !self.is_open {
            let Some(length) = accepted(bytes)? else { return Ok(0) };
            at = length;
            self.is_open = true;
            emit(Frame::Open, out)?;
        }
        while let Some(frame) = RawFrame::read(bytes, at)? {
            at = frame.end;
            let payload = &bytes[frame.start..frame.end];
            match (frame.opcode, frame.is_final) {
                (TEXT | BINARY, true) => emit(Frame::Message(payload), out)?,
                (TEXT | BINARY | 0, is_final) => {
                    ensure!(self.fragments.len() + payload.len() <= MESSAGE_BYTES_MAX, "a message without an end");
                    self.fragments.extend_from_slice(payload);
                    if is_final {
                        let message = std::mem::take(&mut self.fragments);
                        emit(Frame::Message(&message), out)?;
                    }
                }
                (PING, _) => frame_into(PONG, payload, out),
                (PONG, _) => {}
                (CLOSE, _) => {
                    let code = payload.first_chunk().map_or(1005, |code| u16::from_be_bytes(*code));
                    emit(Frame::Close(code, payload.get(2..).unwrap_or_default()), out)?;
                }
                (opcode, _) => bail!("a frame with opcode {opcode}"),
            }
        }
        Ok(at)
    }
}

/// Opens a WebSocket on a blocking connection. Reads no byte after the response head.
///
/// Errors: the connection fails, or the server does not accept the WebSocket.
pub fn connect(address: SocketAddr, path: &str, protocol: Option<&'static str>) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut request = Vec::new();
    WebSocket::new(path, protocol).open(&mut request);
    stream.write_all(&request)?;
    let (mut head, mut byte) = (Vec::new(), [0]);
    while accepted(&head)?.is_none() {
        ensure!(stream.read(&mut byte)? > 0, "closed during the handshake");
        head.push(byte[0]);
    }
    Ok(stream)
}

/// Returns the length of the response head with which the server accepts a WebSocket, or `None` if the head is
/// incomplete.
///
/// Errors: the server does not accept the WebSocket.
fn accepted(bytes: &[u8]) -> anyhow::Result<Option<usize>> {
    let Some(head) = Head::read(bytes)? else { return Ok(None) };
    let is_accepted = head.status == 101 && head.header("sec-websocket-accept") == Some(ACCEPT);
    ensure!(is_accepted, "no WebSocket: {}", String::from_utf8_lossy(&bytes[..bytes.len().min(400)]));
    Ok(Some(head.body_at))
}

/// Frame of a server within received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawFrame {
    pub opcode: u8,
    pub is_final: bool,
    /// Offsets of the payload.
    pub start: usize,
    pub end: usize,
}

impl RawFrame {
    /// Returns the frame at offset `at`, or `None` if it is incomplete.
    #[inline]
    ///
    /// Errors: the frame violates RFC 6455, or is too long.
    pub fn read(bytes: &[u8], at: usize) -> anyhow::Result<Option<RawFrame>> {
        let Some(&[first, second]) = bytes.get(at..at + 2) else { return Ok(None) };
        ensure!(first & 0x70 == 0 && second & 0x80 == 0, "a frame with bits that nobody agreed upon");
        let (start, length) = match second {
            126 => match bytes.get(at + 2..at + 4) {
                Some(length) => (at + 4, u64::from(u16::from_be_bytes(length.try_into().context("two bytes")?))),
                None => return Ok(None),
            },
            127 => match bytes.get(at + 2..at + 10) {
                Some(length) => (at + 10, u64::from_be_bytes(length.try_into().context("eight bytes")?)),
                None => return Ok(None),
            },
            length => (at + 2, u64::from(length)),
        };
        ensure!(length <= MESSAGE_BYTES_MAX as u64, "a frame of {length} bytes");
        let end = start + length as usize;
        Ok((bytes.len() >= end).then_some(RawFrame { opcode: first & 0x0f, is_final: first & 0x80 != 0, start, end }))
    }
}

/// Appends a client frame. Its mask is zero; the server still has to unmask the frame.
pub fn frame_into(opcode: u8, payload: &[u8], out: &mut Vec<u8>) {
    frame_of(opcode, &[payload], out);
}

/// Appends a client frame like [`frame_into`], with a payload in several parts.
pub fn frame_of(opcode: u8, parts: &[&[u8]], out: &mut Vec<u8>) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.push(0x80 | opcode);
    match length {
        0..126 => out.push(0x80 | length as u8),
        126..65_536 => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&[0; 4]);
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Protocol on top of a WebSocket: messages in, messages out.
pub trait Subprotocol: Send {
    /// Handles the opened WebSocket. Called again after each reconnect.
    fn opened(&mut self, out: &mut Vec<u8>, emit: &mut dyn FnMut(Event<'_>));

    /// Handles a received message.
    ///
    /// Errors: the server refused the client or violated the protocol.
    fn message(&mut self, message: &[u8], out: &mut Vec<u8>, emit: &mut dyn FnMut(Event<'_>)) -> anyhow::Result<()>;

    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>);
}

/// A [`Subprotocol`] with its WebSocket.
pub struct OverWebSocket<S> {
    socket: WebSocket,
    subprotocol: S,
}

impl<S: Subprotocol> OverWebSocket<S> {
    pub fn new(socket: WebSocket, subprotocol: S) -> Self {
        Self { socket, subprotocol }
    }
}

impl<S: Subprotocol> Dialect for OverWebSocket<S> {
    fn open(&mut self, out: &mut Vec<u8>) -> bool {
        self.socket.open(out);
        false
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        _: u64,
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        let Self { socket, subprotocol } = self;
        socket.feed(bytes, out, &mut |frame, out| {
            match frame {
                Frame::Open => subprotocol.opened(out, emit),
                Frame::Message(message) => subprotocol.message(message, out, emit)?,
                Frame::Close(..) => emit(Event::Closed),
            }
            Ok(())
        })
    }

    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        self.subprotocol.publish(payload, out);
    }
}

/// Dialect of bare payloads, in both directions. If the server closes with code 4000 and a position, the next
/// connection resumes from that position.
pub struct Bare {
    socket: WebSocket,
    path: String,
    counts: bool,
    place: Option<Place>,
}

/// Place of a reader that counts messages.
struct Place {
    epoch: String,
    offset: u64,
}

impl Place {
    /// Reads `EPOCH:OFFSET`.
    fn read(position: &[u8]) -> anyhow::Result<Self> {
        let (epoch, offset) = std::str::from_utf8(position)?.split_once(':').context("a position is EPOCH:OFFSET")?;
        Ok(Self { epoch: epoch.into(), offset: offset.parse()? })
    }
}

impl Bare {
    pub fn new(path: impl Into<String>) -> Self {
        let path = path.into();
        Self { socket: WebSocket::new(path.clone(), None), path, counts: false, place: None }
    }

    /// Returns a dialect that counts messages from the position that Millrace sends first, and resumes there.
    pub fn counting(path: impl Into<String>) -> Self {
        let path = path.into();
        let socket = WebSocket::new(path.clone(), Some("millrace.bare+position"));
        Self { socket, path, counts: true, place: None }
    }
}

/// Returns the path of a connection that resumes from a position.
fn resuming(path: &str, position: &str) -> String {
    format!("{path}{}since={position}", if path.contains('?') { '&' } else { '?' })
}

impl Dialect for Bare {
    fn open(&mut self, out: &mut Vec<u8>) -> bool {
        if let Some(Place { epoch, offset }) = self.place.take() {
            self.socket.set_path(resuming(&self.path, &format!("{epoch}:{offset}")));
        }
        self.socket.open(out);
        false
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        _: u64,
        out: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        let Self { socket, path, counts, place } = self;
        let mut resume = None;
        let used = socket.feed(bytes, out, &mut |frame, _| {
            match (frame, &mut *place) {
                (Frame::Open, _) if *counts => {}
                (Frame::Open, _) => emit(Event::Ready),
                (Frame::Message(position), None) if *counts => {
                    *place = Some(Place::read(position)?);
                    emit(Event::Ready);
                }
                (Frame::Message(payload), place) => {
                    if let Some(place) = place {
                        place.offset += 1;
                    }
                    emit(Event::Message(payload));
                }
                (Frame::Close(code, reason), place) => {
                    if code == 4000 {
                        *place = None;
                        resume = Some(resuming(path, std::str::from_utf8(reason)?));
                        emit(Event::Gap);
                    }
                    emit(Event::Closed);
                }
            }
            Ok(())
        })?;
        if let Some(path) = resume {
            self.socket.set_path(path);
        }
        Ok(used)
    }

    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        frame_into(TEXT, payload, out);
    }
}

/// Returns the bytes between `before` and `after`. Meant for JSON text that a server always writes in the same way.
pub fn between<'a>(text: &'a [u8], before: &[u8], after: &[u8]) -> Option<&'a [u8]> {
    let start = memmem::find(text, before)? + before.len();
    let length = memmem::find(&text[start..], after)?;
    Some(&text[start..start + length])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::script::{in_pieces, run_script, websocket};

    #[test]
    fn messages_pings_and_fragments_survive_any_split() {
        let long = "x".repeat(300);
        let script = websocket(&[
            (0x81, b"one"),
            (0x89, b"are you there"),
            (0x01, b"two "),
            (0x8a, b""),
            (0x00, b"and "),
            (0x80, b"a half"),
            (0x82, long.as_bytes()),
            (0x88, b"\x0f\xa0e:57"),
        ]);
        let heard = in_pieces(|| Box::new(Bare::new("/c")), &script);
        assert_eq!(heard.events, ["Ready", "one", "two and a half", &long, "Gap", "Closed"]);
        assert!(heard.sent.ends_with("\0\0\0\0are you there"), "a ping is answered with its own words");
        let (mut bare, mut again) = (Bare::new("/c?x=y"), Vec::new());
        run_script(&mut bare, &script, 1000).unwrap();
        bare.open(&mut again);
        assert!(again.starts_with(b"GET /c?x=y&since=e:57 HTTP/1.1\r\n"));
    }

    #[test]
    fn counted_messages_give_the_position_to_resume_from() {
        let script = websocket(&[(0x81, b"e:57"), (0x81, b"one"), (0x82, b"two")]);
        let heard = in_pieces(|| Box::new(Bare::counting("/c")), &script);
        assert_eq!(heard.events, ["Ready", "one", "two"]);
        let (mut bare, mut again) = (Bare::counting("/c"), Vec::new());
        run_script(&mut bare, &script, 1000).unwrap();
        bare.open(&mut again);
        assert!(again.starts_with(b"GET /c?since=e:59 HTTP/1.1\r\n"));
        let gap = websocket(&[(0x81, b"e:59"), (0x88, b"\x0f\xa0e:80")]);
        run_script(&mut bare, &gap, 1000).unwrap();
        again.clear();
        bare.open(&mut again);
        assert!(again.starts_with(b"GET /c?since=e:80 HTTP/1.1\r\n"), "the position of the close frame");
        let wrong = websocket(&[(0x81, b"no position")]);
        assert!(run_script(&mut Bare::counting("/c"), &wrong, 1000).is_err());
    }

    #[test]
    fn frame_lengths_have_three_encodings() {
        for (length, head) in [(125, 2), (126, 4), (65_535, 4), (65_536, 10)] {
            let mut out = Vec::new();
            frame_into(TEXT, &vec![b'x'; length], &mut out);
            assert_eq!(out.len(), head + 4 + length);
            // Removes the mask, as in a frame of a server.
            out[1] &= 0x7f;
            out.drain(head..head + 4);
            let frame = RawFrame::read(&out, 0).unwrap().unwrap();
            assert_eq!((frame.start, frame.end, frame.is_final), (head, head + length, true));
        }
    }

    #[test]
    fn protocol_violations_are_errors() {
        let with = |frame: &[u8]| [websocket(&[]), frame.to_vec()].concat();
        for script in [
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec(),
            b"HTTP/1.1 101 Switching\r\nSec-WebSocket-Accept: x\r\n\r\n".to_vec(),
            with(&[0x81, 0x80]),
            with(&[0xc1, 0]),
            with(&[0x83, 0]),
            with(&[0x82, 127, 255, 255, 255, 255, 255, 255, 255, 255]),
        ] {
            assert!(run_script(&mut Bare::new("/c"), &script, 1000).is_err(), "{}", String::from_utf8_lossy(&script));
        }
    }
}
