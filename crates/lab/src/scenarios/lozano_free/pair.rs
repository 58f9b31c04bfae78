use std::{
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use millrace_call::{
    SRTP_TAG_BYTES, Source,
    sender::{FRAME_BEGIN, PAYLOAD_BYTES_MAX},
    source,
};
use millrace_link::Rate;
use millrace_sfu::{MediaClient, MediaEvent, MediaKind, MediaOutput, egress::is_media};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::histogram::Histogram;

/// Stream that one end has received.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// RTP of each second in kbit/s, with heads.
    pub rates: Vec<f64>,
    /// One-way delay of each packet.
    pub delay: Histogram,
    pub sent: u64,
    pub lost: u64,
}

/// The streams that A and B receive.
pub type Streams = [Stream; 2];

/// Two ends of a call in this process, each with its own UDP socket on loopback.
pub struct Pair {
    ends: [End; 2],
    /// When the connection objects were created.
    created: Instant,
}

struct End {
    socket: UdpSocket,
    local: SocketAddr,
    client: MediaClient,
    out: Out,
    source: Source,
    /// Line of the SDP on which this end sends.
    line: usize,
    sent: u64,
    received: Stream,
    /// Time from which the seconds of `received` count.
    since: Instant,
    first_media: Option<Instant>,
}

#[derive(Default)]
struct Out {
    datagrams: Vec<(SocketAddr, Vec<u8>)>,
    is_connected: bool,
    is_closed: bool,
    /// Send times of the packets that have arrived, in nanoseconds since `Pair::created`.
    arrived_ns: Vec<u64>,
}

impl MediaOutput for Out {
    fn send(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        self.datagrams.push((to, datagram));
    }

    fn event(&mut self, event: MediaEvent) {
        match event {
            MediaEvent::Connected => self.is_connected = true,
            MediaEvent::Closed => self.is_closed = true,
            MediaEvent::Packet { payload, .. } => {
                let sent = payload.get(STAMP_AT..).and_then(|bytes| bytes.first_chunk());
                self.arrived_ns.extend(sent.map(|bytes| u64::from_be_bytes(*bytes)));
            }
            MediaEvent::KeyframeWanted { .. } | MediaEvent::Estimate { .. } => {}
        }
    }
}

/// Place of the send time in a payload: behind the descriptor and the first byte of the frame.
const STAMP_AT: usize = 2;
const STAMP_BYTES: usize = 8;
const DATAGRAM_MAX: usize = 2048;
/// Longest wait for a datagram before timers are checked again.
const WAIT_MAX: Duration = Duration::from_millis(10);
/// Time for the last packets of a call to arrive.
const AFTER: Duration = Duration::from_millis(200);

impl Pair {
    /// Creates both ends. A offers, and B answers.
    ///
    /// Errors: there is no socket, or the ends do not agree.
    pub fn new(seed: u64, ceiling: Rate) -> anyhow::Result<Self> {
        let socket = || -> anyhow::Result<(UdpSocket, SocketAddr)> {
            let socket = UdpSocket::bind(("127.0.0.1", 0)).context("cannot open a UDP socket")?;
            socket.set_nonblocking(true)?;
            let local = socket.local_addr()?;
            Ok((socket, local))
        };
        let ((a_socket, a_local), (b_socket, b_local)) = (socket()?, socket()?);
        let created = Instant::now();
        let (mut a, offer) = MediaClient::offer(a_local, &[MediaKind::Video], &[MediaKind::Video], created);
        let mut b = MediaClient::new(b_local, created);
        a.accept(&b.answer(&offer)?)?;
        let end = |socket, local, client, line: usize| {
            let seed = seed.wrapping_mul(2).wrapping_add(line as u64);
            let ceiling_bits_per_s = ceiling.bits_per_s();
            let config = source::Config { ceiling_bits_per_s, seed, ..source::Config::default() };
            End {
                socket,
                local,
                client,
                out: Out::default(),
                source: Source::new(config, created),
                line,
                sent: 0,
                received: Stream::default(),
                since: created,
                first_media: None,
            }
        };
        Ok(Self { ends: [end(a_socket, a_local, a, 0), end(b_socket, b_local, b, 1)], created })
    }

    /// Connects both ends, and returns the time from the creation of the connections until both have media. `None`: not
    /// within `patience`.
    pub fn set_up(&mut self, patience: Duration) -> anyhow::Result<Option<Duration>> {
        let until = self.created + patience;
        loop {
            let media = self.ends.iter().filter_map(|end| end.first_media).collect::<Vec<_>>();
            if let [one, other] = media[..] {
                return Ok(Some(one.max(other).saturating_duration_since(self.created)));
            }
            if Instant::now() >= until || self.ends.iter().any(|end| end.out.is_closed) {
                return Ok(None);
            }
            self.turn(true)?;
        }
    }

