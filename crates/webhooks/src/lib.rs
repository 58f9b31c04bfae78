//! Webhooks: notifies the app's back end of events by signed HTTP requests, at least once, in order per channel.
//!
//! The queue of events is the log of channels: an event is a publication in a log, and a cursor in the engine remembers
//! up to where the back end has acknowledged. So events survive whatever the engine survives, and cost no second queue.
//! One node of a cluster, the dispatcher, reads the logs and sends the events; the others only register channels.
//!
//! This crate knows no shard and no connection. It never calls a URL that is not configured, and logs no payload.
//!
//! - [`event`]: which publications of which logs are events, and their JSON
//! - [`dispatcher`]: decides what is read, sent, repeated and given up; no I/O and no clock
//! - [`store`]: cursors and registrations in the engine
//! - [`dead_letters`]: events that the back end has rejected
//! - [`registry`]: registers channels before their first event, on each node
//! - [`turn`]: runs the dispatcher while this node is the one that sends
//!
//! Read first: [`Webhooks`], [`dispatcher::Dispatcher`], [`event::Log`].
//!
//! Source: docs/reference/webhooks.md, docs/adr/0021-the-queue-of-webhooks-is-the-log-of-channels.md.

mod config;
pub mod dead_letters;
pub mod dispatcher;
pub mod event;
pub mod metrics;
pub mod registry;
mod sender;
pub mod store;
mod turn;
mod webhooks;

pub use config::{Config, EventKind, EventSet, EventSets, Limits};
pub use webhooks::{Status, Webhooks, WebhooksError, changed_question};
