//! Events of a running scenario, which a terminal, plain text output, or a page displays.

use crate::recording::{Run, Second};

/// May be used by another thread than the one that created it.
pub trait View: Send {
    fn show(&mut self, event: &Event<'_>);
}

#[derive(Debug)]
pub enum Event<'a> {
    /// Text for the user.
    Note(&'a str),
    /// The runs are planned; `done` of them are already recorded.
    Planned { runs: u32, done: u32, estimate_s: f64 },
    /// A run begins. `left_s`: estimated time for all remaining runs, including this one.
    Begun { index: u32, of: u32, label: &'a str, left_s: f64 },
    /// One second of the current run, reported one second later.
    Second(&'a Second),
    /// A run is recorded. `missed`: objectives of the service level that the run missed.
    Ended { run: &'a Run, missed: &'a [String] },
}
