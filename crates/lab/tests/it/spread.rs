//! A load on several nodes, from several generator processes.

use std::time::Duration;

use millrace_lab::{
    load::{Arrivals, Outcome, Plan, Rate, Sample, Shape},
    recording::{PhaseName, Spread},
    spread::{Assignment, Division, Generators, Network},
    targets::{Options, PublisherPlace, Server, Target, Transport, find},
};

const CARS: usize = 60;

fn plan() -> Plan {
    Plan {
        shape: Shape::Pairs,
        clients: CARS,
        rate: Rate::Open { per_s: 240.0, arrivals: Arrivals::Even },
        bytes: 134,
        idle: Duration::from_millis(200),
        test: Duration::from_secs(2),
        probe: Duration::ZERO,
        patience: Duration::from_secs(10),
        ..Plan::default()
    }
}

fn target() -> &'static dyn Target {
    find("millrace").expect("a target")
}

/// Runs the plan on nodes with at most 60 connections each. `change` may change the assignments.
fn measure(change: impl Fn(&mut Assignment)) -> anyhow::Result<(Outcome, Spread)> {
    let (plan, network) = (plan(), Network::new(target()));
    if let Some(why) = network.why_loopback() {
        eprintln!("over loopback: {why}");
    }
    let division = Division::of(&plan, 60)?;
    let start = |i| network.start_node(i, target(), &Options::default());
    let servers: Vec<Server> = (0..division.nodes()).map(start).collect::<anyhow::Result<_>>()?;
    let assign = |(i, (plan, server)): (usize, (Plan, &Server))| {
        let mut assignment = Assignment {
            plan,
            target: "millrace".into(),
            transport: Transport::Sse,
            server: server.address,
            sources: network.sources(i),
            poll_every: Duration::from_secs(1),
            publisher: PublisherPlace::Server,
        };
        change(&mut assignment);
        assignment
    };
    let assignments: Vec<Assignment> =
        division.plans(&plan).into_iter().zip(&servers).enumerate().map(assign).collect();
    let generators = Generators::start(&network, servers.len())?;
    assert_eq!(generators.pids().len(), 2);
    let descriptors = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count) as u64;
    let mut observe = || {
        let mut sample = Sample::default();
        sample.server.descriptors = servers.iter().flat_map(Server::root_pids).map(descriptors).sum();
        Ok(sample)
    };
    generators.run(&plan, &assignments, &mut observe, &mut |_| {})
}

#[test]
fn two_generators_make_one_load() {
    let (outcome, spread) = measure(|_| {}).expect("a run");
    let test = outcome.phase(PhaseName::Test).expect("a test");
    let (counts, what) = (test.counts, format!("{spread:?} {:?} {:?}", test.counts, outcome.validity));
    assert_eq!((counts.scheduled, counts.sent, counts.delivered), (480, 480, 480), "{what}");
    assert_eq!(counts.lost + counts.duplicated + counts.gaps + counts.refused + counts.broken, 0, "{what}");
    assert_eq!(test.latency_us.count(), 480, "{what}");
    assert_eq!(spread.nodes, 2, "{what}");
    let connect = outcome.phase(PhaseName::Connect).expect("a start");
    assert_eq!(connect.counts.connected, 2 * CARS as u64, "{what}");
    let by_second: u64 = outcome.seconds.iter().map(|second| second.counts.delivered).sum();
    assert_eq!(by_second, 480, "{what}");
    assert!((1.9..8.0).contains(&(test.end_s - test.start_s)), "{} s: {what}", test.end_s - test.start_s);
    // All connections are still open when the servers are sampled.
    assert!(test.server.descriptors > 2 * CARS as u64, "{} descriptors: {what}", test.server.descriptors);
    assert!(test.generator.cpu_s() > 0.0 && test.generator.descriptors > 2 * CARS as u64, "{what}");
    if spread.namespaces > 0 {
        // Each record passes the network twice, with the headers of Ethernet, IP and TCP.
        let (up, down) = (spread.up_bytes.expect("counted"), spread.down_bytes.expect("counted"));
        assert!(up > 480 * (134 + 54) && down > 480 * (134 + 54), "{what}");
        assert!(up + down < 480 * 3000, "{what}");
    }
}

#[test]
fn failed_generator_ends_the_run() {
    let error = measure(|assignment| assignment.target = "millrce".into()).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("generator") && error.contains("no target millrce"), "{error}");
}
