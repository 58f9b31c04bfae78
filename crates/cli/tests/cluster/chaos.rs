//! Nodes and the engine fail under load, by a plan derived from a seed. Clients on all transports must still receive
//! all messages.
//!
//! `MILLRACE_CHAOS_SEED=N` replays a plan. `MILLRACE_CHAOS_SECONDS=N` sets the duration of the load.

use std::{fmt, time::Duration};

use millrace_client::random::Random;
use rustix::process::Signal;
use tokio::{task::LocalSet, time::Instant};

use crate::{
    balancer::NODES,
    broker::Kind,
    client::ClientKind,
    cluster::Cluster,
    crowd::Crowd,
    load::Load,
    process::{BOUND, print_line, setting, turn},
    wire::Direction,
};

const CHANNELS: usize = 40;
const CLIENTS: usize = 300;
const PER_S: f64 = 200.0;
const SECONDS: u64 = 60;
/// Duration of an engine pause.
const PAUSE: Duration = Duration::from_secs(3);
/// Time after the last fault for all clients to reconnect and catch up.
const CATCH_UP: Duration = Duration::from_secs(60);

/// Settings of a node, and drain times that suit a cluster of this size.
const SETTINGS: &[&str] = &["server.shards=2", "drain.announce=1500ms", "drain.window=1s", "log.level=debug"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    Kept,
    Lost,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Kill(usize),
    Drain(usize),
    Begin(usize),
    Pause,
    Resume,
    Stop(Signal),
    Restart(Data),
    Cut,
    Hold(Direction),
    Release(Direction),
}

/// Steps with their times, relative to the first publication.
struct Plan(Vec<(Duration, Step)>);

impl Plan {
    /// Kills one node and drains another. Independently, pauses and restarts the engine. The seed determines order,
    /// times and durations.
    fn new(seed: u64, length: Duration, data: Data) -> Self {
        let mut random = Random::from_seed(seed);
        let mut nodes: Vec<usize> = (0..NODES).collect();
        random.shuffle(&mut nodes);
        let between = |random: &mut Random, low: f64, high: f64| Duration::from_secs_f64(random.between(low, high));
        let mut on_nodes = [
            (Step::Kill(nodes[0]), between(&mut random, 0.2, 3.0), Step::Begin(nodes[0])),
            (Step::Drain(nodes[1]), between(&mut random, 0.2, 2.0), Step::Begin(nodes[1])),
        ];
        let signal = if random.happens(0.5) { Signal::KILL } else { Signal::TERM };
        let mut on_engine = [
            (Step::Pause, PAUSE, Step::Resume),
            (Step::Stop(signal), between(&mut random, 0.2, 2.0), Step::Restart(data)),
        ];
        random.shuffle(&mut on_nodes);
        random.shuffle(&mut on_engine);
        let (start, slot) = (length.mul_f64(0.1), length.mul_f64(0.4));
        let mut steps = Vec::new();
        for faults in [on_nodes, on_engine] {
            for (i, (fault, long, repair)) in faults.into_iter().enumerate() {
                let latest = slot.saturating_sub(long).mul_f64(0.9);
                let at = start + slot * i as u32 + latest.mul_f64(random.unit());
                steps.extend([(at, fault), (at + long, repair)]);
            }
        }
        steps.sort_by_key(|(at, _)| *at);
        Self(steps)
    }

    /// Returns a plan in which the network between the nodes and the engine fails every few seconds. The connections
    /// are cut, or traffic stops in one or both directions for a while. Some cuts happen while data is in flight.
    fn of_wire(seed: u64, length: Duration) -> Self {
        let mut random = Random::from_seed(seed);
        let (mut at, end) = (length.mul_f64(0.1), length.mul_f64(0.9));
        let mut steps = Vec::new();
        while at < end {
            let long = Duration::from_secs_f64(random.between(0.05, 3.0));
            let directions: &[Direction] = match random.bits() % 4 {
                0 => &[],
                1 => &[Direction::Broker],
                2 => &[Direction::Nodes],
                _ => &[Direction::Broker, Direction::Nodes],
            };
            steps.extend(directions.iter().map(|direction| (at, Step::Hold(*direction))));
            if directions.is_empty() || random.happens(0.5) {
                steps.push((at + long.mul_f64(0.9), Step::Cut));
            }
            steps.extend(directions.iter().map(|direction| (at + long, Step::Release(*direction))));
            at += long + Duration::from_secs_f64(random.between(0.3, 1.5));
        }
        Self(steps)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (at, step)) in self.0.iter().enumerate() {
            write!(f, "{}{:.1} s {step:?}", if i > 0 { ", " } else { "" }, at.as_secs_f64())?;
        }
        Ok(())
    }
}

async fn take(step: Step, cluster: &mut Cluster) {
    match step {
        Step::Kill(i) => cluster.kill(i),
        Step::Drain(i) => cluster.terminate(i),
        Step::Begin(i) => {
            cluster.ended(i).await;
            cluster.begin(i);
        }
        Step::Pause => cluster.broker.pause(),
        Step::Resume => cluster.broker.resume(),
        Step::Stop(signal) => cluster.broker.stop(signal).await,
        Step::Restart(Data::Kept) => cluster.broker.begin().await,
        Step::Restart(Data::Lost) => {
            cluster.broker.lose_data();
            cluster.broker.begin().await;
        }
        Step::Cut => cluster.broker.wire().cut(),
        Step::Hold(towards) => cluster.broker.wire().hold(towards),
        Step::Release(towards) => cluster.broker.wire().release(towards),
    }
}

