//! What the generators say and hear on a WebSocket, by hand: a library would cost more than the server that is measured.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use anyhow::{Context, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};

/// The request that opens a WebSocket. `protocol`: a subprotocol's header line, or nothing.
pub fn upgrade(path: &str, protocol: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{protocol}\r\n"
    )
}

/// Opens a WebSocket. Nothing beyond the head is read.
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

/// A payload of so many bytes, its number, when it was due, and filling: JSON that no way of publishing changes (a string would lose its
/// quotes in a session).
pub fn payload(n: u64, at_us: u64, bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes);
    let _ = write!(out, "[\"{n:012} {at_us:012} ");
    out.resize(bytes - 2, b'x');
    out.extend_from_slice(b"\"]");
    out
}

/// Number and time of a [`payload`]. Errors: it is none.
pub fn read_payload(payload: &[u8]) -> anyhow::Result<(u64, u64)> {
    let digits = |from: usize| {
        payload.get(from..from + 12)?.iter().try_fold(0, |sum, byte| match byte {
            b'0'..=b'9' => Some(sum * 10 + u64::from(byte - b'0')),
            _ => None,
        })
    };
    digits(2).zip(digits(15)).with_context(|| format!("not a message: {}", String::from_utf8_lossy(payload)))
}

/// A client's frame, its mask of zeros: the server has to unmask it all the same. Payloads below 64 KiB.
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

/// Opcode, and where the payload of the frame at `at` begins and ends, if it is whole. Servers mask nothing.
pub fn frame(bytes: &[u8], at: usize) -> Option<(u8, usize, usize)> {
    let head = bytes.get(at..at + 2)?;
    let (start, length) = match head[1] {
        126 => (at + 4, u16::from_be_bytes(bytes.get(at + 2..at + 4)?.try_into().ok()?) as usize),
        127 => (at + 10, u64::from_be_bytes(bytes.get(at + 2..at + 10)?.try_into().ok()?) as usize),
        length => (at + 2, length as usize),
    };
    (bytes.len() >= start + length).then_some((head[0] & 0x0f, start, start + length))
}

/// Runs this thread, and what it starts, on these CPUs. Errors: there is no such CPU.
pub fn pin(cpus: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).context("the generator and the server need a CPU each")
}