    /// Sends video in both directions for a time, and returns what arrived.
    pub fn talk(&mut self, test: Duration, go_on: &dyn Fn() -> anyhow::Result<()>) -> anyhow::Result<Streams> {
        let start = Instant::now();
        for end in &mut self.ends {
            (end.since, end.sent, end.received) = (start, 0, Stream::default());
        }
        while start.elapsed() < test {
            go_on()?;
            self.turn(true)?;
        }
        let end = Instant::now() + AFTER;
        while Instant::now() < end {
            self.turn(false)?;
        }
        let [a, b] = &mut self.ends;
        let (seconds, a_sent, b_sent) = (test.as_secs() as usize, a.sent, b.sent);
        Ok([finish(a, b_sent, seconds), finish(b, a_sent, seconds)])
    }

    /// Handles timers and datagrams, and sends the next frames.
    fn turn(&mut self, films: bool) -> anyhow::Result<()> {
        let now = Instant::now();
        for end in &mut self.ends {
            end.handle_timers(films, self.created, now)?;
        }
        let due = self.ends.iter().map(|end| end.due(films)).min().unwrap_or(now);
        let wait = due.saturating_duration_since(Instant::now()).min(WAIT_MAX);
        let [a, b] = &self.ends;
        let mut sockets = [PollFd::new(&a.socket, PollFlags::IN), PollFd::new(&b.socket, PollFlags::IN)];
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as _ };
        match poll(&mut sockets, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for end in &mut self.ends {
            end.receive(self.created)?;
        }
        Ok(())
    }
}

fn finish(end: &mut End, sent: u64, seconds: usize) -> Stream {
    let mut stream = std::mem::take(&mut end.received);
    stream.rates.resize(seconds, 0.0);
    stream.sent = sent;
    stream.lost = sent.saturating_sub(stream.delay.count());
    stream
}

impl End {
    fn due(&self, films: bool) -> Instant {
        let timeout = self.client.timeout();
        if films && self.out.is_connected { timeout.min(self.source.timeout()) } else { timeout }
    }

    fn handle_timers(&mut self, films: bool, created: Instant, now: Instant) -> anyhow::Result<()> {
        if self.client.timeout() <= now {
            self.client.handle_timeout(now, &mut self.out)?;
        }
        while let Some(frame) = self.source.poll_frame(now, false) {
            if films && self.out.is_connected {
                self.send(&frame, created)?;
            }
        }
        self.flush()
    }

    /// Sends the packets of a frame at once. Each has its send time in its payload.
    fn send(&mut self, frame: &source::Frame, created: Instant) -> anyhow::Result<()> {
        let size = PAYLOAD_BYTES_MAX - STAMP_AT - STAMP_BYTES;
        let count = frame.payload.len().div_ceil(size).max(1);
        for (n, part) in frame.payload.chunks(size).enumerate() {
            let descriptor = if n == 0 { FRAME_BEGIN } else { 0 };
            let now = Instant::now();
            let stamp = (now.saturating_duration_since(created).as_nanos() as u64).to_be_bytes();
            let payload: Arc<[u8]> = [&[descriptor, u8::from(!frame.is_key)][..], &stamp, part].concat().into();
            self.client.send(self.line, (frame.time, n + 1 == count, payload), now, &mut self.out)?;
            self.sent += 1;
        }
        Ok(())
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        for (to, datagram) in self.out.datagrams.drain(..) {
            match self.socket.send_to(&datagram, to) {
                Ok(_) => {}
                // A full buffer loses the datagram, as a network does.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("cannot send to the other end"),
            }
        }
        Ok(())
    }

    fn receive(&mut self, created: Instant) -> anyhow::Result<()> {
        let mut buffer = [0; DATAGRAM_MAX];
        loop {
            let (length, from) = match self.socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.flush(),
                Err(error) => return Err(error).context("cannot receive from the other end"),
            };
            let (now, datagram) = (Instant::now(), &buffer[..length]);
            self.client.handle_datagram(now, (from, self.local), datagram, &mut self.out)?;
            if is_media(datagram) {
                let second = now.saturating_duration_since(self.since).as_secs() as usize;
                self.received.rates.resize(self.received.rates.len().max(second + 1), 0.0);
                self.received.rates[second] += (length - SRTP_TAG_BYTES.min(length)) as f64 * 8.0 / 1000.0;
            }
            let since = now.saturating_duration_since(created);
            for sent_ns in self.out.arrived_ns.drain(..) {
                self.first_media.get_or_insert(now);
                self.received.delay.record_ns((since.as_nanos() as u64).saturating_sub(sent_ns));
            }
        }
    }
}
