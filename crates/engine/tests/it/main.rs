#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;
mod contract;
mod hand_over;
mod nats;
#[path = "../../../cli/tests/ports/mod.rs"]
mod ports;
mod servers;
mod sqlite;
mod state;
mod state_nodes;
mod worlds;
