//! Operator requests: channels, connections, disconnects, ended subscriptions, revocations, refreshes, settings.
//!
//! There is one implementation with two doors: the admin listener, which requires `admin.token`, and the client port,
//! which requires a token or an API key with `admin`. Both run on the thread of [`thread`], so that the shards stay
//! free. Requests are effective on the whole cluster; see [`nodes`].
//!
//! - [`doors`]: who may send requests
//! - [`endpoints`]: the list of requests, with the function and the rows of each
//! - [`requests`]: answers requests
//! - [`channels`]: the list of channels
//! - [`filter`]: selects connections
//! - [`follow`]: repeats a request and publishes its answer, row by row
//! - [`counters`], [`recorder`]: the counters of this node, and their samples once per second
//! - [`overview`]: what each node does
//! - [`lab`]: requests to the lab
//! - [`nodes`]: questions to all nodes, and the answers of this node
//! - [`revocations`]: revocations that outlive the node
//! - [`webhooks`]: state of the webhooks, and their dead letters
//!
//! Source: docs/reference/admin.md.

mod channels;
mod counters;
mod doors;
mod endpoints;
mod filter;
mod follow;
mod lab;
mod nodes;
mod overview;
mod recorder;
mod requests;
mod revocations;
mod thread;
mod webhooks;

use std::{cell::RefCell, sync::Arc};

use millrace_engine::{Engine, WithLocal};
use millrace_node::Router;
use millrace_transport::Question;
use millrace_webhooks::Webhooks;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

pub use doors::AdminRoutes;
pub use endpoints::ENDPOINTS;
pub use follow::Follows;
pub use recorder::Recorder;
pub use thread::{Jobs, run};

use crate::{auth::Auth, config::Secret, lab::Lab, pages::Site};

/// Everything that operator requests use.
pub struct Admin {
    /// Token of the admin listener; empty without a listener.
    pub token: Secret,
    pub site: Arc<Site>,
    pub auth: Arc<Auth>,
    pub engine: Arc<dyn Engine>,
    /// The same engine, for publications to the channels of this node.
    pub local: Arc<WithLocal<Router>>,
    pub follows: Follows,
    pub recorder: RefCell<Recorder>,
    /// The webhooks to the app's back end, if they are configured.
    pub webhooks: Option<Arc<Webhooks>>,
    /// The lab, if the configuration allows it.
    pub lab: Option<Arc<Lab>>,
    pub router: Arc<Router>,
    /// Current configuration without its secrets.
    pub config: watch::Receiver<Value>,
    pub shards: Vec<mpsc::Sender<Question>>,
    /// Name of this node: `[0-9a-f]+`, new at every start.
    pub node: String,
    pub now_s: fn() -> u64,
}
