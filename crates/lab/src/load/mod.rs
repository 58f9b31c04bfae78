//! The load generator: publications that are due when they are due, and books about what became of each.
//!
//! Open loop: when a publication is due is decided before the run. It carries that time, and its latency counts from then, so a server that
//! cannot keep up shows how long people wait, and not how long it worked. The generator watches itself the same way and says when it
//! was the bottleneck. Read first: [`Plan`], [`run`], [`Dialect`].

mod books;
pub mod dialect;
pub mod http;
mod ledger;
mod link;
pub mod null;
pub mod payload;
mod plan;
mod run;
mod schedule;
mod secured;
mod shared;
pub mod sse;
mod tally;
mod usage;
mod verdict;
pub mod websocket;
mod worker;

pub use dialect::{Dialect, Event, Role, Wire};
pub use plan::{Plan, Rate, Shape};
pub use run::{Outcome, Sample, run, run_seen};
pub use schedule::Arrivals;
pub use secured::Secured;
