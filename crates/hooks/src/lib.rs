//! Calls to the app's back end: [`Hooks`] asks who may connect, subscribe and publish, and passes on remote procedure
//! calls. A question is a signed HTTP request to a configured URL.
//!
//! This crate knows no shard, no connection and no channel state. It never calls a URL that is not configured, follows
//! no redirect, and logs no payload, no secret and no query of a URL.
//!
//! - [`signature`]: signs requests; receivers verify them in the same way
//! - [`http_client`]: one bounded POST request
//! - [`circuit_breaker`]: stops asking a back end that does not answer
//! - [`endpoint`]: a URL with its limits: signature, concurrency, deadline, circuit breaker
//! - [`question`], [`answer`]: the JSON of requests and responses
//! - [`answer_cache`]: answers that the back end allows to reuse
//! - [`runtime`]: a thread for requests, apart from the shards
//!
//! Read first: [`Hooks`], [`Config`], [`endpoint::Endpoint`].
//!
//! Source: docs/reference/hooks.md.

pub mod answer;
pub mod answer_cache;
pub mod circuit_breaker;
mod config;
pub mod endpoint;
mod hooks;
pub mod http_client;
pub mod metrics;
pub mod question;
pub mod runtime;
pub mod signature;
mod url;

pub use config::{Config, NamespaceHooks, OnFailure};
pub use hooks::{EndpointState, Hooks, HooksError};
pub use url::{HookUrl, InvalidUrl};
