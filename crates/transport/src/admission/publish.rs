//! The one decision whether a publication may enter: permission, size, quota, congestion, in this order.
//!
//! Every transport publishes through [`publish`]. The permission is checked first, because only that check creates a
//! [`PublishTarget`]. Transports differ in how a client pays its quota and meets congestion; see [`Publisher`].

use std::rc::Rc;

use millrace_engine::{Answer, ChannelSlot};
use millrace_node::{Metrics, Shard, Sockets};
use millrace_protocol::{ChannelName, Code, Error, Holder, NewPublication, Permission, Position};

use super::access::Caller;

/// A channel that a caller may publish to, and the holder whose quota pays for it.
#[derive(Debug)]
pub struct PublishTarget {
    channel: ChannelName,
    holder: Holder,
    /// True if the client publishes repeatedly. Then `slot` is the slot of the channel in the engine.
    is_repeated: bool,
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
}

impl Caller {
    /// Checks the permission to publish to a channel.
    ///
    /// Errors: those of [`Caller::may`].
    pub fn may_publish(&self, channel: ChannelName) -> Result<PublishTarget, Error> {
        self.may(Permission::Publish, &channel)?;
        Ok(PublishTarget { channel, holder: self.holder, is_repeated: false, slot: ChannelSlot::default() })
    }
}

impl PublishTarget {
    /// Returns the target for a client that publishes repeatedly. The engine finds the channel faster then.
    pub fn repeated(self) -> Self {
        Self { is_repeated: true, ..self }
    }

    /// Target on a channel of the server itself, such as `fleet`: a copy of what the client was permitted to publish.
    pub fn copy_to(&self, channel: ChannelName) -> Self {
        Self { channel, is_repeated: false, slot: ChannelSlot::default(), ..*self }
    }

    /// Returns the slot of the channel in the engine, if it is known.
    pub fn slot(&self) -> ChannelSlot {
        self.slot
    }
}

/// Publishes, if the publication may enter. `bytes_max` is the maximum payload size.
///
/// Errors: `too_large`; those of [`Publisher::take_quota`]; `congested`; those of the engine.
pub fn publish<S: Sockets>(
    shard: &Rc<Shard<S>>,
    publisher: &(impl Publisher + ?Sized),
    bytes_max: usize,
    target: &mut PublishTarget,
    publication: NewPublication,
) -> Answer<Result<Position, Error>> {
    if let Err(error) = check(shard, publisher, bytes_max, &target.channel, publication.data.len()) {
        return Answer::now(Err(error));
    }
    let publication = publication.held_by(target.holder);
    match target.is_repeated {
        true => shard.append_at(&mut target.slot, &mut target.channel, publication),
        false => shard.append(&target.channel, publication),
    }
}

fn check<S: Sockets>(
    shard: &Rc<Shard<S>>,
    publisher: &(impl Publisher + ?Sized),
    bytes_max: usize,
    channel: &ChannelName,
    bytes: usize,
) -> Result<(), Error> {
    if bytes > bytes_max {
        return Err(Error::new(Code::TooLarge, format!("a publication has at most {bytes_max} bytes")));
    }
    publisher.take_quota(bytes)?;
    if shard.is_congested(channel) && publisher.meet_congestion() == Congestion::Refuse {
        Metrics::add(&shard.metrics.publications_refused, 1);
        let detail = "publications arrive faster than the readers of this channel are served; try again";
        return Err(Error::new(Code::Congested, detail));
    }
    Ok(())
}
