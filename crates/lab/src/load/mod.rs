//! The load generator: publishes messages at their scheduled times and records each delivery.
//!
//! The loop is open: the due time of a publication is fixed before the run. The publication carries that time, and
//! its latency counts from it. If a server cannot keep up, the latency therefore shows how long users wait, not only
//! how long the server worked. The generator measures its own lateness too and reports when it was the bottleneck.
//! Read first: [`Plan`], [`run`], [`Dialect`].

mod clients;
pub mod dialect;
pub mod http;
mod ledger;
mod link;
pub mod null;
pub mod payload;
pub mod peers;
mod plan;
mod retrying;
mod run;
mod schedule;
#[cfg(test)]
pub mod script;
mod secured;
mod shared;
mod source;
pub mod sse;
mod tally;
mod thread_stats;
mod usage;
mod verdict;
pub mod websocket;
mod worker;

pub use clients::ClientGroup;
pub use dialect::{Dialect, Event, LoadTarget, Role};
pub use plan::{Plan, Rate, Shape};
pub use retrying::RetryingPoster;
pub use run::{Hooks, Milestone, Outcome, Sample, run, run_with};
pub use schedule::Arrivals;
pub use secured::Secured;
pub use source::{PER_SOURCE, loopback_source};
