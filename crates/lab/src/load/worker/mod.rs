//! One thread of the generator: its connections, one epoll instance, and its timers.

mod connections;
mod publish;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    iter::Peekable,
    os::fd::OwnedFd,
    sync::atomic::Ordering::*,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::{
    dialect::LoadTarget,
    link::Link,
    plan::{Plan, Shape},
    schedule::Schedule,
    shared::{Report, Shared, Stage},
    thread_stats::{PROBE, Receiver, ThreadStats},
};

/// Number of events handled before the due work is checked again. Publications are then not late while many
/// connections receive.
const EVENTS_PER_LOOK: usize = 8;
/// After a wait with at least this many events, the next wait asks epoll first, without sleeping.
const BUSY_EVENTS: usize = 16;
const NAP: Duration = Duration::from_millis(5);
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const READ_BYTES: usize = 256 * 1024;

/// A link with its number among all connections of the generator.
pub struct Assigned {
    pub link: Link,
    pub ordinal: usize,
}

pub struct Worker<'a> {
    plan: &'a Plan,
    target: &'a dyn LoadTarget,
    shared: &'a Shared,
    threads: u64,
    index: u64,
    epoll: OwnedFd,
    links: Vec<Link>,
    ordinals: Vec<usize>,
    /// Index of the publishing link for each local stream (`stream / threads`).
    publishers: Vec<u32>,
    probe: Option<u32>,
    stats: ThreadStats<'a>,
    schedule: Peekable<Schedule>,
    to_connect: VecDeque<u32>,
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    stage: Stage,
    second: u64,
    opening: usize,
    live: usize,
    probe_from_ns: u64,
    storm_is_over: bool,
    connected_reported: bool,
    published_reported: bool,
    /// Number of deliveries at which this thread is drained. Set once all publications are sent.
    expected: Option<u64>,
    drained_reported: bool,
    trouble_reported: bool,
    /// Closed loop: number of publications that are no longer expected to complete.
    written_off: u64,
    /// Closed loop: number of complete publications, and the time when it last changed.
    moved: (u64, u64),
    closed_sent: u64,
    payload: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub fn new(
        plan: &'a Plan,
        target: &'a dyn LoadTarget,
        shared: &'a Shared,
        index: usize,
        assigned: Vec<Assigned>,
    ) -> anyhow::Result<Self> {
        let (mut links, mut ordinals, mut publishers, mut probe) = (Vec::new(), Vec::new(), Vec::new(), None);
        let (mut tallies, mut receivers) = (0, 0);
        for (i, Assigned { mut link, ordinal }) in assigned.into_iter().enumerate() {
            match &link.publisher {
                Some(publisher) if publisher.stream == PROBE => probe = Some(i as u32),
                Some(_) => publishers.push(i as u32),
                None => {}
            }
            if let Some(receiver) = link.receiver.as_mut().filter(|receiver| receiver.first_stream != PROBE) {
                receiver.tallies_at = tallies;
                tallies += receiver.streams as usize;
                receivers += 1;
            }
            link.due_ns = (ordinal as f64 * 1e9 / plan.ramp_per_s) as u64;
            links.push(link);
            ordinals.push(ordinal);
        }
        publishers.sort_by_key(|i| links[*i as usize].publisher.map(|publisher| publisher.stream));
        Ok(Self {
            plan,
            target,
            shared,
            threads: plan.threads as u64,
            index: index as u64,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            to_connect: (0..links.len() as u32).collect(),
            links,
            ordinals,
            publishers,
            probe,
            stats: ThreadStats::new(&shared.ledger, plan.bytes, tallies, receivers),
            schedule: plan.schedule().peekable(),
            timers: BinaryHeap::new(),
            stage: Stage::Connect,
            second: 0,
            opening: 0,
            live: 0,
            probe_from_ns: 0,
            storm_is_over: plan.shape != Shape::Storm,
            connected_reported: false,
            published_reported: false,
            expected: None,
            drained_reported: false,
            trouble_reported: false,
            written_off: 0,
            moved: (0, 0),
            closed_sent: 0,
            payload: Vec::new(),
        })
    }

    /// Runs the thread until [`Stage::Stop`].
    pub fn run(mut self) -> anyhow::Result<()> {
        let mut scratch = vec![0; READ_BYTES];
        let mut events = Vec::with_capacity(1024);
        while self.stage < Stage::Stop {
            let now = self.now_ns();
            self.follow(now);
            self.do_what_is_due(now)?;
            self.report_milestones();
            let wait = self.next_due_ns().saturating_sub(self.now_ns()).min(NAP.as_nanos() as u64);
            self.await_events(wait, &mut events)?;
            if events.is_empty() {
                continue;
            }
            let woken = self.now_ns();
            // Follow the stage before the events are counted: they may belong to a stage that began meanwhile.
            self.follow(woken);
            let mut now = woken;
            for (n, event) in events.iter().enumerate() {
                now = self.handle(event, now, &mut scratch);
                if n % EVENTS_PER_LOOK == EVENTS_PER_LOOK - 1 {
                    self.do_what_is_due(now)?;
                }
            }
            self.stats.page.lag.record_ns(now - woken);
        }
        Ok(())
    }

    /// Waits for events for at most `wait_ns`. `epoll_wait` takes milliseconds, which would make publications up to 1
    /// ms late; `ppoll` takes nanoseconds. So `ppoll` waits first. If the last wait returned many events, more are
    /// probably ready, and epoll is asked at once.
    fn await_events(&self, wait_ns: u64, events: &mut Vec<epoll::Event>) -> anyhow::Result<()> {
        let is_busy = events.len() >= BUSY_EVENTS;
        events.clear();
        if is_busy || wait_ns == 0 {
            self.take_events(events)?;
        }
        if events.is_empty() && wait_ns > 0 {
            let wait = Timespec { tv_sec: 0, tv_nsec: wait_ns as _ };
            match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&wait)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => self.take_events(events)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn take_events(&self, events: &mut Vec<epoll::Event>) -> anyhow::Result<()> {
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&NOW)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn now_ns(&self) -> u64 {
        self.shared.clock.now_ns()
    }

    /// Reports the figures of the second and of the stage when they are over.
    fn follow(&mut self, now: u64) {
        let stage = Stage::ALL[self.shared.stage.load(Acquire) as usize];
        let second = now / 1_000_000_000;
        if stage == self.stage && second == self.second {
            return;
        }
        let (counts, latency) = self.stats.turn_second();
        let _ = self.shared.reports.send(Report::Second(self.second, counts, Box::new(latency)));
        self.second = second;
        if stage == self.stage {
            return;
        }
        // Several stages can end at once if they are short.
        while self.stage < stage {
            if self.stage == Stage::Test {
                self.stats.page.counts.lost = self.lost();
            }
            let page = Box::new(std::mem::take(&mut self.stats.page));
            let _ = self.shared.reports.send(Report::PhaseStats(self.stage, page));
            self.stage = Stage::ALL[self.stage as usize + 1];
            if self.stage == Stage::Idle {
                self.probe_from_ns = now;
            }
        }
    }

    fn lost(&self) -> u64 {
        let published = |stream: u32| self.shared.published[stream as usize].load(Relaxed);
        let of = |receiver: &Receiver| -> u64 {
            let tallies = &self.stats.tallies[receiver.tallies_at..][..receiver.streams as usize];
            (receiver.first_stream..).zip(tallies).map(|(stream, tally)| tally.lost(published(stream))).sum()
        };
        let receivers = self.links.iter().filter_map(|link| link.receiver.as_ref());
        receivers.filter(|receiver| receiver.first_stream != PROBE).map(of).sum()
    }

    fn do_what_is_due(&mut self, now: u64) -> anyhow::Result<()> {
        if !self.to_connect.is_empty() {
            self.connect_due(now)?;
        }
        while let Some(Reverse((at, index))) = self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.timers.pop();
            self.wake(index as usize, at, now);
        }
        if let Some(probe) = self.probe.filter(|_| (Stage::Idle..Stage::Stop).contains(&self.stage)) {
            let interval = self.plan.probe.as_nanos() as u64;
            let publisher = self.links[probe as usize].publisher.as_mut().expect("a probe publishes");
            let due = self.probe_from_ns + u64::from(publisher.scheduled) * interval;
            if due <= now {
                publisher.scheduled += 1;
                self.speak(probe as usize, now);
            }
        }
        if self.stage == Stage::Test {
            self.publish_due(now);
        }
        Ok(())
    }

    fn next_due_ns(&mut self) -> u64 {
        let mut next = self.timers.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        if let Some(index) = self.to_connect.front().filter(|_| self.opening < connections::OPENING_MAX) {
            next = next.min(self.links[*index as usize].due_ns);
        }
        if self.stage == Stage::Test
            && let Some((_, at)) = self.schedule.peek()
        {
            next = next.min(self.shared.test_at_ns.load(Relaxed) + at);
        }
        next
    }

    /// Reports each milestone of this thread once: connected, all published, drained.
    fn report_milestones(&mut self) {
        if !self.connected_reported && self.live == self.links.len() {
            self.connected_reported = true;
            let _ = self.shared.reports.send(Report::Connected);
        }
        if self.stage != Stage::Test || self.drained_reported {
            return;
        }
        let now = self.now_ns();
        let end = self.shared.test_at_ns.load(Relaxed) + self.plan.test.as_nanos() as u64;
        if now < end {
            return;
        }
        if !self.published_reported {
            let links = self.publishers.iter().filter_map(|index| self.links[*index as usize].publisher);
            if !links.into_iter().all(|publisher| publisher.sent == publisher.scheduled) {
                return;
            }
            self.published_reported = true;
            self.shared.published_all.fetch_add(1, AcqRel);
        }
        if u64::from(self.shared.published_all.load(Acquire)) != self.threads {
            return;
        }
        let expected = match self.expected {
            Some(expected) => expected,
            None => *self.expected.insert(self.stats.delivered + self.lost()),
        };
        if self.stats.delivered >= expected {
            self.drained_reported = true;
            let _ = self.shared.reports.send(Report::Drained);
        }
    }
}
