//! The formats of real apps against a real server.
#![allow(clippy::unwrap_used, reason = "a test may stop where it is wrong")]
#![allow(clippy::disallowed_methods, reason = "a real server has a real clock")]

mod apps;
mod bad_input;
mod delivery;
mod rights;
mod schema;
mod server;
