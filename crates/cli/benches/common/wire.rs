//! WebSocket encoding and decoding of the load generators, written by hand: a library would use more CPU than the
//! server under test.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use anyhow::{Context, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Returns the request that opens a WebSocket. `protocol` is the header line of a subprotocol, or empty.
pub fn upgrade(path: &str, protocol: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{protocol}\r\n"
    )
}

/// Opens a WebSocket. Reads no byte beyond the response head.
pub fn connect(address: SocketAddr, request: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.write_all(request.as_bytes())?;
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(stream.read(&mut byte)? > 0, "closed during the handshake");
        head.push(byte[0]);
    }
    ensure!(head.starts_with(b"HTTP/1.1 101"), "no WebSocket: {}", String::from_utf8_lossy(&head));
    Ok(stream)
}

/// Returns a payload of `bytes` bytes: its number, its due time, and padding. The payload is JSON that no way of
/// publishing changes (a string would lose its quotes in a session).
pub fn payload(n: u64, at_us: u64, bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes);
    let _ = write!(out, "[\"{n:012} {at_us:012} ");
    out.resize(bytes - 2, b'x');
    out.extend_from_slice(b"\"]");
    out
}

/// Returns the number and the time of a [`payload`]. Errors: the bytes are not such a payload.
pub fn read_payload(payload: &[u8]) -> anyhow::Result<(u64, u64)> {
    let digits = |from: usize| {
        payload.get(from..from + 12)?.iter().try_fold(0, |sum, byte| match byte {
            b'0'..=b'9' => Some(sum * 10 + u64::from(byte - b'0')),
            _ => None,
        })
    };
    digits(2).zip(digits(15)).with_context(|| format!("not a message: {}", String::from_utf8_lossy(payload)))
}

/// Appends a client frame with a mask of zeros, which the server must unmask all the same. The payload must be shorter
/// than 64 KiB.
pub fn client_frame(out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
    out.push(0x80 | opcode);
    match payload.len() {
        short @ 0..126 => out.push(0x80 | short as u8),
        long => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(long as u16).to_be_bytes());
        }
    }
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
}

/// Returns the opcode, and the start and end of the payload, of the unmasked frame at `at`; `None` if the frame is
/// incomplete.
pub fn frame(bytes: &[u8], at: usize) -> Option<(u8, usize, usize)> {
    let head = bytes.get(at..at + 2)?;
    let (start, length) = match head[1] {
        126 => (at + 4, u16::from_be_bytes(bytes.get(at + 2..at + 4)?.try_into().ok()?) as usize),
        127 => (at + 10, u64::from_be_bytes(bytes.get(at + 2..at + 10)?.try_into().ok()?) as usize),
        length => (at + 2, length as usize),
    };
    (bytes.len() >= start + length).then_some((head[0] & 0x0f, start, start + length))
}

/// Pins this thread, and the threads and processes that it starts, to these CPUs. Errors: a CPU does not exist.
pub fn pin(cpus: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).context("the generator and the server need a CPU each")
}
