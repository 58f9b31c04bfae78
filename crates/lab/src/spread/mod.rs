//! A load that is spread over several server nodes, each with a generator process of its own, because one process may
//! not have enough descriptors.
//!
//! ```text
//!   this process ──stdin, stdout──► generator 0 ──► node 0      namespace 0
//!                 ──────────────►   generator 1 ──► node 1      namespace 1
//!                 ──────────────►   generator 2 ──► node 2      namespace 0 ...
//! ```
//!
//! A client and its publisher meet on one node, so the nodes need no engine in common and the latency is measured by
//! one clock. With root, the generators are in two network namespaces and the servers in a third, connected by virtual
//! Ethernet, so that packets have the size of a real network and can be counted. Otherwise all use loopback.
//! Read first: [`Division`], [`Network`], [`Generators`].

mod division;
mod generators;
mod merge;
mod message;
mod network;
mod worker;

pub use division::{Division, NODES_MAX};
pub use generators::Generators;
pub use message::Assignment;
pub use network::Network;
pub use worker::serve;
