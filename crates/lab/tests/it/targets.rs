//! Every target that can be had here, really started and really spoken to.

use std::{process::Command, time::Duration};

use millrace_lab::{
    load::{Arrivals, Plan, Rate, Sample, Shape, run},
    recording::PhaseName,
    targets::{Endpoint, Options, Server, TARGETS, Target, Transport, find},
};

/// Says so, loudly, if it cannot be had here.
fn start(target: &dyn Target) -> Option<Server> {
    let started = target.start(&Options::default());
    if let Err(error) = &started {
        eprintln!("SKIPPED: {} cannot be started here: {error:#}", target.name());
    }
    started.ok()
}

/// Everything is delivered, once and in order, by this transport.
fn delivers_all(name: &str, server: &Server, transport: Transport, shape: Shape, clients: usize) {
    let target = find(name).expect("a target");
    let endpoint = Endpoint { target, transport, server, poll_every: Duration::from_millis(100) };
    let plan = Plan {
        shape,
        clients,
        rate: Rate::Open { per_s: 100.0, arrivals: Arrivals::Even },
        idle: Duration::from_millis(100),
        test: Duration::from_secs(1),
        channel: format!("lab-{transport}-{shape:?}"),
        ..Plan::default()
    };
    let outcome = run(&plan, &endpoint, &mut || Ok(Sample::default()));
    let outcome = outcome.unwrap_or_else(|error| panic!("{name} {transport}: {error:#}\n{}", server.log_tail()));
    let phase = outcome.phase(PhaseName::Test).expect("a test");
    let (counts, what) =
        (phase.counts, format!("{name} {transport} {shape:?}: {:?} {:?}", phase.counts, outcome.validity));
    let due = 100 * plan.copies() as u64;
    assert_eq!((counts.scheduled, counts.sent, counts.delivered), (100, 100, due), "{what}");
    let wrong = counts.lost + counts.duplicated + counts.reordered + counts.corrupt + counts.gaps + counts.refused;
    assert_eq!((wrong, counts.broken), (0, 0), "{what}");
    assert_eq!((phase.latency_us.count(), phase.spread_us.count()), (due, 100), "{what}");
    assert!(phase.probe_us.count() > 5, "{} probes: {what}", phase.probe_us.count());
}

fn delivers_all_by_every_transport(name: &str) {
    let target = find(name).expect("a target");
    let Some(server) = start(target) else { return };
    for transport in target.transports() {
        delivers_all(name, &server, *transport, Shape::Broadcast, 50);
        delivers_all(name, &server, *transport, Shape::Chat, 5);
        delivers_all(name, &server, *transport, Shape::Pairs, 10);
    }
}

/// Ours must be there: it is built, if nobody else has.
#[test]
fn millrace_delivers_all_by_every_transport() {
    let folder = std::env::current_exe().expect("this program");
    let folder = folder.ancestors().nth(2).expect("target/debug");
    if !folder.join("millrace").is_file() {
        let built = Command::new(env!("CARGO")).args(["build", "-p", "millrace-cli"]).status();
        assert!(built.is_ok_and(|status| status.success()), "millrace cannot be built");
    }
    delivers_all_by_every_transport("millrace");
}

#[test]
fn ws_delivers_all() {
    delivers_all_by_every_transport("ws");
}

#[test]
fn bun_delivers_all() {
    delivers_all_by_every_transport("bun");
}

#[test]
fn uws_delivers_all() {
    delivers_all_by_every_transport("uws");
}

#[test]
fn socketio_delivers_all() {
    delivers_all_by_every_transport("socketio");
}

#[test]
fn engineio_delivers_all() {
    delivers_all_by_every_transport("engineio");
}

#[test]
fn socketcluster_delivers_all() {
    delivers_all_by_every_transport("socketcluster");
}

#[test]
fn nats_delivers_all() {
    delivers_all_by_every_transport("nats");
}

#[test]
fn nchan_delivers_all() {
    delivers_all_by_every_transport("nchan");
}

#[test]
fn mosquitto_delivers_all() {
    delivers_all_by_every_transport("mosquitto");
}

#[test]
fn pushpin_delivers_all() {
    delivers_all_by_every_transport("pushpin");
}

#[test]
fn centrifugo_delivers_all() {
    delivers_all_by_every_transport("centrifugo");
}

#[test]
fn mercure_delivers_all() {
    delivers_all_by_every_transport("mercure");
}

#[test]
fn durable_streams_delivers_all() {
    delivers_all_by_every_transport("durable-streams");
}

#[test]
fn millrace_tls_delivers_all() {
    delivers_all_by_every_transport("millrace-tls");
}

#[test]
fn millrace_tls_resumed_delivers_all() {
    delivers_all_by_every_transport("millrace-tls-resumed");
}

#[test]
fn every_target_has_a_test() {
    let tests = include_str!("targets.rs");
    for target in TARGETS {
        assert!(
            tests.contains(&format!("fn {}_delivers_all", target.name().replace('-', "_"))),
            "{} has none",
            target.name()
        );
    }
}

#[test]
fn a_target_that_does_not_start_shows_its_log() {
    let options = Options { arguments: vec!["--no-such-flag".into()], ..Options::default() };
    let Err(error) = find("millrace").expect("a target").start(&options) else { panic!("it has started") };
    let error = format!("{error:#}");
    assert!(error.contains("before it listened") && error.contains("--no-such-flag"), "{error}");
}

#[test]
fn an_unknown_target_is_told_who_there_is() {
    let Err(error) = find("millrce") else { panic!("found") };
    assert!(error.to_string().contains("millrace, ws, bun"), "{error}");
}
