//! Long polling: an answer that waits until there is something to say.
//!
//! A poll that finds nothing becomes a [`Poll`]. Over HTTP/1.1 the event loop keeps it beside the connection ([`crate::keep_alive`]); over
//! HTTP/2 and HTTP/1.0 a task holds it ([`Poll::hold`]).

use std::{sync::Arc, time::Duration};

use http::request::Parts;
use millrace_node::{Metrics, Transport};
use millrace_protocol::{ChannelName, Error};
use tokio::time::Instant;

use crate::{
    access::{Caller, unix_s},
    http::{Ask, Context, Response, Wanted},
    limits::Seat,
    polling::{self, Read},
};

/// Makes the answer from what was read.
pub type Answer = fn(Read, &Ask, Wanted) -> Response;

/// A long poll that has found nothing yet.
pub struct Poll {
    caller: Caller,
    /// Each channel starts at the position up to which nothing was found.
    ask: Ask,
    wanted: Wanted,
    answer: Answer,
    /// When it is answered with `204`: after `wait`, at most the server's limit, and no later than its token expires.
    pub deadline: Instant,
    _seat: Option<Box<Seat>>,
    _open: Open,
}

/// What the first look of a long poll has come to.
pub enum Begun {
    Answered(Response),
    Waits(Box<Poll>),
}

/// Reserves a reader's slot, looks once, and returns the answer or the poll that waits.
///
/// Errors: as [`Context::admit`], and the engine's.
pub async fn begin(
    context: &Context,
    parts: &Parts,
    caller: Caller,
    ask: Ask,
    wanted: Wanted,
    wait: Duration,
    answer: Answer,
) -> Result<Begun, Error> {
    let seat = context.admit(parts, &caller)?.map(Box::new);
    let expires = caller.grant.expires_s.map(|end_s| Duration::from_secs(end_s.saturating_sub(unix_s())));
    let wait = wait.min(context.config().hold_max).min(expires.unwrap_or(Duration::MAX));
    let ask = Ask { channels: ask.starts().into_iter().map(|(name, since)| (name, Some(since))).collect(), ..ask };
    let deadline = Instant::now() + wait;
    let open = Open::new(context.shard.metrics.clone());
    let mut poll = Box::new(Poll { caller, ask, wanted, answer, deadline, _seat: seat, _open: open });
    Ok(match poll.look(context).await? {
        Some(response) => Begun::Answered(response),
        None => Begun::Waits(poll),
    })
}

impl Poll {
    pub fn channels(&self) -> Vec<ChannelName> {
        self.ask.channels.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Reads once. Returns the answer, or `None` if there is nothing yet and the server does not drain.
    ///
    /// Errors: the engine's.
    pub async fn look(&mut self, context: &Context) -> Result<Option<Response>, Error> {
        let read = polling::read(&context.shard, &self.ask, &self.ask.channels).await?;
        if !read.is_empty() || context.is_draining() {
            return Ok(Some((self.answer)(read, &self.ask, self.wanted)));
        }
        // `now` and times have become positions; policy `latest` may have moved on without anything to say.
        self.ask.channels = read.ends();
        Ok(None)
    }

    /// Reads after a wake.
    ///
    /// Errors: [`millrace_protocol::Code::Unauthorized`] if the token was revoked; the engine's.
    pub async fn look_again(&mut self, context: &Context) -> Result<Option<Response>, Error> {
        context.access.check_lasts(&self.caller)?;
        self.look(context).await
    }

    /// Returns the answer to a poll whose time is over.
    pub fn nothing(&self) -> Response {
        (self.answer)(Read::nothing(&self.ask.channels), &self.ask, self.wanted)
    }

    /// Waits inside a task.
    ///
    /// Errors: as [`Poll::look_again`].
    pub async fn hold(mut self: Box<Self>, context: &Context) -> Result<Response, Error> {
        loop {
            // The look comes after the wait has begun: a publication in between is seen by the one or the other.
            let waiting = context.shard.wait(&self.channels());
            if let Some(response) = self.look(context).await? {
                return Ok(response);
            }
            if tokio::time::timeout_at(self.deadline, waiting.woken()).await.is_err() {
                return Ok(self.nothing());
            }
            drop(waiting);
            if let Some(response) = self.look_again(context).await? {
                return Ok(response);
            }
        }
    }

    /// Memory beside the poll itself, in bytes.
    pub fn bytes(&self) -> usize {
        self.ask.channels.capacity() * size_of::<(ChannelName, Option<millrace_protocol::Since>)>()
            + self._seat.as_ref().map_or(0, |_| size_of::<Seat>())
    }
}

/// Counts a poll as an open connection of its transport.
struct Open(Arc<Metrics>);

impl Open {
    fn new(metrics: Arc<Metrics>) -> Self {
        metrics.opened(Transport::LongPolling, 1);
        Self(metrics)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.opened(Transport::LongPolling, -1);
    }
}
