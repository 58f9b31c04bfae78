//! Where order and history are decided. An engine gives every publication its position, keeps the bounded past, and tells the nodes.
//!
//! It never knows a client, a transport or a thread: what it accepts goes to [`Deliver`], in order per channel.
//!
//! Read first: [`Engine`], [`Answer`], [`MemoryEngine`]. Adding one: a folder here, a line in [`ENGINES`] and one in [`open`]; the contract
//! suite (`tests/it/contract.rs`) then runs it.

mod answer;
mod config;
mod memory;
mod mirror;
mod nats;
mod redis;
mod remote;
mod seldom;
mod shares;
mod sqlite;

pub use answer::Answer;
pub use config::{Config, HistoryConfig};
pub use memory::MemoryEngine;
pub use seldom::Seldom;
pub use shares::{Held, may_take};
pub use sqlite::SqliteEngine;

use std::{num::NonZeroU32, sync::Arc};

use millrace_delivery::{Page, PageLimit};
use millrace_protocol::{
    ChannelName, Epoch, Error, NewPublication, Pattern, Position, Publication, Since,
    session::{Policy, Target},
};

/// Every engine, as `--engine` takes it.
pub const ENGINES: &[&str] = &["memory", "sqlite", "redis", "nats"];

/// Why an engine cannot be opened. No variant holds a password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("there is no engine of this kind; an engine is memory, sqlite:PATH, redis://HOST:PORT or nats://HOST:PORT")]
    Unknown,
    /// A setting that this engine cannot keep: which, and what to do.
    #[error("{0}")]
    Setting(String),
    #[error("the file {path} {what}")]
    File { path: String, what: String },
    #[error("the system refuses a thread: {0}")]
    System(std::io::Error),
    #[error("the system has no randomness to give: {0}")]
    Random(#[from] getrandom::Error),
}

/// What is wrong with an engine's URL, without opening it.
///
/// Errors: [`OpenError::Unknown`].
pub fn check_url(url: &str) -> Result<(), OpenError> {
    if let Some(path) = sqlite::path(url) {
        return path.map(drop);
    }
    if let Some(url) = redis::Url::parse(url) {
        return url.map(drop);
    }
    if let Some(checked) = nats::check_url(url) {
        return checked;
    }
    let needs = |what: &str| Err(OpenError::Setting(format!("`{url}` alone says too little: write {what}")));
    match url {
        "memory" => Ok(()),
        "sqlite" => needs("sqlite:PATH, for example sqlite:millrace.db"),
        "redis" => needs("redis://HOST:PORT, for example redis://127.0.0.1:6379"),
        "nats" => needs("nats://HOST:PORT, for example nats://127.0.0.1:4222"),
        _ => Err(OpenError::Unknown),
    }
}

/// A URL as it may be shown: without user and password.
pub fn shown_url(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, rest)| rest)),
        None => url.into(),
    }
}

/// The engine that a URL names; it brings the threads that it needs. `clock` gives milliseconds since 1970.
///
/// Errors: as [`check_url`], or what is named cannot be had.
pub fn open<D: Deliver>(
    url: &str,
    config: Config,
    deliver: Arc<D>,
    clock: impl Fn() -> u64 + Send + Sync + 'static,
) -> Result<Arc<dyn Engine>, OpenError> {
    if let Some(path) = sqlite::path(url) {
        return Ok(Arc::new(SqliteEngine::open(path?, config, deliver, clock)?));
    }
    if let Some(parsed) = redis::Url::parse(url) {
        return Ok(Arc::new(redis::open(shown_url(url), parsed?, config, deliver, clock)?));
    }
    if nats::check_url(url).is_some() {
        return Ok(Arc::new(nats::open(url, config, deliver, clock)?));
    }
    match url {
        "memory" => {
            if let Some(setting) = config.first_durable() {
                return Err(OpenError::Setting(format!(
                    "`{setting} = true` asks for publications on disk, and the engine `memory` has none: take another one"
                )));
            }
            Ok(Arc::new(MemoryEngine::new(config, Epoch(getrandom::u32()?), deliver, clock)))
        }
        _ => Err(OpenError::Unknown),
    }
}

