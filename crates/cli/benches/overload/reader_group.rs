//! Readers on one epoll instance, and their load loops: closed loop (maximum rate) or open loop (fixed rate).

use std::{
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use anyhow::ensure;
use millrace_lab::{histogram::Histogram, host::scheduling::SchedulingTime, targets::Server};
use rustix::{
    event::{Timespec, epoll},
    net::RecvFlags,
};

use crate::{
    figures::{Ages, quantile_ms},
    reader::{Next, Reader, ReaderOptions, Tally},
    upstream::Upstream,
};

/// Maximum wait for messages in flight.
const PATIENCE: Duration = Duration::from_secs(20);
/// Publications in flight while the maximum delivery rate is measured.
const IN_FLIGHT: u64 = 32;
/// Time of the first memory reading. Every client has published by then, so any later increase is growth.
const SETTLED: Duration = Duration::from_secs(4);
/// Share of its CPU above which the generator, not the server, limits a run.
const BOUND_SHARE: f64 = 0.9;

pub struct ReaderGroup {
    address: SocketAddr,
    epoll: OwnedFd,
    pub readers: Vec<Reader>,
    options: ReaderOptions,
    scratch: Vec<u8>,
    started: Instant,
    ages: Ages,
    pub tally: Tally,
}

/// One open-loop run.
pub struct Load {
    /// Publications per second.
    pub per_s: f64,
    pub seconds: f64,
    pub slice: Duration,
    /// All readers stop reading at `.0` for `.1` seconds.
    pub stall: Option<(f64, f64)>,
}

/// Results of a run.
pub struct Outcome {
    pub ages: Ages,
    pub tally: Tally,
    pub sent: u64,
    /// Number of publications that were due while the server accepted none.
    pub held_back: u64,
    pub deliveries_per_s: f64,
    pub cpu_us: f64,
    /// Shares of the run's time: on a CPU, and waiting for a CPU that others used.
    pub server_share: f64,
    pub server_waited: f64,
    pub own_share: f64,
    pub own_waited: f64,
    pub late: Histogram,
    pub pss_bytes: [u64; 2],
}

impl ReaderGroup {
    pub fn new(server: &Server, count: usize, options: &ReaderOptions) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut readers = Vec::with_capacity(count);
        for i in 0..count {
            let reader = Reader::new(server.address, options.clone())?;
            watch(&epoll, &reader, i)?;
            readers.push(reader);
        }
        let mut group = Self {
            address: server.address,
            epoll,
            readers,
            options: options.clone(),
            scratch: vec![0; 256 * 1024],
            started: Instant::now(),
            ages: Ages::new(Duration::from_secs(1)),
            tally: Tally::default(),
        };
        while !group.readers.iter().all(Reader::is_connected) {
            ensure!(group.started.elapsed() < PATIENCE, "not all readers were accepted");
            group.receive(Duration::from_millis(5))?;
        }
        Ok(group)
    }

    /// Keeps [`IN_FLIGHT`] publications in flight. Returns the deliveries per second and the number of the next
    /// message.
    pub fn closed_loop(&mut self, upstream: &mut Upstream, seconds: f64) -> anyhow::Result<(f64, u64)> {
        self.begin(Duration::from_secs(1));
        let (end, first) = (Duration::from_secs_f64(seconds), self.options.first);
        let copies = self.readers.len() as u64;
        let mut sent = first;
        while self.started.elapsed() < end {
            let seen = first + (self.tally.delivered + self.tally.told_lost) / copies;
            while sent < seen + IN_FLIGHT {
                upstream.send(sent, self.now_us(), self.options.bytes, &mut self.readers)?;
                sent += 1;
            }
            upstream.turn()?;
            self.receive(Duration::from_millis(5))?;
        }
        let per_s = self.tally.delivered as f64 / self.started.elapsed().as_secs_f64();
        self.finish(upstream, sent)?;
        Ok((per_s, sent))
    }

    /// Publishes `size` messages, and the next `size` when all readers have received them, while `goes_on` returns
    /// true. Passes the number of deliveries so far to `goes_on`. Polls every `nap` and does not wait for a wake-up: a
    /// wake-up would cost the server's thread as much as a send.
    pub fn bursts(
        &mut self,
        upstream: &mut Upstream,
        size: u64,
        nap: Duration,
        mut goes_on: impl FnMut(u64) -> bool,
    ) -> anyhow::Result<()> {
        self.begin(Duration::from_secs(1));
        let first = self.options.first;
        let copies = self.readers.len() as u64;
        let mut sent = first;
        while goes_on(self.tally.delivered) {
            if self.tally.delivered + self.tally.told_lost >= (sent - first) * copies {
                for n in sent..sent + size {
                    upstream.send(n, self.now_us(), self.options.bytes, &mut self.readers)?;
                }
                sent += size;
            }
            upstream.turn()?;
            self.receive(Duration::ZERO)?;
            std::thread::sleep(nap);
        }
        self.finish(upstream, sent)
    }

    /// Publishes message `n` at `n / per_s`. Messages that are due while the server accepts none are skipped, because a
    /// sensor's next value is newer.
    pub fn open_loop(mut self, server: &Server, upstream: &mut Upstream, load: &Load) -> anyhow::Result<Outcome> {
        self.begin(load.slice);
        let (server_before, own_before) = (server.scheduling_time()?, SchedulingTime::of_this_thread()?);
        let end = Duration::from_secs_f64(load.seconds);
        let interval = Duration::from_secs_f64(1.0 / load.per_s);
        let stall = load.stall.map(|(at, long)| (Duration::from_secs_f64(at), Duration::from_secs_f64(at + long)));
        let mut sent = self.options.first;
        let mut due = Duration::ZERO;
        let (mut held_back, mut late) = (0, Histogram::default());
        let mut pss_first = None;
        loop {
            let now = self.started.elapsed();
            if now >= end {
                break;
            }
            if pss_first.is_none() && now >= SETTLED.min(end / 2) {
                pss_first = Some(server.pss_bytes()?);
            }
            if due <= now {
                late.record_us((now - due).as_micros() as u64);
            }
            while due <= now && upstream.has_room() {
                upstream.send(sent, due.as_micros() as u64, self.options.bytes, &mut self.readers)?;
                sent += 1;
                due += interval;
            }
            upstream.turn()?;
            if due <= now && !upstream.has_room() {
                let missed = ((now - due).as_nanos() / interval.as_nanos().max(1)) as u32 + 1;
                due += interval * missed;
                held_back += u64::from(missed);
            }
            let wait = due.saturating_sub(self.started.elapsed()).min(Duration::from_millis(5));
            match stall {
                Some((from, to)) if (from..to).contains(&now) => std::thread::sleep(wait),
                _ => self.receive(wait)?,
            }
        }
        let took = self.started.elapsed();
        let used = server.scheduling_time()?.since(&server_before);
        let own = SchedulingTime::of_this_thread()?.since(&own_before);
        let share = |ns: u64| ns as f64 / took.as_nanos() as f64;
        let pss_bytes = [pss_first.unwrap_or_default(), server.pss_bytes()?];
        let delivered = self.tally.delivered;
        self.finish(upstream, sent)?;
        Ok(Outcome {
            ages: self.ages,
            tally: self.tally,
            sent: sent - self.options.first,
            held_back,
            deliveries_per_s: delivered as f64 / took.as_secs_f64(),
            cpu_us: used.cpu_ns as f64 / 1000.0 / delivered.max(1) as f64,
            server_share: share(used.cpu_ns),
            server_waited: share(used.waited_ns),
            own_share: share(own.cpu_ns),
            own_waited: share(own.waited_ns),
            late,
            pss_bytes,
        })
    }

    fn begin(&mut self, slice: Duration) {
        (self.started, self.ages, self.tally) = (Instant::now(), Ages::new(slice), Tally::default());
    }

    /// Reads until every reader has received all messages before `end`, or a gap report for them. Messages still
    /// missing then were lost silently.
    fn finish(&mut self, upstream: &mut Upstream, end: u64) -> anyhow::Result<()> {
        let stopped = Instant::now();
        while !upstream.is_done() || self.readers.iter().any(|reader| reader.missing(end) > 0) {
            if stopped.elapsed() > PATIENCE {
                break;
            }
            upstream.turn()?;
            self.receive(Duration::from_millis(20))?;
        }
        self.tally.silent += self.readers.iter().map(|reader| reader.missing(end)).sum::<u64>();
        Ok(())
    }

    /// Waits once for incoming bytes, and reads them.
    fn receive(&mut self, wait: Duration) -> anyhow::Result<()> {
        let mut events = Vec::with_capacity(1024);
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos().min(999_999_999) as _ };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let index = event.data.u64() as usize;
            let reader = &mut self.readers[index];
            let length = match rustix::net::recv(reader.stream.as_fd(), &mut self.scratch[..], RecvFlags::DONTWAIT) {
                Ok((_, length)) => length,
                Err(rustix::io::Errno::AGAIN) => continue,
                Err(error) => return Err(error.into()),
            };
            ensure!(length > 0, "the server has closed a reader");
            let now_us = self.started.elapsed().as_micros() as u64;
            let next = reader.take(&self.scratch[..length], now_us, self.ages.at(now_us), &mut self.tally)?;
            if let Next::Connect { since } = next {
                reader.connect_again(self.address, &since)?;
                watch(&self.epoll, reader, index)?;
            }
        }
        Ok(())
    }

    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }
}

