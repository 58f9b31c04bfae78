//! Long polling: the response is held until there is a publication, or until a deadline.
//!
//! A poll that finds nothing becomes a [`Poll`]. Over HTTP/1.1 the event loop stores it beside the connection
//! (`Http1Connection`). Over HTTP/2 and HTTP/1.0 a task holds it ([`Poll::hold`]).

use std::{rc::Rc, sync::Arc, time::Duration};

use http::request::Parts;
use millrace_node::{Member, Observer, Shard, Sockets};
use millrace_protocol::{ChannelName, Error, Since, Transport};
use tokio::time::Instant;

use super::{Read, read};
use crate::{
    SocketMetrics,
    admission::{
        Admission,
        access::{Caller, unix_s},
        limits::ReaderSlot,
    },
    http::{ReadRequest, Response, ResponseFormat},
};

/// Encodes the response from the publications that were read.
pub type Answer = fn(Read, &ReadRequest, ResponseFormat) -> Response;

/// A long poll that has found nothing yet.
pub struct Poll {
    caller: Caller,
    /// The read request. Each channel starts at the position up to which the poll has found nothing.
    request: ReadRequest,
    wanted: ResponseFormat,
    answer: Answer,
    /// Time at which the poll is answered with `204`: after the requested wait, but not later than the server's
    /// limit or the expiry of the token.
    pub deadline: Instant,
    _reader_slot: Option<Box<ReaderSlot>>,
    _open: Open,
    _membership: Option<Box<Membership>>,
}

/// Result of the first read of a long poll.
pub enum PollStart {
    Answered(Response),
    Waits(Box<Poll>),
}

/// Reserves a reader's slot and reads once. Returns the response, or the poll that waits.
///
/// Errors: those of [`Admission::admit`] and of the engine.
#[expect(clippy::too_many_arguments, reason = "a request and its format; every argument is used once")]
pub async fn begin<S: Sockets<Metrics = SocketMetrics>>(
    shard: &Shard<S>,
    admission: &Admission,
    parts: &Parts,
    caller: Caller,
    request: ReadRequest,
    wanted: ResponseFormat,
    wait: Duration,
    answer: Answer,
) -> Result<PollStart, Error> {
    let reader_slot = admission.admit(parts, &caller)?.map(Box::new);
    let expires = caller.grant.expires_s.map(|end_s| Duration::from_secs(end_s.saturating_sub(unix_s())));
    let wait = wait.min(admission.config().hold_max).min(expires.unwrap_or(Duration::MAX));
    let request = ReadRequest {
        channels: request.starts().into_iter().map(|(name, since)| (name, Some(since))).collect(),
        ..request
    };
    let deadline = Instant::now() + wait;
    let open = Open::new(shard.socket_metrics.clone());
    let membership = Membership::begin(shard.observer(), &caller, &request);
    let mut poll = Box::new(Poll {
        caller,
        request,
        wanted,
        answer,
        deadline,
        _reader_slot: reader_slot,
        _open: open,
        _membership: membership,
    });
    Ok(match poll.look(shard, admission).await? {
        Some(response) => PollStart::Answered(response),
        None => PollStart::Waits(poll),
    })
}

