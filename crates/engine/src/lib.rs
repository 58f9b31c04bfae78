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
mod deliver;
mod engine;
mod log_rate_limit;
mod memory;
mod mirror;
mod nats;
mod open_error;
mod redis;
mod remote;
mod shares;
mod shown_url;
mod sqlite;

pub use answer::Answer;
pub use config::{Config, HistoryConfig};
pub use deliver::Deliver;
pub use engine::{ChannelSlot, Engine, Newest};
pub use log_rate_limit::LogRateLimit;
pub use memory::MemoryEngine;
pub use open_error::OpenError;
pub use shares::{HolderCounts, may_take};
pub use shown_url::shown_url;
pub use sqlite::SqliteEngine;

use std::sync::Arc;

use millrace_protocol::Epoch;

/// Names of all engines, as `--engine` accepts them.
pub const ENGINES: &[&str] = &["memory", "sqlite", "redis", "nats"];

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
