use std::{future::Future, sync::Arc, time::Duration};

use millrace_delivery::{Bounds, Page, PageLimit};
use millrace_protocol::{
    ChannelName, Epoch, Error, NewPublication, Pattern, Position, Publication, Since,
    session::{Policy, Target},
};

use crate::{Config, Newest};

/// Connection to a broker in the network. [`Remote`](super::Remote) does the rest: mirror, batches, retries, waiting,
/// questions between nodes.
///
/// A broker connects by itself, with growing pauses between attempts, and reports its state by [`Event`]s. Its futures
/// run on the runtime of [`Remote`](super::Remote), and each may be dropped before its end. A request without a
/// response ends with [`BrokerError::Unavailable`] after about two seconds, so that it is retried on another
/// connection.
pub(crate) trait Broker: Send + Sync + 'static {
    /// True if idle channels expire.
    const FORGETS: bool;

    /// Appends a batch to a channel, in order, and publishes it to the subscribers. A repeated token (after a lost
    /// answer) gets the same answer and changes nothing. The tokens of one node and channel increase; a token below
    /// the latest is refused or ignored.
    ///
    /// Shape: one position or refusal per publication. A publication with a known idempotency key (five minutes, per
    /// channel) gets the position of the first one. `may_create` is false when there are too many channels: then a
    /// channel that does not exist is refused with `too_many`.
    ///
    /// In a keyed state (`bounds.keys_max`), each publication is checked against the state that the publications before
    /// it leave, see [`Engine::append`](crate::Engine::append). [`check_fits`](millrace_delivery::check_fits) has been
    /// called.
    fn append(
        &self,
        channel: &ChannelName,
        batch: &[NewPublication],
        bounds: &Bounds,
        token: Token<'_>,
        may_create: bool,
    ) -> impl Future<Output = Result<Vec<Result<Position, Error>>, BrokerError>> + Send;

    /// Deletes keys of states whose time to live has ended: at least those of the channels that a node reads or writes.
    /// Of several nodes that do this at the same time, exactly one appends the deletion of a key. `config` has the
    /// limits of the channels.
    fn expire_keys(&self, config: &Config) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Returns a page like [`Engine::page`](crate::Engine::page). [`Past`](super::Past) builds the page from the
    /// publications read.
    fn page(
        &self,
        channel: &ChannelName,
        since: Since,
        policy: Policy,
        limit: PageLimit,
        bounds: &Bounds,
    ) -> impl Future<Output = Result<Page, BrokerError>> + Send;

    /// Returns the newest publication and the end of the log.
    fn newest(
        &self,
        channel: &ChannelName,
        bounds: &Bounds,
    ) -> impl Future<Output = Result<Newest, BrokerError>> + Send;

    /// Returns the ends of the logs, in the order of `channels`. A channel that does not exist is created, with the
    /// epoch that its first publication will have. It may expire after some minutes without another call (watched
    /// channels are checked every 30 seconds).
    fn tops(&self, channels: &[ChannelName]) -> impl Future<Output = Result<Vec<Position>, BrokerError>> + Send;

    /// Returns the channels like [`Engine::channels`](crate::Engine::channels).
    fn channels(
        &self,
        pattern: &Pattern,
        after: Option<&ChannelName>,
        max: usize,
    ) -> impl Future<Output = Result<Vec<ChannelName>, BrokerError>> + Send;

    /// Subscribes to the targets. After success, every publication to the targets is reported by [`Event::Published`],
    /// until [`Event::LinkLost`]. Existing subscriptions stay. Publications of other channels, and duplicates, may be
    /// reported, too.
    fn subscribe(&self, targets: &[Target]) -> impl Future<Output = Result<(), BrokerError>> + Send;

    fn unsubscribe(&self, targets: &[Target]) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Renews the lease of this node for this duration by the broker's clock. Zero ends the lease.
    fn renew(&self, lease: Duration) -> impl Future<Output = Result<Lease, BrokerError>> + Send;

    /// Sends a message to one node, or to all nodes (possibly also to this one). It arrives as [`Event::Message`], and
    /// may be lost.
    fn send(&self, node: Option<&str>, message: &str) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Returns the approximate number of channels with history.
    fn count(&self) -> impl Future<Output = Result<usize, BrokerError>> + Send;
}

/// Identifies a batch, so that the broker detects a repeated one: the node's name (unique, new at every start:
/// `[0-9a-f]+`) and an increasing number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub node: &'a str,
    pub number: u64,
}

/// Names of the live nodes, and the time by the broker's clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lease {
    pub now_ms: u64,
    /// Names of the live nodes, including this node.
    pub nodes: Vec<String>,
}

#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum BrokerError {
    /// No response: the request may have been executed, and a retry may help. The text contains no part of a URL.
    #[error("{0}")]
    Unavailable(String),
    /// The request was not executed, and a retry gives the same result.
    #[error("{0}")]
    Refused(Error),
}

/// Event that a broker reports.
#[derive(Debug)]
pub(crate) enum Event {
    /// A publication. They arrive in order per channel while the connection is up. Missing publications are detected
    /// by their offsets.
    Published { channel: ChannelName, epoch: Epoch, publication: Publication },
    /// A message sent with [`Broker::send`].
    Message(String),
    /// The connection is lost. Publications may be missed until everything is subscribed again. Also reported once
    /// before the first [`Event::LinkBack`].
    LinkLost,
    /// A new connection is established. Everything has to be subscribed again.
    LinkBack,
}

/// Receiver of events. It never blocks, and any thread may call it.
pub(crate) type Events = Arc<dyn Fn(Event) + Send + Sync>;
