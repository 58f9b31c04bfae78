//! Load that goes on until it is stopped: readers over WebSocket, publications at a fixed rate, and idle connections.
//! One thread serves all of them.

use std::{
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::{JoinHandle, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, ensure};
use millrace_lab::load::{
    http::{exchange, post},
    payload::Stamp,
    websocket::Bare,
};
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::client::{Client, ClientEvent};

/// Bytes of a message, as in the theses' ticker.
const BYTES: usize = 173;
/// Maximum wait for messages in flight.
const PATIENCE: Duration = Duration::from_secs(20);
/// Channels of the idle connections.
const IDLE_CHANNELS: usize = 100;
/// Lines of one batch.
const BATCH: usize = 1000;

#[derive(Clone, Copy)]
pub struct Plan {
    pub readers: usize,
    /// Channels over which readers and publications are spread evenly.
    pub channels: usize,
    /// Publications per second on all channels together.
    pub per_s: u64,
    /// Connections that read channels without publications.
    pub idle: usize,
}

/// A load that runs.
pub struct Load {
    delivered: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<()>>,
}

struct Generator {
    plan: Plan,
    epoll: rustix::fd::OwnedFd,
    /// The readers first, then the idle connections.
    clients: Vec<Client>,
    /// Number of the next message of each reader.
    next: Vec<u64>,
    /// One publisher per channel.
    publishers: Vec<Client>,
    events: Vec<epoll::Event>,
    scratch: Vec<u8>,
}

impl Plan {
    pub fn deliveries_per_s(&self) -> f64 {
        (self.per_s * self.copies()) as f64
    }

    /// Returns the number of readers of each publication.
    fn copies(&self) -> u64 {
        (self.readers / self.channels) as u64
    }
}

impl Load {
    /// Opens all connections, and begins to publish.
    ///
    /// Errors: a connection is refused, or the plan cannot be spread evenly.
    pub fn start(address: SocketAddr, plan: Plan) -> anyhow::Result<Self> {
        let (delivered, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, is_over) = (delivered.clone(), stop.clone());
        let (report, is_connected) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut generator = Generator::connect(address, plan)?;
            let _ = report.send(());
            generator.run(&count, &is_over)
        });
        let load = Self { delivered, stop, thread };
        match is_connected.recv() {
            Ok(()) => Ok(load),
            Err(_) => Err(load.finish().err().context("the load has ended")?),
        }
    }

    /// Returns the number of messages that readers have received so far.
    pub fn delivered(&self) -> u64 {
        self.delivered.load(Relaxed)
    }

    /// Returns true if the load has ended by itself. [`Load::finish`] then returns the reason.
    pub fn has_failed(&self) -> bool {
        self.thread.is_finished()
    }

    /// Stops publishing, and waits for all messages.
    ///
    /// Errors: a message was lost, doubled or out of order; a connection was closed.
    pub fn finish(self) -> anyhow::Result<()> {
        self.stop.store(true, Relaxed);
        self.thread.join().map_err(|_| anyhow!("the thread of the load has panicked"))?
    }
}

impl Generator {
    fn connect(address: SocketAddr, plan: Plan) -> anyhow::Result<Self> {
        let Plan { readers, channels, idle, .. } = plan;
        ensure!(channels > 0 && readers.is_multiple_of(channels), "--readers must be a multiple of --channels");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let open = |path: String| Client::connect(address, Box::new(Bare::new(path)));
        let reader = |i| open(format!("/v1/channels/{}", name(i % channels)));
        let idler = |i| open(format!("/v1/channels/idle/{}", i % IDLE_CHANNELS));
        let clients = (0..readers).map(reader).chain((0..idle).map(idler)).collect::<anyhow::Result<Vec<_>>>()?;
        for (client, i) in clients.iter().zip(0..) {
            epoll::add(&epoll, &client.stream, EventData::new_u64(i), EventFlags::IN)?;
        }
        let publisher = |i| open(format!("/v1/channels/{}?subscribe=no", name(i)));
        let publishers = (0..channels).map(publisher).collect::<anyhow::Result<_>>()?;
        let (events, scratch) = (Vec::with_capacity(4096), vec![0; 256 * 1024]);
        Ok(Self { plan, epoll, clients, next: vec![0; readers], publishers, events, scratch })
    }

