//! Clusters of real processes: nodes, an engine, and HAProxy in front. The tests inject faults under load and check
//! the messages of every client.
//!
//! `cargo test -p millrace-cli --test cluster` runs all tests, one after the other. docs/explanation/failures.md,
//! "Clusters under failures", lists the settings.

mod balancer;
mod broker;
mod cascade;
mod chaos;
mod client;
mod cluster;
mod crowd;
mod http_server;
mod judge;
mod load;
mod opening;
mod operators;
mod peer;
#[path = "../ports/mod.rs"]
mod ports;
mod presence;
mod process;
mod report;
mod rolling;
mod roster;
mod services;
mod shards;
mod storm;
mod webhooks;
mod wire;
