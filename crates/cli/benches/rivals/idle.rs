//! Cost of idle connections.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use millrace_lab::{
    load::{
        Dialect,
        websocket::{self, PING, PONG, RawFrame, frame_into},
    },
    stats::line::Line,
    targets::Server,
};
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::{
    client::Client,
    client_group::{cpu_ns, settle},
    figures::Figures,
};

/// Number of points on the line that gives the memory of one connection. With two points the result would depend on the
/// allocator's chunks.
const POINTS: usize = 7;

/// Measures the memory of one idle HTTP reader: the slope of a line from a tenth of `readers` to all of them.
pub fn waiting(server: &Server, readers: usize, dialect: impl Fn() -> Box<dyn Dialect>) -> anyhow::Result<Figures> {
    let mut open = Vec::with_capacity(readers);
    let bytes_per_connection = bytes_each(readers / 10, readers, |count| {
        while open.len() < count {
            open.push(Client::connect(server.address, dialect())?);
        }
        settle(server)?;
        server.pss_bytes()
    })?;
    let pss_kb = Some(server.pss_bytes()? as f64 / 1024.0);
    Ok(Figures { pss_kb, bytes_per_connection: Some(bytes_per_connection), ..Figures::default() })
}

/// Measures the memory of WebSockets by a line from `from` to `to` of them, and their CPU. The CPU includes pings if a
/// heartbeat is requested.
pub fn websockets(server: &Server, from: usize, to: usize, heartbeat_s: Option<u64>) -> anyhow::Result<Figures> {
    let mut open = Vec::with_capacity(to);
    let path = heartbeat_s.map(|every_s| format!("/v1/channels/idle?heartbeat={every_s}"));
    let path = path.as_deref().unwrap_or("/v1/channels/idle");
    let bytes_per_connection = bytes_each(from, to, |count| {
        while open.len() < count {
            open.push(websocket::connect(server.address, path, None)?);
        }
        server.pss_bytes()
    })?;
    let (cpu_before, started) = (cpu_ns(server)?, Instant::now());
    let pings = answer_pings(&open, heartbeat_s.map_or(Duration::from_secs(5), |s| Duration::from_secs(s + 10)))?;
    ensure!(pings > 0 || heartbeat_s.is_none(), "not one ping within a whole heartbeat");
    let idle_cpu_percent = (cpu_ns(server)? - cpu_before) as f64 / started.elapsed().as_nanos() as f64 * 100.0;
    let pss_kb = Some(server.pss_bytes()? as f64 / 1024.0);
    let (bytes_per_connection, idle_cpu_percent) = (Some(bytes_per_connection), Some(idle_cpu_percent));
    Ok(Figures { pss_kb, bytes_per_connection, idle_cpu_percent, ..Figures::default() })
}

/// Returns the slope of the least-squares line through the memory at several counts of connections, in bytes.
///
/// `fill` opens connections until their number is `count`, and returns the server's memory in bytes.
fn bytes_each(from: usize, to: usize, mut fill: impl FnMut(usize) -> anyhow::Result<u64>) -> anyhow::Result<f64> {
    let counts = (0..POINTS).map(|i| from + (to - from) * i / (POINTS - 1));
    let points = counts.map(|count| Ok((count as f64, fill(count)? as f64))).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Line::fit(&points).context("too few connections for a line")?.slope)
}

/// Answers pings for `time`. Returns the number of pings.
fn answer_pings(open: &[TcpStream], time: Duration) -> anyhow::Result<usize> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (stream, i) in open.iter().zip(0..) {
        epoll::add(&epoll, stream, EventData::new_u64(i), EventFlags::IN)?;
    }
    let (mut events, mut scratch, mut pings) = (Vec::with_capacity(1024), [0; 4096], 0);
    let mut pong = Vec::new();
    frame_into(PONG, b"", &mut pong);
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&left.try_into()?))?;
        for event in &events {
            let mut stream = &open[event.data.u64() as usize];
            let length = stream.read(&mut scratch)?;
            let is_ping = RawFrame::read(&scratch[..length], 0)?.is_some_and(|frame| frame.opcode == PING);
            ensure!(is_ping, "an idle connection has received something else than a ping");
            stream.write_all(&pong)?;
            pings += 1;
        }
    }
    Ok(pings)
}
