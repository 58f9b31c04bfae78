//! Order and history of all channels. An engine assigns each publication its position, keeps a bounded history, and
//! hands the publications to the nodes.
//!
//! An engine knows no clients, transports or threads. It passes accepted publications to [`Deliver`], in order per
//! channel.
//!
//! Channels that belong to one node ([`WithLocal`]) stay in its memory, whatever the engine.
//!
//! Read first: [`Engine`], [`Answer`], [`MemoryEngine`]. To add an engine, add a folder here, an entry in [`ENGINES`]
//! and a variant of `EngineUrl`. The contract suite (`tests/it/contract.rs`) then runs it.

mod answer;
mod config;
mod deliver;
mod engine;
pub mod hand_over;
mod leads;
mod local;
mod log_rate_limit;
mod memory;
mod mirror;
mod nats;
mod open_error;
mod redis;
mod remote;
mod shares;
mod shown_url;
mod smallest;
mod sqlite;
mod state_changes;

pub use answer::Answer;
pub use config::{Config, HistoryConfig, INTERNAL_LOGS};
pub use deliver::Deliver;
pub use engine::{Answerer, ChannelSlot, Engine, Newest, NodeAnswer, NodeAnswers};
pub use leads::leads;
pub use local::WithLocal;
pub use log_rate_limit::LogRateLimit;
pub use memory::MemoryEngine;
pub use open_error::OpenError;
pub use shares::{HolderCounts, may_take};
pub use shown_url::shown_url;
pub use sqlite::SqliteEngine;
pub use state_changes::{StateChanges, state_changes};

use std::{
    path::Path,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use millrace_protocol::Epoch;

use hand_over::Inherited;

/// Names of all engines, as `--engine` accepts them. Each has a variant of [`EngineUrl`].
pub const ENGINES: &[&str] = &["memory", "sqlite", "redis", "nats"];

/// A parsed engine URL, one variant per engine.
enum EngineUrl<'a> {
    Memory,
    Sqlite(&'a Path),
    Redis(redis::Url),
    Nats(nats::Url),
}

impl<'a> EngineUrl<'a> {
    /// Parses the URL of any engine. The parser of each engine returns `None` for the URLs of other engines.
    ///
    /// Errors: those of [`check_url`].
    fn parse(url: &'a str) -> Result<Self, OpenError> {
        if let Some(path) = sqlite::path(url) {
            return path.map(Self::Sqlite);
        }
        if let Some(url) = redis::Url::parse(url) {
            return url.map(Self::Redis);
        }
        if let Some(url) = nats::parse_url(url) {
            return url.map(Self::Nats);
        }
        let incomplete =
            |what: &str| Err(OpenError::Setting(format!("`{url}` alone is not a complete engine URL: write {what}")));
        match url {
            "memory" => Ok(Self::Memory),
            "sqlite" => incomplete("sqlite:PATH, for example sqlite:millrace.db"),
            "redis" => incomplete("redis://HOST:PORT, for example redis://127.0.0.1:6379"),
            "nats" => incomplete("nats://HOST:PORT, for example nats://127.0.0.1:4222"),
            _ => Err(OpenError::Unknown),
        }
    }
}

/// Returns the name of the engine that a URL names, one of [`ENGINES`]; the URL itself if it names none.
pub fn engine_name(url: &str) -> &str {
    let name = url.split(':').next().unwrap_or(url);
    ENGINES.iter().find(|known| **known == name || name == format!("{known}s")).copied().unwrap_or(name)
}

/// Returns the time of the system in milliseconds since 1970, for the clock of an engine.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Checks the syntax of an engine URL without opening the engine.
///
/// Errors: [`OpenError::Unknown`] if the URL names no engine; [`OpenError::Setting`] if the URL of a known engine is
/// invalid.
pub fn check_url(url: &str) -> Result<(), OpenError> {
    EngineUrl::parse(url).map(drop)
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
    open_with(url, config, deliver, clock, None)
}

/// Opens an engine like [`open`]. With `inherited`, it continues the engine of an old process.
///
/// Errors: those of [`open`], and malformed contents.
pub fn open_with<D: Deliver>(
    url: &str,
    config: Config,
    deliver: Arc<D>,
    clock: impl Fn() -> u64 + Send + Sync + 'static,
    inherited: Option<Inherited>,
) -> Result<Arc<dyn Engine>, OpenError> {
    let parsed = EngineUrl::parse(url)?;
    Ok(match parsed {
        EngineUrl::Memory => {
            if let Some(setting) = config.first_durable() {
                return Err(OpenError::Setting(format!(
                    "`{setting} = true` requires publications on disk, and the engine `memory` stores none: use sqlite or nats"
                )));
            }
            let epoch = match &inherited {
                Some(inherited) => inherited.ending.epoch,
                None => Epoch(getrandom::u32()?),
            };
            let engine = MemoryEngine::new(config, epoch, deliver, clock);
            inherited.map(|inherited| engine.inherit(inherited)).transpose().map_err(OpenError::System)?;
            Arc::new(engine)
        }
        EngineUrl::Sqlite(path) => Arc::new(SqliteEngine::open(path, config, deliver, clock)?),
        EngineUrl::Redis(parsed) => Arc::new(redis::open(shown_url(url), parsed, config, deliver, clock)?),
        EngineUrl::Nats(parsed) => Arc::new(nats::open(shown_url(url), parsed, config, deliver, clock)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the place of the engine in [`ENGINES`]. A new variant does not compile without an entry here.
    fn index(url: &EngineUrl) -> usize {
        match url {
            EngineUrl::Memory => 0,
            EngineUrl::Sqlite(_) => 1,
            EngineUrl::Redis(_) => 2,
            EngineUrl::Nats(_) => 3,
        }
    }

    #[test]
    fn engines_lists_every_engine_with_an_example_url() {
        for (at, name) in ENGINES.iter().enumerate() {
            let example = match EngineUrl::parse(name) {
                Ok(_) => (*name).to_owned(),
                Err(OpenError::Setting(detail)) => detail.rsplit(' ').next().expect("words").to_owned(),
                Err(error) => panic!("{name}: {error}"),
            };
            let parsed = EngineUrl::parse(&example).unwrap_or_else(|error| panic!("{example}: {error}"));
            assert_eq!(index(&parsed), at, "{example}");
        }
        assert!(matches!(check_url("dummy"), Err(OpenError::Unknown)));
    }
}
