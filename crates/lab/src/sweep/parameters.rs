//! Parameters of a sweep.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::{
    energy::{Radio, Radios},
    load::{Arrivals, Plan, Rate, Shape},
    path::PathSettings,
    recording::{Factors, Load, LoadUnit},
    spread::Division,
    targets::{PublisherPlace, Transport},
};

/// Parameters of one part of a sweep. Lists are factors: all combinations of them are run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Topology of publishers and receivers.
    pub shape: Shape,
    /// Factor on the x axis of the charts.
    pub axis: Axis,
    pub targets: Vec<String>,
    /// Transports. Those that a target does not support are skipped for it.
    pub transports: Vec<Transport>,
    /// Number of clients, pairs or connections, depending on the shape.
    pub clients: Vec<usize>,
    /// Publications of each publisher per second.
    pub each_per_s: Vec<f64>,
    /// If not 0: the number of publications always in flight, instead of a rate. Measures the maximum throughput;
    /// latency means little then.
    pub in_flight: u64,
    /// Payload size in bytes.
    pub bytes: Vec<usize>,
    /// CPUs of the server. Values above the number of CPUs of the machine are skipped. If the server gets all CPUs,
    /// the generator shares the last one.
    pub server_cpus: Vec<usize>,
    pub arrivals: Arrivals,
    /// Connections opened per second.
    pub ramp_per_s: f64,
    /// Interval of a polling client.
    #[serde(with = "humantime_serde")]
    pub poll_every: Duration,
    /// Interval of the probe, which has its own connection. Zero disables the probe.
    #[serde(with = "humantime_serde")]
    pub probe: Duration,
    /// Duration of the idle phase: all clients are connected, and no messages are published.
    #[serde(with = "humantime_serde")]
    pub idle: Duration,
    #[serde(with = "humantime_serde")]
    pub test: Duration,
    /// Duration of the phase after the test, without publications.
    #[serde(with = "humantime_serde")]
    pub after: Duration,
    /// Maximum wait for connections, and for outstanding deliveries at the end of the test.
    #[serde(with = "humantime_serde")]
    pub patience: Duration,
    /// Number of generator threads.
    pub threads: usize,
    pub repeats: u32,
    /// True to start a new server process for each run, so that the initial state is always the same. Over a path, each
    /// run has a new server in any case.
    pub fresh_server: bool,
    /// Emulated link between the clients and the server. By default, both use loopback.
    pub path: PathSettings,
    /// TCP congestion control of both ends of the path. Empty: the default of this machine.
    pub congestion: String,
    /// Place of the publishers: at the clients' end of the path, or at the server's.
    pub publisher: PublisherPlace,
    /// Radio of the clients on the path, whose energy is computed. Empty: none. The file
    /// `crates/lab/src/energy/radios.toml` has the names.
    pub radio: String,
    /// Maximum number of connections of one server node. Clients are spread over as many nodes as this requires, each
    /// with a generator process of its own; a client and its publisher stay on one node. The descriptors of a process
    /// limit the number as well. 0: one node, and the generator is this process.
    pub connections_per_node: u64,
    /// True to kill a node of the target in the middle of the test. The target must be a cluster.
    pub failover: bool,
}

/// A factor along which results are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    Clients,
    EachPerS,
    Bytes,
    ServerCpus,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            shape: Shape::Broadcast,
            axis: Axis::Clients,
            targets: vec!["millrace".into()],
            transports: vec![Transport::WebSocket],
            clients: vec![100],
            each_per_s: vec![1.0],
            in_flight: 0,
            bytes: vec![173],
            server_cpus: vec![1],
            arrivals: Arrivals::Even,
            ramp_per_s: 2000.0,
            poll_every: Duration::from_secs(1),
            probe: Duration::from_millis(50),
            idle: Duration::from_secs(5),
            test: Duration::from_secs(25),
            after: Duration::from_secs(5),
            patience: Duration::from_secs(20),
            threads: 1,
            repeats: 5,
            fresh_server: true,
            path: PathSettings::default(),
            congestion: String::new(),
            publisher: PublisherPlace::Clients,
            radio: String::new(),
            connections_per_node: 0,
            failover: false,
        }
    }
}

