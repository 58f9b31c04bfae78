//! Where order and history are decided. An engine gives every publication its position, keeps the bounded past, and tells the nodes.
//!
//! It never knows a client, a transport or a thread: what it accepts goes to [`Deliver`], in order per channel.
//!
//! Read first: [`Engine`], [`Answer`], [`MemoryEngine`]. Adding one: a folder here, a line in [`ENGINES`]; the contract suite
//! (`tests/it/contract.rs`) then runs it.

mod answer;
mod config;
mod memory;

pub use answer::Answer;
pub use config::{Config, HistoryConfig};
pub use memory::MemoryEngine;

use std::sync::Arc;

use millrace_delivery::{Page, PageLimit};
use millrace_protocol::{
    ChannelName, Epoch, Error, NewPublication, Pattern, Position, Publication, Since, session::Policy,
};

/// Every engine, by the name that `--engine` takes.
pub const ENGINES: &[&str] = &["memory"];

/// Receives what an engine has accepted.
pub trait Deliver: Send + Sync + 'static {
    /// Where the publications of one channel go. An engine that keeps it beside the channel's log spares a look-up per publication.
    type Route: Send + Sync;

    fn route(&self, channel: &ChannelName) -> Self::Route;

    /// Called in the order of offsets for each channel, possibly from any thread, possibly with a lock held: must not block.
    fn deliver(&self, route: &Self::Route, channel: &ChannelName, epoch: Epoch, publication: &Arc<Publication>);
}

/// The end of a channel's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    pub top: Position,
    /// `None` if nothing was published yet, or history has forgotten it.
    pub publication: Option<Arc<Publication>>,
}

/// Order and history of all channels.
///
/// Errors of all methods: `unavailable` when the engine does not answer (the caller may retry), `too_many` over a limit.
pub trait Engine: Send + Sync {
    /// Accepts a publication: once the answer is there it has its place, and [`Deliver`] has it or will have it.
    fn append(&self, channel: &ChannelName, publication: NewPublication) -> Answer<Result<Position, Error>>;

    /// A page of the past. Reading a channel that was never written gives its (empty) beginning.
    fn page(
        &self,
        channel: &ChannelName,
        since: Since,
        policy: Policy,
        limit: PageLimit,
    ) -> Answer<Result<Page, Error>>;

    /// The newest publication, if it is still kept.
    fn newest(&self, channel: &ChannelName) -> Answer<Result<Newest, Error>>;

    /// Channels with a past that match, at most `max` of them.
    fn channels(&self, pattern: &Pattern, max: usize) -> Answer<Result<Vec<ChannelName>, Error>>;

    /// The engine's time, in milliseconds since 1970: what `time` of publications is taken from.
    fn now_ms(&self) -> u64;

    /// Channels known and bytes of history held here, for the metrics.
    fn size(&self) -> (usize, usize);

    /// Forgets what has become too old. Called every few seconds.
    fn sweep(&self);
}
