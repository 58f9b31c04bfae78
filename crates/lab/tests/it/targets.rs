//! Every target that is available here, started for real and tested over its real protocol.

use std::{process::Command, time::Duration};

use millrace_lab::{
    load::{
        Arrivals, LoadTarget, Outcome, Plan, Rate, Sample, Shape,
        null::{Behaviour, Null},
        run,
    },
    recording::{Phase, PhaseName},
    targets::{Endpoint, Options, Server, TARGETS, Target, find},
};

/// Starts the target. Prints `SKIPPED` if the target is not available here.
fn start(target: &dyn Target) -> Option<Server> {
    let started = target.start(&Options::default());
    if let Err(error) = &started {
        eprintln!("SKIPPED: {} cannot be started here: {error:#}", target.name());
    }
    started.ok()
}

/// Runs the plan of these tests: 100 publications within one second.
fn measure(
    name: &str,
    target: &dyn LoadTarget,
    shape: Shape,
    clients: usize,
    log: impl Fn() -> String,
) -> (Plan, Outcome) {
    let plan = Plan {
        shape,
        clients,
        rate: Rate::Open { per_s: 100.0, arrivals: Arrivals::Even },
        idle: Duration::from_millis(100),
        test: Duration::from_secs(1),
        patience: Duration::from_secs(10),
        channel: format!("lab-{name}-{shape:?}"),
        ..Plan::default()
    };
    let outcome = run(&plan, target, &mut || Ok(Sample::default()));
    let outcome = outcome.unwrap_or_else(|error| panic!("{name} {shape:?}: {error:#}\n{}", log()));
    (plan, outcome)
}

/// Checks the promises of the lab, whatever a server does: the plan was carried out, all figures agree, and each fault
/// is reported as a finding. A server may lose messages, and on a busy machine some servers do.
fn check_accounts(plan: &Plan, outcome: &Outcome, what: &str) {
    let phase = outcome.phase(PhaseName::Test).expect("a test");
    let counts = phase.counts;
    let what = format!("{what}: {counts:?} {:?}", outcome.validity);
    assert_eq!(counts.scheduled, 100, "{what}");
    assert!((1..=100).contains(&counts.sent), "{what}");
    let due = counts.sent * plan.copies() as u64;
    assert!(counts.delivered > 0 && counts.corrupt == 0, "the lab reads what it has published: {what}");
    let accounted = counts.delivered + counts.lost;
    // A publisher whose connection breaks may have written a message that it does not count as sent.
    assert!(accounted == due || counts.broken > 0 && accounted > due, "{due} were due: {what}");
    assert_eq!(phase.latency_us.count(), counts.delivered, "{what}");
    let whole = phase.spread_us.count();
    assert!(
        whole <= 100 && (whole == counts.sent || accounted != due || counts.lost > 0),
        "{whole} came whole: {what}"
    );
    let sum = |of: fn(&Phase) -> u64| outcome.phases.iter().map(of).sum::<u64>();
    let by_second: u64 = outcome.seconds.iter().map(|second| second.latency_us.count()).sum();
    assert_eq!(by_second, sum(|phase| phase.counts.delivered), "{what}");
    let connect = outcome.phase(PhaseName::Connect).expect("a start");
    assert!(connect.counts.connected >= plan.clients as u64, "{:?} {what}", connect.counts);
    assert_eq!(connect.connect_us.count(), connect.counts.connected, "{what}");
    assert!(phase.probe_us.count() > 0, "no probe came back: {what}");
    for (code, is_so) in [
        ("lost", counts.lost > 0),
        ("duplicated", counts.duplicated > 0),
        ("reordered", counts.reordered > 0),
        ("refused", counts.refused > 0),
        ("gaps", counts.gaps > 0),
        ("not_sent", counts.sent < counts.scheduled),
        ("broken", sum(|phase| phase.counts.broken) > 0),
    ] {
        let is_found = outcome.validity.iter().any(|finding| finding.code == code);
        assert_eq!(is_found, is_so, "{code}: {what}");
    }
}

/// Checks that our own server loses nothing, duplicates nothing and keeps the order.
fn check_complete(plan: &Plan, outcome: &Outcome, what: &str) {
    let counts = outcome.phase(PhaseName::Test).expect("a test").counts;
    let due = 100 * plan.copies() as u64;
    assert_eq!((counts.sent, counts.delivered), (100, due), "{what}: {counts:?} {:?}", outcome.validity);
    let wrong = counts.lost + counts.duplicated + counts.reordered + counts.corrupt + counts.gaps + counts.refused;
    assert_eq!((wrong, counts.broken), (0, 0), "{what}: {counts:?} {:?}", outcome.validity);
}

