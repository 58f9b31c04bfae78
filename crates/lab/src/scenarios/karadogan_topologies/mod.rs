//! Arm-probe as a mesh, as it was designed, and as a star (row K-14): wearers that are connected to each other by
//! data channels, without a server. The variant through the server is the sweep `karadogan-arm-probe`.

use std::{
    net::{Ipv4Addr, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use millrace_link::Traces;
use serde::Deserialize;
use serde_json::json;

use crate::{
    histogram::Histogram,
    judged::{PASSED, PROMISED},
    load::peers::{NativePeer, PeerGroup, bind},
    path::{PathSettings, TunCable},
    recording::{Column, Finding, Form, Table},
    sweep::{Bench, Experiment},
    wire::namespace::{self, FAR, NEAR},
};

/// Entry in the list of scenarios.
pub struct KaradoganTopologies;

/// Maximum time from a movement until another wearer feels it. Source: section 1.2.
const FELT_WITHIN: Duration = Duration::from_millis(500);
/// Maximum time for all handshakes, and for outstanding messages.
const PATIENCE: Duration = Duration::from_secs(20);
/// Estimated duration of the handshakes in seconds.
const HANDSHAKES_S: f64 = 1.0;
/// Maximum number of clients. In a mesh, each client needs one socket per other client.
const CLIENTS_MAX: usize = 50;
/// Length of `wearer number due`, before a message is padded.
const HEAD_BYTES: usize = 3 + 1 + 8 + 1 + 12;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    topologies: Vec<Topology>,
    clients: usize,
    each_per_s: f64,
    bytes: usize,
    #[serde(with = "humantime_serde")]
    test: Duration,
    /// Emulated link between the two ends of each connection. By default, they use loopback.
    path: PathSettings,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Topology {
    /// Each client is connected to every other client.
    Mesh,
    /// Each client is connected to the first client, which forwards messages.
    Star,
}

impl Topology {
    fn name(self) -> &'static str {
        match self {
            Topology::Mesh => "mesh",
            Topology::Star => "star",
        }
    }

    /// Returns the two wearers of each connection.
    fn connections(self, wearers: usize) -> Vec<[usize; 2]> {
        let firsts = if self == Topology::Mesh { wearers } else { 1 };
        (0..firsts).flat_map(|first| (first + 1..wearers).map(move |second| [first, second])).collect()
    }
}

impl Choice {
    fn read(parameters: &toml::Table) -> anyhow::Result<Choice> {
        let choice: Choice = parameters.clone().try_into()?;
        ensure!(!choice.topologies.is_empty(), "topologies: mesh, star");
        ensure!((2..=CLIENTS_MAX).contains(&choice.clients), "clients: 2 to {CLIENTS_MAX}");
        ensure!((0.1..=1000.0).contains(&choice.each_per_s), "each_per_s: 0.1 to 1,000");
        ensure!((HEAD_BYTES..=8192).contains(&choice.bytes), "bytes: {HEAD_BYTES} to 8,192");
        ensure!((Duration::from_millis(500)..=Duration::from_secs(3600)).contains(&choice.test), "test: 500ms to 1h");
        choice.path.config_without_trace()?;
        Ok(choice)
    }
}

impl Experiment for KaradoganTopologies {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        let of = |choice: Choice| choice.topologies.len() as f64 * (choice.test.as_secs_f64() + HANDSHAKES_S);
        Choice::read(parameters).map_or(0.0, of)
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        const NAME: &str = "topologies";
        if bench.has_table(NAME) {
            return Ok(());
        }
        let choice = Choice::read(parameters)?;
        let (mut rows, mut notes, mut findings) = (Vec::new(), Vec::new(), Vec::new());
        for topology in &choice.topologies {
            let felt = measure(*topology, &choice, bench, &mut notes, &mut findings)?;
            let [p50, p99, max] = [felt.delay.quantile_us(0.5), felt.delay.quantile_us(0.99), felt.delay.max_us()]
                .map(|us| us.map(|us| us as f64 / 1000.0));
            let is_felt = felt.came == felt.due && p99.is_some_and(|ms| ms < FELT_WITHIN.as_secs_f64() * 1000.0);
            bench.note(&format!(
                "{:<5} {} wearers, {} connections on the busiest: {} of {} felt, p50 {:.2} p99 {:.2} ms",
                topology.name(),
                choice.clients,
                choice.clients - 1,
                felt.came,
                felt.due,
                p50.unwrap_or_default(),
                p99.unwrap_or_default(),
            ));
            let all = [json!(felt.due), json!(felt.came), json!(p50), json!(p99), json!(max)];
            let judged = [json!("yes"), json!(if is_felt { "yes" } else { "no" })];
            rows.push([&[json!(topology.name())][..], &all, &judged].concat());
        }
        let columns = [
            ("topology", ""),
            ("movements to be felt", ""),
            ("felt", ""),
            ("p50", "ms"),
            ("p99", "ms"),
            ("max", "ms"),
            (PROMISED, ""),
            (PASSED, ""),
        ];
        bench.table(Table {
            name: NAME.into(),
            title: format!("{} wearers, from movement to vibration", choice.clients),
            columns: columns.map(|(name, unit)| Column { name: name.into(), unit: unit.into() }).into(),
            rows,
            notes: [
                vec![
                    "One-way delay from the scheduled movement; all wearers in one thread.".to_owned(),
                    "Passed: all movements were delivered, 99 % of them within 500 ms.".to_owned(),
                ],
                notes,
            ]
            .concat(),
            validity: findings,
        })
    }
}

