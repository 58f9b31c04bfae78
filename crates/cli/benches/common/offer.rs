//! HTTP requests on one connection, such as offers.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use anyhow::{Context, ensure};

/// Posts an offer to this path and returns the answer.
pub fn post(http: &mut TcpStream, path: &str, sdp: &str) -> anyhow::Result<String> {
    request(http, ("POST", path), "application/sdp", sdp)
}

/// Sends a request and returns the body of its answer. Errors: the status is neither 200 nor 201.
pub fn request(http: &mut TcpStream, (method, path): (&str, &str), kind: &str, body: &str) -> anyhow::Result<String> {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    http.write_all(request.as_bytes())?;
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let length = http.read(&mut piece)?;
        ensure!(length > 0, "the server has hung up");
        answer.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        ensure!(head.starts_with("HTTP/1.1 20"), "refused: {text}");
        if let Some(body) = whole(&head.to_ascii_lowercase(), body)? {
            return Ok(body);
        }
    }
}

/// Returns the body if it is complete.
fn whole(head: &str, body: &str) -> anyhow::Result<Option<String>> {
    let is_chunked = head.lines().any(|line| line == "transfer-encoding: chunked");
    if !is_chunked {
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).context("no length")?;
        let length: usize = length.parse()?;
        return Ok((body.len() >= length).then(|| body.to_owned()));
    }
    let (mut rest, mut all) = (body, String::new());
    loop {
        let Some((size, chunk)) = rest.split_once("\r\n") else { return Ok(None) };
        let size = usize::from_str_radix(size, 16)?;
        let Some(piece) = chunk.get(..size).filter(|_| chunk.len() >= size + 2) else { return Ok(None) };
        if size == 0 {
            return Ok(Some(all));
        }
        all.push_str(piece);
        rest = &chunk[size + 2..];
    }
}