impl Poll {
    pub fn channels(&self) -> Vec<ChannelName> {
        self.request.channels.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Reads once. Returns the response. Returns `None` if there is nothing yet, unless the server drains.
    ///
    /// Errors: those of the engine.
    pub async fn look<S: Sockets>(
        &mut self,
        shard: &Shard<S>,
        admission: &Admission,
    ) -> Result<Option<Response>, Error> {
        let read = read(shard, &self.request, &self.request.channels).await?;
        // A state is complete when it has been read, even if it is empty.
        let is_inside = |since: &Since| matches!(since, Since::State | Since::StateAfter { .. });
        let reads_state = self.request.channels.iter().any(|(_, since)| since.as_ref().is_some_and(is_inside));
        if !read.is_empty() || reads_state || admission.is_draining() {
            return Ok(Some((self.answer)(read, &self.request, self.wanted)));
        }
        // Start values such as `now` or a time have become positions. With policy `latest`, a position can also
        // advance without a publication for this reader.
        let ends = read.ends().into_iter();
        self.request.channels =
            ends.zip(&self.request.channels).map(|(end, start)| (end.0, keep(start.1, end.1))).collect();
        Ok(None)
    }

    /// Reads again after a wake-up.
    ///
    /// Errors: [`millrace_protocol::Code::Unauthorized`] if the token has expired or was revoked; those of the
    /// engine.
    pub async fn look_again<S: Sockets>(
        &mut self,
        shard: &Shard<S>,
        admission: &Admission,
    ) -> Result<Option<Response>, Error> {
        admission.access.check_lasts(&self.caller)?;
        self.look(shard, admission).await
    }

    /// Returns the response to a poll whose deadline has passed.
    pub fn nothing(&self) -> Response {
        (self.answer)(Read::nothing(&self.request.channels), &self.request, self.wanted)
    }

    /// Waits for the result inside a task, until the deadline.
    ///
    /// Errors: those of [`Poll::look_again`].
    pub async fn hold<S: Sockets>(
        mut self: Box<Self>,
        shard: &Rc<Shard<S>>,
        admission: &Admission,
    ) -> Result<Response, Error> {
        loop {
            // Start the wait before reading history, so that no publication in between is missed.
            let waiting = shard.wait(&self.channels());
            if let Some(response) = self.look(shard, admission).await? {
                return Ok(response);
            }
            if tokio::time::timeout_at(self.deadline, waiting.woken()).await.is_err() {
                return Ok(self.nothing());
            }
            drop(waiting);
            if let Some(response) = self.look_again(shard, admission).await? {
                return Ok(response);
            }
        }
    }

    /// Returns the memory that the poll uses in addition to its own size, in bytes.
    pub fn bytes(&self) -> usize {
        self.request.channels.capacity() * size_of::<(ChannelName, Option<Since>)>()
            + self._reader_slot.as_ref().map_or(0, |_| size_of::<ReaderSlot>())
            + self._membership.as_ref().map_or(0, |_| size_of::<Membership>())
    }
}

/// Returns where a poll continues that began at `start` and has found nothing up to `end`. A reader of a state remains
/// one.
fn keep(start: Option<Since>, end: Option<Since>) -> Option<Since> {
    match (start, end) {
        (Some(start), Some(Since::Position(at))) if start.is_state() => Some(Since::StateOr(at)),
        _ => end,
    }
}

/// Counts a poll as a connection of its member, in the channels with a roster, until it is dropped.
struct Membership {
    observer: Arc<dyn Observer>,
    member: Member,
    channels: Vec<ChannelName>,
}

impl Membership {
    /// Returns `None` if no channel has a roster, or the client has no subject: only the subject connects one poll with
    /// the next.
    fn begin(observer: Option<&Arc<dyn Observer>>, caller: &Caller, request: &ReadRequest) -> Option<Box<Self>> {
        let (observer, subject) = (observer?, caller.grant.subject.as_ref()?);
        let names = request.channels.iter().map(|(name, _)| name);
        let channels: Vec<ChannelName> = names.filter(|name| observer.has_roster(name)).cloned().collect();
        if channels.is_empty() {
            return None;
        }
        let member = Member { id: subject.clone(), info: caller.grant.info.clone() };
        channels.iter().for_each(|channel| observer.joined(channel, &member));
        Some(Box::new(Self { observer: observer.clone(), member, channels }))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.channels.iter().for_each(|channel| self.observer.left(channel, &self.member));
    }
}

/// Counts a poll as an open connection of its transport, until it is dropped.
struct Open(Arc<SocketMetrics>);

impl Open {
    fn new(metrics: Arc<SocketMetrics>) -> Self {
        metrics.opened(Transport::LongPolling, 1);
        Self(metrics)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.opened(Transport::LongPolling, -1);
    }
}
