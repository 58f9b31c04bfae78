//! Bytes on the wire: what the kernel counts for each transport, what a protocol model predicts, and what a capture
//! sees.
//!
//! All byte counts are of IP packets. Read first: [`measure::measure`], [`model::predict`]. [`crate::wire_cost`] has
//! the report of such figures.

pub mod capture;
pub mod handshake;
pub mod measure;
pub mod model;
pub mod namespace;
mod tap;
pub mod tcp_info;

pub use tap::{Received, Tap};
