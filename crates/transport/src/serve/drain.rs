//! Draining: moves all readers of a shard to other servers. Each reader gets its own time to reconnect.
//!
//! ```text
//!   notified                   its time         + RECONNECT_GRACE
//!   ────┬─────────────────────┬───────────────┬──────
//!       │ continues as before │ reconnects    │ closed, if it is still connected
//! ```
//!
//! A bare WebSocket cannot be notified, so it is closed at its time. A held long poll is answered at its time. The
//! times are spread evenly over the window, so that the servers that take over the readers see no burst of connections.

use std::{rc::Rc, time::Duration};

use millrace_delivery::{ConnId, WaiterId};
use millrace_protocol::{Encoding, websocket};
use tokio::time::Instant;

use crate::{
    Shard,
    admission::{Admission, Drain},
    session,
};

/// Time between a reader's reconnect time and the close of its connection. The reader moves its subscriptions
/// meanwhile.
pub const RECONNECT_GRACE: Duration = Duration::from_secs(1);
/// Readers notified before the task yields, so that other clients are still served.
const TOLD_AT_ONCE: usize = 256;

enum Leaves {
    Conn(ConnId, Encoding),
    Poll(WaiterId),
}

/// Moves all readers of a shard to other servers. Takes the window plus [`RECONNECT_GRACE`].
pub async fn drain(shard: &Rc<Shard>, admission: &Admission, drain: Drain) {
    let started = Instant::now();
    let polls = shard.waiters().into_iter().map(Leaves::Poll);
    // A connection that answers requests is closed with its next response.
    let reads = |encoding: Encoding| encoding != Encoding::WholeResponses;
    let conns: Vec<_> = shard
        .with(|hub, sockets| hub.conns().filter(|(id, encoding)| reads(*encoding) && !sockets.is_side(*id)).collect());
    let all: Vec<_> = conns.into_iter().map(|(id, encoding)| Leaves::Conn(id, encoding)).chain(polls).collect();
    let slot = drain.window / all.len().max(1) as u32;
    let mut moments = Vec::with_capacity(all.len());
    let mut gone = Duration::ZERO;
    for (i, leaves) in all.into_iter().enumerate() {
        if i > 0 && i.is_multiple_of(TOLD_AT_ONCE) {
            tokio::task::yield_now().await;
            gone = started.elapsed();
        }
        let chance = f64::from(getrandom::u32().unwrap_or(0)) / 2f64.powi(32);
        let mut moment = slot * i as u32 + slot.mul_f64(chance);
        if let Leaves::Conn(id, encoding) = leaves
            && !encoding.gap_closes()
        {
            send_drain(shard, admission, id, encoding, moment.saturating_sub(gone), drain.ticket);
            moment += RECONNECT_GRACE;
        }
        moments.push((moment, leaves));
    }
    moments.sort_unstable_by_key(|(moment, _)| *moment);
    for (moment, leaves) in moments {
        tokio::time::sleep_until(started + moment).await;
        match leaves {
            Leaves::Conn(id, encoding) => close(shard, id, encoding),
            Leaves::Poll(id) => shard.wake(id),
        }
    }
    // Close connections that were being accepted when the drain began.
    tokio::time::sleep_until(started + drain.window + RECONNECT_GRACE).await;
    shard.waiters().into_iter().for_each(|id| shard.wake(id));
    for (id, encoding) in shard.with(|hub, _| hub.conns().filter(|(_, encoding)| reads(*encoding)).collect::<Vec<_>>())
    {
        close(shard, id, encoding);
    }
}

fn send_drain(
    shard: &Rc<Shard>,
    admission: &Admission,
    id: ConnId,
    encoding: Encoding,
    after: Duration,
    ticket_life: Duration,
) {
    let until_ms = shard.engine.now_ms().saturating_add((after + ticket_life).as_millis() as u64);
    shard.with(|hub, sockets| {
        let subject = sockets.grants.get(id).and_then(|caller| caller.grant.subject.as_deref());
        let sign = || admission.tickets.sign(&session::subscriptions(hub, sockets, id), subject, until_ms);
        let ticket = encoding.is_session().then(sign).flatten();
        hub.tell_drain(id, after.as_millis() as u64, ticket.as_deref(), sockets);
    });
}

fn close(shard: &Rc<Shard>, id: ConnId, encoding: Encoding) {
    let mut last = Vec::new();
    encoding.encode_close(&mut last, websocket::CLOSE_RESTART, "the server restarts");
    shard.with(|hub, sockets| hub.close(id, &last, sockets));
}
