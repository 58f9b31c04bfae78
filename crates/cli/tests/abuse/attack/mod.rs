//! Attacks. Each attack runs until its time is over and counts its actions.

pub mod datagrams;
pub mod frames;
pub mod http2;
pub mod names;
pub mod readers;
pub mod requests;
pub mod tokens;

use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Reads a response with `Content-Length` to its end and returns its status.
///
/// Errors: the connection ended, or the response is invalid.
async fn answer(stream: &mut TcpStream) -> io::Result<u16> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let number = |part: Option<&str>| part.and_then(|part| part.trim().parse::<usize>().ok());
    let length = number(text.lines().find_map(|line| line.strip_prefix("content-length:"))).unwrap_or(0);
    let mut rest = (head + length).saturating_sub(bytes.len());
    let mut scratch = [0; 16 * 1024];
    while rest > 0 {
        let room = rest.min(scratch.len());
        match stream.read(&mut scratch[..room]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            taken => rest -= taken,
        }
    }
    number(text.split(' ').nth(1)).map(|status| status as u16).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Sends one `POST` request on a connection that stays open, and returns the status.
pub async fn post(stream: &mut TcpStream, path: &str, headers: &str, body: &[u8]) -> io::Result<u16> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: attack\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body].concat()).await?;
    answer(stream).await
}

async fn get(stream: &mut TcpStream, path: &str, headers: &str) -> io::Result<u16> {
    let head = format!("GET {path} HTTP/1.1\r\nHost: attack\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await?;
    answer(stream).await
}

/// Upgrades the connection to a WebSocket.
async fn upgrade(stream: &mut TcpStream, path: &str, headers: &str) -> io::Result<()> {
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    match get(stream, path, &format!("{upgrade}{headers}")).await? {
        101 => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Returns a client frame with the given first byte, masked with zeros.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..126 => frame.push(0x80 | length as u8),
        length @ 126..65_536 => {
            frame.push(0x80 | 126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(payload);
    frame
}

/// Reads and discards data until the server closes the connection.
async fn until_closed(stream: &mut TcpStream) -> io::Result<()> {
    let mut scratch = [0; 16 * 1024];
    while stream.read(&mut scratch).await? > 0 {}
    Ok(())
}
