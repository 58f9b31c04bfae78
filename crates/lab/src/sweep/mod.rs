//! Runs a scenario: every combination of its factors, with repeats interleaved in random order. By default, each run
//! has a fresh server. A run is recorded when it ends.
//!
//! ```text
//!   Settings ──Design──► jobs ──Bench, one by one──► Run ──Store──► recording.json
//!                                    └── events ──► View
//! ```

mod bench;
mod capacity;
mod design;
mod job;
mod machine;
mod parameters;
mod reader_traffic;
mod request;
mod scenario;
mod settings;
mod store;
mod view;

pub use bench::{Bench, Interrupted, Verdict};
pub use capacity::Capacity;
pub use design::Design;
pub use job::Job;
pub use machine::Machine;
pub use parameters::{Axis, Parameters};
pub use request::Request;
pub use scenario::{About, Experiment, Kind, Need, Scenario};
pub use settings::Settings;
pub use store::{FILE, Store};
pub use view::{Event, View};
