//! What one WebSocket may take: of time, by not being read, and of memory, by being closed.

use std::{rc::Rc, time::Duration};

use millrace_delivery::ConnId;
use millrace_protocol::{
    Error,
    websocket::{self, Broken},
};
use tokio::time::Instant;

use super::event_loop::{EventLoop, OUT_BYTES_MAX};
use crate::limits::Way;

impl EventLoop {
    /// Answers the pings of one read at once, not each by itself: whoever sends thousands costs one write.
    pub(super) fn send_pongs(self: &Rc<Self>, id: ConnId) {
        let mut pongs = self.pongs.borrow_mut();
        if !pongs.is_empty() {
            self.shard().with(|hub, sockets| hub.send(id, &pongs, sockets));
            pongs.clear();
            drop(pongs);
            self.weigh(id, Way::Out);
        }
    }

    /// Counts what waits for this client, or for the rest of what it sends; if that is too much for the node, the connection ends. Whoever
    /// does not take its replies is not read from.
    pub(crate) fn weigh(self: &Rc<Self>, id: ConnId, way: Way) {
        let weighed = self.shard().with(|hub, sockets| {
            let bytes = match way {
                Way::In => sockets.incoming_bytes(id),
                Way::Out => hub.out_bytes(id),
            };
            let member = match bytes > OUT_BYTES_MAX || matches!(way, Way::In) {
                true => sockets.member(id),
                false => sockets.member(id).filter(|member| member.counts(way)),
            };
            (bytes, member.map_or(Ok(()), |member| member.set_pending(way, bytes)))
        });
        match weighed {
            (_, Err(error)) => self.close(id, Broken { code: websocket::CLOSE_TRY_LATER, reason: error.code.name() }),
            (OUT_BYTES_MAX.., Ok(())) if matches!(way, Way::Out) => self.watch(id),
            _ => {}
        }
    }

    /// May this connection publish so much now?
    ///
    /// Errors: `rate_limited`, `unavailable`.
    pub(crate) fn check_publish(&self, id: ConnId, bytes: usize) -> Result<(), Error> {
        let limits = &self.context().limits;
        if !limits.counts_incoming() {
            return limits.check_publish(None, None, bytes);
        }
        let mut sockets = self.shard().sockets();
        let subject = sockets.grants.get(id).and_then(|caller| caller.grant.subject.clone());
        sockets.member(id).map_or(Ok(()), |member| member.check_publish(subject.as_ref(), bytes))
    }

    /// A publication has come that nobody can be told of: if it comes too fast, the next ones are read later.
    ///
    /// Errors: `unavailable`: it cannot be taken at all.
    pub(super) fn owe(self: &Rc<Self>, id: ConnId, bytes: usize) -> Result<(), Error> {
        let limits = &self.context().limits;
        limits.check_publish(None, None, bytes)?;
        if !limits.counts_incoming() {
            return Ok(());
        }
        let mut sockets = self.shard().sockets();
        let subject = sockets.grants.get(id).and_then(|caller| caller.grant.subject.clone());
        let wait = sockets.member(id).map_or(Duration::ZERO, |member| member.owe_publish(subject.as_ref(), bytes));
        drop(sockets);
        self.pause(id, wait);
        Ok(())
    }

    /// So many messages have been read.
    pub(crate) fn pace(self: &Rc<Self>, id: ConnId, messages: u64) {
        if messages > 0 && self.context().limits.counts_incoming() {
            let mut sockets = self.shard().sockets();
            let wait = sockets.member(id).map_or(Duration::ZERO, |member| member.owe_messages(messages));
            drop(sockets);
            self.pause(id, wait);
        }
    }

    /// Does not read from this connection for so long, but no longer than it may owe a pong.
    fn pause(self: &Rc<Self>, id: ConnId, wait: Duration) {
        if wait.is_zero() {
            return;
        }
        let until = Instant::now() + wait.min(self.context().config().grace / 2);
        if let Some(end) = self.slowed.borrow_mut().get_mut(&id) {
            *end = until.max(*end);
            return;
        }
        self.slowed.borrow_mut().insert(id, until);
        self.watch(id);
        let this = self.clone();
        tokio::task::spawn_local(async move {
            // What was read with the first that came too fast makes it longer.
            loop {
                let end = this.slowed.borrow().get(&id).copied();
                match end.filter(|end| *end > Instant::now()) {
                    Some(end) => tokio::time::sleep_until(end).await,
                    None => break,
                }
            }
            this.slowed.borrow_mut().remove(&id);
            this.watch(id);
        });
    }
}
