//! A node of a cluster is killed in the middle of a load.

use std::time::Duration;

use millrace_lab::{
    load::{Arrivals, Hooks, Milestone, Plan, Rate, Sample, Shape, run_with},
    recording::PhaseName,
    targets::{CLUSTER_NODE, Endpoint, Options, Transport, find},
};

#[test]
fn killed_node_loses_and_doubles_nothing() {
    let target = find("millrace-cluster").expect("a target");
    for transport in target.transports() {
        let mut server = match target.start(&Options::default()) {
            Ok(server) => server,
            Err(error) => return eprintln!("SKIPPED: the cluster cannot be started here: {error:#}"),
        };
        let plan = Plan {
            shape: Shape::Pairs,
            clients: 40,
            rate: Rate::Open { per_s: 200.0, arrivals: Arrivals::Even },
            bytes: 134,
            test: Duration::from_secs(3),
            probe: Duration::ZERO,
            ..Plan::default()
        };
        let endpoint = Endpoint::new(target, *transport, &server, Duration::from_millis(300));
        let hooks = Hooks {
            observe: &mut || Ok(Sample::default()),
            see: &mut |_| {},
            reach: &mut |milestone| match milestone {
                Milestone::Halfway => server.kill_part(CLUSTER_NODE),
                _ => Ok(()),
            },
        };
        let outcome = run_with(&plan, &endpoint, hooks);
        let outcome = outcome.unwrap_or_else(|error| panic!("{transport}: {error:#}\n{}", server.log_tail()));
        let test = outcome.phase(PhaseName::Test).expect("a test");
        let counts = test.counts;
        let what = format!("{transport}: {counts:?} {:?}", outcome.validity);
        // Between two polls, a phone has a connection to the balancer only.
        let is_connected = *transport != Transport::Polling;
        assert!(counts.broken > 0 || !is_connected, "the killed node had connections: {what}");
        assert_eq!((counts.scheduled, counts.sent, counts.delivered), (600, 600, 600), "{what}");
        assert_eq!(counts.lost + counts.duplicated + counts.gaps + counts.refused, 0, "{what}");
        // A car publishes five times a second, so a phone is silent for at least 0.2 s.
        assert!(test.silence_us >= 195_000, "{} us: {what}", test.silence_us);
    }
}

#[test]
fn only_parts_of_a_server_can_be_killed() {
    let Ok(mut server) = find("millrace").expect("a target").start(&Options::default()) else {
        return eprintln!("SKIPPED: millrace is not built");
    };
    let error = server.kill_part(CLUSTER_NODE).unwrap_err().to_string();
    assert!(error.contains("no node"), "{error}");
}
