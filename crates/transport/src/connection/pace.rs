//! Limits of one connection: a client that sends too fast is not read for a while; a connection that uses too much
//! memory is closed.

use std::{rc::Rc, time::Duration};

use millrace_delivery::ConnId;
use millrace_node::Metrics;
use millrace_protocol::{
    Error,
    websocket::{self, CloseFrame},
};
use tokio::time::Instant;

use super::event_loop::{EventLoop, OUT_BYTES_MAX};
use crate::admission::{Admission, Congestion, Publisher, hooks::HookClient, limits::Direction};

/// Publisher on a connection of the event loop. `REFUSES`: its protocol has errors, so a publication above the quota is
/// refused; otherwise the connection is not read for a while.
pub(crate) struct ConnectionPublisher<'a, const REFUSES: bool> {
    pub event_loop: &'a Rc<EventLoop>,
    pub id: ConnId,
}

/// Publisher with a session, over a WebSocket or a data channel.
pub(crate) type SessionPublisher<'a> = ConnectionPublisher<'a, true>;

/// Publisher with a bare WebSocket, or with MQTT.
pub(crate) type BarePublisher<'a> = ConnectionPublisher<'a, false>;

impl<const REFUSES: bool> Publisher for ConnectionPublisher<'_, REFUSES> {
    fn take_quota(&self, bytes: usize) -> Result<(), Error> {
        match REFUSES {
            true => self.event_loop.check_publish(self.id, bytes),
            false => self.event_loop.owe(self.id, bytes),
        }
    }

    fn meet_congestion(&self) -> Congestion {
        self.event_loop.slow_down(self.id);
        Congestion::SlowDown
    }

    fn admission(&self) -> Option<&Admission> {
        Some(self.event_loop.admission())
    }

    fn client(&self) -> HookClient {
        self.event_loop.client(self.id)
    }
}

impl EventLoop {
    /// Sends the pongs for all pings of one read with one write, so that thousands of pings stay cheap.
    pub(crate) fn send_pongs(self: &Rc<Self>, id: ConnId) {
        let mut pongs = self.pongs.borrow_mut();
        if !pongs.is_empty() {
            self.shard().with(|hub, sockets| hub.send(id, &pongs, sockets));
            pongs.clear();
            drop(pongs);
            self.update_pending_bytes(id, Direction::Out);
        }
    }

    /// Counts the bytes queued for this client ([`Direction::Out`]), or the incomplete input from it
    /// ([`Direction::In`]). Closes the connection if the node has no room for them. Stops reading from a client that
    /// does not read its replies.
    pub(crate) fn update_pending_bytes(self: &Rc<Self>, id: ConnId, way: Direction) {
        let weighed = self.shard().with(|hub, sockets| {
            let bytes = match way {
                Direction::In => sockets.incoming_bytes(id),
                Direction::Out => hub.out_bytes(id),
            };
            let quotas = match bytes > OUT_BYTES_MAX || matches!(way, Direction::In) {
                true => sockets.quotas(id),
                false => sockets.quotas(id).filter(|quotas| quotas.counts(way)),
            };
            (bytes, quotas.map_or(Ok(()), |quotas| quotas.set_pending(way, bytes)))
        });
        match weighed {
            (_, Err(error)) => {
                self.close(id, CloseFrame { code: websocket::CLOSE_TRY_LATER, reason: error.code.name() })
            }
            (OUT_BYTES_MAX.., Ok(())) if matches!(way, Direction::Out) => self.watch(id),
            _ => {}
        }
    }

    fn check_publish(&self, id: ConnId, bytes: usize) -> Result<(), Error> {
        let limits = &self.admission().limits;
        if !limits.counts_incoming() {
            return limits.check_publish(None, None, bytes);
        }
        let mut sockets = self.shard().sockets();
        let subject = sockets.grants.get(id).and_then(|caller| caller.grant.subject.clone());
        sockets.quotas(id).map_or(Ok(()), |quotas| quotas.check_publish(subject.as_ref(), bytes))
    }

    fn owe(self: &Rc<Self>, id: ConnId, bytes: usize) -> Result<(), Error> {
        let limits = &self.admission().limits;
        limits.check_publish(None, None, bytes)?;
        if !limits.counts_incoming() {
            return Ok(());
        }
        let mut sockets = self.shard().sockets();
        let subject = sockets.grants.get(id).and_then(|caller| caller.grant.subject.clone());
        let wait = sockets.quotas(id).map_or(Duration::ZERO, |quotas| quotas.owe_publish(subject.as_ref(), bytes));
        drop(sockets);
        self.pause(id, wait);
        Ok(())
    }

    /// Counts messages that have been read. If the client sends too fast, the connection is not read for a while.
    pub(crate) fn pace(self: &Rc<Self>, id: ConnId, messages: u64) {
        Metrics::add(&self.shard().socket_metrics.messages, messages);
        if messages > 0 && self.admission().limits.counts_incoming() {
            let mut sockets = self.shard().sockets();
            let wait = sockets.quotas(id).map_or(Duration::ZERO, |quotas| quotas.owe_messages(messages));
            drop(sockets);
            self.pause(id, wait);
        }
    }

    /// Stops reading from this connection for `wait`, but at most for half the grace period, so that its pongs are
    /// still read in time.
    fn pause(self: &Rc<Self>, id: ConnId, wait: Duration) {
        if wait.is_zero() {
            return;
        }
        let until = Instant::now() + wait.min(self.admission().config().grace / 2);
        if let Some(end) = self.slowed.borrow_mut().get_mut(&id) {
            *end = until.max(*end);
            return;
        }
        self.slowed.borrow_mut().insert(id, until);
        self.watch(id);
        let this = self.clone();
        tokio::task::spawn_local(async move {
            // Other messages of the same read may extend the pause.
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
