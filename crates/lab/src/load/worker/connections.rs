//! The connections of a thread: opened, read, opened again.

use std::{cmp::Reverse, net::SocketAddr};

use anyhow::Context;
use rustix::event::epoll;

use super::Worker;
use crate::load::{
    books::PROBE,
    dialect::Event,
    link::{Link, State},
    shared::Report,
};

/// Connections that are being opened at the same time by one thread. A listen queue holds 4,096.
pub(super) const OPENING_MAX: usize = 1024;
/// A connection that cannot be opened so many times in a row is given up.
const FAILURES_MAX: u32 = 5;
const AGAIN_NS: u64 = 100_000_000;

impl Worker<'_> {
    pub(super) fn connect_who_is_due(&mut self, now: u64) -> anyhow::Result<()> {
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
                Some(_) => self.wire.address(),
                None => self.wire.publish_address(),
            };
            if let Err(error) = link.connect(address, ordinal) {
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
        // Edges: else the kernel would look at each socket again after it was read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET | room;
        // Cannot fail for a socket that was added and is open.
        let _ = epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(key), flags);
    }

    /// Handles one event, and returns when that was: `before`, if it brought nothing.
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
        // What did not fill the buffer was all there is, but for an end, which brings no edge of its own if it has come already.
        loop {
            let Some((at, length)) = self.read(index, scratch) else { return now };
            now = at;
            if length < scratch.len() && !self.links[index].is_datagram && !flags.intersects(ended) {
                return now;
            }
        }
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

    /// Reads once, and returns when and how much; nothing if nothing was there, or the connection is no more.
    fn read(&mut self, index: usize, scratch: &mut [u8]) -> Option<(u64, usize)> {
        let link = &mut self.links[index];
        let received = link.receive(scratch);
        // After the call: it is the time at which all of this has arrived and was read.
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
        let (books, receiver) = (&mut self.books, *receiver);
        let (mut is_ready, mut is_closed, mut answered, mut turn_to) = (false, false, false, None);
        let mut hear = |event: Event<'_>| match event {
            Event::Message(payload) => books.message(receiver, payload, now),
            Event::Ready => is_ready = true,
            Event::Closed => is_closed = true,
            Event::Datagrams(to) => turn_to = Some(to),
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

    /// From now on this link is a socket for datagrams.
    fn turn(&mut self, index: usize, to: SocketAddr) -> std::io::Result<()> {
        let link = &mut self.links[index];
        link.turn(to)?;
        let key = u64::from(link.generation) << 32 | index as u64;
        let socket = link.socket.as_ref().expect("just opened");
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(key), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        Ok(())
    }

    /// The connection is no more. It is opened again, a little later each time.
    pub(super) fn broken(&mut self, index: usize, now: u64, why: String) {
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
