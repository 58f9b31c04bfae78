//! The test cases of RFC 8867 for congestion control, in virtual time, over the bottleneck of `millrace-link`.
//!
//! The video source sends packets of 1,200 bytes evenly at the target rate, within the range of the RFC: 150 kbit/s to
//! 1.5 Mbit/s. Receivers report arrival times every 50 ms. The queue holds 300 ms and drops from its tail.

mod cases;
mod media;
mod outcome;
mod packet;
mod simulation;
mod tcp;

pub use cases::{CASES, LIBWEBRTC};
pub use simulation::run;
