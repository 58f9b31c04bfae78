//! Bounds for each algorithm in the test cases of RFC 8867.
//!
//! The RFC describes the expected behavior in words, quoted at each case in short. The bounds are ours: somewhat below
//! what the algorithms achieve today, so that a change that makes one worse is noticed. Fair means a Jain index of at
//! least 0.9 over the last 30 s. Where an algorithm is known to fail a case, the bounds assert this failure.

use std::{cell::RefCell, fmt::Write, rc::Rc, time::Instant};

use millrace_sfu::congestion::{Algorithm, coupled::Coupled};

use crate::rfc8867::{CASES, LIBWEBRTC, run};

/// Bounds of one algorithm in one case.
struct Expected {
    algorithm: &'static str,
    /// Minimum share of the usable capacity.
    use_min: f64,
    /// Rate of each video in the last 30 s, in kbit/s.
    kbit_per_s: (f64, f64),
    /// Jain's fairness index of the videos in the last 30 s.
    jain: (f64, f64),
    /// Maximum 95th percentile of the queuing delay in ms, and maximum loss in percent.
    queue_ms_max: f64,
    loss_percent_max: f64,
}

const FAIR: (f64, f64) = (0.9, 1.0);
/// Rate of TCP in the last 30 s, in kbit/s: it starves beside no algorithm.
const TCP_KBIT_PER_S: (f64, f64) = (200.0, 2001.0);

const fn row(
    algorithm: &'static str,
    use_min: f64,
    kbit_per_s: (f64, f64),
    jain: (f64, f64),
    queue_ms_max: f64,
    loss_percent_max: f64,
) -> Expected {
    Expected { algorithm, use_min, kbit_per_s, jain, queue_ms_max, loss_percent_max }
}

