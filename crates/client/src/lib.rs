//! Rust client of Millrace: publishes with retries, subscribes over every transport, and resumes after a failure.
//!
//! This crate never links the server: it uses the wire protocol (`docs/reference/protocol.md`) like any other client.
//! It never knows the meaning of a publication.
//!
//! Read first: [`publish::HttpPublisher`], [`subscription::read`], [`state::KeyedState`], [`data_channel::Connection`],
//! [`heartbeat::search`].

pub mod backoff;
pub mod clock;
pub mod data_channel;
pub mod file;
pub mod heartbeat;
pub mod http;
pub mod operator;
pub mod presence;
pub mod problem;
pub mod publish;
pub mod random;
pub mod rpc;
pub mod server;
pub mod state;
pub mod subscription;
pub mod tls;
