//! The load generator: publications that are due when they are due, and books about what became of each.

pub mod dialect;
pub mod http;
pub mod payload;
pub mod schedule;
pub mod sse;
pub mod tally;
pub mod websocket;
