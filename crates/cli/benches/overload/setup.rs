//! Starts the server, fills the history of a channel, and connects its publisher.

use std::net::TcpStream;

use anyhow::Context;
use millrace_lab::{
    load::http::{exchange, post},
    targets::Server,
};

use crate::{
    reader::{ReaderOptions, Transport, offset},
    server,
    upstream::{Upstream, payload},
};

/// Bytes of a message, as in the theses' ticker.
pub const BYTES: usize = 173;
pub const CHANNEL: &str = "bench";
/// Number of publications before a run, so that the history is full and does not count as growth.
const PAST: u64 = 10_000;
/// Number of keys of a `latest` channel.
pub const KEYS: u64 = 50;

/// Starts a server with default settings.
pub fn start(shards: usize, cpus: &[usize]) -> anyhow::Result<Server> {
    server::start(shards, cpus, &[])
}

/// Fills the channel's history and returns the parameters of a reader of everything after it.
pub fn prime(server: &Server, transport: Transport) -> anyhow::Result<ReaderOptions> {
    let mut since = String::new();
    for first in (0..PAST).step_by(1000) {
        let mut lines = Vec::new();
        for n in first..first + 1000 {
            lines.extend_from_slice(format!(r#"{{"channel":"{CHANNEL}","key":"k{}","data":"#, n % KEYS).as_bytes());
            lines.extend_from_slice(&payload(n, 0, BYTES));
            lines.extend_from_slice(b"}\n");
        }
        let mut request = Vec::new();
        post("/v1/publish", "Content-Type: application/x-ndjson\r\n", &lines, &mut request);
        let mut stream = TcpStream::connect(server.address)?;
        let answer = exchange(&mut stream, &request, |answer| Ok(String::from_utf8(answer.body.to_vec())?))?;
        let last = answer.rsplit('"').nth(1).context("no result")?;
        anyhow::ensure!(offset(last)? == first + 1000, "a publication was refused: {last}");
        since = last.to_owned();
    }
    let channel = CHANNEL.to_owned();
    Ok(ReaderOptions { transport, channel, latest: false, since, first: PAST, sources: 1, bytes: BYTES })
}

/// Returns a publisher: a bare WebSocket, or a session that publishes with keys.
pub fn publisher(server: &Server, latest: bool) -> anyhow::Result<Upstream> {
    match latest {
        true => Upstream::session(server.address, CHANNEL, KEYS),
        false => Upstream::bare(server.address, CHANNEL),
    }
}
