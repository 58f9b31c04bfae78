//! One thread of the generator: its connections, one epoll, and whatever is due next.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    iter::Peekable,
    os::fd::OwnedFd,
    sync::{
        atomic::{AtomicU32, AtomicU64, Ordering::*},
        mpsc::Sender,
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::{
    books::{Books, PROBE, Page},
    dialect::{Event, Wire},
    ledger::Ledger,
    link::{Link, State},
    plan::{Plan, Rate, Shape},
    schedule::Schedule,
};
use crate::{histogram::Histogram, recording::Counts};

/// Connections that are being opened at the same time by one thread. A listen queue holds 4,096.
const OPENING_MAX: usize = 1024;
/// A connection that cannot be opened so many times in a row is given up.
const FAILURES_MAX: u32 = 5;
const AGAIN_NS: u64 = 100_000_000;
/// Bytes of publications that wait for one socket before the next one waits to be spoken.
const OUT_BYTES_MAX: usize = 256 * 1024;
/// Events that are handled before the clock is asked what is due: publications are not late because many receive.
const EVENTS_PER_LOOK: usize = 8;
const NAP: Duration = Duration::from_millis(5);
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const READ_BYTES: usize = 256 * 1024;

/// What the run is at, as everybody sees it.
pub struct Shared {
    pub clock: Clock,
    pub stage: AtomicU32,
    /// When the test begins; valid from [`Stage::Test`].
    pub test_at_ns: AtomicU64,
    pub ledger: Ledger,
    /// Per stream, publications that were sent.
    pub published: Vec<AtomicU32>,
    /// Threads whose publishers have sent all they will.
    pub published_all: AtomicU32,
    pub reports: Sender<Report>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Stage {
    Connect,
    Idle,
    Test,
    After,
    Stop,
}

impl Stage {
    pub const ALL: [Stage; 5] = [Stage::Connect, Stage::Idle, Stage::Test, Stage::After, Stage::Stop];
}

#[derive(Clone, Copy)]
pub struct Clock(pub Instant);

impl Clock {
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

pub enum Report {
    /// A thread with this id is at work.
    Begun(u32),
    /// All connections of a thread are ready.
    Connected,
    /// Everything that was published has arrived at a thread.
    Drained,
    Second(u64, Counts, Histogram),
    /// A stage is over for a thread.
    Page(Stage, Box<Page>),
    /// The first thing that went wrong with a connection of a thread.
    Trouble(String),
    /// A thread cannot go on.
    Failed(anyhow::Error),
}

/// A link, and which connection of the whole generator it is.
pub struct Assigned {
    pub link: Link,
    pub ordinal: usize,
}

pub struct Worker<'a> {
    plan: &'a Plan,
    wire: &'a dyn Wire,
    shared: &'a Shared,
    threads: u64,
    index: u64,
    epoll: OwnedFd,
    links: Vec<Link>,
    ordinals: Vec<usize>,
    /// Of local stream `i` (`stream / threads`), its link.
    publishers: Vec<u32>,
    probe: Option<u32>,
    books: Books<'a>,
    schedule: Peekable<Schedule>,
    to_connect: VecDeque<u32>,
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    stage: Stage,
    second: u64,
    opening: usize,
    live: usize,
    probe_from_ns: u64,
    storm_is_over: bool,
    connected_told: bool,
    published_told: bool,
    /// Deliveries that make it complete, once all is published.
    expected: Option<u64>,
    drained_told: bool,
    trouble_told: bool,
    /// Closed loop: publications that are not waited for any more, and when something last arrived.
    written_off: u64,
    moved: (u64, u64),
    closed_sent: u64,
    payload: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub fn new(
        plan: &'a Plan,
        wire: &'a dyn Wire,
        shared: &'a Shared,
        index: usize,
        assigned: Vec<Assigned>,
    ) -> anyhow::Result<Self> {
        let (mut links, mut ordinals, mut publishers, mut probe) = (Vec::new(), Vec::new(), Vec::new(), None);
        let mut tallies = 0;
        for (i, Assigned { mut link, ordinal }) in assigned.into_iter().enumerate() {
            match &link.publisher {
                Some(publisher) if publisher.stream == PROBE => probe = Some(i as u32),
                Some(_) => publishers.push(i as u32),
                None => {}
            }
            if let Some(receiver) = link.receiver.as_mut().filter(|receiver| receiver.first_stream != PROBE) {
                receiver.tallies_at = tallies;
                tallies += receiver.streams as usize;
            }
            link.due_ns = (ordinal as f64 * 1e9 / plan.ramp_per_s) as u64;
            links.push(link);
            ordinals.push(ordinal);
        }
        publishers.sort_by_key(|i| links[*i as usize].publisher.map(|publisher| publisher.stream));
        Ok(Self {
            plan,
            wire,
            shared,
            threads: plan.threads as u64,
            index: index as u64,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            to_connect: (0..links.len() as u32).collect(),
            links,
            ordinals,
            publishers,
            probe,
            books: Books::new(&shared.ledger, plan.bytes, tallies),
            schedule: plan.schedule().peekable(),
            timers: BinaryHeap::new(),
            stage: Stage::Connect,
            second: 0,
            opening: 0,
            live: 0,
            probe_from_ns: 0,
            storm_is_over: plan.shape != Shape::Storm,
            connected_told: false,
            published_told: false,
            expected: None,
            drained_told: false,
            trouble_told: false,
            written_off: 0,
            moved: (0, 0),
            closed_sent: 0,
            payload: Vec::new(),
        })
    }

    /// Until [`Stage::Stop`].
    pub fn run(mut self) -> anyhow::Result<()> {
        let mut scratch = vec![0; READ_BYTES];
        let mut events = Vec::with_capacity(1024);
        while self.stage < Stage::Stop {
            let now = self.now_ns();
            self.follow(now);
            self.do_what_is_due(now)?;
            self.tell();
            let wait = self.next_due_ns().saturating_sub(self.now_ns()).min(NAP.as_nanos() as u64);
            self.await_events(wait, &mut events)?;
            if events.is_empty() {
                continue;
            }
            let woken = self.now_ns();
            let mut now = woken;
            for (n, event) in events.iter().enumerate() {
                now = self.handle(event, &mut scratch);
                if n % EVENTS_PER_LOOK == EVENTS_PER_LOOK - 1 {
                    self.do_what_is_due(now)?;
                }
            }
            self.books.page.lag.record_ns(now - woken);
        }
        Ok(())
    }

    /// What has happened, or nothing after so long. `epoll_wait` counts in milliseconds, which would make publications late by one;
    /// `ppoll` counts in nanoseconds, and is only asked if there is nothing to do.
    fn await_events(&self, wait_ns: u64, events: &mut Vec<epoll::Event>) -> anyhow::Result<()> {
        for wait_ns in [0, wait_ns] {
            if wait_ns > 0 {
                let wait = Timespec { tv_sec: 0, tv_nsec: wait_ns as _ };
                match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&wait)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&NOW)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if !events.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        self.shared.clock.now_ns()
    }

    /// Closes the books of a second and of a stage that are over.
    fn follow(&mut self, now: u64) {
        let stage = Stage::ALL[self.shared.stage.load(Acquire) as usize];
        let second = now / 1_000_000_000;
        if stage == self.stage && second == self.second {
            return;
        }
        let (counts, latency) = self.books.turn_second();
        let _ = self.shared.reports.send(Report::Second(self.second, counts, latency));
        self.second = second;
        if stage == self.stage {
            return;
        }
        // Several at once, if they are short.
        while self.stage < stage {
            if self.stage == Stage::Test {
                self.books.page.counts.lost = self.lost();
            }
            let page = Box::new(std::mem::take(&mut self.books.page));
            let _ = self.shared.reports.send(Report::Page(self.stage, page));
            self.stage = Stage::ALL[self.stage as usize + 1];
            if self.stage == Stage::Idle {
                self.probe_from_ns = now;
            }
        }
    }

    fn lost(&self) -> u64 {
        let published = |stream: u32| self.shared.published[stream as usize].load(Relaxed);
        let of = |receiver: &super::books::Receiver| -> u64 {
            let tallies = &self.books.tallies[receiver.tallies_at..][..receiver.streams as usize];
            (receiver.first_stream..).zip(tallies).map(|(stream, tally)| tally.lost(published(stream))).sum()
        };
        let receivers = self.links.iter().filter_map(|link| link.receiver.as_ref());
        receivers.filter(|receiver| receiver.first_stream != PROBE).map(of).sum()
    }

    fn do_what_is_due(&mut self, now: u64) -> anyhow::Result<()> {
        if !self.to_connect.is_empty() {
            self.connect_who_is_due(now)?;
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
            self.publish_what_is_due(now);
        }
        Ok(())
    }

    fn next_due_ns(&mut self) -> u64 {
        let mut next = self.timers.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        if let Some(index) = self.to_connect.front().filter(|_| self.opening < OPENING_MAX) {
            next = next.min(self.links[*index as usize].due_ns);
        }
        if self.stage == Stage::Test
            && let Some((_, at)) = self.schedule.peek()
        {
            next = next.min(self.shared.test_at_ns.load(Relaxed) + at);
        }
        next
    }

    fn connect_who_is_due(&mut self, now: u64) -> anyhow::Result<()> {
        while let Some(index) = self.to_connect.front().copied() {
            let link = &mut self.links[index as usize];
            if link.due_ns > now || self.opening >= OPENING_MAX {
                break;
            }
            self.to_connect.pop_front();
            if link.state != State::Closed {
                continue;
            }
            self.opening += 1;
            let ordinal = self.ordinals[index as usize];
            if let Err(error) = link.connect(self.wire.address(), ordinal) {
                link.state = State::Connecting;
                self.broken(index as usize, now, format!("connection {ordinal}: {error}"));
                continue;
            }
            let key = u64::from(link.generation) << 32 | u64::from(index);
            let socket = link.socket.as_ref().expect("just connected");
            let flags = epoll::EventFlags::OUT | epoll::EventFlags::IN;
            epoll::add(&self.epoll, socket, epoll::EventData::new_u64(key), flags).context("epoll")?;
        }
        Ok(())
    }

    /// A timer has come: the next poll, or the next attempt to connect.
    fn wake(&mut self, index: usize, at: u64, now: u64) {
        let link = &mut self.links[index];
        if link.armed_ns != at {
            return;
        }
        link.armed_ns = u64::MAX;
        if link.state == State::Closed {
            link.due_ns = now;
            self.to_connect.push_front(index as u32);
        } else if link.dialect.wake_at_ns().is_some_and(|at| at <= now) {
            link.dialect.wake(now, &mut link.out);
            self.flush(index, now);
        }
        self.arm(index);
    }

    fn arm(&mut self, index: usize) {
        let link = &mut self.links[index];
        if let Some(at) = link.dialect.wake_at_ns().filter(|at| link.state != State::Closed && *at < link.armed_ns) {
            link.armed_ns = at;
            self.timers.push(Reverse((at, index as u32)));
        }
    }

    fn publish_what_is_due(&mut self, now: u64) {
        let start = self.shared.test_at_ns.load(Relaxed);
        if !self.storm_is_over && now >= start + self.plan.test.as_nanos() as u64 / 2 {
            self.storm(now);
        }
        if let Rate::Closed { in_flight } = self.plan.rate {
            return self.publish_more(in_flight, start, now);
        }
        let streams = self.plan.streams() as u64;
        while let Some((k, at)) = self.schedule.peek().copied().filter(|(_, at)| start + at <= now) {
            self.schedule.next();
            let stream = k % streams;
            if stream % self.threads == self.index {
                self.books.page.lateness.record_ns(now - (start + at));
                self.publish(stream, start + at, now);
            }
        }
    }

    /// Closed loop: keeps so many under way. What has not arrived after all patience is written off.
    fn publish_more(&mut self, in_flight: u64, start: u64, now: u64) {
        if self.index != 0 || now < start || now >= start + self.plan.test.as_nanos() as u64 {
            return;
        }
        let complete = self.shared.ledger.complete();
        if complete != self.moved.0 {
            self.moved = (complete, now);
        } else if now.saturating_sub(self.moved.1.max(start)) > self.plan.patience.as_nanos() as u64 / 4 {
            self.written_off = self.closed_sent.saturating_sub(complete);
            self.moved.1 = now;
        }
        let mine = self.publishers.len() as u64;
        while mine > 0 && self.closed_sent < complete + self.written_off + in_flight {
            let stream = self.closed_sent % mine * self.threads;
            self.closed_sent += 1;
            self.publish(stream, now, now);
        }
    }

    /// One more publication of this stream is due.
    fn publish(&mut self, stream: u64, due: u64, now: u64) {
        let index = self.publishers[(stream / self.threads) as usize] as usize;
        let publisher = self.links[index].publisher.as_mut().expect("a publisher publishes");
        self.books.counts.scheduled += 1;
        // So far behind that nobody will remember: the difference of `scheduled` and `sent` tells.
        if publisher.scheduled - publisher.sent >= self.shared.ledger.backlog_max() {
            return;
        }
        self.shared.ledger.begin(publisher.stream, publisher.scheduled, due);
        publisher.scheduled += 1;
        self.speak(index, now);
    }

    /// Says what is due and may be said.
    fn speak(&mut self, index: usize, now: u64) {
        let link = &mut self.links[index];
        let Some(publisher) = &mut link.publisher else { return };
        while publisher.spoken < publisher.scheduled
            && link.state == State::Live
            && link.out.len() < OUT_BYTES_MAX
            && link.dialect.can_publish()
        {
            let due_ns = match publisher.stream {
                PROBE => self.probe_from_ns + u64::from(publisher.spoken) * self.plan.probe.as_nanos() as u64,
                stream => self.shared.ledger.due_ns(stream, publisher.spoken),
            };
            let sequence = u64::from(publisher.spoken);
            self.payload.clear();
            super::payload::Stamp { stream: publisher.stream, sequence, due_ns }
                .write(self.plan.bytes, &mut self.payload);
            link.dialect.publish(&self.payload, &mut link.out);
            publisher.spoken += 1;
        }
        self.flush(index, now);
    }

    fn flush(&mut self, index: usize, now: u64) {
        let link = &mut self.links[index];
        if let Some(publisher) = link.publisher.filter(|publisher| publisher.stream != PROBE) {
            // Before the call: another thread may receive it before it returns.
            (publisher.sent..publisher.spoken)
                .for_each(|sequence| self.shared.ledger.sent(publisher.stream, sequence, now));
        }
        let is_done = match link.flush() {
            Ok(is_done) => is_done,
            Err(error) => return self.broken(index, now, error.to_string()),
        };
        if is_done && let Some(publisher) = &mut link.publisher {
            if publisher.stream != PROBE && publisher.sent != publisher.spoken {
                self.books.counts.sent += u64::from(publisher.spoken - publisher.sent);
                self.shared.published[publisher.stream as usize].store(publisher.spoken, Relaxed);
            }
            publisher.sent = publisher.spoken;
        }
        if link.awaits_room == is_done {
            link.awaits_room = !is_done;
            self.watch(index);
        }
    }

    fn watch(&mut self, index: usize) {
        let link = &self.links[index];
        let Some(socket) = &link.socket else { return };
        let room = if link.awaits_room { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let key = u64::from(link.generation) << 32 | index as u64;
        // Cannot fail for a socket that was added and is open.
        let _ = epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(key), epoll::EventFlags::IN | room);
    }

    /// Handles one event and returns when that was.
    fn handle(&mut self, event: &epoll::Event, scratch: &mut [u8]) -> u64 {
        let now = self.now_ns();
        let (index, generation) = (event.data.u64() as u32 as usize, (event.data.u64() >> 32) as u32);
        let link = &mut self.links[index];
        if link.generation != generation || link.state == State::Closed {
            return now;
        }
        if link.state == State::Connecting {
            return self.opened(index, now);
        }
        let flags = event.flags;
        if flags.contains(epoll::EventFlags::OUT) {
            self.flush(index, now);
            self.speak(index, now);
        }
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            self.read(index, scratch);
        }
        now
    }

    /// The kernel has connected, or not.
    fn opened(&mut self, index: usize, now: u64) -> u64 {
        let link = &mut self.links[index];
        let error = link.socket.as_ref().and_then(|socket| socket.take_error().transpose());
        if let Some(error) = error {
            let error = error.unwrap_or_else(|error| error);
            self.broken(index, now, error.to_string());
            return now;
        }
        link.state = State::Opening;
        let is_ready = link.dialect.open(&mut link.out);
        link.awaits_room = false;
        self.watch(index);
        self.flush(index, now);
        if is_ready {
            self.ready(index, now);
        }
        now
    }

    fn ready(&mut self, index: usize, now: u64) {
        let link = &mut self.links[index];
        if link.state != State::Opening {
            return;
        }
        link.state = State::Live;
        link.failures = 0;
        self.opening -= 1;
        self.live += 1;
        self.books.counts.connected += 1;
        self.books.page.connect.record_ns(now.saturating_sub(link.due_ns));
        self.speak(index, now);
        self.arm(index);
    }

    fn read(&mut self, index: usize, scratch: &mut [u8]) {
        let link = &mut self.links[index];
        let length = match link.receive(scratch) {
            Ok(Some(length)) => length,
            Ok(None) => return,
            Err(error) => {
                let now = self.shared.clock.now_ns();
                return self.broken(index, now, error.to_string());
            }
        };
        // After the call: it is the time at which all of this has arrived and was read.
        let now = self.shared.clock.now_ns();
        if length == 0 {
            return self.broken(index, now, "closed by the server".into());
        }
        let Link { dialect, partial, out, receiver, .. } = link;
        let (books, receiver) = (&mut self.books, *receiver);
        let (mut is_ready, mut is_closed, mut answered) = (false, false, false);
        let mut hear = |event: Event<'_>| match event {
            Event::Message(payload) => books.message(receiver, payload, now),
            Event::Ready => is_ready = true,
            Event::Closed => is_closed = true,
            Event::Gap => books.counts.gaps += 1,
            Event::Accepted => answered = true,
            Event::Refused => {
                books.counts.refused += 1;
                answered = true;
            }
        };
        let fed = if partial.is_empty() {
            let fed = dialect.feed(&scratch[..length], now, out, &mut hear);
            if let Ok(used) = fed {
                partial.extend_from_slice(&scratch[used..length]);
            }
            fed
        } else {
            partial.extend_from_slice(&scratch[..length]);
            let fed = dialect.feed(partial, now, out, &mut hear);
            if let Ok(used) = fed {
                partial.drain(..used);
            }
            fed
        };
        if let Err(error) = fed {
            return self.broken(index, now, format!("{error:#}"));
        }
        if is_closed {
            return self.broken(index, now, "ended by the server".into());
        }
        if !self.links[index].out.is_empty() {
            self.flush(index, now);
        }
        if is_ready {
            self.ready(index, now);
        }
        if answered {
            self.speak(index, now);
        }
        self.arm(index);
    }

    /// The connection is no more. It is opened again, a little later each time.
    fn broken(&mut self, index: usize, now: u64, why: String) {
        let link = &mut self.links[index];
        match link.state {
            State::Closed => return,
            State::Live => self.live -= 1,
            State::Connecting | State::Opening => self.opening -= 1,
        }
        link.close();
        link.failures += 1;
        self.books.counts.broken += 1;
        if link.failures <= FAILURES_MAX {
            link.armed_ns = now + AGAIN_NS * u64::from(link.failures);
            self.timers.push(Reverse((link.armed_ns, index as u32)));
        }
        if !self.trouble_told {
            self.trouble_told = true;
            let _ = self.shared.reports.send(Report::Trouble(why));
        }
    }

    /// Everybody who receives is cut off and comes back at once.
    fn storm(&mut self, now: u64) {
        self.storm_is_over = true;
        for index in 0..self.links.len() {
            let link = &mut self.links[index];
            if link.publisher.is_some() || link.receiver.is_none_or(|receiver| receiver.first_stream == PROBE) {
                continue;
            }
            match link.state {
                State::Live => self.live -= 1,
                State::Connecting | State::Opening => self.opening -= 1,
                State::Closed => {}
            }
            link.close();
            link.due_ns = now;
            self.to_connect.push_back(index as u32);
        }
    }

    /// Tells what has been reached, once each.
    fn tell(&mut self) {
        if !self.connected_told && self.live == self.links.len() {
            self.connected_told = true;
            let _ = self.shared.reports.send(Report::Connected);
        }
        if self.stage != Stage::Test || self.drained_told {
            return;
        }
        let now = self.now_ns();
        let end = self.shared.test_at_ns.load(Relaxed) + self.plan.test.as_nanos() as u64;
        if now < end {
            return;
        }
        if !self.published_told {
            let links = self.publishers.iter().filter_map(|index| self.links[*index as usize].publisher);
            if !links.into_iter().all(|publisher| publisher.sent == publisher.scheduled) {
                return;
            }
            self.published_told = true;
            self.shared.published_all.fetch_add(1, AcqRel);
        }
        if u64::from(self.shared.published_all.load(Acquire)) != self.threads {
            return;
        }
        let expected = match self.expected {
            Some(expected) => expected,
            None => *self.expected.insert(self.books.delivered + self.lost()),
        };
        if self.books.delivered >= expected {
            self.drained_told = true;
            let _ = self.shared.reports.send(Report::Drained);
        }
    }
}