/// Section of the RFC, what it expects, and the bounds.
const EXPECTED: &[(&str, &str, &[Expected])] = &[
    (
        "5.1",
        "detects the capacity, converges to it and follows its changes",
        &[
            row("gcc", 0.75, (650.0, 870.0), FAIR, 40.0, 1.0),
            row("nada", 0.88, (700.0, 870.0), FAIR, 40.0, 1.0),
            // The estimate falls to 0.85 of the received rate and rises only when a queue has drained.
            row("rrtcc", 0.50, (400.0, 650.0), FAIR, 40.0, 1.0),
            row("rrtcc-strict", 0.50, (400.0, 650.0), FAIR, 40.0, 1.0),
        ],
    ),
    (
        "5.2",
        "each flow gets a fair share of a capacity that changes",
        &[
            row("gcc", 0.70, (550.0, 1000.0), FAIR, 40.0, 1.0),
            row("nada", 0.90, (750.0, 1000.0), FAIR, 60.0, 1.0),
            row("rrtcc", 0.50, (200.0, 700.0), (0.8, 1.0), 60.0, 1.0),
            // Known failure: the losses of a drop bring the rate down to TFRC, and the receiver's estimate, which
            // equation 8 does not raise in normal use, keeps it there.
            row("rrtcc-strict", 0.40, (140.0, 200.0), FAIR, 40.0, 1.0),
        ],
    ),
    (
        "5.3",
        "a congested direction of the reports does not stop the other direction",
        &[
            row("gcc", 0.60, (1000.0, 1500.0), FAIR, 40.0, 1.0),
            row("nada", 0.85, (1300.0, 1501.0), FAIR, 40.0, 1.0),
            row("rrtcc", 0.35, (250.0, 800.0), (0.8, 1.0), 120.0, 1.0),
            row("rrtcc-strict", 0.25, (140.0, 200.0), FAIR, 120.0, 1.0),
        ],
    ),
    (
        "5.4",
        "flows that start later get a fair share",
        &[
            row("gcc", 0.80, (850.0, 1400.0), FAIR, 40.0, 0.5),
            row("nada", 0.92, (900.0, 1400.0), FAIR, 40.0, 0.5),
            // Known failure: the two older flows keep their highest rate, and the newest does not rise.
            row("rrtcc", 0.70, (300.0, 1501.0), (0.7, 0.9), 150.0, 1.0),
            row("rrtcc-strict", 0.70, (300.0, 1501.0), (0.7, 0.9), 150.0, 1.0),
        ],
    ),
    (
        "5.5",
        "flows with unequal delays get a fair share",
        &[
            row("gcc", 0.85, (450.0, 1200.0), FAIR, 40.0, 0.5),
            // Known failure: a flow that starts later takes the queue of the others for the delay of the path, and so
            // gets more: the late-comer effect (arXiv 1809.00304).
            row("nada", 0.92, (450.0, 1501.0), (0.7, 0.9), 60.0, 0.5),
            // Known failure: which flow gets how much depends on small differences in time.
            row("rrtcc", 0.85, (100.0, 1501.0), (0.5, 0.8), 300.0, 3.0),
            row("rrtcc-strict", 0.50, (140.0, 1501.0), (0.5, 0.95), 200.0, 0.5),
        ],
    ),
    (
        "5.6",
        "neither the video nor TCP starves; TCP fills the queue whatever the video does",
        &[
            row("gcc", 0.90, (180.0, 600.0), FAIR, 300.0, 1.5),
            row("nada", 0.90, (500.0, 1000.0), FAIR, 300.0, 1.5),
            // Known failure: RRTCC starves at the minimum of the source, as in Lozano 2013, table 9.
            row("rrtcc", 0.90, (140.0, 160.0), FAIR, 300.0, 1.5),
            row("rrtcc-strict", 0.90, (140.0, 160.0), FAIR, 300.0, 1.5),
        ],
    ),
    (
        "5.7",
        "the videos survive ten connections that transfer files, at the minimum of the source or above",
        &[
            row("gcc", 0.90, (140.0, 400.0), FAIR, 300.0, 5.0),
            row("nada", 0.90, (150.0, 400.0), FAIR, 300.0, 5.0),
            // Known failure: the rate stays between 2 % and 10 % loss, so the videos displace TCP.
            row("rrtcc", 0.90, (600.0, 1200.0), FAIR, 300.0, 5.0),
            row("rrtcc-strict", 0.90, (130.0, 200.0), FAIR, 300.0, 5.0),
        ],
    ),
    (
        "5.8",
        "a flow that returns after a pause gets a fair share again",
        &[
            row("gcc", 0.80, (950.0, 1300.0), FAIR, 40.0, 0.5),
            row("nada", 0.90, (1000.0, 1300.0), FAIR, 40.0, 0.5),
            row("rrtcc", 0.75, (450.0, 1501.0), (0.8, 0.95), 300.0, 2.0),
            row("rrtcc-strict", 0.60, (250.0, 1100.0), (0.7, 0.95), 300.0, 1.0),
        ],
    ),
];

