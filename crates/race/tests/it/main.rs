//! Lanes in front of small servers, and the requests of a real server.
#![allow(clippy::unwrap_used, reason = "a test may stop where it is wrong")]

mod lanes;
mod requests;
