//! The minimum of HTTP/1.1 for a load generator: answers with a length, one request at a time.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use anyhow::ensure;

/// Buffered answers of one connection.
#[derive(Default)]
pub struct Answers {
    bytes: Vec<u8>,
    used: usize,
}

pub struct Answer<'a> {
    head: &'a str,
    pub body: &'a [u8],
}

impl Answers {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.used));
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete answer. Errors: its status is neither `200` nor `204`.
    pub fn whole(&mut self) -> anyhow::Result<Option<Answer<'_>>> {
        let rest = &self.bytes[self.used..];
        let Some(end) = rest.windows(4).position(|end| end == b"\r\n\r\n") else { return Ok(None) };
        let head = std::str::from_utf8(&rest[..end + 2])?;
        let answer = Answer { head, body: &[] };
        let length = answer.header("content-length").map_or(Ok(0), str::parse::<usize>)?;
        let Some(body) = rest.get(end + 4..end + 4 + length) else { return Ok(None) };
        ensure!(
            head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.1 204"),
            "refused: {head}{}",
            String::from_utf8_lossy(body)
        );
        self.used += end + 4 + length;
        Ok(Some(Answer { head, body }))
    }
}

impl<'a> Answer<'a> {
    /// Returns the value of a header. `name` is in lower case, as the server writes it.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Returns the bytes of a `POST` request.
pub fn post(path: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 150);
    let _ = write!(
        out,
        "POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    out.extend_from_slice(body);
    out
}

/// Sends one request on a new connection and returns the body of its answer.
pub fn call(address: SocketAddr, request: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(request)?;
    let (mut answers, mut buffer) = (Answers::default(), vec![0; 64 * 1024]);
    loop {
        let length = stream.read(&mut buffer)?;
        ensure!(length > 0, "closed before the answer");
        answers.push(&buffer[..length]);
        if let Some(answer) = answers.whole()? {
            return Ok(answer.body.to_vec());
        }
    }
}
