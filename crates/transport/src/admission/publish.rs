//! The one decision whether a publication may enter: permission, size, quota, the app's back end, congestion, in this
//! order.
//!
//! Every transport publishes through [`publish`]. The permission is checked first, because only that check creates a
//! [`PublishTarget`]. The back end is asked after the quota, so that a client cannot flood it. Transports differ in how
//! a client pays its quota and meets congestion; see [`Publisher`].

use std::{
    future::Future,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};

use millrace_engine::{Answer, ChannelSlot};
use millrace_node::{
    Metrics, NamespaceId, Shard, Sockets,
    namespaces::NamespaceCounters,
    spans::{OpenSpan, Step},
};
use millrace_protocol::{ChannelName, Code, Error, Holder, NewPublication, Permission, Position};

use super::{
    Admission,
    access::Caller,
    hooks::{Hook, HookClient, Hooks},
    webhooks::PublicationEvents,
};

/// A channel that a caller may publish to, and the holder whose quota pays for it.
#[derive(Clone, Debug)]
pub struct PublishTarget {
    channel: ChannelName,
    holder: Holder,
    /// Namespace of the channel, if the client publishes repeatedly. Then `slot` is the slot of the channel in the
    /// engine.
    repeated: Option<NamespaceId>,
    slot: ChannelSlot,
}

/// Treatment of a publication while the readers of its channel are served late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// The publication is refused with [`Code::Congested`]. The client must try again.
    Refuse,
    /// The publication is accepted. The publisher is not read for a moment, so its next ones wait in the client.
    SlowDown,
}

/// Client side of a publication: its quota, and how it meets congestion.
pub trait Publisher {
    /// Charges one publication to the quotas of the client.
    ///
    /// Errors: `rate_limited`, with the time of the next attempt; `unavailable` while memory is short.
    fn take_quota(&self, bytes: usize) -> Result<(), Error>;

    /// Called if readers of the channel are served late.
    fn meet_congestion(&self) -> Congestion;

    /// Returns the rules of the shard; `None` for a copy of what the client was permitted to publish.
    fn admission(&self) -> Option<&Admission>;

    /// Returns the client, for a question to the back end.
    fn client(&self) -> HookClient;
}

/// Future of a publication; returns its position.
pub enum Publishing<'a> {
    /// The publication was decided at once: refused, or passed to the engine.
    Decided(Answer<Result<Position, Error>>),
    /// The back end is asked first, or the steps are recorded. Dropping the future withdraws the publication.
    Asked(Pin<Box<dyn Future<Output = Result<Position, Error>> + 'a>>),
}

impl Future for Publishing<'_> {
    type Output = Result<Position, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Publishing::Decided(answer) => Pin::new(answer).poll(cx),
            Publishing::Asked(asked) => asked.as_mut().poll(cx),
        }
    }
}

impl Caller {
    /// Checks the permission to publish to a channel.
    ///
    /// Errors: those of [`Caller::may`].
    pub fn may_publish(&self, channel: ChannelName) -> Result<PublishTarget, Error> {
        self.may(Permission::Publish, &channel)?;
        Ok(PublishTarget { channel, holder: self.holder, repeated: None, slot: ChannelSlot::default() })
    }
}

impl PublishTarget {
    /// Returns the target for a client that publishes repeatedly. The engine finds the channel faster then.
    pub fn repeated<S: Sockets>(self, shard: &Shard<S>) -> Self {
        Self { repeated: Some(shard.namespace(&self.channel)), ..self }
    }

    /// Target on a channel of the server itself, such as `fleet`: a copy of what the client was permitted to publish.
    pub fn copy_to(&self, channel: ChannelName) -> Self {
        Self { channel, repeated: None, slot: ChannelSlot::default(), ..*self }
    }

    pub fn channel(&self) -> &ChannelName {
        &self.channel
    }

    /// Returns the counters of the channel's namespace.
    fn counters<'s, S: Sockets>(&self, shard: &'s Shard<S>) -> &'s NamespaceCounters {
        shard.counters(self.repeated.unwrap_or_else(|| shard.namespace(&self.channel)))
    }

    /// Returns the slot of the channel in the engine, if it is known.
    pub fn slot(&self) -> ChannelSlot {
        self.slot
    }
}

/// Publishes, if the publication may enter. `bytes_max` is the maximum payload size.
///
/// Errors: those of [`Access::check_key_owner`](super::access::Access::check_key_owner); `too_large`; those of
/// [`Publisher::take_quota`]; those of [`Hooks::publish`]; `congested`; those of the engine.
pub fn publish<'a, S: Sockets>(
    shard: &'a Rc<Shard<S>>,
    publisher: &'a (impl Publisher + ?Sized),
    bytes_max: usize,
    target: &'a mut PublishTarget,
    publication: NewPublication,
) -> Publishing<'a> {
    let bytes = publication.data.len();
    let admission = publisher.admission();
    let checked = admission
        .map_or(Ok(()), |admission| {
            let subject = || publisher.client().subject;
            admission.access.check_key_owner(&target.channel, publication.key.as_deref(), subject)
        })
        .and_then(|()| check_size(bytes_max, bytes))
        .and_then(|()| publisher.take_quota(bytes));
    if let Err(error) = checked {
        return Publishing::Decided(Answer::now(Err(refused(shard, target, error))));
    }
    let name = target.channel.as_str();
    let (hooks, events, publication) = match admission {
        Some(admission) => (
            admission.hooks(Hook::Publish, name),
            admission.publication_events(name),
            admission.without_unwanted_trace(publication),
        ),
        None => (None, None, publication),
    };
    let span = publication.trace().and_then(|trace| {
        let recorder = shard.span_recorder()?;
        Some(OpenSpan::begin(recorder, Step::Publish, trace, &target.channel))
    });
    match (hooks, events, span) {
        (None, None, None) => Publishing::Decided(append(shard, publisher, target, publication)),
        (hooks, events, span) => {
            let steps = Steps { hooks: hooks.cloned(), events: events.cloned(), bytes_max, span };
            Publishing::Asked(Box::pin(steps.publish(shard, publisher, target, publication)))
        }
    }
}

