//! The part of MQTT that belongs to connections: the link between a socket and its session, and what the shards share.

mod link;
mod node;

pub(crate) use link::{Ending, Link};
pub use node::{Config, Node};
pub(crate) use node::{ConnectionRef, Will};