fn by_every_transport(name: &str, check: impl Fn(&Plan, &Outcome, &str)) {
    let target = find(name).expect("a target");
    let Some(server) = start(target) else { return };
    for transport in target.transports() {
        for (shape, clients) in [(Shape::Broadcast, 50), (Shape::Chat, 5), (Shape::Pairs, 10)] {
            let endpoint = Endpoint::new(target, *transport, &server, Duration::from_millis(100));
            let (plan, outcome) =
                measure(&transport.to_string(), &endpoint, shape, clients, || server.log_tail().to_string());
            check(&plan, &outcome, &format!("{name} {transport} {shape:?}"));
        }
    }
}

/// Checks only the lab's own accounts for a rival, never how much the rival delivers.
fn is_measured(name: &str) {
    by_every_transport(name, check_accounts);
}

fn delivers_all(name: &str) {
    by_every_transport(name, |plan, outcome, what| {
        check_accounts(plan, outcome, what);
        check_complete(plan, outcome, what);
    });
}

/// Our own server must be available: the test builds it if necessary.
#[test]
fn millrace_delivers_all() {
    let folder = std::env::current_exe().expect("this program");
    let folder = folder.ancestors().nth(2).expect("target/debug");
    if !folder.join("millrace").is_file() {
        let built = Command::new(env!("CARGO")).args(["build", "-p", "millrace-cli"]).status();
        assert!(built.is_ok_and(|status| status.success()), "millrace cannot be built");
    }
    delivers_all("millrace");
}

#[test]
fn durable_streams_is_measured() {
    is_measured("durable-streams");
}

#[test]
fn millrace_tls_delivers_all() {
    delivers_all("millrace-tls");
}

#[test]
fn millrace_tls_resumed_delivers_all() {
    delivers_all("millrace-tls-resumed");
}

#[test]
fn millrace_tls_rsa_delivers_all() {
    delivers_all("millrace-tls-rsa");
}

#[test]
fn millrace_tls12_delivers_all() {
    delivers_all("millrace-tls12");
}

#[test]
fn millrace_tls12_resumed_delivers_all() {
    delivers_all("millrace-tls12-resumed");
}

#[test]
fn millrace_tls12_rsa_delivers_all() {
    delivers_all("millrace-tls12-rsa");
}

#[test]
fn millrace_cluster_delivers_all() {
    delivers_all("millrace-cluster");
}

#[test]
fn millrace_mqtt_delivers_all() {
    delivers_all("millrace-mqtt");
}

#[test]
fn ws_is_measured() {
    is_measured("ws");
}

#[test]
fn bun_is_measured() {
    is_measured("bun");
}

#[test]
fn uws_is_measured() {
    is_measured("uws");
}

#[test]
fn socketio_is_measured() {
    is_measured("socketio");
}

#[test]
fn engineio_is_measured() {
    is_measured("engineio");
}

#[test]
fn socketcluster_is_measured() {
    is_measured("socketcluster");
}

#[test]
fn nats_is_measured() {
    is_measured("nats");
}

#[test]
fn nchan_is_measured() {
    is_measured("nchan");
}

#[test]
fn nchan_tls_is_measured() {
    is_measured("nchan-tls");
}

#[test]
fn mosquitto_is_measured() {
    is_measured("mosquitto");
}

#[test]
fn pushpin_is_measured() {
    is_measured("pushpin");
}

#[test]
fn centrifugo_is_measured() {
    is_measured("centrifugo");
}

#[test]
fn mercure_is_measured() {
    is_measured("mercure");
}

/// Reproduces on purpose the faults of a rival on a busy machine: the accounts hold, and each fault has its finding.
#[test]
fn counts_are_correct_with_a_faulty_server() {
    let quick = Behaviour::default();
    for (code, behaviour) in [
        ("lost", Behaviour { drop_every: 167, ..quick }),
        ("duplicated", Behaviour { double_every: 100, ..quick }),
        ("reordered", Behaviour { swap_every: 97, ..quick }),
    ] {
        let null = Null::start(behaviour, None).expect("a port on loopback");
        let (plan, outcome) = measure(code, &null, Shape::Broadcast, 50, String::new);
        check_accounts(&plan, &outcome, code);
        assert!(outcome.validity.iter().any(|finding| finding.code == code), "{code}: {:?}", outcome.validity);
    }
}

#[test]
fn every_target_has_a_test() {
    let tests = include_str!("targets.rs");
    for target in TARGETS {
        let what = if target.name().starts_with("millrace") { "delivers_all" } else { "is_measured" };
        assert!(
            tests.contains(&format!("fn {}_{what}()", target.name().replace('-', "_"))),
            "{} has none",
            target.name()
        );
    }
}

#[test]
fn failed_start_shows_the_log() {
    let options = Options { arguments: vec!["--no-such-flag".into()], ..Options::default() };
    let Err(error) = find("millrace").expect("a target").start(&options) else { panic!("it has started") };
    let error = format!("{error:#}");
    assert!(error.contains("before it listened") && error.contains("--no-such-flag"), "{error}");
}

#[test]
fn unknown_target_lists_all_targets() {
    let Err(error) = find("millrce") else { panic!("found") };
    assert!(error.to_string().contains("millrace, ws, bun"), "{error}");
}
