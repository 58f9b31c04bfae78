//! The load generator against a server that does nothing, and against a server with deliberate faults.

use std::time::Duration;

use millrace_lab::{
    load::{
        Arrivals, Outcome, Plan, Rate, Sample, Shape,
        null::{Behaviour, Null},
        run,
    },
    recording::{Phase, PhaseName},
};

fn plan(shape: Shape, clients: usize, per_s: f64) -> Plan {
    Plan {
        shape,
        clients,
        rate: Rate::Open { per_s, arrivals: Arrivals::Even },
        idle: Duration::from_millis(200),
        test: Duration::from_secs(1),
        patience: Duration::from_secs(10),
        ..Plan::default()
    }
}

fn measure(plan: &Plan, behaviour: Behaviour) -> Outcome {
    let null = Null::start(behaviour, None).expect("a port on loopback");
    run(plan, &null, &mut || Ok(Sample::default())).expect("a run")
}

fn test(outcome: &Outcome) -> &Phase {
    outcome.phase(PhaseName::Test).expect("a test")
}

/// Returns false if other processes used the CPU. Then latencies and reconnect times are those of the machine.
fn is_quiet(outcome: &Outcome) -> bool {
    !outcome.validity.iter().any(|finding| ["crowded", "generator_bound"].contains(&finding.code.as_str()))
}

#[test]
fn every_shape_delivers_all_that_is_due() {
    for (shape, clients, per_s, sent, delivered) in [
        (Shape::Broadcast, 20, 100.0, 100, 2000),
        (Shape::Chat, 10, 100.0, 100, 1000),
        (Shape::Pairs, 30, 120.0, 120, 120),
        (Shape::PingPong, 30, 120.0, 120, 120),
        (Shape::Idle, 30, 120.0, 0, 0),
    ] {
        for threads in [1, 2] {
            let outcome = measure(&Plan { threads, ..plan(shape, clients, per_s) }, Behaviour::default());
            let phase = test(&outcome);
            let counts = phase.counts;
            let what = format!("{shape:?} on {threads} threads: {counts:?}");
            assert_eq!((counts.scheduled, counts.sent, counts.delivered), (sent, sent, delivered), "{what}");
            let wrong = counts.lost + counts.duplicated + counts.reordered + counts.corrupt + counts.broken;
            assert_eq!(wrong, 0, "{what}");
            assert_eq!((phase.latency_us.count(), phase.service_us.count()), (delivered, delivered), "{what}");
            assert_eq!((phase.spread_us.count(), phase.lateness_us.count()), (sent, sent), "{what}");
            let by_second: u64 = outcome.seconds.iter().map(|second| second.latency_us.count()).sum();
            assert_eq!(by_second, delivered, "{what}");
            // One probe per 50 ms, and some that were due before the test.
            let probes_max = ((phase.drained_s - phase.start_s) / 0.05) as u64 + 20;
            assert!((10..=probes_max).contains(&phase.probe_us.count()), "{} probes, {what}", phase.probe_us.count());
            let connect = outcome.phase(PhaseName::Connect).unwrap();
            assert_eq!(connect.connect_us.count(), connect.counts.connected, "{what}");
            assert!(connect.counts.connected > clients as u64, "{what}");
        }
    }
}

#[test]
fn faults_of_a_server_are_counted() {
    let all = 2000;
    let ask = |behaviour| test(&measure(&plan(Shape::Broadcast, 20, 100.0), behaviour)).counts;
    let quick = Behaviour::default();

    let counts = ask(Behaviour { double_every: 100, ..quick });
    // The server also counts the deliveries of the probe, so this is only about every hundredth delivery.
    assert!((19..=21).contains(&counts.duplicated), "{counts:?}");
    assert_eq!((counts.delivered, counts.lost, counts.reordered), (all, 0, 0));

    let counts = ask(Behaviour { swap_every: 97, ..quick });
    assert!((18..=22).contains(&counts.reordered), "{counts:?}");
    // A message that was held back at the end had no successor to swap with.
    assert!(counts.lost <= 2 && counts.delivered + counts.lost == all && counts.duplicated == 0, "{counts:?}");

    let counts = ask(Behaviour { change_every: 100, ..quick });
    assert!((19..=22).contains(&counts.corrupt) && counts.lost == all - counts.delivered, "{counts:?}");
}

