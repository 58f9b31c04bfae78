//! Readers and publishers on one epoll instance.
//!
//! The loop never sleeps. Waking a sleeping thread on the same machine costs the sender 3 to 18 us in a virtual
//! machine, depending on chance and on how soon the thread answers. No server has this cost for clients on other
//! machines.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use millrace_lab::{load::payload::Stamp, targets::Server};
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::{
    client::{Client, ClientEvent},
    figures::Figures,
};

/// Bytes of a message, as in the theses' ticker.
pub const BYTES: usize = 173;
/// Maximum wait for messages in flight.
const PATIENCE: Duration = Duration::from_secs(20);
/// A server that has used no CPU for this time is idle.
const STILL: Duration = Duration::from_millis(300);

/// Subscribers with their received messages, and publishers.
pub struct ClientGroup {
    epoll: rustix::fd::OwnedFd,
    readers: Vec<Reader>,
    publishers: Vec<Client>,
    events: Vec<epoll::Event>,
    scratch: Vec<u8>,
    latencies_us: Vec<u32>,
}

struct Reader {
    client: Client,
    next: u64,
}

impl ClientGroup {
    /// `are_answered`: the server answers publications, so that publishers read, too.
    pub fn new(readers: Vec<Client>, publishers: Vec<Client>, are_answered: bool) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let answered = publishers.iter().filter(|_| are_answered);
        for (i, client) in readers.iter().chain(answered).enumerate() {
            epoll::add(&epoll, &client.stream, EventData::new_u64(i as u64), EventFlags::IN)?;
        }
        let readers = readers.into_iter().map(|client| Reader { client, next: 0 }).collect();
        let (events, scratch) = (Vec::with_capacity(1024), vec![0; 256 * 1024]);
        Ok(Self { epoll, readers, publishers, events, scratch, latencies_us: Vec::new() })
    }

    /// Runs an open loop. Each publisher sends once per period of `interval x publishers`, at its own moment in the
    /// period. Each message is delivered `copies` times.
    pub fn open_loop(
        &mut self,
        server: &Server,
        messages: u64,
        interval: Duration,
        copies: u64,
    ) -> anyhow::Result<Figures> {
        settle(server)?;
        let cpu_before = cpu_ns(server)?;
        let started = Instant::now();
        let (mut sent, mut delivered) = (0, 0);
        let rounds = self.publishers.len() as u64;
        let period = interval * rounds as u32;
        let moments = moments(self.publishers.len(), period);
        let due = |k: u64| period * (k / rounds) as u32 + moments[(k % rounds) as usize];
        while delivered < messages * copies {
            ensure!(started.elapsed() < due(messages) + PATIENCE, "{delivered} of {} delivered", messages * copies);
            while sent < messages && started.elapsed() >= due(sent) {
                let publisher = &mut self.publishers[(sent % rounds) as usize];
                publisher.publish(&payload(sent / rounds, due(sent)));
                publisher.flush()?;
                sent += 1;
            }
            delivered += self.receive(started)?;
        }
        self.figures(server, cpu_before, delivered, started.elapsed())
    }

    /// Keeps `in_flight` publications of the first publisher in flight for `seconds`.
    pub fn closed_loop(
        &mut self,
        server: &Server,
        seconds: f64,
        in_flight: u64,
        copies: u64,
    ) -> anyhow::Result<Figures> {
        settle(server)?;
        let cpu_before = cpu_ns(server)?;
        let started = Instant::now();
        let end = Duration::from_secs_f64(seconds);
        let (mut sent, mut delivered) = (0, 0);
        while started.elapsed() < end || delivered < sent * copies {
            ensure!(started.elapsed() < end + PATIENCE, "{delivered} of {} delivered", sent * copies);
            while started.elapsed() < end && sent < delivered / copies + in_flight {
                self.publishers[0].publish(&payload(sent, started.elapsed()));
                sent += 1;
            }
            self.publishers[0].flush()?;
            delivered += self.receive(started)?;
        }
        self.figures(server, cpu_before, delivered, started.elapsed())
    }

    /// Publishes without readers for `seconds`. Each publisher publishes again as soon as it is answered. Figures are
    /// per publication.
    pub fn post(&mut self, server: &Server, seconds: f64) -> anyhow::Result<Figures> {
        settle(server)?;
        let cpu_before = cpu_ns(server)?;
        let started = Instant::now();
        let end = Duration::from_secs_f64(seconds);
        let mut due_us = vec![0; self.publishers.len()];
        for publisher in &mut self.publishers {
            publisher.publish(&payload(0, Duration::ZERO));
            publisher.flush()?;
        }
        let mut under_way = self.publishers.len();
        while under_way > 0 {
            ensure!(started.elapsed() < end + PATIENCE, "{under_way} publications are not answered");
            self.look()?;
            for event in &self.events {
                let (i, mut accepted) = (event.data.u64() as usize, 0);
                self.publishers[i].receive(&mut self.scratch, |event| {
                    accepted += usize::from(matches!(event, ClientEvent::Accepted));
                    Ok(())
                })?;
                under_way -= accepted;
                let now = started.elapsed();
                let now_us = now.as_micros() as u64;
                for _ in 0..accepted {
                    self.latencies_us.push((now_us - due_us[i]) as u32);
                    if now < end {
                        due_us[i] = now_us;
                        self.publishers[i].publish(&payload(0, now));
                        under_way += 1;
                    }
                }
                self.publishers[i].flush()?;
            }
        }
        self.figures(server, cpu_before, self.latencies_us.len() as u64, started.elapsed())
    }

    /// Reads received bytes and returns the number of messages.
    fn receive(&mut self, started: Instant) -> anyhow::Result<u64> {
        let before = self.latencies_us.len();
        self.look()?;
        for event in &self.events {
            let i = event.data.u64() as usize;
            let Some(Reader { client, next }) = self.readers.get_mut(i) else {
                self.publishers[i - self.readers.len()].receive(&mut self.scratch, |_| Ok(()))?;
                continue;
            };
            let (now_us, latencies_us) = (started.elapsed().as_micros() as u64, &mut self.latencies_us);
            client.receive(&mut self.scratch, |event| {
                let ClientEvent::Message(payload) = event else { return Ok(()) };
                let stamp = Stamp::read(payload, BYTES).context("not a message of this generator")?;
                ensure!(stamp.sequence == *next, "message {} where {next} was expected", stamp.sequence);
                *next += 1;
                latencies_us.push(now_us.saturating_sub(stamp.due_ns / 1000) as u32);
                Ok(())
            })?;
        }
        Ok((self.latencies_us.len() - before) as u64)
    }

    /// Finds the connections that are readable now.
    fn look(&mut self) -> anyhow::Result<()> {
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&Default::default())) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn figures(&mut self, server: &Server, cpu_before: u64, count: u64, took: Duration) -> anyhow::Result<Figures> {
        let cpu_ns = cpu_ns(server)? - cpu_before;
        self.latencies_us.sort_unstable();
        let quantile =
            |q: f64| f64::from(self.latencies_us[((self.latencies_us.len() - 1) as f64 * q) as usize]) / 1000.0;
        Ok(Figures {
            cpu_us: Some(cpu_ns as f64 / 1000.0 / count as f64),
            per_s: Some(count as f64 / took.as_secs_f64()),
            p50_ms: Some(quantile(0.5)),
            p99_ms: Some(quantile(0.99)),
            pss_kb: Some(server.pss_bytes()? as f64 / 1024.0),
            ..Figures::default()
        })
    }
}

