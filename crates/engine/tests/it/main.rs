#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod contract;
#[allow(dead_code, reason = "the cluster tests use the rest")]
mod servers;
mod worlds;
