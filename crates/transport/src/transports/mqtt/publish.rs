use std::{cell::RefCell, rc::Rc, sync::PoisonError};

use millrace_delivery::ConnId;
use millrace_engine::Answer;
use millrace_mqtt::{Incoming, Reason};
use millrace_protocol::{ChannelName, Error, NewPublication, Position, Publication, PublicationHead, Transport};

use super::{Host, Running};
use crate::{
    admission::{self, Admission, Congestion, PublishTarget, Publisher, Publishing, hooks::HookClient},
    connection::{
        BarePublisher,
        mqtt::{Link, Node, Will},
    },
};

impl Host {
    /// Publishes for a client, and answers it. Returns what continues if the publication waits for something.
    pub(super) fn publish(
        self: &Rc<Self>,
        id: ConnId,
        link: &Rc<RefCell<Link>>,
        incoming: Incoming,
    ) -> Option<Running> {
        let mut target = match self.target(id, link, &incoming.channel) {
            Ok(target) => target,
            Err(error) => {
                self.answer(link, &incoming, Err(error));
                return None;
            }
        };
        let admission = self.event_loop.admission();
        let has_format = self.topics.knows(target.channel());
        // The spans of a traced publication are recorded while it waits for its answer.
        let is_traced = incoming.publication.trace().is_some();
        if !has_format && !incoming.is_retained && !is_traced && !admission.may_delay(target.channel()) {
            let Incoming { publication, id: packet, qos, .. } = incoming;
            let bytes_max = admission.config().message_bytes_max.max(1);
            let publisher = BarePublisher { event_loop: &self.event_loop, id };
            let shard = self.event_loop.shard();
            let answer = match admission::publish(shard, &publisher, bytes_max, &mut target, publication) {
                Publishing::Decided(answer) => answer,
                // Unreachable: such a publication waits, see below.
                Publishing::Asked(_) => return None,
            };
            let outcome = match answer {
                Answer::Now(Some(outcome)) => outcome,
                answer => {
                    link.borrow_mut().target = Some(target);
                    let (host, link) = (self.clone(), link.clone());
                    return Some(Box::pin(async move {
                        let outcome = answer.await;
                        host.answer_packet(&link, packet, qos, outcome);
                        host.event_loop.shard().sockets().flush_mqtt(id);
                    }));
                }
            };
            link.borrow_mut().target = Some(target);
            self.answer_packet(link, packet, qos, outcome);
            return None;
        }
        let (host, link) = (self.clone(), link.clone());
        Some(Box::pin(async move {
            let bytes_max = host.event_loop.admission().config().message_bytes_max.max(1);
            let publisher = BarePublisher { event_loop: &host.event_loop, id };
            let Incoming { channel, publication, id: packet, qos, is_retained } = incoming;
            let kept = is_retained.then(|| host.kept(&publication));
            let shard = host.event_loop.shard();
            if has_format && let Err(error) = host.offer(&publisher, &channel, &publication).await {
                link.borrow_mut().target = Some(target);
                host.answer_packet(&link, packet, qos, Err::<(), _>(error));
                return shard.sockets().flush_mqtt(id);
            }
            let published = admission::publish(shard, &publisher, bytes_max, &mut target, publication).await;
            let outcome = match (published, kept) {
                (Ok(_), Some(kept)) => host.retain(&channel, kept).await,
                (published, _) => published.map(drop),
            };
            link.borrow_mut().target = Some(target);
            host.answer_packet(&link, packet, qos, outcome);
            shard.sockets().flush_mqtt(id);
        }))
    }

    /// Passes a publication to the code that knows its format.
    ///
    /// Errors: those of [`super::TopicFormats::take`].
    async fn offer(
        &self,
        publisher: &BarePublisher<'_>,
        channel: &ChannelName,
        publication: &NewPublication,
    ) -> Result<(), Error> {
        let caller = self.event_loop.shard().sockets().grants.caller(publisher.id)?.clone();
        self.topics.take(publisher, &caller, channel, &publication.data).await
    }

    /// Returns the target of a publication. Most clients publish to the same channel again.
    ///
    /// Errors: those of [`crate::admission::access::Caller::may_publish`].
    fn target(&self, id: ConnId, link: &Rc<RefCell<Link>>, channel: &ChannelName) -> Result<PublishTarget, Error> {
        let known = link.borrow_mut().target.take();
        if let Some(known) = known.filter(|known| known.channel() == channel) {
            return Ok(known);
        }
        let shard = self.event_loop.shard();
        let target = shard.sockets().grants.caller(id)?.may_publish(channel.clone())?;
        Ok(target.repeated(shard))
    }