fn watch(epoll: &OwnedFd, reader: &Reader, index: usize) -> anyhow::Result<()> {
    let data = epoll::EventData::new_u64(index as u64);
    Ok(epoll::add(epoll, &reader.stream, data, epoll::EventFlags::IN)?)
}

impl Outcome {
    /// Formats memory and CPU, and whether the generator was the limit.
    pub fn costs(&self) -> String {
        let percent = |share: f64| (share * 100.0).round();
        let bound = if self.own_share + self.own_waited > BOUND_SHARE { ", generator-bound" } else { "" };
        format!(
            "{:.0} k/s, {:.3} us CPU per delivery, PSS {:.1} -> {:.1} MB, server {} % (+{} % waiting), generator {} % (+{} %) late p99 \
             {:.1} ms{bound}",
            self.deliveries_per_s / 1000.0,
            self.cpu_us,
            self.pss_bytes[0] as f64 / 1024.0 / 1024.0,
            self.pss_bytes[1] as f64 / 1024.0 / 1024.0,
            percent(self.server_share),
            percent(self.server_waited),
            percent(self.own_share),
            percent(self.own_waited),
            quantile_ms(&self.late, 0.99),
        )
    }

    /// Formats the losses. Errors: messages were lost or repeated without a report.
    pub fn losses(&self) -> anyhow::Result<String> {
        let Tally { gaps, told_lost, .. } = self.tally;
        self.tally.check()?;
        Ok(format!(
            "gaps {gaps} ({told_lost} messages told lost), silent 0, held back {} of {}",
            self.held_back, self.sent
        ))
    }
}