impl Parameters {
    /// Errors: a list is empty or too long, or a value makes no sense. [`Plan::check`] checks the limits of the
    /// generator.
    pub fn check(&self) -> anyhow::Result<()> {
        for (name, length) in [
            ("targets", self.targets.len()),
            ("transports", self.transports.len()),
            ("clients", self.clients.len()),
            ("each_per_s", self.each_per_s.len()),
            ("bytes", self.bytes.len()),
            ("server_cpus", self.server_cpus.len()),
        ] {
            ensure!((1..=1000).contains(&length), "{name}: at least one, at most 1,000");
        }
        ensure!((1..=1000).contains(&self.repeats), "repeats: 1 to 1,000");
        ensure!(self.server_cpus.iter().all(|cpus| *cpus > 0), "server_cpus: at least 1");
        ensure!(!self.poll_every.is_zero(), "poll_every: not zero");
        self.path.config_without_trace()?;
        let is_beside_server = self.publisher == PublisherPlace::Server;
        let has_publishers = matches!(self.shape, Shape::Broadcast | Shape::Pairs | Shape::Storm);
        ensure!(
            has_publishers || !is_beside_server,
            "publisher = \"server\": the clients of this shape publish themselves"
        );
        self.radio()?;
        if self.connections_per_node > 0 {
            let smallest = Plan { shape: self.shape, clients: 1, ..Plan::default() };
            Division::of(&smallest, self.connections_per_node)?;
            ensure!(self.path.is_none(), "connections_per_node: a path has one server");
            ensure!(!self.failover, "connections_per_node: failover has a cluster instead");
        }
        ensure!(!self.failover || self.path.is_none(), "failover: over a path, there is one node");
        Ok(())
    }

    /// Returns the model of the clients' radio, if there is one.
    ///
    /// Errors: no radio has this name.
    pub fn radio(&self) -> anyhow::Result<Option<Radio>> {
        match self.radio.as_str() {
            "" => Ok(None),
            name => Ok(Some(Radios::load(None)?.find(name).context("radio")?.clone())),
        }
    }

    /// Returns all combinations of the factors' values.
    pub fn factors(&self) -> Vec<Factors> {
        let mut all = Vec::new();
        // In a closed loop there is no rate, so a single rate of 0 is used.
        let rates = if self.in_flight > 0 { &[0.0][..] } else { &self.each_per_s };
        for &server_cpus in &self.server_cpus {
            for &bytes in &self.bytes {
                for &each_per_s in rates {
                    for &clients in &self.clients {
                        let publishers = Plan { shape: self.shape, clients, ..Plan::default() }.streams() as u64;
                        let each_per_s = if publishers > 0 { each_per_s } else { 0.0 };
                        let (clients, bytes, server_cpus) = (clients as u64, bytes as u64, server_cpus as u64);
                        all.push(Factors { clients, each_per_s, publishers, bytes, server_cpus });
                    }
                }
            }
        }
        all
    }

    /// Returns the value of these factors on the axis.
    pub fn load(&self, factors: &Factors) -> Load {
        let (value, counts) = match self.axis {
            Axis::Clients => (factors.clients as f64, self.unit()),
            Axis::EachPerS => (factors.each_per_s, LoadUnit::EachPerSecond),
            Axis::Bytes => (factors.bytes as f64, LoadUnit::Bytes),
            Axis::ServerCpus => (factors.server_cpus as f64, LoadUnit::ServerCpus),
        };
        Load { value, counts }
    }

    /// Returns the unit in which the clients are counted.
    fn unit(&self) -> LoadUnit {
        match self.shape {
            Shape::Pairs => LoadUnit::Publishers,
            Shape::Idle | Shape::Storm => LoadUnit::Connections,
            Shape::Broadcast | Shape::Chat | Shape::PingPong => LoadUnit::Clients,
        }
    }

    /// Returns the load of one run. The bench adds CPUs and seed.
    pub fn plan(&self, factors: &Factors) -> Plan {
        Plan {
            shape: self.shape,
            clients: factors.clients as usize,
            rate: match self.in_flight {
                0 => Rate::Open { per_s: factors.each_per_s * factors.publishers as f64, arrivals: self.arrivals },
                in_flight => Rate::Closed { in_flight },
            },
            bytes: factors.bytes as usize,
            ramp_per_s: self.ramp_per_s,
            idle: self.idle,
            test: self.test,
            after: self.after,
            patience: self.patience,
            probe: self.probe,
            threads: self.threads,
            ..Plan::default()
        }
    }
}