    fn answer(&self, link: &Rc<RefCell<Link>>, incoming: &Incoming, outcome: Result<(), Error>) {
        self.answer_packet(link, incoming.id, incoming.qos, outcome);
    }

    fn answer_packet<T>(&self, link: &Rc<RefCell<Link>>, packet: u16, qos: u8, outcome: Result<T, Error>) {
        let outcome = outcome.map(drop).map_err(|error| {
            self.event_loop.admission().limits.count_error(&error);
            tracing::debug!(%error, "refused a publication of an MQTT client");
            Reason::of(&error)
        });
        if let Some((session, out)) = link.borrow_mut().session_and_out() {
            session.published(packet, qos, outcome, out);
        }
    }

    /// Returns the copy of a publication that [`Host::retain`] keeps. It has the trace context that the publication
    /// itself has after its admission.
    fn kept(&self, publication: &NewPublication) -> NewPublication {
        self.event_loop.admission().without_unwanted_trace(publication.clone())
    }

    /// Keeps a publication as the retained one of its channel; an empty payload removes it.
    ///
    /// Errors: those of the engine: `too_many` if too many channels have a retained publication.
    async fn retain(&self, channel: &ChannelName, publication: NewPublication) -> Result<(), Error> {
        let (state, engine) = (Node::retained_channel(), &self.event_loop.shard().engine);
        if publication.data.is_empty() {
            let is_known = self.node.retained.read().unwrap_or_else(PoisonError::into_inner).contains(channel);
            if is_known {
                let position = engine.append(&state, NewPublication::deletion(channel.as_str().into())).await?;
                self.apply(channel, NewPublication::deletion(channel.as_str().into()), position);
            }
            return Ok(());
        }
        let stored = NewPublication { key: Some(channel.as_str().into()), ..publication };
        let position = engine.append(&state, stored.clone()).await?;
        self.apply(channel, stored, position);
        Ok(())
    }

    /// Applies a change to the copy of this node, so that a subscription that follows sees it.
    fn apply(&self, channel: &ChannelName, publication: NewPublication, position: Position) {
        let now_ms = self.event_loop.shard().engine.now_ms();
        let head = PublicationHead {
            offset: position.offset,
            time_ms: now_ms,
            key: None,
            expires_ms: publication.ttl_ms.map(|ttl_ms| now_ms.saturating_add(ttl_ms)),
            kind: publication.kind,
            is_traced: false,
            is_deletion: publication.is_deletion,
        };
        let publication = Publication::placed(head, publication.data);
        self.node.retained.write().unwrap_or_else(PoisonError::into_inner).apply(channel, publication, position);
    }

    /// Publishes a will.
    pub(super) async fn publish_will(&self, will: Will) {
        let Will { caller, mut target, publication, is_retained } = will;
        let admission = self.event_loop.admission();
        let publisher = WillPublisher { admission, subject: caller.grant.subject.clone() };
        let kept = is_retained.then(|| self.kept(&publication));
        let (shard, bytes_max) = (self.event_loop.shard(), admission.config().message_bytes_max.max(1));
        let published = admission::publish(shard, &publisher, bytes_max, &mut target, publication).await;
        let outcome = match (published, kept) {
            (Ok(_), Some(kept)) => self.retain(target.channel(), kept).await,
            (published, _) => published.map(drop),
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "refused the will of an MQTT client");
        }
    }
}

/// Publisher of a will, whose connection has ended.
struct WillPublisher<'a> {
    admission: &'a Admission,
    subject: Option<std::sync::Arc<str>>,
}

impl Publisher for WillPublisher<'_> {
    fn take_quota(&self, bytes: usize) -> Result<(), Error> {
        self.admission.limits.check_publish(None, self.subject.as_ref(), bytes)
    }

    fn meet_congestion(&self) -> Congestion {
        Congestion::SlowDown
    }

    fn admission(&self) -> Option<&Admission> {
        Some(self.admission)
    }

    fn client(&self) -> HookClient {
        HookClient { subject: self.subject.clone(), transport: Transport::Mqtt.name(), ..HookClient::default() }
    }
}
