//! Web Push: a notification is a publication of `notifications/{subject}`. If that channel has no reader, the message
//! also goes to the push services of the subject's browsers, encrypted for each browser.
//!
//! This crate never calls a host that is not configured, and never logs a message or the path of an endpoint.
//!
//! Read first: [`Push`], [`PushRoutes`].
//!
//! - `encrypt.rs`: RFC 8291
//! - `vapid.rs`: RFC 8292
//! - `endpoint.rs`: which push services are permitted
//! - `notify.rs`: notifications of the server itself
//! - `sender.rs`: requests, repetitions, removal of subscriptions
//! - `queue.rs`, `take_over.rs`: messages that wait, in the engine, and those of nodes that have ended
//! - `routes.rs`: the HTTP requests
//!
//! Source: docs/reference/protocol.md, "Notifications".

mod encrypt;
mod endpoint;
pub mod metrics;
mod notify;
mod queue;
mod routes;
mod sender;
mod take_over;
mod vapid;

pub use endpoint::{HOSTS, Hosts};
pub use queue::{Message, QUEUE};
pub use routes::{ENDPOINTS, PushRoutes};
pub use sender::{Config, Push, PushError};
pub use vapid::{KeyError, Vapid};

/// Namespace of the subscriptions: keyed states with one key per browser.
pub const NAMESPACE: &str = "push-subscriptions";
