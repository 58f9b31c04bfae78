//! Operator requests: lists and changes the connections of a shard, and serves requests on the admin listener.
//!
//! - [`connections`]: the connections of a shard, and filters for them
//! - [`scan`]: selection of connections for a list, in bounded parts
//! - [`tcp`]: counters of the kernel
//! - [`change`]: closes connections, ends subscriptions, shortens the lifetime of tokens
//! - [`listener`]: the admin listener
//!
//! Source: docs/reference/admin.md.

mod change;
mod connections;
mod listener;
mod scan;
mod tcp;

pub use connections::{Connection, ConnectionFilter, ConnectionKey, SUBSCRIPTIONS_MAX};
pub use listener::serve;
pub use scan::{ConnectionOrder, Ranked, Scanned, Selection};

/// Maximum size of the body of an operator request, in bytes.
pub const BODY_BYTES_MAX: usize = 4096;
