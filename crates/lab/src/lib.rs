//! The laboratory of Millrace: puts servers under load, watches the machine meanwhile, and says what the figures are worth.
//!
//! Never links a server: ours is measured as its rivals are, from outside, over the wire. Nothing here judges by a single run.
//! Read first: [`load::Plan`], [`host::Sampler`], [`stats::compare::compare`].

pub mod histogram;
pub mod host;
pub mod load;
pub mod recording;
pub mod stats;
pub mod targets;