/// Where an engine had a channel when it was last asked: spares the look-up by name for as long as it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place(Option<NonZeroU32>);

/// Receives what an engine has accepted. Nothing here may block: it is called from any thread, possibly with a lock held.
pub trait Deliver: Send + Sync + 'static {
    /// Where the publications of one channel go. An engine that keeps it beside the channel's log spares a look-up per publication.
    type Route: Send + Sync;

    fn route(&self, channel: &ChannelName) -> Self::Route;

    /// Called in the order of offsets for each channel. What is known already is ignored; before a hole, or another epoch, the readers fetch
    /// what they miss from history.
    fn deliver(&self, route: &Self::Route, channel: &ChannelName, epoch: Epoch, publication: &Publication);

    /// The channel's log ends at `top` now, and what lies between `from` (as far as the engine has told) and there was not delivered and will
    /// not be: the readers fetch it from history, or are told that it is lost.
    fn moved(&self, route: &Self::Route, channel: &ChannelName, from: Position, top: Position);

    /// The engine does not know this channel any more.
    fn forget(&self, _: &ChannelName, _: Self::Route) {}

    /// Something is about to be delivered by this route.
    fn expect(&self, _: &Self::Route) {}

    /// Subscriptions of a channel on this node.
    fn readers(&self, channel: &ChannelName) -> u32;
}

/// The end of a channel's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    pub top: Position,
    /// `None` if nothing was published yet, or history has forgotten it.
    pub publication: Option<Publication>,
}

/// Order and history of all channels.
///
/// A channel is charged to the holder of the publication that creates it. Publications into an existing channel are not
/// counted.
///
/// Errors of all methods: `unavailable` when the engine does not answer (the caller may retry), `too_many` over a limit
/// or a share.
pub trait Engine: Send + Sync {
    /// Accepts a publication: once the answer is there it has its place, and [`Deliver`] has it or will have it if the channel is watched.
    fn append(&self, channel: &ChannelName, publication: NewPublication) -> Answer<Result<Position, Error>>;

    /// As [`Engine::append`], for whoever publishes into one channel again and again: `place` and `channel` are what the last call left,
    /// and `channel` becomes the engine's own copy of the name, so that the two are the same without a look at the text.
    fn append_at(
        &self,
        _place: &mut Place,
        channel: &mut ChannelName,
        publication: NewPublication,
    ) -> Answer<Result<Position, Error>> {
        self.append(channel, publication)
    }

    /// A publication for this place is on its way: what it touches is brought into the cache meanwhile.
    fn expect(&self, _place: Place) {}

    /// A page of the past. Reading a channel that was never written gives its (empty) beginning. If the channel is watched, whatever comes
    /// after the page is delivered: the two leave no hole.
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

    /// Subscriptions of a channel on all nodes that live.
    fn presence(&self, channel: &ChannelName) -> Answer<Result<u32, Error>>;

    /// This node begins to read a channel, or all that match a pattern; or nobody here reads it any more. Told once per change, in order.
    /// An engine may deliver what is not watched, too.
    fn watch(&self, target: &Target, is_read: bool);

    /// Until everything that a watched pattern matches is delivered from here on.
    fn joined(&self, _: &Pattern) -> Answer<Result<(), Error>> {
        Answer::now(Ok(()))
    }

    /// The engine's time, in milliseconds since 1970: what `time` of publications is taken from.
    fn now_ms(&self) -> u64;

    /// Channels known and bytes of history held here, for the metrics.
    fn size(&self) -> (usize, usize);

    /// Forgets what has become too old. Called every second.
    fn sweep(&self);

    /// Memory is short: frees so many bytes of history as far as it has them, of the channels that have been idle longest first.
    fn make_room(&self, _bytes: usize) {}

    /// False while what the engine relies on does not answer.
    fn is_up(&self) -> bool {
        true
    }

    /// What it has counted since it was opened, for the metrics: a name such as `retries`, what it is, and how many.
    fn counters(&self) -> Vec<(&'static str, &'static str, u64)> {
        Vec::new()
    }

    /// Returns once everything that was accepted is safe; called once, when nothing more comes.
    fn close(&self) {}
}
