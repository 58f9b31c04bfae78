//! What is told while a scenario runs: a terminal, plain lines, or a page draw it.

use crate::recording::{Run, Second};

pub trait View {
    fn tell(&mut self, event: &Event<'_>);
}

#[derive(Debug)]
pub enum Event<'a> {
    /// For people.
    Said(&'a str),
    /// `done` of them were recorded before.
    Planned { runs: u32, done: u32, estimate_s: f64 },
    /// A run begins. `left_s`: of everything, this run included.
    Begun { index: u32, of: u32, label: &'a str, left_s: f64 },
    /// A second of the run that is under way, told a second later.
    Second(&'a Second),
    /// A run is recorded, and what it has missed of the service level.
    Ended { run: &'a Run, missed: &'a [String] },
}
