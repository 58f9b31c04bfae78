//! The benchmark lab of Millrace: puts servers under load, monitors the machine during a run, and reports the figures
//! and their validity.
//!
//! The lab never links a server. Millrace is measured like its rivals: from outside, over the network. No verdict
//! rests on a single run.
//! Read first: [`scenarios::SCENARIOS`], [`load::Plan`], [`recording::Recording`].

pub mod analysis;
pub mod catalogue;
pub mod energy;
pub mod export;
pub mod finding;
pub mod histogram;
pub mod host;
pub mod judged;
pub mod load;
pub mod middlebox;
mod nearest;
pub mod observe;
pub mod path;
pub mod recording;
pub mod report;
pub mod scenarios;
pub mod shell;
pub mod slo;
pub mod spread;
pub mod stats;
pub mod sweep;
pub mod targets;
pub mod wire;
pub mod wire_cost;