/// The steps of a publication that does not enter at once, or whose steps are recorded.
struct Steps {
    /// The app's back end, which decides about the publication.
    hooks: Option<Arc<dyn Hooks>>,
    /// Receiver of the event that the publication is.
    events: Option<Arc<dyn PublicationEvents>>,
    bytes_max: usize,
    /// Span of all steps, if the publication belongs to a trace that this node records.
    span: Option<OpenSpan>,
}

impl Steps {
    async fn publish<S: Sockets>(
        mut self,
        shard: &Rc<Shard<S>>,
        publisher: &(impl Publisher + ?Sized),
        target: &mut PublishTarget,
        publication: NewPublication,
    ) -> Result<Position, Error> {
        let outcome = self.run(shard, publisher, target, publication).await;
        if let Some(span) = &mut self.span {
            span.set_outcome(&outcome);
        }
        outcome
    }

    /// Asks the back end, then appends the publication with the payload that the back end has returned. The channel is
    /// registered for webhooks before, so that the event is not lost.
    async fn run<S: Sockets>(
        &self,
        shard: &Rc<Shard<S>>,
        publisher: &(impl Publisher + ?Sized),
        target: &mut PublishTarget,
        mut publication: NewPublication,
    ) -> Result<Position, Error> {
        if let Some(hooks) = &self.hooks {
            let asked = self.ask(hooks, publisher.client(), &target.channel, publication).await;
            let checked =
                asked.and_then(|publication| check_size(self.bytes_max, publication.data.len()).map(|()| publication));
            publication = checked.map_err(|error| refused(shard, target, error))?;
        }
        if let Some(registering) = self.events.as_ref().and_then(|events| events.register(&target.channel)) {
            registering.await;
        }
        let mut span = self.span.as_ref().map(|span| span.child(Step::Engine, &target.channel));
        let appended = append(shard, publisher, target, publication).await;
        if let Some(span) = &mut span {
            span.set_outcome(&appended);
        }
        let position = appended?;
        drop(span);
        if let Some(events) = &self.events {
            events.published(&target.channel);
        }
        Ok(position)
    }

    /// Asks the back end. If the steps are recorded, the trace context of the question is that of its own span.
    async fn ask(
        &self,
        hooks: &Arc<dyn Hooks>,
        client: HookClient,
        channel: &ChannelName,
        publication: NewPublication,
    ) -> Result<NewPublication, Error> {
        let Some(span) = &self.span else { return hooks.publish(client, channel.clone(), publication).await };
        let mut span = span.child(Step::Hook, channel);
        let trace = publication.trace();
        let asked = hooks.publish(client, channel.clone(), publication.traced(Some(span.context()))).await;
        span.set_outcome(&asked);
        asked.map(|publication| publication.traced(trace))
    }
}

fn append<S: Sockets>(
    shard: &Rc<Shard<S>>,
    publisher: &(impl Publisher + ?Sized),
    target: &mut PublishTarget,
    publication: NewPublication,
) -> Answer<Result<Position, Error>> {
    if shard.is_congested(&target.channel) && publisher.meet_congestion() == Congestion::Refuse {
        Metrics::add(&shard.metrics.publications_refused, 1);
        let detail = "publications arrive faster than the readers of this channel are served; try again";
        return Answer::now(Err(refused(shard, target, Error::new(Code::Congested, detail))));
    }
    let publication = publication.held_by(target.holder);
    let counters = target.counters(shard);
    let answer = match target.repeated.is_some() {
        true => shard.append_at(&mut target.slot, &mut target.channel, publication),
        false => shard.append(&target.channel, publication),
    };
    match &answer {
        Answer::Now(Some(Err(_))) => Metrics::add(&counters.refused, 1),
        _ => Metrics::add(&counters.publications, 1),
    }
    answer
}

/// Counts a refused publication, and returns the error.
fn refused<S: Sockets>(shard: &Shard<S>, target: &PublishTarget, error: Error) -> Error {
    Metrics::add(&target.counters(shard).refused, 1);
    error
}

fn check_size(bytes_max: usize, bytes: usize) -> Result<(), Error> {
    match bytes > bytes_max {
        true => Err(Error::new(Code::TooLarge, format!("a publication has at most {bytes_max} bytes"))),
        false => Ok(()),
    }
}