#[test]
fn lost_messages_are_awaited_then_counted() {
    let plan = Plan { patience: Duration::from_secs(1), ..plan(Shape::Broadcast, 20, 100.0) };
    let outcome = measure(&plan, Behaviour { drop_every: 50, ..Behaviour::default() });
    let counts = test(&outcome).counts;
    assert!((39..=42).contains(&counts.lost) && counts.delivered + counts.lost == 2000, "{counts:?}");
    assert!(outcome.validity.iter().any(|finding| finding.code == "lost"), "{:?}", outcome.validity);
}

#[test]
fn run_without_deliveries_is_invalid() {
    let plan = Plan { patience: Duration::from_millis(300), ..plan(Shape::Broadcast, 2, 50.0) };
    let outcome = measure(&plan, Behaviour { discards: true, ..Behaviour::default() });
    assert_eq!((test(&outcome).counts.sent, test(&outcome).counts.lost), (50, 100));
    assert!(outcome.validity.iter().any(|finding| finding.code == "nothing" && finding.invalidates));
}

/// One stall of 400 ms at 100 publications per second delays 40 publications, not one.
#[test]
fn stall_delays_every_waiting_message() {
    let stall = Some((500, Duration::from_millis(400)));
    let plan = Plan { probe: Duration::ZERO, ..plan(Shape::Broadcast, 10, 100.0) };
    let outcome = measure(&plan, Behaviour { stall, ..Behaviour::default() });
    let latency = &test(&outcome).latency_us;
    assert_eq!(latency.count(), 1000);
    let waited = latency.beyond(200_000);
    let waited_max = if is_quiet(&outcome) { 230 } else { 1000 };
    assert!((180..=waited_max).contains(&waited), "{waited} of about 200 waited longer than half of the stall");
}

#[test]
fn closed_loop_reaches_maximum_rate() {
    let plan = Plan { rate: Rate::Closed { in_flight: 8 }, ..plan(Shape::Broadcast, 20, 0.0) };
    let outcome = measure(&plan, Behaviour { batches: true, ..Behaviour::default() });
    let counts = test(&outcome).counts;
    assert!(counts.sent > 1000 && counts.delivered == counts.sent * 20, "{counts:?}");
}

#[test]
fn all_clients_reconnect_after_a_storm() {
    let outcome =
        measure(&Plan { patience: Duration::from_secs(2), ..plan(Shape::Storm, 200, 20.0) }, Behaviour::default());
    let phase = test(&outcome);
    assert_eq!((phase.counts.connected, phase.connect_us.count()), (200, 200));
    let counts = phase.counts;
    assert!(counts.delivered + counts.lost == 200 * 20 && counts.broken == 0, "{counts:?}");
    // Messages published during the reconnects are lost: two publications if the clients have enough CPU.
    assert!(counts.delivered >= 200 * 19 - 400 || !is_quiet(&outcome), "{counts:?} {:?}", outcome.validity);
}

#[test]
fn failed_connection_is_explained() {
    let null = Null::start(Behaviour::default(), None).unwrap();
    struct Nobody(std::net::SocketAddr);
    impl millrace_lab::load::LoadTarget for Nobody {
        fn address(&self) -> std::net::SocketAddr {
            self.0
        }
        fn is_duplex(&self) -> bool {
            true
        }
        fn dialect(&self, _: millrace_lab::load::Role, _: &str) -> Box<dyn millrace_lab::load::Dialect> {
            Box::new(millrace_lab::load::websocket::Bare::new("/"))
        }
    }
    let address = millrace_lab::load::LoadTarget::address(&null);
    drop(null);
    let plan = Plan { patience: Duration::from_secs(1), ..plan(Shape::Broadcast, 3, 10.0) };
    let error = run(&plan, &Nobody(address), &mut || Ok(Sample::default())).unwrap_err();
    assert!(error.to_string().contains("refused"), "{error:#}");
}

#[test]
fn server_death_ends_run_and_keeps_results() {
    let null = Null::start(Behaviour::default(), None).unwrap();
    let mut left = 4;
    let outcome = run(&Plan { test: Duration::from_secs(30), ..plan(Shape::Broadcast, 5, 50.0) }, &null, &mut || {
        left -= 1;
        anyhow::ensure!(left > 0, "no such process");
        Ok(Sample::default())
    });
    let outcome = outcome.unwrap();
    assert!(outcome.validity.iter().any(|finding| finding.code == "server_died" && finding.invalidates));
    assert!(test(&outcome).drained_s < 20.0);
}
