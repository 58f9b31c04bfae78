//! Commands of a session, over a WebSocket or a data channel. Most commands are answered at once. While a command
//! waits for the engine, later commands are queued and the connection is not read. So replies and effects keep the
//! order of the commands. A remote procedure call is started in this order; its reply comes when the back end
//! answers.

mod begin;
mod rpc;

use std::{
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use millrace_delivery::{ConnId, Hub, PageLimit};
use millrace_node::{Metrics, Start};
use millrace_protocol::{
    Code, Error, Permission,
    encoding::Envelope,
    session::{
        Command, Policy, Subscription, Target, decode_command, encode_error_push, encode_reply, encode_reply_raw,
    },
};
use serde_json::{Value, json};

pub use begin::begin;

use crate::{
    Shard,
    admission::{self, access::Caller, limits::Direction},
    connection::{CommandQueue, EventLoop, OUT_BYTES_MAX, Queued, SessionPublisher, Sockets, encode_text, send_text},
    polling::{members, range},
};

/// Maximum bytes of publications in one `history` reply.
const HISTORY_BYTES_MAX: usize = 4 << 20;

/// Runs a command now, or queues it behind earlier commands.
pub fn handle(event_loop: &Rc<EventLoop>, id: ConnId, text: &str) {
    if let Some(queue) = event_loop.shard().sockets().commands(id).and_then(Option::as_mut) {
        return queue.push(Queued::Command(text.to_owned()));
    }
    if takes_nothing(event_loop, id) {
        let mut queue = CommandQueue::default();
        queue.push(Queued::Command(text.to_owned()));
        return set_queue(event_loop, id, Some(queue));
    }
    let mut running = Box::pin(run(event_loop.clone(), id, text.to_owned()));
    if is_done(running.as_mut()) {
        return;
    }
    set_queue(event_loop, id, Some(CommandQueue::running()));
    let event_loop = event_loop.clone();
    tokio::task::spawn_local(async move {
        running.await;
        run_queue(event_loop, id).await;
    });
}

/// Resumes commands that were queued because the client did not read its replies, if the client reads again.
pub fn resume_commands(event_loop: &Rc<EventLoop>, id: ConnId) {
    let waits = |queue: &&mut Box<CommandQueue>| !queue.is_running;
    let mut sockets = event_loop.shard().sockets();
    let queue = sockets.commands(id).and_then(Option::as_mut).filter(waits);
    if let Some(queue) = queue {
        queue.is_running = true;
        tokio::task::spawn_local(run_queue(event_loop.clone(), id));
    }
}

async fn run_queue(event_loop: Rc<EventLoop>, id: ConnId) {
    loop {
        if takes_nothing(&event_loop, id) {
            if let Some(queue) = event_loop.shard().sockets().commands(id).and_then(Option::as_mut) {
                queue.is_running = false;
            }
            return;
        }
        match next_command(&event_loop, id) {
            Some(text) => {
                run(event_loop.clone(), id, text).await;
                event_loop.update_pending_bytes(id, Direction::Out);
            }
            None => return set_queue(&event_loop, id, None),
        }
    }
}

/// Returns true if too many bytes are queued for the client. Then no more commands are run for it.
fn takes_nothing(event_loop: &Rc<EventLoop>, id: ConnId) -> bool {
    event_loop.shard().with(|hub, _| hub.out_bytes(id)) > OUT_BYTES_MAX
}

/// Subscribes a session to a channel or a pattern. The reply is sent before the first publication. The reply always
/// goes to the session itself; the publications may use a separate lane.
///
/// Errors: those of [`Shard::subscribe`] and [`Shard::subscribe_pattern`].
pub async fn subscribe(
    shard: &Rc<Shard>,
    id: ConnId,
    command_id: u64,
    subscription: Subscription,
) -> Result<(), Error> {
    let Subscription { target, since, positions, policy } = subscription;
    // A lane of its own may lose messages; a state must be complete.
    let reader = shard.sockets().lane(id, if since.is_state() { Policy::Every } else { policy });
    let preamble = |reply: String| match reader == id {
        true => encode_text(shard, id, &reply),
        false => {
            send_text(shard, id, &reply);
            Vec::new()
        }
    };
    match target {
        Target::Channel(channel) => {
            let now_ms = shard.engine.now_ms();
            let preamble = |starts: &[Start]| preamble(subscribed(command_id, &starts[0], now_ms));
            shard.subscribe(reader, &[(channel, since)], policy, preamble).await
        }
        Target::Pattern(pattern) => {
            let reply = |since_ms| json!({ "channel": pattern.as_str(), "time": since_ms });
            let preamble = |since_ms| preamble(encode_reply(command_id, &Ok(reply(since_ms))));
            shard.subscribe_pattern(reader, &pattern, since, positions, policy, preamble).await
        }
    }
}

/// Returns the subscriptions of a session on all its lanes.
pub fn subscriptions(hub: &Hub, sockets: &Sockets, id: ConnId) -> Vec<Subscription> {
    lanes(sockets, id).flat_map(|lane| hub.subscriptions(lane)).collect()
}

/// Returns the connections on which a session may have subscriptions.
pub fn lanes(sockets: &Sockets, id: ConnId) -> impl Iterator<Item = ConnId> {
    let latest = sockets.lane(id, Policy::Latest);
    std::iter::once(id).chain((latest != id).then_some(latest))
}

/// Ends a subscription of a session, on whichever lane it is. Errors: [`Code::NotSubscribed`].
pub fn unsubscribe(hub: &mut Hub, sockets: &Sockets, id: ConnId, target: &Target) -> Result<(), Error> {
    let mut ended = lanes(sockets, id).map(|lane| hub.unsubscribe(lane, target));
    let first = ended.next().expect("its own lane");
    ended.fold(first, Result::or)
}

/// Encodes the reply to a subscription, `{"channel", "position", "recovered", "time"}`, which is sent before the
/// first publication.
pub fn subscribed(id: u64, start: &Start, time_ms: u64) -> String {
    let position = start.position.to_string();
    let ok = json!({
        "channel": start.channel.as_str(), "position": position, "recovered": start.recovered, "time": time_ms,
    });
    encode_reply(id, &Ok(ok))
}

async fn run(event_loop: Rc<EventLoop>, id: ConnId, text: String) {
    let (command_id, command) = decode_command(&text);
    let reply = match (command_id, command) {
        (Some(command_id), Ok(command)) => match execute(&event_loop, id, command_id, command).await {
            Ok(Some(reply)) => reply,
            Ok(None) => return,
            Err(error) => {
                event_loop.admission().limits.count_error(&error);
                encode_reply(command_id, &Err(error))
            }
        },
        (Some(command_id), Err(error)) => encode_reply(command_id, &Err(error)),
        (None, Err(error)) => encode_error_push(&error),
        (None, Ok(_)) => return,
    };
    event_loop.send_text(id, &reply);
}

/// Runs a command and returns its reply. Returns `None` if the reply was already sent because other frames follow
/// it.
async fn execute(
    event_loop: &Rc<EventLoop>,
    id: ConnId,
    command_id: u64,
    command: Command,
) -> Result<Option<String>, Error> {
    let shard = event_loop.shard();
    let now_ms = shard.engine.now_ms();
    let ok = |value: Value| Ok(Some(encode_reply(command_id, &Ok(value))));
    let caller = || shard.sockets().grants.caller(id).cloned();
    match command {
        Command::Ping => {
            Metrics::add(&shard.socket_metrics.pings, 1);
            ok(json!({ "time": now_ms }))
        }
        Command::Presence { channel, members: None } => {
            shard.sockets().grants.may(id, Permission::Presence, &channel)?;
            ok(json!({ "count": shard.engine.presence(&channel).await? }))
        }
        Command::Presence { channel, members: Some(page) } => {
            shard.sockets().grants.may(id, Permission::Presence, &channel)?;
            ok(members::page(shard, &channel, page).await?.to_json(None))
        }
        Command::Publish { channel, publication } => {
            let mut target = shard.sockets().grants.caller(id)?.may_publish(channel)?;
            let bytes_max = event_loop.admission().config().message_bytes_max;
            let publisher = SessionPublisher { event_loop, id };
            let position = admission::publish(shard, &publisher, bytes_max, &mut target, publication).await?;
            Ok(Some(format!("{{\"id\":{command_id},\"ok\":{{\"position\":\"{position}\"}}}}")))
        }
        Command::Subscribe(subscription) => {
            let caller = caller()?;
            event_loop.admission().may_subscribe(&caller, || event_loop.client(id), &subscription).await?;
            // The client continues from its own position a channel that it reads by the answer to `connect`.
            if matches!(&subscription.target, Target::Channel(name) if caller.grant.channels.contains(name)) {
                let _ = shard.with(|hub, sockets| unsubscribe(hub, sockets, id, &subscription.target));
            }
            subscribe(shard, id, command_id, subscription).await?;
            Ok(None)
        }
        Command::Unsubscribe { target } => {
            shard.with(|hub, sockets| unsubscribe(hub, sockets, id, &target))?;
            ok(json!({}))
        }
        Command::History { channel, since, until, limit } => {
            // Reading a state, or resuming from it, needs the same permission as over HTTP.
            let permission = if since.is_state() { Permission::Subscribe } else { Permission::History };
            shard.sockets().grants.may(id, permission, &channel)?;
            let target = Target::Channel(channel.clone());
            event_loop.admission().ask_subscribe(|| event_loop.client(id), &target).await?;
            let limit = PageLimit { count: limit, bytes: HISTORY_BYTES_MAX };
            let page = range::page(&*shard.engine, &channel, since, until, Default::default(), limit).await?;
            let answer = Envelope::answer(page.next(), page.has_more(), page.gap, page.end.epoch, &page.publications);
            Ok(Some(encode_reply_raw(command_id, &answer)))
        }
        Command::Rpc(call) => {
            caller()?;
            rpc::begin(event_loop, id, command_id, call)?;
            Ok(None)
        }
        Command::Refresh { token } => {
            let fresh = event_loop.admission().refreshed(event_loop.client(id), token.as_str()).await?;
            let fresh = Caller { holder: caller()?.holder, ..fresh };
            let lost = refresh(shard, id, fresh.clone())?;
            let mut body = json!({ "unsubscribed": lost.iter().map(Target::as_str).collect::<Vec<_>>() });
            if let Some(expires_ms) = fresh.expires_ms() {
                body["expires_ms"] = expires_ms.into();
            }
            ok(body)
        }
    }
}

/// Replaces the token of a connection. Ends the subscriptions that the new token does not permit, and returns them.
///
/// Errors: [`Code::Forbidden`] if the new token has another subject, or the connection had no token.
fn refresh(shard: &Rc<Shard>, id: ConnId, fresh: Caller) -> Result<Vec<Target>, Error> {
    shard.with(|hub, sockets| {
        let held = sockets.grants.caller(id)?;
        if held.anonymous || held.grant.subject != fresh.grant.subject {
            return Err(Error::new(
                Code::Forbidden,
                "a token is refreshed by one of the same subject: connect again with this one",
            ));
        }
        let read = subscriptions(hub, sockets, id).into_iter().map(|subscription| subscription.target);
        let lost: Vec<Target> = read.filter(|target| fresh.check(Permission::Subscribe, target).is_err()).collect();
        for target in &lost {
            unsubscribe(hub, sockets, id, target)?;
        }
        sockets.grants.put(id, fresh);
        Ok(lost)
    })
}

fn is_done(running: Pin<&mut impl Future<Output = ()>>) -> bool {
    matches!(running.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()))
}

fn set_queue(event_loop: &Rc<EventLoop>, id: ConnId, queue: Option<CommandQueue>) {
    if let Some(place) = event_loop.shard().sockets().commands(id) {
        *place = queue.map(Box::new);
    }
    event_loop.watch(id);
}

fn next_command(event_loop: &Rc<EventLoop>, id: ConnId) -> Option<String> {
    match event_loop.shard().sockets().commands(id)?.as_mut()?.pop()? {
        Queued::Command(text) => Some(text),
        // Unreachable: only a bare WebSocket queues these.
        Queued::Publication(_) | Queued::Close(_) => None,
    }
}
