//! Requests: what is asked, by whom it is answered, and how an answer looks.

mod answer;
mod ask;
mod route;

pub use answer::{Body, Response, problem, text};
pub(crate) use answer::{json, no_cache, no_content, position_header};
pub(crate) use ask::{Ask, Query, Wanted, discard, read_body};
pub(crate) use route::{Handover, route};

use std::{rc::Rc, time::Duration};

use http::request::Parts;
use tokio::sync::watch;

use crate::{Config, Shard};

/// Answers what is no channel: health, metrics, pages. `None` means that there is no such path.
pub trait Pages: Send + Sync {
    fn answer(&self, request: &Parts) -> Option<Response>;
}

/// What a request can reach.
pub struct Context {
    pub shard: Rc<Shard>,
    pub config: Config,
    pub pages: std::sync::Arc<dyn Pages>,
    /// True once the server drains.
    pub draining: watch::Receiver<bool>,
    /// Over how long a drain spreads its readers.
    pub drain_window: Duration,
}

impl Context {
    pub(crate) fn body_timeout(&self) -> Duration {
        self.config.body_timeout
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }
}
