//! One client on one connection, controlled step by step, with access to the kernel's counters.
//!
//! The connections of the load generator follow schedules. The cost of a single message is easier to see if nothing
//! else happens.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};

use super::tcp_info::TcpInfo;
use crate::load::{Dialect, Event};

/// Silent time after which later traffic does not belong to the current exchange. Linux delays an ACK by at
/// most 200 ms.
const QUIET: Duration = Duration::from_millis(260);
const STEP: Duration = Duration::from_millis(10);
/// Maximum bytes kept per direction. They are kept to determine the size of HTTP heads.
const KEPT_BYTES_MAX: usize = 256 * 1024;

pub struct Tap {
    socket: TcpStream,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    dialect: Box<dyn Dialect>,
    partial: Vec<u8>,
    began: Instant,
    pub received: Received,
    /// Bytes sent and received, up to `KEPT_BYTES_MAX` each.
    pub sent: Vec<u8>,
    pub answered: Vec<u8>,
}

/// Events that the dialect decoded from the received bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    pub is_ready: bool,
    pub messages: u64,
    pub payload_bytes: u64,
    pub accepted: u64,
    /// Number of reads that returned data.
    pub reads: u64,
    pub is_closed: bool,
}

impl Tap {
    /// Connects, and sends the first bytes of the dialect.
    pub fn open(address: SocketAddr, mut dialect: Box<dyn Dialect>, patience: Duration) -> anyhow::Result<Tap> {
        let socket = TcpStream::connect_timeout(&address, patience)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(STEP))?;
        socket.set_write_timeout(Some(patience))?;
        let mut out = Vec::new();
        let is_ready = dialect.open(&mut out);
        let received = Received { is_ready, ..Received::default() };
        let (partial, sent, answered) = Default::default();
        let (local, remote, began) = (socket.local_addr()?, address, Instant::now());
        let mut tap = Tap { socket, local, remote, dialect, partial, began, received, sent, answered };
        tap.send(&out)?;
        Ok(tap)
    }

    pub fn info(&self) -> anyhow::Result<TcpInfo> {
        TcpInfo::of(&self.socket, self.remote.is_ipv6())
    }

    pub fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        if !bytes.is_empty() {
            self.socket.write_all(bytes)?;
            keep(&mut self.sent, bytes);
        }
        Ok(())
    }

    /// Sends bytes that the dialect did not create, but wrapped in its framing.
    pub fn send_plain(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let mut out = Vec::new();
        self.dialect.wrap(bytes, &mut out);
        self.send(&out)
    }

    pub fn publish(&mut self, payload: &[u8]) -> anyhow::Result<()> {
        let mut out = Vec::new();
        self.dialect.publish(payload, &mut out);
        self.send(&out)
    }

    /// Sends the next poll now, instead of at its scheduled time.
    pub fn poll(&mut self) -> anyhow::Result<()> {
        let mut out = Vec::new();
        self.dialect.wake(self.now_ns(), &mut out);
        self.send(&out)
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Reads and processes received data, and waits for [`STEP`] at most. Returns false if no data arrived.
    fn step(&mut self) -> anyhow::Result<bool> {
        if self.received.is_closed {
            std::thread::sleep(STEP);
            return Ok(false);
        }
        let mut buffer = [0; 16 * 1024];
        let came = match self.socket.read(&mut buffer) {
            Ok(0) => {
                self.received.is_closed = true;
                return Ok(true);
            }
            Ok(came) => came,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
            {
                return Ok(false);
            }
            Err(error) => return Err(error).context("the connection broke"),
        };
        keep(&mut self.answered, &buffer[..came]);
        self.partial.extend_from_slice(&buffer[..came]);
        self.received.reads += 1;
        let (now, mut out) = (self.now_ns(), Vec::new());
        let (received, mut refused) = (&mut self.received, false);
        let used = self.dialect.feed(&self.partial, now, &mut out, &mut |event| match event {
            Event::Ready => received.is_ready = true,
            Event::Message(payload) => {
                received.messages += 1;
                received.payload_bytes += payload.len() as u64;
            }
            Event::Accepted => received.accepted += 1,
            Event::Closed => {}
            Event::Refused | Event::Gap | Event::Datagrams(_) => refused = true,
        })?;
        ensure!(!refused, "refused, or a gap: {}", String::from_utf8_lossy(&self.partial));
        self.partial.drain(..used);
        self.send(&out)?;
        Ok(true)
    }

    /// Processes data until `is_so` is true.
    ///
    /// Errors: `is_so` is still false after `patience`.
    pub fn until(&mut self, patience: Duration, what: &str, is_so: impl Fn(&Received) -> bool) -> anyhow::Result<()> {
        let began = Instant::now();
        while !is_so(&self.received) {
            ensure!(began.elapsed() < patience, "{what}: not within {patience:?}; {:?}", self.received);
            self.step()?;
        }
        Ok(())
    }

    /// Shuts down the sending direction, as a client that has finished does.
    pub fn shut(&mut self) -> anyhow::Result<()> {
        Ok(self.socket.shutdown(Shutdown::Write)?)
    }
}

/// Waits until no data and no ACKs move on any of these connections. Returns the counters of each.
pub fn settle<const N: usize>(mut taps: [&mut Tap; N], patience: Duration) -> anyhow::Result<[TcpInfo; N]> {
    let began = Instant::now();
    let (mut last, mut since) = ([TcpInfo::default(); N], began);
    loop {
        let mut now = last;
        for (tap, now) in taps.iter_mut().zip(&mut now) {
            tap.step()?;
            *now = tap.info()?;
        }
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() >= QUIET && last.iter().all(|info| info.unacknowledged == 0) {
            return Ok(last);
        }
        ensure!(began.elapsed() < patience, "connections do not come to rest within {patience:?}: {last:?}");
    }
}

fn keep(all: &mut Vec<u8>, bytes: &[u8]) {
    all.extend_from_slice(&bytes[..bytes.len().min(KEPT_BYTES_MAX - all.len())]);
}