    fn run(&mut self, delivered: &AtomicU64, stop: &AtomicBool) -> anyhow::Result<()> {
        let (started, mut sent) = (Instant::now(), 0);
        let per_s = self.plan.per_s;
        let due = |k: u64| Duration::from_nanos(k * 1_000_000_000 / per_s);
        while !stop.load(Relaxed) {
            while started.elapsed() >= due(sent) {
                let channel = (sent % self.plan.channels as u64) as usize;
                self.publishers[channel].publish(&payload(channel, sent / self.plan.channels as u64, due(sent)));
                self.publishers[channel].flush()?;
                sent += 1;
            }
            delivered.fetch_add(self.receive()?, Relaxed);
            // A wait for events would let each delivery wake this thread, at the cost of the server.
            sleep(due(sent).saturating_sub(started.elapsed()));
        }
        let (stopped, expected) = (Instant::now(), sent * self.plan.copies());
        while delivered.load(Relaxed) < expected {
            let missing = expected - delivered.load(Relaxed);
            ensure!(stopped.elapsed() < PATIENCE, "{missing} of {expected} deliveries are missing");
            delivered.fetch_add(self.receive()?, Relaxed);
        }
        ensure!(delivered.load(Relaxed) == expected, "more than {expected} deliveries");
        Ok(())
    }

    /// Reads received bytes, answers pings, and returns the number of messages.
    fn receive(&mut self) -> anyhow::Result<u64> {
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&Default::default())) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut count = 0;
        for event in &self.events {
            let i = event.data.u64() as usize;
            let (mut next, channel) = (self.next.get_mut(i), (i % self.plan.channels) as u32);
            self.clients[i].receive(&mut self.scratch, |event| {
                let ClientEvent::Message(payload) = event else { return Ok(()) };
                let next = next.as_deref_mut().context("an idle connection has received a message")?;
                let Stamp { stream, sequence, .. } =
                    Stamp::read(payload, BYTES).context("not a message of this generator")?;
                ensure!(
                    (stream, sequence) == (channel, *next),
                    "message {sequence} of channel {stream} where {next} of channel {channel} was expected"
                );
                *next += 1;
                count += 1;
                Ok(())
            })?;
        }
        Ok(count)
    }
}

/// Publishes one message to each of `count` channels without readers, so that the list of channels is a long one.
///
/// Errors: the server refuses a publication.
pub fn fill(address: SocketAddr, count: usize) -> anyhow::Result<()> {
    let all: Vec<usize> = (0..count).collect();
    for part in all.chunks(BATCH) {
        let line = |i: &usize| format!("{{\"channel\":\"quiet/{i}\",\"data\":{i}}}\n");
        let (lines, mut request) = (part.iter().map(line).collect::<String>(), Vec::new());
        post("/v1/publish", "Content-Type: application/x-ndjson\r\n", lines.as_bytes(), &mut request);
        let mut stream = TcpStream::connect(address)?;
        let answer = exchange(&mut stream, &request, |answer| Ok(String::from_utf8(answer.body.to_vec())?))?;
        ensure!(!answer.contains("\"error\""), "a publication was refused: {answer}");
    }
    Ok(())
}

/// Returns the name of a channel with publications.
pub fn name(channel: usize) -> String {
    format!("bench/{channel}")
}

fn payload(channel: usize, sequence: u64, due: Duration) -> Vec<u8> {
    let mut payload = Vec::with_capacity(BYTES);
    Stamp { stream: channel as u32, sequence, due_ns: due.as_nanos() as u64 }.write(BYTES, &mut payload);
    payload
}