/// Runs the whole test: load, faults, the end, the verdict.
async fn run(name: &str, kind: Kind, nodes: usize, seconds: u64, history_lost: bool, plan: &Plan) {
    let kinds = ClientKind::ALL.map(|kind| (kind, CLIENTS / ClientKind::ALL.len()));
    let is_wired = plan.0.iter().any(|(_, step)| matches!(step, Step::Cut | Step::Hold(_)));
    let mut cluster = Cluster::start_by(is_wired, name, kind, nodes, nodes, SETTINGS).await;
    let crowd = Crowd::start(&cluster.server(), &kinds, CHANNELS);
    let load = Load::start(&cluster.server(), CHANNELS, PER_S);
    let started = Instant::now();
    crowd.listens(BOUND).await;
    for (at, step) in &plan.0 {
        tokio::time::sleep_until(started + *at).await;
        take(*step, &mut cluster).await;
    }
    tokio::time::sleep_until(started + Duration::from_secs(seconds)).await;
    crowd.quiet();
    let retries = load.retries();
    let acknowledged =
        load.stop(CATCH_UP).await.unwrap_or_else(|errors| panic!("publishers were refused: {errors:#?}"));
    let count: usize = acknowledged.iter().map(Vec::len).sum();
    print_line(&format!("  {count} publications acknowledged, after {retries} retries"));
    assert!(count as f64 > 0.9 * PER_S * seconds as f64, "the load was not there");
    for i in 0..nodes {
        cluster.ready(i).await;
    }
    crowd.conclude(&cluster, acknowledged, history_lost, CATCH_UP).await;
}

fn chaos(name: &str, kind: Kind, data: Data, seconds: u64) {
    let _turn = turn();
    if !kind.is_there() || !crate::process::is_there("haproxy") {
        return;
    }
    let seconds = setting("MILLRACE_CHAOS_SECONDS").unwrap_or(seconds);
    let seed = setting("MILLRACE_CHAOS_SEED").unwrap_or_else(|| Random::from_system().bits() % 1_000_000);
    let plan = Plan::new(seed, Duration::from_secs(seconds), data);
    print_line(&format!("\n{name}: MILLRACE_CHAOS_SEED={seed} for {seconds} s: {plan}"));
    block_on(run(name, kind, NODES, seconds, data == Data::Lost, &plan));
}

pub fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, test);
}

/// With the memory engine, a killed node loses its history. Every client must receive a gap.
#[test]
fn memory_of_a_killed_node_is_a_gap() {
    let _turn = turn();
    if !crate::process::is_there("haproxy") {
        return;
    }
    let seconds = setting("MILLRACE_CHAOS_SECONDS").unwrap_or(12);
    let at = |share: f64| Duration::from_secs(seconds).mul_f64(share);
    let plan = Plan(vec![(at(0.4), Step::Kill(0)), (at(0.45), Step::Begin(0))]);
    print_line(&format!("\nmemory: {plan}"));
    block_on(run("memory", Kind::Memory, 1, seconds, true, &plan));
}

/// Tests a network that fails between nodes and engine while the processes run on.
fn faulty_wire(name: &str, kind: Kind) {
    let _turn = turn();
    if !kind.is_there() || !crate::process::is_there("haproxy") {
        return;
    }
    // The last hold may continue until the load ends and take 2.4 s of it. This is less than the tenth that may be
    // missing.
    let seconds = setting("MILLRACE_CHAOS_SECONDS").unwrap_or(SECONDS / 2);
    let seed = setting("MILLRACE_CHAOS_SEED").unwrap_or_else(|| Random::from_system().bits() % 1_000_000);
    let plan = Plan::of_wire(seed, Duration::from_secs(seconds));
    print_line(&format!("\n{name}: MILLRACE_CHAOS_SEED={seed} for {seconds} s: {plan}"));
    block_on(run(name, kind, NODES, seconds, false, &plan));
}

#[test]
fn redis_over_a_faulty_network_loses_nothing() {
    faulty_wire("redis-network", Kind::Redis);
}

#[test]
fn nats_over_a_faulty_network_loses_nothing() {
    faulty_wire("nats-network", Kind::Nats);
}

#[test]
fn redis_and_its_nodes_fail_and_nothing_is_lost() {
    chaos("redis", Kind::Redis, Data::Kept, SECONDS);
}

#[test]
fn redis_data_loss_is_a_gap() {
    chaos("redis-forgets", Kind::Redis, Data::Lost, SECONDS / 2);
}

#[test]
fn nats_and_its_nodes_fail_and_nothing_is_lost() {
    chaos("nats", Kind::Nats, Data::Kept, SECONDS);
}

#[test]
fn nats_data_loss_is_a_gap() {
    chaos("nats-forgets", Kind::Nats, Data::Lost, SECONDS / 2);
}
