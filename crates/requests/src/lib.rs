//! Requests to devices that are away: an application asks, the request waits in a keyed state, and the device answers
//! when it returns. The engine stores everything, so a restart loses nothing.
//!
//! This crate never keeps a request outside of the engine, and never waits for a device.
//!
//! Read first: [`RequestRoutes`], `entry.rs`.
//!
//! - `entry.rs`: an entry of the state, and which changes of its state are possible
//! - `routes.rs`: the HTTP requests
//! - `store.rs`: entries in the engine
//!
//! Source: docs/reference/protocol.md, "Requests to devices".

mod entry;
mod metrics;
mod routes;
mod store;

pub use metrics::{Metrics, RequestEvent};
pub use routes::{ENDPOINTS, RequestRoutes};

/// Namespace of the channels `requests/{device}`: keyed states with one key per request.
pub const NAMESPACE: &str = "requests";