/// Connects all wearers and lets them move, over loopback or over the path. Adds to `notes` how the path behaved, and
/// to `findings` what speaks against the result.
fn measure(
    topology: Topology,
    choice: &Choice,
    bench: &Bench<'_>,
    notes: &mut Vec<String>,
    findings: &mut Vec<Finding>,
) -> anyhow::Result<MovementStats> {
    let count = topology.connections(choice.clients).len();
    let sockets = move |address: Ipv4Addr| (0..count).map(|_| bind(address.into())).collect::<anyhow::Result<Vec<_>>>();
    let mut link = choice.path.config_without_trace()?;
    if link.is_some()
        && let Err(error) = TunCable::check()
    {
        ensure!(bench.form == Form::Quick, "no emulated links on this machine: {error:#}");
        notes.push(format!("Over loopback instead of the path {}: {error:#}.", choice.path.name()));
        link = None;
    }
    let go_on = bench.go_on_elsewhere();
    let Some(link) = link else {
        let (near, far) = (sockets(Ipv4Addr::LOCALHOST)?, sockets(Ipv4Addr::LOCALHOST)?);
        return Wearers::meet(topology, choice, near, far, &go_on)?.wear(choice, &go_on);
    };
    let cable = TunCable::new(link, Traces::default(), bench.seed, None);
    // The sockets keep the far namespace alive.
    let felt = namespace::across(
        &cable,
        || sockets(FAR),
        |far| Wearers::meet(topology, choice, sockets(NEAR)?, far, &go_on)?.wear(choice, &go_on),
    )?;
    let run = cable.finish()?.link_run(choice.path.name(), String::new(), 0);
    notes.push(format!("{}: {}.", topology.name(), run.cost()));
    findings.extend(run.findings().into_iter().map(|finding| Finding {
        detail: format!("{}: {}", topology.name(), finding.detail),
        invalidates: bench.form != Form::Quick,
        ..finding
    }));
    Ok(felt)
}

/// All wearers, connected.
struct Wearers {
    topology: Topology,
    group: PeerGroup,
    /// Wearer that owns each end of a connection.
    owners: Vec<usize>,
    /// Connection ends of each wearer.
    ends: Vec<Vec<usize>>,
    felt: MovementStats,
}

/// Results of the movements.
#[derive(Default)]
struct MovementStats {
    /// Number of expected deliveries: all wearers but the one that moved must feel each movement.
    due: u64,
    came: u64,
    delay: Histogram,
    /// Next expected movement number, by the wearer that moved and the wearer that feels it.
    next: Vec<Vec<u64>>,
}

