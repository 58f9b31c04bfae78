//! HTTP/1.1 proxy: handles requests one after the other, each with its answer.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::*},
    },
};

use anyhow::ensure;
use memchr::memmem;

use super::{
    Behaviour,
    flow::{Flow, lock},
};
use crate::load::http::Answer;

const BYTES_MAX: usize = 16 << 20;

/// Complete answers by the first line of the request.
pub type Cache = Mutex<HashMap<String, Vec<u8>>>;

/// Serves a connection until either end closes it.
///
/// Errors: received data is not HTTP.
pub fn serve(flow: &Flow, behaviour: Behaviour, cache: &Cache, from_cache: &AtomicU64) -> anyhow::Result<()> {
    let (mut asked, mut answered) = (Vec::new(), Vec::new());
    loop {
        let Some(end) = memmem::find(&asked, b"\r\n\r\n").map(|at| at + 4) else {
            if !more(&flow.client, &mut asked)? {
                return Ok(());
            }
            continue;
        };
        let head = String::from_utf8_lossy(&asked[..end]).into_owned();
        let lower = head.to_ascii_lowercase();
        let is_stream = ["text/event-stream", "x-ndjson"].iter().any(|accept| lower.contains(accept));
        if lower.contains("\r\nupgrade: ") || is_stream {
            (&flow.server).write_all(&asked)?;
            let held = match behaviour {
                Behaviour::Buffer { bytes } if is_stream => bytes,
                _ => 0,
            };
            return tunnel(flow, held);
        }
        let line = head.lines().next().unwrap_or_default().to_owned();
        let known =
            (behaviour == Behaviour::Cache && line.starts_with("GET ")).then(|| lock(cache).get(&line).cloned());
        if let Some(answer) = known.flatten() {
            from_cache.fetch_add(1, Relaxed);
            (&flow.client).write_all(&answer)?;
            asked.drain(..end);
            continue;
        }
        (&flow.server).write_all(&asked[..end])?;
        asked.drain(..end);
        let used = loop {
            if let Some(answer) = Answer::read(&answered)? {
                break answer.used;
            }
            ensure!(more(&flow.server, &mut answered)?, "ended within an answer");
        };
        (&flow.client).write_all(&answered[..used])?;
        lock(cache).insert(line, answered.drain(..used).collect());
    }
}

/// Copies both directions until either ends. Server data is held until at least `held` bytes are available.
fn tunnel(flow: &Flow, held: usize) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        scope.spawn(|| flow.pass(&flow.client, &flow.server));
        let mut waiting = Vec::new();
        while more(&flow.server, &mut waiting)? {
            if waiting.len() >= held {
                (&flow.client).write_all(&waiting)?;
                waiting.clear();
            }
        }
        (&flow.client).write_all(&waiting)?;
        // Also ends the other direction.
        let _ = flow.client.shutdown(std::net::Shutdown::Both);
        Ok(())
    })
}

/// Reads once and appends to `into`. Returns false at the end of the stream.
fn more(mut from: &TcpStream, into: &mut Vec<u8>) -> anyhow::Result<bool> {
    ensure!(into.len() < BYTES_MAX, "more than {BYTES_MAX} bytes at once");
    let mut piece = [0; 16 * 1024];
    let length = from.read(&mut piece)?;
    into.extend_from_slice(&piece[..length]);
    Ok(length > 0)
}
