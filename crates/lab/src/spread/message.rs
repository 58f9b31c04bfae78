//! Messages between this process and a generator: one JSON object per line.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    load::{Milestone, Plan},
    recording::{Finding, Phase, Second},
    targets::{PublisherPlace, Transport},
};

/// Load that a generator is to make. The first line of its standard input. An empty line follows when all generators
/// are connected, and another one when all are drained. The end of the input ends the generator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    pub plan: Plan,
    /// Name of the target.
    pub target: String,
    pub transport: Transport,
    pub server: SocketAddr,
    /// Addresses from which to connect. Empty: the generator chooses on loopback, and the kernel elsewhere.
    pub sources: Vec<Ipv4Addr>,
    pub poll_every: Duration,
    pub publisher: PublisherPlace,
}

/// A line of a generator's standard output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    Reached(Milestone),
    /// A complete second, on the clock of the generator's run.
    Second(Box<Second>),
    Done {
        phases: Vec<Phase>,
        validity: Vec<Finding>,
    },
    /// The generator cannot go on.
    Failed(String),
}
