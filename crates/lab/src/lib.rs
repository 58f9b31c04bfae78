//! The laboratory of Millrace: puts servers under load, watches the machine meanwhile, and says what the figures are worth.
//!
//! Never links a server: ours is measured as its rivals are, from outside, over the wire. Nothing here judges by a single run.
//! Read first: [`scenarios::SCENARIOS`], [`load::Plan`], [`recording::Recording`].

pub mod analysis;
pub mod energy;
pub mod histogram;
pub mod host;
pub mod judged;
pub mod load;
pub mod middlebox;
pub mod observe;
pub mod recording;
pub mod report;
pub mod scenarios;
pub mod slo;
pub mod stats;
pub mod sweep;
pub mod targets;
pub mod wire;
