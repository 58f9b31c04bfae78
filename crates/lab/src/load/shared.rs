//! What the threads of the generator and its desk know of one another.

use std::{
    sync::{
        atomic::{AtomicU32, AtomicU64},
        mpsc::Sender,
    },
    time::Instant,
};

use super::{books::Page, ledger::Ledger};
use crate::{histogram::Histogram, recording::Counts};

/// What the run is at, as everybody sees it.
pub struct Shared {
    pub clock: Clock,
    pub stage: AtomicU32,
    /// When the test begins; valid from [`Stage::Test`].
    pub test_at_ns: AtomicU64,
    pub ledger: Ledger,
    /// Per stream, publications that were sent.
    pub published: Vec<AtomicU32>,
    /// Threads whose publishers have sent all they will.
    pub published_all: AtomicU32,
    pub reports: Sender<Report>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Stage {
    Connect,
    Idle,
    Test,
    After,
    Stop,
}

impl Stage {
    pub const ALL: [Stage; 5] = [Stage::Connect, Stage::Idle, Stage::Test, Stage::After, Stage::Stop];
}

#[derive(Clone, Copy)]
pub struct Clock(pub Instant);

impl Clock {
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

pub enum Report {
    /// A thread with this id is at work.
    Begun(u32),
    /// All connections of a thread are ready.
    Connected,
    /// Everything that was published has arrived at a thread.
    Drained,
    Second(u64, Counts, Histogram),
    /// A stage is over for a thread.
    Page(Stage, Box<Page>),
    /// The first thing that went wrong with a connection of a thread.
    Trouble(String),
    /// A thread cannot go on.
    Failed(anyhow::Error),
}
