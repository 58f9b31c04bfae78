//! The connections of a thread: opens, reads and reopens them.

use std::{cmp::Reverse, net::SocketAddr};

use anyhow::Context;
use rustix::event::epoll;

use super::Worker;
use crate::load::{
    dialect::Event,
    link::{Link, State},
    shared::Report,
    thread_stats::PROBE,
};

/// Maximum number of connections that one thread opens at the same time. A listen queue holds 4,096.
pub(super) const OPENING_MAX: usize = 1024;
/// Maximum number of retries in a row before a connection is given up.
const FAILURES_MAX: u32 = 5;
const RECONNECT_DELAY_NS: u64 = 100_000_000;

impl Worker<'_> {
    pub(super) fn connect_due(&mut self, now: u64) -> anyhow::Result<()> {
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
            let address = match link.receiver {
                Some(_) => self.target.address(),
                None => self.target.publish_address(),
            };
            if let Err(error) = link.connect(address, self.target.source(address, ordinal)) {
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

    /// Handles an expired timer of a link: sends the next poll, or connects again.
    pub(super) fn wake(&mut self, index: usize, at: u64, now: u64) {
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

    pub(super) fn watch(&mut self, index: usize) {
        let link = &self.links[index];
        let Some(socket) = &link.socket else { return };
        let room = if link.awaits_room { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let key = u64::from(link.generation) << 32 | index as u64;
        // Edge-triggered: otherwise the kernel would check each socket again after it was read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET | room;
        // `modify` cannot fail for an open socket that was added to epoll.
        let _ = epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(key), flags);
    }

    /// Handles one event. Returns the time after the event, or `before` if it was ignored.
    pub(super) fn handle(&mut self, event: &epoll::Event, before: u64, scratch: &mut [u8]) -> u64 {
        let (index, generation) = (event.data.u64() as u32 as usize, (event.data.u64() >> 32) as u32);
        let link = &mut self.links[index];
        if link.generation != generation || link.state == State::Closed {
            return before;
        }
        if link.state == State::Connecting {
            return self.opened(index, self.now_ns());
        }
        let flags = event.flags;
        let mut now = before;
        if flags.contains(epoll::EventFlags::OUT) {
            now = self.now_ns();
            self.flush(index, now);
            self.speak(index, now);
        }
        let ended = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        if !flags.intersects(epoll::EventFlags::IN | ended) {
            return now;
        }
        // A read that does not fill the buffer has emptied a TCP socket. The exception is a close by the server: if
        // it has already arrived, it triggers no further edge, so reading goes on.
        loop {
            let Some((at, length)) = self.read(index, scratch) else { return now };
            now = at;
            if length < scratch.len() && !self.links[index].is_datagram && !flags.intersects(ended) {
                return now;
            }
        }
    }

    /// Handles the end of the connection attempt, successful or failed.
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
        self.stats.counts.connected += 1;
        self.stats.page.connect.record_ns(now.saturating_sub(link.due_ns));
        self.speak(index, now);
        self.arm(index);
    }

    /// Reads once and returns the time and the number of bytes. Returns `None` if no data was available or the
    /// connection is closed.
    fn read(&mut self, index: usize, scratch: &mut [u8]) -> Option<(u64, usize)> {
        let link = &mut self.links[index];
        let received = link.receive(scratch);
        // Take the time after the call: at this time all these bytes have arrived and were read.
        let now = self.shared.clock.now_ns();
        let length = match received {
            Ok(None) => return None,
            Ok(Some(0)) => {
                self.broken(index, now, "closed by the server".into());
                return None;
            }
            Ok(Some(length)) => length,
            Err(error) => {
                self.broken(index, now, error.to_string());
                return None;
            }
        };
        let Link { dialect, partial, out, receiver, .. } = link;
        let (stats, receiver) = (&mut self.stats, *receiver);
        let (mut is_ready, mut is_closed, mut answered, mut turn_to) = (false, false, false, None);
        let mut emit = |event: Event<'_>| match event {
            Event::Message(payload) => stats.message(receiver, payload, now),
            Event::Ready => is_ready = true,
            Event::Closed => is_closed = true,
            Event::Datagrams(to) => turn_to = Some(to),
            Event::Gap => stats.counts.gaps += 1,
            Event::Accepted => answered = true,
            Event::Refused => {
                stats.counts.refused += 1;
                answered = true;
            }
        };
        let fed = if partial.is_empty() {
            let fed = dialect.feed(&scratch[..length], now, out, &mut emit);
            if let Ok(used) = fed {
                partial.extend_from_slice(&scratch[used..length]);
            }
            fed
        } else {
            partial.extend_from_slice(&scratch[..length]);
            let fed = dialect.feed(partial, now, out, &mut emit);
            if let Ok(used) = fed {
                partial.drain(..used);
            }
            fed
        };
        if let Err(error) = fed {
            self.broken(index, now, format!("{error:#}"));
            return None;
        }
        if is_closed {
            self.broken(index, now, "ended by the server".into());
            return None;
        }
        if let Some(to) = turn_to
            && let Err(error) = self.turn(index, to)
        {
            self.broken(index, now, format!("{to}: {error}"));
            return None;
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
        Some((now, length))
    }

    /// Replaces the socket of this link with a UDP socket.
    fn turn(&mut self, index: usize, to: SocketAddr) -> std::io::Result<()> {
        let link = &mut self.links[index];
        link.turn(to)?;
        let key = u64::from(link.generation) << 32 | index as u64;
        let socket = link.socket.as_ref().expect("just opened");
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(key), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        Ok(())
    }

    /// Handles a broken connection: closes it and schedules a retry. The delay grows with each failure in a row.
    pub(super) fn broken(&mut self, index: usize, now: u64, why: String) {
        let link = &mut self.links[index];
        match link.state {
            State::Closed => return,
            State::Live => self.live -= 1,
            State::Connecting | State::Opening => self.opening -= 1,
        }
        link.close();
        link.failures += 1;
        self.stats.counts.broken += 1;
        if link.failures <= FAILURES_MAX {
            link.armed_ns = now + RECONNECT_DELAY_NS * u64::from(link.failures);
            self.timers.push(Reverse((link.armed_ns, index as u32)));
        }
        if !self.trouble_reported {
            self.trouble_reported = true;
            let _ = self.shared.reports.send(Report::Trouble(why));
        }
    }

    /// Disconnects all subscribers and lets them reconnect at once.
    pub(super) fn storm(&mut self, now: u64) {
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
}
