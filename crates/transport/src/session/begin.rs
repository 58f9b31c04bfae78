//! The beginning of a session: its first push, and the subscriptions of its resume ticket.

use std::{num::NonZeroU16, rc::Rc, time::Duration};

use millrace_delivery::ConnId;
use millrace_protocol::{
    Code, Error, Permission, Since,
    session::{Policy, Subscription, Target, encode_connected, encode_reply},
    websocket::{self, CloseFrame},
};

use crate::{admission::access::Caller, connection::EventLoop};

/// Sends the first push of a session, restores the subscriptions of its resume ticket, and subscribes the session to
/// the channels of its grant.
pub async fn begin(
    event_loop: &Rc<EventLoop>,
    id: ConnId,
    caller: &Caller,
    ticket: Option<&str>,
    heartbeat_s: Option<NonZeroU16>,
) {
    let config = event_loop.admission().config();
    let heartbeat = heartbeat_s.map_or(config.heartbeat, |own| Duration::from_secs(own.get().into()));
    let (ping_ms, now_ms) = (heartbeat.as_millis() as u64, event_loop.shard().engine.now_ms());
    let verified = ticket.map(|ticket| verify_ticket(event_loop, ticket, caller));
    let resumed = verified.as_ref().map(|verified| verified.as_deref().unwrap_or_default());
    let connection = event_loop.shard().connection_id(id);
    let bytes_max = config.message_bytes_max;
    let connected = encode_connected(&connection, ping_ms, bytes_max, now_ms, caller.expires_ms(), resumed);
    event_loop.send_text(id, &connected);
    match verified {
        Some(Ok(subscriptions)) => resume(event_loop, id, subscriptions).await,
        Some(Err(error)) => event_loop.send_text(id, &encode_reply(0, &Err(error))),
        None => {}
    }
    for channel in &caller.grant.channels {
        let subscription = Subscription {
            target: Target::Channel(channel.clone()),
            since: Since::Now,
            positions: Default::default(),
            policy: Policy::Every,
        };
        match super::subscribe(event_loop.shard(), id, 0, subscription).await {
            // The resume ticket contained the channel.
            Err(error) if error.code == Code::AlreadySubscribed => {}
            Err(error) => event_loop.send_text(id, &encode_reply(0, &Err(error))),
            Ok(()) => {}
        }
    }
}

/// Verifies a resume ticket and returns its subscriptions. A ticket grants no permissions; the caller needs the
/// permission for each subscription.
///
/// Errors: those of [`TicketKey::verify`](millrace_protocol::ticket::TicketKey::verify); [`Code::Forbidden`].
fn verify_ticket(event_loop: &EventLoop, ticket: &str, caller: &Caller) -> Result<Vec<Subscription>, Error> {
    let now_ms = event_loop.shard().engine.now_ms();
    let subscriptions = event_loop.admission().tickets.verify(ticket, caller.grant.subject.as_deref(), now_ms)?;
    subscriptions.iter().try_for_each(|asked| caller.check(Permission::Subscribe, &asked.target))?;
    Ok(subscriptions)
}

/// Restores all subscriptions of a resume ticket. If one fails, the session is closed, and its client must
/// subscribe by itself the next time.
async fn resume(event_loop: &Rc<EventLoop>, id: ConnId, subscriptions: Vec<Subscription>) {
    for subscription in subscriptions {
        let allowed = event_loop.admission().ask_subscribe(|| event_loop.client(id), &subscription.target).await;
        let resumed = match allowed {
            Ok(()) => super::subscribe(event_loop.shard(), id, 0, subscription).await,
            Err(error) => Err(error),
        };
        if let Err(error) = resumed {
            let reason = error.code.name();
            event_loop.send_text(id, &encode_reply(0, &Err(error)));
            return event_loop.close(id, CloseFrame { code: websocket::CLOSE_TRY_LATER, reason });
        }
    }
}
