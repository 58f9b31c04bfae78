//! What is asked of a server: who is connected, who says what to whom, how often, how long.

use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use super::{
    payload::BYTES_MIN,
    schedule::{Arrivals, Schedule},
};

/// Tallies of receivers and streams are 16 bytes each: a gigabyte of them.
const TALLIES_MAX: usize = 64 << 20;
const CLIENTS_MAX: usize = 1_000_000;
const BYTES_MAX: usize = 1 << 20;
const LASTS_MAX: Duration = Duration::from_secs(7 * 86_400);

/// Who speaks to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// One publisher, heard by all clients.
    Broadcast,
    /// All clients publish and hear everybody, themselves too.
    Chat,
    /// As many publishers as clients; each client hears its own publisher.
    Pairs,
    /// Each client publishes on a channel of its own and hears itself.
    PingPong,
    /// Clients that are connected, and nothing else.
    Idle,
    /// A broadcast; half-way through the test all clients lose their connection and come back at once.
    Storm,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rate {
    /// So many publications per second, all publishers together, whatever the server does.
    Open { per_s: f64, arrivals: Arrivals },
    /// So many publications always under way: the most that can be delivered. Latency means little here.
    Closed { in_flight: u64 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    pub shape: Shape,
    pub clients: usize,
    pub rate: Rate,
    /// Of a payload.
    pub bytes: usize,
    /// Connections opened per second.
    pub ramp_per_s: f64,
    /// All are connected, nothing is published.
    pub idle: Duration,
    pub test: Duration,
    /// Nothing is published any more.
    pub after: Duration,
    /// How long may be waited for connections, and for what is still under way at the end of the test.
    pub patience: Duration,
    /// How often a probe asks on a connection of its own; never if zero.
    pub probe: Duration,
    /// Threads of the generator, and the CPUs they run on in turn (any if there are none).
    pub threads: usize,
    pub cpus: Vec<usize>,
    /// Before the names of all channels.
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
    /// Errors: more than this generator can do, or nothing at all.
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

    /// How many publishers there are.
    pub fn streams(&self) -> usize {
        match self.shape {
            Shape::Broadcast | Shape::Storm => 1,
            Shape::Chat | Shape::Pairs | Shape::PingPong => self.clients,
            Shape::Idle => 0,
        }
    }

    /// How many receivers each publication has.
    pub fn copies(&self) -> usize {
        match self.shape {
            Shape::Broadcast | Shape::Chat | Shape::Storm => self.clients,
            Shape::Pairs | Shape::PingPong => 1,
            Shape::Idle => 0,
        }
    }

    /// The first publisher that client `i` hears; [`Plan::heard_by_each`] says how many follow.
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

    /// The channel of client or publisher `i`.
    pub fn channel_of(&self, i: usize) -> String {
        match self.shape {
            Shape::Pairs | Shape::PingPong => format!("{}/{i}", self.channel),
            _ => format!("{}/all", self.channel),
        }
    }

    /// True if a client that can do both on one connection does so.
    pub fn shares_connections(&self) -> bool {
        matches!(self.shape, Shape::Chat | Shape::PingPong)
    }

    /// Publications of the whole run; unknown in a closed loop.
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
