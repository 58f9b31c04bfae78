//! Workload of a run: clients, publishers and their receivers, rate and duration.

use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use super::{
    payload::BYTES_MIN,
    schedule::{Arrivals, Schedule},
};

/// Maximum number of tallies, one per pair of receiver and stream. At 16 bytes each, they take one gigabyte.
const TALLIES_MAX: usize = 64 << 20;
const CLIENTS_MAX: usize = 1_000_000;
const BYTES_MAX: usize = 1 << 20;
const LASTS_MAX: Duration = Duration::from_secs(7 * 86_400);

/// Topology of publishers and receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// One publisher; all clients receive its messages.
    Broadcast,
    /// All clients publish, and each receives the messages of all clients, including its own.
    Chat,
    /// As many publishers as clients; each client receives the messages of its own publisher.
    Pairs,
    /// Each client publishes on its own channel and receives its own messages.
    PingPong,
    /// Connected clients without any messages.
    Idle,
    /// A broadcast. Halfway through the test, all clients lose their connection and reconnect at once.
    Storm,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rate {
    /// Publications per second of all publishers together, regardless of the server's speed.
    Open { per_s: f64, arrivals: Arrivals },
    /// A fixed number of publications always in flight: measures the maximum throughput. The latency means little
    /// here.
    Closed { in_flight: u64 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    pub shape: Shape,
    pub clients: usize,
    pub rate: Rate,
    /// Payload size in bytes.
    pub bytes: usize,
    /// Connections opened per second.
    pub ramp_per_s: f64,
    /// Duration of the idle phase: all clients are connected, and no messages are published.
    pub idle: Duration,
    pub test: Duration,
    /// Duration of the phase after the test, without publications.
    pub after: Duration,
    /// Maximum wait for connections, and for outstanding deliveries at the end of the test.
    pub patience: Duration,
    /// Interval of the probe, which has its own connection. Zero disables the probe.
    pub probe: Duration,
    /// Number of generator threads.
    pub threads: usize,
    /// CPUs to which the threads are pinned in turn. Empty: any CPU.
    pub cpus: Vec<usize>,
    /// Prefix of all channel names.
    pub channel: String,
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            shape: Shape::Broadcast,
            clients: 100,
            rate: Rate::Open { per_s: 200.0, arrivals: Arrivals::Even },
            bytes: 173,
            ramp_per_s: 2000.0,
            idle: Duration::ZERO,
            test: Duration::from_secs(5),
            after: Duration::ZERO,
            patience: Duration::from_secs(20),
            probe: Duration::from_millis(50),
            threads: 1,
            cpus: Vec::new(),
            channel: "lab".into(),
            seed: 1,
        }
    }
}

impl Plan {
    /// Errors: the plan exceeds a limit of this generator, or is empty.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=CLIENTS_MAX).contains(&self.clients), "clients: 1 to {CLIENTS_MAX}");
        ensure!((BYTES_MIN..=BYTES_MAX).contains(&self.bytes), "bytes: {BYTES_MIN} to {BYTES_MAX}");
        ensure!((1..=64).contains(&self.threads), "threads: 1 to 64");
        ensure!(self.ramp_per_s >= 1.0, "ramp_per_s: at least 1");
        for (name, lasts) in
            [("idle", self.idle), ("test", self.test), ("after", self.after), ("patience", self.patience)]
        {
            ensure!(lasts <= LASTS_MAX, "{name}: at most a week");
        }
        let tallies = self.clients.saturating_mul(self.heard_by_each());
        ensure!(tallies <= TALLIES_MAX, "{tallies} pairs of publisher and receiver; at most {TALLIES_MAX}");
        match self.rate {
            Rate::Open { per_s, .. } => ensure!((0.0..=1e7).contains(&per_s), "rate: 0 to 10,000,000 per second"),
            Rate::Closed { in_flight } => ensure!((1..=10_000).contains(&in_flight), "in_flight: 1 to 10,000"),
        }
        Ok(())
    }

    /// Returns the number of publishers.
    pub fn streams(&self) -> usize {
        match self.shape {
            Shape::Broadcast | Shape::Storm => 1,
            Shape::Chat | Shape::Pairs | Shape::PingPong => self.clients,
            Shape::Idle => 0,
        }
    }

    /// Returns the number of receivers of each publication.
    pub fn copies(&self) -> usize {
        match self.shape {
            Shape::Broadcast | Shape::Chat | Shape::Storm => self.clients,
            Shape::Pairs | Shape::PingPong => 1,
            Shape::Idle => 0,
        }
    }

    /// Returns the first publisher whose messages a client receives. [`Plan::heard_by_each`] is the number of its
    /// publishers.
    pub fn first_heard(&self, client: usize) -> usize {
        match self.shape {
            Shape::Pairs | Shape::PingPong => client,
            _ => 0,
        }
    }

    pub fn heard_by_each(&self) -> usize {
        match self.shape {
            Shape::Chat => self.clients,
            Shape::Idle => 0,
            _ => 1,
        }
    }

    /// Returns the channel of client or publisher `i`.
    pub fn channel_of(&self, i: usize) -> String {
        match self.shape {
            Shape::Pairs | Shape::PingPong => format!("{}/{i}", self.channel),
            _ => format!("{}/all", self.channel),
        }
    }

    /// Returns true if a client publishes and subscribes on one connection when the transport allows it.
    pub fn shares_connections(&self) -> bool {
        matches!(self.shape, Shape::Chat | Shape::PingPong)
    }

    /// Returns the number of publications of the whole run; unknown in a closed loop.
    pub fn publications(&self) -> Option<u64> {
        match self.rate {
            Rate::Open { per_s, .. } => Some((per_s * self.test.as_secs_f64()).ceil() as u64),
            Rate::Closed { .. } => None,
        }
    }

    pub fn schedule(&self) -> Schedule {
        match self.rate {
            Rate::Open { per_s, arrivals } if self.streams() > 0 => {
                Schedule::new(arrivals, per_s, self.test, self.seed)
            }
            _ => Schedule::new(Arrivals::Even, 0.0, self.test, 0),
        }
    }
}