impl Wearers {
    /// Connects all wearers. Each connection takes one socket of `near` and one of `far`.
    ///
    /// Errors: not all connections open in time.
    fn meet(
        topology: Topology,
        choice: &Choice,
        near: Vec<UdpSocket>,
        far: Vec<UdpSocket>,
        go_on: &impl Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Wearers> {
        let count = choice.clients;
        let mut made = Wearers {
            topology,
            group: PeerGroup::new()?,
            owners: Vec::new(),
            ends: vec![Vec::new(); count],
            felt: MovementStats { next: vec![vec![0; count]; count], ..MovementStats::default() },
        };
        for (wearers, sockets) in topology.connections(count).into_iter().zip(near.into_iter().zip(far)) {
            for (owner, native) in wearers.into_iter().zip(NativePeer::pair(sockets.0, sockets.1)?) {
                made.ends[owner].push(made.owners.len());
                made.owners.push(owner);
                made.group.add(native)?;
            }
        }
        let began = Instant::now();
        while made.group.peers.iter().any(|native| !native.is_open) {
            go_on()?;
            ensure!(began.elapsed() < PATIENCE, "not all connections have opened within {PATIENCE:?}");
            made.turn(began, Instant::now() + Duration::from_millis(5))?;
        }
        Ok(made)
    }

    /// Lets each wearer move at the given rate, spread over the period, and waits until all movements are felt.
    ///
    /// Errors: a connection breaks, or a movement is felt twice or in the wrong order.
    fn wear(mut self, choice: &Choice, go_on: &impl Fn() -> anyhow::Result<()>) -> anyhow::Result<MovementStats> {
        let period = Duration::from_secs_f64(1.0 / choice.each_per_s);
        let (count, began) = (choice.clients as u32, Instant::now());
        let mut moved = 0;
        loop {
            let due = began + period * moved / count;
            if due >= began + choice.test {
                break;
            }
            while Instant::now() < due {
                go_on()?;
                self.turn(began, due)?;
            }
            let (wearer, number) = (moved % count, moved / count);
            let message = format!("{wearer:03} {number:08} {:012}", (due - began).as_micros());
            let message = format!("{message:x<bytes$}", bytes = choice.bytes);
            for end in self.ends[wearer as usize].clone() {
                self.group.write(end, message.as_bytes())?;
            }
            self.felt.due += u64::from(count - 1);
            moved += 1;
        }
        let late = Instant::now() + PATIENCE;
        while self.felt.came < self.felt.due && Instant::now() < late {
            go_on()?;
            self.turn(began, Instant::now() + Duration::from_millis(20))?;
        }
        Ok(self.felt)
    }

    /// Handles received messages. The hub of a star forwards them.
    fn turn(&mut self, began: Instant, until: Instant) -> anyhow::Result<()> {
        let Self { topology, group, owners, ends, felt } = self;
        let mut passed_on = Vec::new();
        group.serve(until, |end, now, _, message| {
            felt.receive(owners[end], now, began, message)?;
            if *topology == Topology::Star && owners[end] == 0 {
                passed_on.push((end, message.to_vec()));
            }
            Ok(())
        })?;
        for (from, message) in passed_on {
            for end in ends[0].iter().filter(|end| **end != from) {
                group.write(*end, &message)?;
            }
        }
        Ok(())
    }
}

impl MovementStats {
    fn receive(&mut self, by: usize, now: Instant, began: Instant, message: &[u8]) -> anyhow::Result<()> {
        let head =
            message.get(..HEAD_BYTES).and_then(|head| std::str::from_utf8(head).ok()).context("half a message")?;
        let mut words = head.split(' ');
        let mut word = || words.next().and_then(|word| word.parse::<u64>().ok()).context("not a message of ours");
        let (wearer, number, at_us) = (word()? as usize, word()?, word()?);
        let next = self.next.get_mut(wearer).context("a movement of an unknown wearer")?;
        ensure!(wearer != by && number == next[by], "{by} feels movement {number} of {wearer}, not {}", next[by]);
        next[by] += 1;
        self.came += 1;
        let due = began + Duration::from_micros(at_us);
        self.delay.record_us(now.saturating_duration_since(due).as_micros() as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_parameters_are_refused() {
        let parameters = |text: &str| {
            let given: toml::Table = text.parse().expect("a table");
            let all: toml::Table = include_str!("scenario.toml").parse().expect("a table");
            let mut all = all["parameters"].as_table().expect("parameters").clone();
            all.extend(given);
            Choice::read(&all)
        };
        assert!(parameters("").is_ok());
        for refused in [
            "topologies = []",
            "topologies = [\"ring\"]",
            "clients = 1",
            "test = \"1ms\"",
            "bytes = 5",
            "path = \"3gg\"",
            "other = 1",
        ] {
            assert!(parameters(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn mesh_connects_all_and_star_connects_the_hub() {
        assert_eq!(Topology::Mesh.connections(3), [[0, 1], [0, 2], [1, 2]]);
        assert_eq!(Topology::Star.connections(3), [[0, 1], [0, 2]]);
    }

    #[test]
    fn duplicate_or_reordered_movement_is_an_error() {
        let (began, now) = (Instant::now(), Instant::now());
        let mut felt = MovementStats { next: vec![vec![0; 3]; 3], ..MovementStats::default() };
        let message = |wearer: u32, number: u32| format!("{wearer:03} {number:08} {:012}", 0);
        let mut receive = |by, message: &str| felt.receive(by, now, began, message.as_bytes()).is_ok();
        assert!(receive(1, &message(0, 0)) && receive(2, &message(0, 0)) && receive(1, &message(0, 1)));
        assert!(!receive(1, &message(0, 1)), "twice");
        assert!(!receive(2, &message(0, 2)), "one is missing");
        assert!(!receive(2, &message(2, 0)), "one's own");
        assert!(!receive(2, &message(3, 0)) && !receive(2, "000"), "none");
    }
}
