//! Operator requests: channels, connections, disconnects, ended subscriptions, revocations, refreshes, settings.
//!
//! There is one implementation with two doors: the admin listener, which requires `admin.token`, and the client port,
//! which requires a token or an API key with `admin`, or a page of an open server on loopback. Both run on the thread
//! of [`thread`], so that the shards stay free. Requests are effective on the whole cluster; see [`nodes`].
//!
//! - [`doors`]: who may send requests; [`token`]: the token of the admin listener
//! - [`endpoints`]: the list of requests, with the function and the rows of each
//! - [`requests`]: answers requests
//! - [`channels`]: the list of channels, and the state of one
//! - [`publications`]: the newest publications of a channel, and pages of its history
//! - [`connections`]: the lists of connections and of slow readers
//! - [`rooms`]: rooms, their participants and tracks
//! - [`hooks`]: the questions to the app's back end
//! - [`settings`]: the configuration and its sources
//! - [`filter`]: selects connections
//! - [`follow`]: repeats a request and publishes its answer, row by row
//! - [`counters`], [`recorder`]: the counters of this node, and their samples once per second
//! - [`overview`]: what each node does; [`threads`]: what each thread does
//! - [`cluster`]: the nodes and their drain; [`events`]: what happened to them
//! - [`lab`]: requests to the lab
//! - [`nodes`]: questions to all nodes, and the answers of this node
//! - [`revocations`]: revocations that outlive the node
//! - [`webhooks`]: state of the webhooks, and their dead letters
//!
//! Source: docs/reference/admin.md.

mod channels;
mod cluster;
mod connections;
mod counters;
mod doors;
mod endpoints;
mod events;
mod filter;
mod follow;
mod hooks;
mod lab;
mod nodes;
mod overview;
mod publications;
mod recorder;
mod relays;
mod requests;
mod revocations;
mod rooms;
mod settings;
mod thread;
mod threads;
mod token;
mod webhooks;

use std::{cell::RefCell, sync::Arc};

use millrace_conference::Question as RoomQuestion;
use millrace_engine::{Engine, WithLocal};
use millrace_hooks::Hooks;
use millrace_node::Router;
use millrace_transport::{Arrival, Question};
use millrace_webhooks::Webhooks;
use tokio::sync::{mpsc, watch};

pub use cluster::DrainState;
pub use doors::AdminRoutes;
pub use endpoints::ENDPOINTS;
pub use events::{EventKind, Events};
pub use follow::Follows;
pub use recorder::Recorder;
pub use thread::{Jobs, run};
pub use threads::CpuTimes;
pub use token::AdminToken;

use crate::{auth::Auth, config::Shown, lab::Lab, pages::Site};
use publications::Tails;

/// Everything that operator requests use.
pub struct Admin {
    /// Token of the admin listener; no token is valid without a listener.
    pub token: AdminToken,
    /// Queue of connections that a shard serves.
    pub arrivals: mpsc::Sender<Arrival>,
    pub site: Arc<Site>,
    pub auth: Arc<Auth>,
    pub engine: Arc<dyn Engine>,
    /// The same engine, for publications to the channels of this node.
    pub local: Arc<WithLocal<Router>>,
    pub follows: Follows,
    pub recorder: RefCell<Recorder>,
    pub cpu_times: RefCell<CpuTimes>,
    pub events: Arc<Events>,
    /// Drains this node, or cancels its drain.
    pub drain: watch::Sender<DrainState>,
    /// The webhooks to the app's back end, if they are configured.
    pub webhooks: Option<Arc<Webhooks>>,
    /// The lab, if the configuration allows it.
    pub lab: Option<Arc<Lab>>,
    pub router: Arc<Router>,
    /// Current configuration without its secrets.
    pub config: watch::Receiver<Shown>,
    pub shards: Vec<mpsc::Sender<Question>>,
    /// Queues of the rooms of all shards.
    pub rooms: Vec<mpsc::Sender<RoomQuestion>>,
    /// The hooks of the app's back end, if they are configured.
    pub hooks: Option<Arc<Hooks>>,
    /// Where the last requests for the newest publications ended.
    pub tails: RefCell<Tails>,
    /// Name of this node: `[0-9a-f]+`, new at every start.
    pub node: String,
    pub now_s: fn() -> u64,
}
