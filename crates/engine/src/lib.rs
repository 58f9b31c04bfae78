//! Order and history of all channels. An engine assigns each publication its position, keeps a bounded history, and
//! hands the publications to the nodes.
//!
//! An engine knows no clients, transports or threads. It passes accepted publications to [`Deliver`], in order per
//! channel.
//!
//! Read first: [`Engine`], [`Answer`], [`MemoryEngine`]. To add an engine, add a folder here, an entry in [`ENGINES`]
//! and a branch in [`open`]. The contract suite (`tests/it/contract.rs`) then runs it.

mod answer;
mod config;
mod log_rate_limit;
mod memory;
mod mirror;
mod nats;
mod redis;
mod remote;
mod shares;
mod sqlite;

pub use answer::Answer;
pub use config::{Config, HistoryConfig};
pub use log_rate_limit::LogRateLimit;
pub use memory::MemoryEngine;
pub use shares::{Held, may_take};
pub use sqlite::SqliteEngine;

use std::{num::NonZeroU32, sync::Arc};

use millrace_delivery::{Page, PageLimit};
use millrace_protocol::{
    ChannelName, Epoch, Error, NewPublication, Pattern, Position, Publication, Since,
    session::{Policy, Target},
};

/// Names of all engines, as `--engine` accepts them.
pub const ENGINES: &[&str] = &["memory", "sqlite", "redis", "nats"];

/// Reasons why an engine cannot be opened. No variant contains a password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("there is no engine of this kind; an engine is memory, sqlite:PATH, redis://HOST:PORT or nats://HOST:PORT")]
    Unknown,
    /// A setting that this engine does not support. The text names the setting and the remedy.
    #[error("{0}")]
    Setting(String),
    #[error("the file {path} {what}")]
    File { path: String, what: String },
    #[error("the system refuses a thread: {0}")]
    System(std::io::Error),
    #[error("the system has no randomness to give: {0}")]
    Random(#[from] getrandom::Error),
}

/// Checks the syntax of an engine URL without opening the engine.
///
/// Errors: [`OpenError::Unknown`] if the URL names no engine; [`OpenError::Setting`] if the URL of a known engine is
/// invalid.
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

/// Returns the URL without user and password, for logs and messages.
pub fn shown_url(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, rest)| rest)),
        None => url.into(),
    }
}

/// Opens the engine that the URL names and starts the threads that this engine needs. `clock` returns milliseconds
/// since 1970.
///
/// Errors: those of [`check_url`]; a setting that the engine does not support; or a file, thread or randomness that is
/// not available.
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

/// Cached location of a channel inside an engine, from the previous call. It saves the lookup by name while the
/// location is still valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place(Option<NonZeroU32>);

/// Receiver of the publications that an engine has accepted. No method may block: any thread may call it, possibly
/// while it holds a lock.
pub trait Deliver: Send + Sync + 'static {
    /// Destination of the publications of one channel. An engine that stores it beside the channel's log saves one
    /// lookup per publication.
    type Route: Send + Sync;

    fn route(&self, channel: &ChannelName) -> Self::Route;

    /// Delivers a publication. For each channel the engine calls it in the order of offsets. A publication that is
    /// already known is ignored. If offsets are missing before the publication, or its epoch is new, the readers fetch
    /// the missing publications from history.
    fn deliver(&self, route: &Self::Route, channel: &ChannelName, epoch: Epoch, publication: &Publication);

    /// Reports that the channel's log now ends at `top`. The publications after `from` (the last reported position) up
    /// to `top` were not delivered and will not be. The readers fetch them from history, or get a gap.
    fn moved(&self, route: &Self::Route, channel: &ChannelName, from: Position, top: Position);

    /// Reports that the engine has removed this channel.
    fn forget(&self, _: &ChannelName, _: Self::Route) {}

    /// Announces that a publication for this route follows, so that the receiver can prefetch memory.
    fn expect(&self, _: &Self::Route) {}

    /// Returns the number of subscriptions of a channel on this node.
    fn readers(&self, channel: &ChannelName) -> u32;
}

/// The end of a channel's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    pub top: Position,
    /// `None` if nothing was published yet, or the newest publication is no longer in history.
    pub publication: Option<Publication>,
}

/// Order and history of all channels.
///
/// A channel is charged to the holder of the publication that creates it. Publications into an existing channel are
/// not counted.
///
/// Errors of all methods: `unavailable` when the engine does not answer (the caller may retry), `too_many` over a
/// limit or a share.
pub trait Engine: Send + Sync {
    /// Accepts a publication. When the answer is ready, the publication has its position. [`Deliver`] has received the
    /// publication, or will receive it if the channel is watched.
    fn append(&self, channel: &ChannelName, publication: NewPublication) -> Answer<Result<Position, Error>>;

    /// Accepts a publication like [`Engine::append`], for a caller that publishes into one channel repeatedly. The
    /// caller passes `place` and `channel` as the previous call left them. `channel` becomes the engine's own copy of
    /// the name, so that later comparisons compare pointers, not text.
    fn append_at(
        &self,
        _place: &mut Place,
        channel: &mut ChannelName,
        publication: NewPublication,
    ) -> Answer<Result<Position, Error>> {
        self.append(channel, publication)
    }

    /// Announces that a publication for this place follows. The engine prefetches the memory that the publication will
    /// touch.
    fn expect(&self, _place: Place) {}

    /// Returns a page of history. For a channel without publications it returns an empty page at the start of the log.
    /// If the channel is watched, every publication after the page is delivered, so no publication is lost between
    /// page and delivery.
    fn page(
        &self,
        channel: &ChannelName,
        since: Since,
        policy: Policy,
        limit: PageLimit,
    ) -> Answer<Result<Page, Error>>;

    /// Returns the end of the log, with the newest publication if it is still kept.
    fn newest(&self, channel: &ChannelName) -> Answer<Result<Newest, Error>>;

    /// Returns at most `max` channels with history that match the pattern.
    fn channels(&self, pattern: &Pattern, max: usize) -> Answer<Result<Vec<ChannelName>, Error>>;

    /// Returns the number of subscriptions of a channel on all live nodes.
    fn presence(&self, channel: &ChannelName) -> Answer<Result<u32, Error>>;

    /// Notifies the engine that this node has its first reader of a channel or pattern, or that the last reader left.
    /// The node calls it once per change, in order. An engine may also deliver channels that are not watched.
    fn watch(&self, target: &Target, is_read: bool);

    /// Resolves when all later publications that match a watched pattern are delivered.
    fn joined(&self, _: &Pattern) -> Answer<Result<(), Error>> {
        Answer::now(Ok(()))
    }

    /// Returns the engine's time in milliseconds since 1970. It is the source of the `time` of publications.
    fn now_ms(&self) -> u64;

    /// Returns the number of known channels and the bytes of history held here, for the metrics.
    fn size(&self) -> (usize, usize);

    /// Drops expired publications. Called every second.
    fn sweep(&self);

    /// Frees up to this many bytes of history because memory is short. The channels that are idle longest lose their
    /// history first.
    fn make_room(&self, _bytes: usize) {}

    /// Returns false while the backend of the engine does not answer.
    fn is_up(&self) -> bool {
        true
    }

    /// Returns the counters since the engine was opened, for the metrics: name (such as `retries`), description and
    /// value.
    fn counters(&self) -> Vec<(&'static str, &'static str, u64)> {
        Vec::new()
    }

    /// Returns when all accepted publications are stored safely. Called once, after the last publication.
    fn close(&self) {}
}