/// Waits until the server has handled all requests. A server does not report that a long poll is waiting, so idle CPU
/// is the sign.
pub fn settle(server: &Server) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut before = cpu_ns(server)?;
    loop {
        sleep(STILL);
        let now = cpu_ns(server)?;
        // The tick of a timer does not count as work.
        if Duration::from_nanos(now - before) < STILL / 100 {
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "the server does not come to rest");
        before = now;
    }
}

/// Returns a message with its sequence number and its due time.
fn payload(sequence: u64, due: Duration) -> Vec<u8> {
    let mut payload = Vec::with_capacity(BYTES);
    Stamp { stream: 0, sequence, due_ns: due.as_nanos() as u64 }.write(BYTES, &mut payload);
    payload
}

/// Returns the CPU time of the server so far.
pub fn cpu_ns(server: &Server) -> anyhow::Result<u64> {
    Ok(server.scheduling_time()?.cpu_ns)
}

/// Returns the moments within a period at which independent publishers send: random, the same in each run, and sorted.
fn moments(publishers: usize, period: Duration) -> Vec<Duration> {
    let mut chance = 0_u64;
    let mut moment = || {
        // SplitMix64.
        chance = chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (chance ^ (chance >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        period.mul_f64(((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64)
    };
    let mut moments: Vec<Duration> = (0..publishers).map(|_| moment()).collect();
    moments.sort_unstable();
    moments
}
