//! The lists: simulated nodes with faults, and real threads on every engine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod engines;
#[path = "../../../cli/tests/ports/mod.rs"]
mod ports;
mod reader;
#[allow(dead_code, reason = "shared with the tests of the engines")]
#[path = "../../../engine/tests/it/servers.rs"]
mod servers;
mod sim;
mod timing;
mod world;
