//! Shard threads. One shard per core owns its connections and its [`millrace_delivery::Hub`]. A publication crosses
//! threads once per shard that has a reader for it, through that shard's [`Mailbox`].
//!
//! This crate knows no sockets: a shard writes to [`Sockets`].
//!
//! Read first: [`Shard`], [`Router`], [`Metrics`].

pub mod histogram;
mod mailbox;
pub mod metrics;
pub mod namespaces;
mod observer;
mod router;
mod shard;
pub mod spans;

pub use histogram::Histogram;
pub use mailbox::{ChannelEvent, Delivery, Mailbox, Moved};
pub use metrics::{Family, MetricKind, Metrics};
pub use namespaces::{NamespaceId, Namespaces};
pub use observer::{Member, Observer};
pub use router::Router;
pub use shard::{Client, Shard, ShardObserver, Sockets, Start, Waiting, Woken};
