//! Offers by HTTP.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use anyhow::{Context, ensure};

/// The answer to an offer that is posted to this path.
pub fn post(http: &mut TcpStream, path: &str, sdp: &str) -> anyhow::Result<String> {
    let length = sdp.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/sdp\r\nContent-Length: {length}\r\n\r\n{sdp}"
    );
    http.write_all(request.as_bytes())?;
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let length = http.read(&mut piece)?;
        ensure!(length > 0, "the server has hung up");
        answer.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        ensure!(head.starts_with("HTTP/1.1 201"), "refused: {text}");
        let announced =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= announced.context("no length")? {
            return Ok(body.to_owned());
        }
    }
}
