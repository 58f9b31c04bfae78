//! Cost of idle connections.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use anyhow::ensure;
use millrace_lab::load::Dialect;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::{
    client::Client,
    crowd::settle,
    load::Figures,
    server::Server,
    wire::{self, client_frame},
};

/// Number of points on the line that gives the memory of one connection. With two points the result would depend on the
/// allocator's chunks.
const POINTS: usize = 7;

/// Measures the memory of one idle HTTP reader: the slope of a line from a tenth of `readers` to all of them.
pub fn waiting(server: &Server, readers: usize, dialect: impl Fn() -> Box<dyn Dialect>) -> anyhow::Result<Figures> {
    let mut open = Vec::with_capacity(readers);
    let bytes_per_connection = bytes_each(readers / 10, readers, |count| {
        while open.len() < count {
            open.push(Client::speaking(server.address, dialect())?);
        }
        settle(server)?;
        server.pss_kb()
    })?;
    let pss_kb = Some(server.pss_kb()? as f64);
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
            open.push(wire::connect(server.address, &wire::upgrade(path, ""))?);
        }
        server.pss_kb()
    })?;
    let (cpu_before, started) = (server.cpu_ns()?, Instant::now());
    let pings = answer_pings(&open, heartbeat_s.map_or(Duration::from_secs(5), |s| Duration::from_secs(s + 10)))?;
    ensure!(pings > 0 || heartbeat_s.is_none(), "not one ping within a whole heartbeat");
    let idle_cpu_percent = (server.cpu_ns()? - cpu_before) as f64 / started.elapsed().as_nanos() as f64 * 100.0;
    let pss_kb = Some(server.pss_kb()? as f64);
    let (bytes_per_connection, idle_cpu_percent) = (Some(bytes_per_connection), Some(idle_cpu_percent));
    Ok(Figures { pss_kb, bytes_per_connection, idle_cpu_percent, ..Figures::default() })
}

/// Returns the slope of the least-squares line through the memory at several counts of connections, in bytes.
///
/// `fill` opens connections until their number is `count`, and returns the server's memory in KiB.
fn bytes_each(from: usize, to: usize, mut fill: impl FnMut(usize) -> anyhow::Result<u64>) -> anyhow::Result<f64> {
    let counts = (0..POINTS).map(|i| from + (to - from) * i / (POINTS - 1));
    let points =
        counts.map(|count| Ok((count as f64, fill(count)? as f64 * 1024.0))).collect::<anyhow::Result<Vec<_>>>()?;
    let mean = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).sum::<f64>() / points.len() as f64;
    let (mean_x, mean_y) = (mean(|p| p.0), mean(|p| p.1));
    let slope = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>()
        / points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum::<f64>();
    Ok(slope)
}

/// Answers pings for `time`. Returns the number of pings.
fn answer_pings(open: &[TcpStream], time: Duration) -> anyhow::Result<usize> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (stream, i) in open.iter().zip(0..) {
        epoll::add(&epoll, stream, EventData::new_u64(i), EventFlags::IN)?;
    }
    let (mut events, mut scratch, mut pings) = (Vec::with_capacity(1024), [0; 4096], 0);
    let mut pong = Vec::new();
    client_frame(&mut pong, 10, b"");
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&left.try_into()?))?;
        for event in &events {
            let mut stream = &open[event.data.u64() as usize];
            let length = stream.read(&mut scratch)?;
            ensure!(length > 0 && scratch[0] & 15 == 9, "an idle connection has heard something else than a ping");
            stream.write_all(&pong)?;
            pings += 1;
        }
    }
    Ok(pings)
}
