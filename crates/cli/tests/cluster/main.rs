//! Clusters of real processes: nodes, an engine, HAProxy in front; faults while they work, and a judge of what every client got.
//!
//! `cargo test -p millrace-cli --test cluster` runs all, one after the other; docs/operating.md, "Clusters under failures", has the settings.

mod balancer;
mod broker;
mod chaos;
mod client;
mod cluster;
mod crowd;
mod judge;
mod load;
mod opening;
#[path = "../ports/mod.rs"]
mod ports;
mod presence;
mod process;
mod report;
mod rolling;
mod shards;
mod storm;
mod wire;
