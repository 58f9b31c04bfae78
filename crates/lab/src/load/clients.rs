//! Clients of a server in one thread, each with one connection that publishes and subscribes.

use std::{
    mem,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, poll};

use super::{
    dialect::{Event, LoadTarget, Role},
    link::{Link, State},
};

/// Maximum duration of [`ClientGroup::serve`], so that the caller can stop.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const READ_BYTES: usize = 64 * 1024;

/// Clients of one channel. Dropping the group closes their connections.
pub struct ClientGroup {
    links: Vec<Link>,
    /// Zero of the clock that the dialects use.
    began: Instant,
    buffer: Vec<u8>,
}

impl ClientGroup {
    /// Starts to connect this number of clients. `target` must be duplex.
    ///
    /// Errors: a socket cannot be opened.
    pub fn connect(target: &dyn LoadTarget, channel: &str, clients: usize) -> anyhow::Result<Self> {
        let (began, address) = (Instant::now(), target.address());
        let open = |number| {
            let mut link = Link::new(target.dialect(Role::Both, channel), None, None);
            link.connect(address, target.source(address, number))?;
            Ok(link)
        };
        let links = (0..clients).map(open).collect::<anyhow::Result<_>>()?;
        Ok(Self { links, began, buffer: vec![0; READ_BYTES] })
    }

    /// Returns true once all clients are subscribed.
    pub fn is_ready(&self) -> bool {
        self.links.iter().all(|link| link.state == State::Live)
    }

    /// Publishes a payload from client `index`.
    ///
    /// Errors: the connection broke.
    pub fn publish(&mut self, index: usize, payload: &[u8]) -> anyhow::Result<()> {
        let link = &mut self.links[index];
        link.dialect.publish(payload, &mut link.out);
        link.flush()?;
        Ok(())
    }

    /// Handles received data until the given time, or a little less. Calls `take` with the index of the receiving
    /// client, the time and the payload.
    ///
    /// Errors: a connection broke, the server refused a publication or lost messages, or `take` returns an error.
    pub fn serve(
        &mut self,
        until: Instant,
        mut take: impl FnMut(usize, Instant, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut next = until.min(Instant::now() + LOOK_EVERY);
        for link in &mut self.links {
            let now_ns = self.began.elapsed().as_nanos() as u64;
            if link.dialect.wake_at_ns().is_some_and(|at| at <= now_ns) {
                link.dialect.wake(now_ns, &mut link.out);
                link.flush()?;
            }
            if let Some(at) = link.dialect.wake_at_ns() {
                next = next.min(self.began + Duration::from_nanos(at));
            }
        }
        for index in self.wait(next)? {
            self.handle(index, &mut take).with_context(|| format!("client {index}"))?;
        }
        Ok(())
    }

    /// Waits for sockets with data or room, and returns their indices.
    fn wait(&self, until: Instant) -> anyhow::Result<Vec<usize>> {
        let fds = self.links.iter().map(|link| {
            let socket = link.socket.as_ref().expect("an error ends the group before its socket is closed");
            let wants_room = link.state == State::Connecting || !link.out.is_empty();
            PollFd::new(socket, if wants_room { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN })
        });
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        let wait = until.saturating_duration_since(Instant::now()).try_into().context("a short time")?;
        match poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(fds.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty()).map(|(index, _)| index).collect())
    }

    fn handle(
        &mut self,
        index: usize,
        take: &mut impl FnMut(usize, Instant, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Self { links, began, buffer } = self;
        let link = &mut links[index];
        if link.state == State::Connecting {
            let error = link.socket.as_ref().and_then(|socket| socket.take_error().transpose());
            error.map_or(Ok(()), |error| Err(error.unwrap_or_else(|error| error)))?;
            link.state = State::Opening;
            if link.dialect.open(&mut link.out) {
                link.state = State::Live;
            }
        }
        link.flush()?;
        while let Some(length) = link.receive(buffer)? {
            let now = Instant::now();
            if length == 0 {
                bail!("the server closed the connection");
            }
            let (mut turn_to, mut is_ready, mut result) = (None, false, Ok(()));
            let mut emit = |event: Event<'_>| match event {
                Event::Ready => is_ready = true,
                Event::Datagrams(to) => turn_to = Some(to),
                Event::Accepted => {}
                Event::Message(payload) if result.is_ok() => result = take(index, now, payload),
                Event::Message(_) => {}
                Event::Refused => result = Err(anyhow::anyhow!("the server refused a publication")),
                Event::Gap => result = Err(anyhow::anyhow!("the server reported a gap")),
                Event::Closed => result = Err(anyhow::anyhow!("the server ended the connection")),
            };
            let mut received = mem::take(&mut link.partial);
            received.extend_from_slice(&buffer[..length]);
            let now_ns = now.saturating_duration_since(*began).as_nanos() as u64;
            let used = link.dialect.feed(&received, now_ns, &mut link.out, &mut emit)?;
            received.drain(..used);
            link.partial = received;
            result?;
            if let Some(to) = turn_to {
                link.turn(to)?;
            }
            if is_ready {
                link.state = State::Live;
            }
            link.flush()?;
        }
        Ok(())
    }
}
