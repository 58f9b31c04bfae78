use std::{
    io,
    sync::{Arc, Mutex, PoisonError, RwLock, atomic::Ordering::Relaxed},
};

use millrace_engine::{Engine, LogRateLimit};
use millrace_hooks::{
    http_client::{ClientError, HttpClient},
    runtime::HookThread,
    signature::Signer,
};
use millrace_protocol::{ChannelName, Error};
use millrace_transport::admission::webhooks::PublicationEvents;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    Config, EventKind,
    dead_letters::DeadLetters,
    event::Log,
    metrics::Metrics,
    registry::{Publications, Registry},
    sender::Sender,
    turn::{self, Shared},
};

/// Maximum number of bytes of an answer that are read, so that its connection can be reused.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Reasons why webhooks cannot start.
#[derive(Debug, thiserror::Error)]
pub enum WebhooksError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// State of one node, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The URL without its query.
    pub url: String,
    /// True if this node sends the events.
    pub dispatching: bool,
    /// True while the last request has failed, so that its batch is repeated.
    pub failing: bool,
    /// Why the last request has failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Age of the oldest event that is not acknowledged, in milliseconds.
    pub lag_ms: u64,
    /// Number of logs that are read.
    pub logs: u64,
    /// Number of dead letters.
    pub dead: u64,
}

/// Webhooks of one node.
pub struct Webhooks {
    shared: Arc<Shared>,
    publications: Arc<dyn PublicationEvents>,
    /// `None` once the webhooks are stopped.
    thread: Mutex<Option<HookThread>>,
}

impl Webhooks {
    /// Starts the thread that sends events.
    ///
    /// Errors: an invalid certificate, or no thread.
    pub fn start(config: Config, engine: Arc<dyn Engine>) -> Result<Self, WebhooksError> {
        let metrics = Arc::new(Metrics::default());
        let registry = Registry::new(engine.clone(), config.events.clone(), metrics.clone());
        let sender = Sender {
            client: HttpClient::new(ANSWER_BYTES_MAX, &config.authorities)?,
            url: config.url.clone(),
            signer: RwLock::new(Arc::new(config.signer.clone())),
            timeout: config.timeout,
        };
        let letters = DeadLetters::new(engine.clone(), config.dead_max);
        let publications = Arc::new(Publications(registry.clone()));
        let last_error = Mutex::default();
        let buried = LogRateLimit::new();
        let shared = Arc::new(Shared { engine, config, registry, sender, metrics, letters, last_error, buried });
        let thread = HookThread::start("webhooks").map_err(WebhooksError::Thread)?;
        thread.start_task(turn::run(shared.clone()));
        Ok(Self { shared, publications, thread: Mutex::new(Some(thread)) })
    }

    /// Stops sending. The next dispatcher repeats a batch in flight.
    pub fn stop(&self) {
        drop(self.thread.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Replaces the secrets. Requests from now on are signed with the new ones.
    pub fn set_signer(&self, signer: Signer) {
        *self.shared.sender.signer.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(signer);
    }

    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    pub fn registry(&self) -> &Arc<Registry> {
        &self.shared.registry
    }

    /// Returns the interface for admission; `None` if no namespace wants publications.
    pub fn publications(&self) -> Option<Arc<dyn PublicationEvents>> {
        self.shared.config.events.wants_any(EventKind::Publication).then(|| self.publications.clone())
    }

    /// Returns true if a list must be registered before its first entry. The lists of channels and connections are
    /// always read, and the members of a channel without events never.
    pub fn is_registered_by_lists(&self, list: &ChannelName) -> bool {
        match Log::of(list) {
            Log::Members(channel) => self.shared.config.events.wants(EventKind::Member, channel),
            _ => false,
        }
    }

    pub fn status(&self) -> Status {
        let Shared { metrics, sender, engine, .. } = &*self.shared;
        Status {
            url: sender.url.shown(),
            dispatching: metrics.is_dispatching.load(Relaxed),
            failing: metrics.is_failing.load(Relaxed),
            error: self.shared.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            lag_ms: metrics.lag_ms(engine.now_ms()),
            logs: metrics.logs.load(Relaxed),
            dead: metrics.letters.load(Relaxed),
        }
    }

    /// Returns the age of the oldest event that is not acknowledged, in milliseconds.
    pub fn lag_ms(&self) -> u64 {
        self.shared.metrics.lag_ms(self.shared.engine.now_ms())
    }

    /// Takes a notice of another node: these channels may have new events.
    pub fn on_changed(&self, channels: &[ChannelName]) {
        if self.shared.metrics.is_dispatching.load(Relaxed) {
            channels.iter().for_each(|channel| self.shared.registry.notify(channel));
        }
    }

    /// Returns a page of dead letters; see [`DeadLetters::page`].
    ///
    /// Errors: those of [`DeadLetters::page`].
    pub async fn dead_letters(&self, after: Option<&str>, limit: usize) -> Result<Value, Error> {
        self.shared.letters.page(after, limit).await
    }

    /// Sends dead letters again, those with the given ids or all. Returns their number.
    ///
    /// Errors: those of the engine.
    pub async fn replay(&self, ids: Option<&[String]>) -> Result<usize, Error> {
        self.shared.letters.replay(ids).await
    }
}

impl Shared {
    pub fn set_last_error(&self, error: String) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }
}

/// Returns the question by which a node reports changes to the others. It must not be the name of a channel.
pub fn changed_question(channels: &[ChannelName]) -> String {
    let channels: Vec<&str> = channels.iter().map(ChannelName::as_str).collect();
    json!({ "webhooks_changed": { "channels": channels } }).to_string()
}
