//! State and messages shared by the generator threads and the controlling thread.

use std::{
    sync::{
        atomic::{AtomicU32, AtomicU64},
        mpsc::Sender,
    },
    time::Instant,
};

use super::{ledger::PublicationTable, thread_stats::PhaseStats};
use crate::{histogram::Histogram, recording::Counts};

/// State of the run that all threads see.
pub struct Shared {
    pub clock: Clock,
    pub stage: AtomicU32,
    /// Start time of the test; valid from [`Stage::Test`].
    pub test_at_ns: AtomicU64,
    pub ledger: PublicationTable,
    /// Number of publications sent, per stream.
    pub published: Vec<AtomicU32>,
    /// Number of threads whose publishers have sent all their publications.
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
    /// A thread with this id has started.
    Begun(u32),
    /// All connections of a thread are ready.
    Connected,
    /// All expected deliveries have arrived at a thread.
    Drained,
    Second(u64, Counts, Box<Histogram>),
    /// A thread has finished a stage.
    PhaseStats(Stage, Box<PhaseStats>),
    /// First failure of a connection of a thread.
    Trouble(String),
    /// A thread cannot continue.
    Failed(anyhow::Error),
}
