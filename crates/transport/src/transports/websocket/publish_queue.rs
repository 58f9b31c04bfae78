//! Publications of a bare WebSocket for which the app's back end is asked: one at a time, in the order in which the
//! client has sent them. The connection is not read meanwhile.

use std::rc::Rc;

use millrace_delivery::ConnId;
use millrace_protocol::{Code, Error, NewPublication, websocket};

use crate::{
    admission::{self, PublishTarget},
    connection::{BarePublisher, CommandQueue, EventLoop, Queued},
};

/// Publishes after the earlier publications of this connection.
pub fn push(event_loop: &Rc<EventLoop>, id: ConnId, target: &PublishTarget, publication: NewPublication) {
    if let Err(first) = push_behind(event_loop, id, Queued::Publication(publication)) {
        if let Some(place) = event_loop.shard().sockets().commands(id) {
            let mut queue = CommandQueue::running();
            queue.push(first);
            *place = Some(Box::new(queue));
        }
        event_loop.watch(id);
        tokio::task::spawn_local(run(event_loop.clone(), id, target.clone()));
    }
}

/// Queues an entry behind earlier ones. Returns the entry if nothing is queued.
pub fn push_behind(event_loop: &Rc<EventLoop>, id: ConnId, entry: Queued) -> Result<(), Queued> {
    match event_loop.shard().sockets().commands(id).and_then(Option::as_mut) {
        Some(queue) => {
            queue.push(entry);
            Ok(())
        }
        None => Err(entry),
    }
}

async fn run(event_loop: Rc<EventLoop>, id: ConnId, mut target: PublishTarget) {
    let bytes_max = event_loop.admission().config().message_bytes_max.max(1);
    loop {
        let next = event_loop.shard().sockets().commands(id).and_then(|queue| queue.as_mut()?.pop());
        match next {
            Some(Queued::Publication(publication)) => {
                let publisher = BarePublisher { event_loop: &event_loop, id };
                let published =
                    admission::publish(event_loop.shard(), &publisher, bytes_max, &mut target, publication).await;
                if let Err(error) = published {
                    return close(&event_loop, id, &error);
                }
            }
            Some(Queued::Close(code)) => return event_loop.close_with(id, code, ""),
            // Unreachable: only a session queues commands.
            Some(Queued::Command(_)) => {}
            None => break,
        }
    }
    if let Some(place) = event_loop.shard().sockets().commands(id) {
        *place = None;
    }
    event_loop.watch(id);
    event_loop.shard().turn();
}

/// Closes a bare WebSocket because its publication was refused. The protocol cannot report a refusal.
pub fn close(event_loop: &EventLoop, id: ConnId, error: &Error) {
    match error.code {
        Code::Refused => {
            let reason = match &error.reason {
                Some(reason) => format!("{reason}: {}", error.detail),
                None => error.detail.clone(),
            };
            event_loop.close_with(id, websocket::CLOSE_REFUSED, &reason);
        }
        code => event_loop.close_with(id, websocket::CLOSE_TRY_LATER, code.name()),
    }
}
