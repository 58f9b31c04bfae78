#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;
mod contract;
mod nats;
mod servers;
mod sqlite;
mod worlds;
