//! Raw bytes on a TCP connection, for input that a correct client would not send.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::server::{Server, within};

pub struct Raw {
    stream: TcpStream,
    received: Vec<u8>,
}

/// One frame from a server.
#[derive(Debug, PartialEq)]
pub struct Frame {
    pub opcode: u8,
    /// The first reserved bit. Source: RFC 7692, section 6.
    pub compressed: bool,
    pub payload: Vec<u8>,
}

impl Raw {
    pub async fn connect(server: &Server) -> Self {
        let stream = within(TcpStream::connect(server.address)).await.expect("a connection");
        Self { stream, received: Vec::new() }
    }

    /// Opens a WebSocket and completes its handshake.
    pub async fn upgrade(server: &Server, path: &str, subprotocol: Option<&str>) -> Self {
        Self::upgrade_offering(server, path, subprotocol, "x-nothing").await.0
    }

    /// Opens a WebSocket that offers extensions. Returns it with the server's answer to the offers.
    pub async fn upgrade_offering(
        server: &Server,
        path: &str,
        subprotocol: Option<&str>,
        offers: &str,
    ) -> (Self, Option<String>) {
        let mut this = Self::connect(server).await;
        let offers = format!("Sec-WebSocket-Extensions: {offers}\r\n\r\n");
        this.send(handshake(path, subprotocol).replace("\r\n\r\n", &format!("\r\n{offers}"))).await;
        let head = this.head().await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let answer = head.lines().find_map(|line| line.strip_prefix("sec-websocket-extensions: "));
        (this, answer.map(str::to_owned))
    }

    /// Sends the bytes, as far as the server still accepts them.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = within(self.stream.write_all(bytes.as_ref())).await;
    }

    /// Half-closes the connection: the server reads the end of the stream and can still answer.
    pub async fn finish(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// Returns the head of an answer, including the empty line.
    pub async fn head(&mut self) -> String {
        loop {
            if let Some(end) = self.received.windows(4).position(|four| four == b"\r\n\r\n") {
                let head: Vec<u8> = self.received.drain(..end + 4).collect();
                return String::from_utf8(head).expect("ASCII");
            }
            assert!(self.receive().await, "closed without a head");
        }
    }

    /// Returns the head and the body of an answer that has a length. The connection stays usable.
    pub async fn answer(&mut self) -> (String, String) {
        let head = self.head().await;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map_or(0, |length| length.parse().expect("a length"));
        while self.received.len() < length {
            assert!(self.receive().await, "closed within a body: {head}");
        }
        let body = self.received.drain(..length).collect();
        (head, String::from_utf8(body).expect("UTF-8"))
    }

    /// Reads until `text` has been received.
    pub async fn until_received(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.received).contains(text) {
            assert!(self.receive().await, "closed without {text:?}");
        }
    }

    /// Returns everything that the server sends until it closes the connection.
    pub async fn read_to_end(&mut self) -> Vec<u8> {
        while self.receive().await {}
        std::mem::take(&mut self.received)
    }

    /// Returns the next frame; `None` if the server has closed the connection.
    pub async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some((opcode, start, end)) = extent(&self.received).filter(|(_, _, end)| self.received.len() >= *end)
            {
                let (compressed, payload) = (self.received[0] & 0x40 != 0, self.received[start..end].to_vec());
                self.received.drain(..end);
                return Some(Frame { opcode, compressed, payload });
            }
            if !self.receive().await {
                return None;
            }
        }
    }

    /// Skips to the close frame and returns its code; `None` if the connection ends without a code. After a close frame
    /// the server must close the connection.
    pub async fn close_code(&mut self) -> Option<u16> {
        while let Some(frame) = self.frame().await {
            if frame.opcode == 8 {
                let code = [*frame.payload.first()?, *frame.payload.get(1)?];
                assert!(self.frame().await.is_none(), "nothing follows a close frame");
                return Some(u16::from_be_bytes(code));
            }
        }
        None
    }

    /// Reads more bytes. Returns false at the end of the stream.
    async fn receive(&mut self) -> bool {
        matches!(within(self.stream.read_buf(&mut self.received)).await, Ok(1..))
    }
}

pub fn handshake(path: &str, subprotocol: Option<&str>) -> String {
    let subprotocol = subprotocol.map(|name| format!("Sec-WebSocket-Protocol: {name}\r\n")).unwrap_or_default();
    format!(
        "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{subprotocol}\r\n"
    )
}

/// Returns a client's masked frame. `first` is the byte of flags and opcode. Source: RFC 6455, section 5.2.
pub fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    let mut frame = vec![first];
    match payload.len() {
        n @ 0..=125 => frame.push(0x80 | n as u8),
        n @ 126..=0xffff => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(n as u16).to_be_bytes());
        }
        n => {
            frame.push(0x80 | 127);
            frame.extend_from_slice(&(n as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(&mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

/// Returns the opcode of an unmasked frame, and the start and the end of its payload.
fn extent(bytes: &[u8]) -> Option<(u8, usize, usize)> {
    let (start, length) = match *bytes.get(1)? {
        126 => (4, usize::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?))),
        127 => (10, u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?) as usize),
        length => (2, usize::from(length)),
    };
    Some((bytes[0] & 0x0f, start, start + length))
}
