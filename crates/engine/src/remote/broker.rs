use std::{future::Future, sync::Arc, time::Duration};

use millrace_delivery::{Bounds, Page, PageLimit};
use millrace_protocol::{
    ChannelName, Epoch, Error, NewPublication, Pattern, Position, Publication, Since,
    session::{Policy, Target},
};

use crate::Newest;

/// What a broker in the network does; [`Remote`](super::Remote) does the rest: mirror, batches, retries, waiting, presence.
///
/// A broker connects by itself, again and again with growing pauses, and tells so by [`Event`]s. Its futures run on the runtime of
/// [`Remote`](super::Remote), and any may be dropped half way. One that gets no answer ends with [`BrokerError::Unavailable`] after a while
/// (about two seconds), so that it is tried again on another connection.
pub(crate) trait Broker: Send + Sync + 'static {
    /// Whether silent channels expire.
    const FORGETS: bool;

    /// Appends a batch to a channel, in order, and publishes it to who is subscribed. The same token again (an answer was lost) gives the
    /// same answer and changes nothing; tokens of one node and channel rise, and one that comes too late is refused or ignored.
    ///
    /// Shape: one position per publication; one whose idempotency key is known (five minutes, per channel) gets the first one's.
    /// `may_create` is false when there are too many channels: then a channel that does not exist is refused with `too_many`.
    fn append(
        &self,
        channel: &ChannelName,
        batch: &[NewPublication],
        bounds: &Bounds,
        token: Token<'_>,
        may_create: bool,
    ) -> impl Future<Output = Result<Vec<Position>, BrokerError>> + Send;

    /// As [`Engine::page`](crate::Engine::page). [`Past`](super::Past) makes one of what was read.
    fn page(
        &self,
        channel: &ChannelName,
        since: Since,
        policy: Policy,
        limit: PageLimit,
        bounds: &Bounds,
    ) -> impl Future<Output = Result<Page, BrokerError>> + Send;

    /// The newest publication, and where the log ends.
    fn newest(
        &self,
        channel: &ChannelName,
        bounds: &Bounds,
    ) -> impl Future<Output = Result<Newest, BrokerError>> + Send;

    /// Where the logs end, in the order asked. A channel that does not exist is born by it, with the epoch that its first publication will
    /// have; if nobody asks again it may be forgotten after some minutes (what is watched is asked for every 30 seconds).
    fn tops(&self, channels: &[ChannelName]) -> impl Future<Output = Result<Vec<Position>, BrokerError>> + Send;

    /// Channels with a past that match.
    fn channels(
        &self,
        pattern: &Pattern,
        max: usize,
    ) -> impl Future<Output = Result<Vec<ChannelName>, BrokerError>> + Send;

    /// Once it has ended well, all that is published to the targets is told by [`Event::Published`], until [`Event::LinkLost`]. What is
    /// subscribed already stays so. More than was asked for may be told, and twice.
    fn subscribe(&self, targets: &[Target]) -> impl Future<Output = Result<(), BrokerError>> + Send;

    fn unsubscribe(&self, targets: &[Target]) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Says that this node lives, for so long by the broker's clock. Zero: that it goes.
    fn renew(&self, lease: Duration) -> impl Future<Output = Result<Lease, BrokerError>> + Send;

    /// Brings a message to a node, or to all (this one, too, if that is easier): [`Event::Told`] there. It may be lost.
    fn tell(&self, node: Option<&str>, message: &str) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Channels with a past, about.
    fn count(&self) -> impl Future<Output = Result<usize, BrokerError>> + Send;
}

/// What makes a batch known again: the node's name (unique, new at every start: `[0-9a-f]+`) and a number that rises.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub node: &'a str,
    pub number: u64,
}

/// The nodes that live, and what time it is, by the broker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lease {
    pub now_ms: u64,
    /// Their names, this node's included.
    pub nodes: Vec<String>,
}

#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum BrokerError {
    /// No answer: nobody knows whether it was done, and asking again may help. No text from a URL.
    #[error("{0}")]
    Unavailable(String),
    /// Nothing was done, and asking again gives the same.
    #[error("{0}")]
    Refused(Error),
}

/// What a broker tells by itself.
#[derive(Debug)]
pub(crate) enum Event {
    /// In order per channel while the link holds; holes are found by their offsets.
    Published { channel: ChannelName, epoch: Epoch, publication: Publication },
    /// A message of [`Broker::tell`].
    Told(String),
    /// From now on publications may be missed, until everything is subscribed anew. Also once before the first [`Event::LinkBack`].
    LinkLost,
    /// There is a connection: everything has to be subscribed anew.
    LinkBack,
}

/// Where events go: never blocks, from any thread.
pub(crate) type Events = Arc<dyn Fn(Event) + Send + Sync>;