#[test]
fn algorithms_behave_as_expected_in_rfc_8867() {
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    let born = Instant::now();
    let mut failures = String::new();
    assert_eq!(CASES.len(), EXPECTED.len());
    for (case, (section, behavior, rows)) in CASES.iter().zip(EXPECTED) {
        assert_eq!((case.section, rows.len()), (*section, Algorithm::ALL.len()));
        for expected in *rows {
            let outcome = run(case, expected.algorithm.parse().unwrap(), None, born);
            let mut check = |what: &str, value: f64, (min, max): (f64, f64)| {
                if !(min..=max).contains(&value) {
                    let name = expected.algorithm;
                    let _ = writeln!(
                        failures,
                        "{section} {} ({behavior}), {name}: {what} {value:.2}, not {min} to {max}",
                        case.name
                    );
                }
            };
            check("use", outcome.use_of_capacity(0, case.seconds as usize), (expected.use_min, 1.01));
            if let Some(tcp) = outcome.last_tcp_kbit_per_s() {
                check("TCP kbit/s", tcp, TCP_KBIT_PER_S);
            }
            for rate in outcome.last_kbit_per_s() {
                check("kbit/s", rate, expected.kbit_per_s);
            }
            check("Jain", outcome.jain(), expected.jain);
            check("queue p95 ms", outcome.queuing_ms(95.0), (0.0, expected.queue_ms_max));
            check("loss %", outcome.loss_percent(), (0.0, expected.loss_percent_max));
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

/// The capacity rises from 1 to 2.5 Mbit/s at 40 s, and falls to 0.6 Mbit/s at 60 s.
#[test]
fn default_follows_capacity_within_seconds() {
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    let outcome = run(&CASES[0], Algorithm::default(), None, Instant::now());
    let rates = [(30, 40), (50, 60), (64, 80), (90, 100)].map(|(from, to)| outcome.kbit_per_s(0, from, to));
    for (rate, (min, max)) in
        rates.into_iter().zip([(750.0, 1001.0), (1000.0, 1501.0), (450.0, 601.0), (600.0, 1001.0)])
    {
        assert!((min..=max).contains(&rate), "{rates:?}");
    }
}

/// Case 5.4, three videos of one sender that start one after the other: alone, RRTCC gives the newest far less than the
/// others.
#[test]
fn coupled_flows_share_their_bottleneck_evenly() {
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    let born = Instant::now();
    let case = CASES.iter().find(|case| case.section == "5.4").unwrap();
    for algorithm in Algorithm::ALL {
        let coupled = run(case, algorithm, Some(Rc::new(RefCell::new(Coupled::default()))), born);
        let (rates, used) = (coupled.last_kbit_per_s(), coupled.use_of_capacity(60, 120));
        assert!(coupled.jain() > 0.999 && used > 0.9, "{algorithm}: {rates:?} kbit/s, {used} of the capacity");
        // The shares are even from the start of each flow on.
        let shares = [0, 1, 2].map(|flow| coupled.kbit_per_s(flow, 45, 60));
        let (least, most) = shares.iter().fold((f64::MAX, 0.0_f64), |(a, b), rate| (a.min(*rate), b.max(*rate)));
        assert!(least > 0.95 * most, "{algorithm}: {shares:?} kbit/s");
        assert!(coupled.queuing_ms(95.0) < 150.0, "{algorithm}: {} ms", coupled.queuing_ms(95.0));
    }
    let alone = run(case, "rrtcc".parse().unwrap(), None, born);
    assert!(alone.jain() < 0.9, "{}", alone.jain());
}

/// The unit tests of SCReAM v2 in libwebrtc require 650 to 1,100 kbit/s after 4 s at 1 Mbit/s, and 1.5 to 2.5 Mbit/s
/// after 10 s at 2 Mbit/s with a round-trip time below 80 ms, for 15 minutes. NADA reaches the same. The others rise by
/// 8 % and 5 % per second, so they need longer: the SFU's probing is not part of these cases.
#[test]
fn nada_reaches_published_figures_and_others_follow() {
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    let born = Instant::now();
    for algorithm in Algorithm::ALL {
        let from = if algorithm == Algorithm::Nada { [4, 10] } else { [15, 40] };
        let [narrow, wide] = [0, 1].map(|case| run(&LIBWEBRTC[case], algorithm, None, born));
        let rates = [narrow.kbit_per_s(0, from[0], 60), wide.kbit_per_s(0, from[1], 900)];
        assert!((650.0..1100.0).contains(&rates[0]) && (1490.0..2500.0).contains(&rates[1]), "{algorithm}: {rates:?}");
        let queuing_ms = [&narrow, &wide].map(|outcome| outcome.queuing_ms(95.0));
        assert!(queuing_ms[0] < 30.0 && 20.0 + queuing_ms[1] < 80.0, "{algorithm}: {queuing_ms:?}");
    }
}
