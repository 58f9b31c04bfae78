use millrace_lab::{
    analysis::{Analysis, Figure, Metric, analyse, table},
    recording::{Finding, LinkCounts, LinkRun, LoadUnit, PhaseName, Run, Table},
    stats::{compare::Verdict, knee::Why},
    wire_cost::{DirectionalBytes, Line, Side, Unit, WireCostReport},
};

use super::{phase, recording, run, second, test_of, with};

fn analysis(runs: Vec<Run>) -> Analysis {
    analyse(&[recording(runs)]).expect("a recording of this lab")
}

fn figure(analysis: &Analysis, point: usize, metric: Metric) -> &Figure {
    &analysis.points[point].metrics[&metric]
}

fn invalid(mut run: Run) -> Run {
    run.validity.push(Finding { code: "server_died".into(), detail: "it is gone".into(), invalidates: true });
    run
}

#[test]
fn point_is_median_of_valid_runs() {
    let repeats = [3.0, 1.0, 2.0, 5.0].into_iter().enumerate();
    let mut runs: Vec<Run> =
        repeats.map(|(repeat, cpu_us)| with(run("millrace", "sse", 50, repeat as u32), cpu_us, 400.0)).collect();
    runs.push(invalid(with(run("millrace", "sse", 50, 4), 900.0, 400.0)));
    let analysis = analysis(runs);
    let point = &analysis.points[0];
    assert_eq!((analysis.points.len(), point.runs.as_slice(), point.runs_valid), (1, &[0, 1, 2, 3, 4][..], 4));
    let cpu = figure(&analysis, 0, Metric::ServerCpuUsPerDelivery);
    assert!((cpu.median - 2.5).abs() < 1e-9 && cpu.ci95 == Some((1.0, 5.0)), "{cpu:?}");
    assert_eq!(cpu.runs.len(), 4);
    let p99 = figure(&analysis, 0, Metric::LatencyP99Us);
    // 400 us x exp(0.5 x 2.326); with 200 samples, two lie above it.
    assert!((p99.median / 1280.0 - 1.0).abs() < 0.05 && p99.samples_beyond == Some(2) && p99.is_thin, "{p99:?}");
    assert!(!figure(&analysis, 0, Metric::LatencyP50Us).is_thin);
    assert_eq!(figure(&analysis, 0, Metric::ServerMemoryBytes).ci95, Some((1e7, 1e7)));
    assert_eq!((analysis.head.runs_total, analysis.head.runs_valid, analysis.head.is_valid), (5, 4, false));
    let died = analysis.head.gates.iter().find(|gate| gate.code == "server_died").unwrap();
    assert_eq!((died.passed, died.runs_failed, died.note.as_deref()), (false, 1, Some("it is gone")));
    assert!(table::summary(&analysis).contains("4 of 5 runs valid"), "{}", table::summary(&analysis));
}

#[test]
fn link_is_summed_over_runs_with_the_cost_of_the_emulator() {
    let over = |repeat, lost, queue_delay_max_ms, late_p99_us| {
        let up = LinkCounts { received: 100, lost, queue_delay_max_ms, ..LinkCounts::default() };
        let (path, congestion) = ("3g".to_owned(), "cubic".to_owned());
        let cpu_us_per_packet = 4.0 + f64::from(repeat);
        let link =
            LinkRun { path, congestion, up, cpu_us_per_packet, late_p50_us: 60.0, late_p99_us, ..LinkRun::default() };
        Run { link: Some(link), ..with(run("millrace", "sse", 50, repeat), 3.0, 400.0) }
    };
    let runs = vec![
        over(0, 1, 20.0, 700.0),
        over(1, 2, 70.0, 300.0),
        over(2, 4, 30.0, 500.0),
        invalid(over(3, 50, 900.0, 9000.0)),
    ];
    let with_loopback = [runs, vec![with(run("millrace", "websocket", 50, 0), 3.0, 400.0)]].concat();
    let analysis = analysis(with_loopback);
    let link = analysis.points[0].link.as_ref().expect("a link");
    assert_eq!((link.path.as_str(), link.congestion.as_str()), ("3g", "cubic"));
    assert_eq!((link.up.received, link.up.lost, link.up.queue_delay_max_ms), (300, 7, 70.0));
    assert_eq!((link.cpu_us_per_packet, link.added_delay_p50_us, link.added_delay_p99_us), (5.0, 60.0, 700.0));
    assert_eq!(analysis.points[1].link, None, "a run over loopback");
    let text = table::summary(&analysis);
    let line = "path 3g: the emulator used 5.0 us of CPU per packet and added 60 us (p50), 700 us (p99) of delay";
    assert!(text.contains(line), "{text}");
}

#[test]
fn invalid_runs_are_shown_and_marked() {
    let analysis = analysis(vec![invalid(with(run("millrace", "sse", 50, 0), 3.0, 400.0))]);
    assert!(analysis.points[0].is_invalid && analysis.points[0].runs_valid == 0);
    assert!((figure(&analysis, 0, Metric::ServerCpuUsPerDelivery).median - 3.0).abs() < 1e-9);
    assert!(table::summary(&analysis).contains("INVALID"));
}

#[test]
fn run_without_phases_is_listed() {
    let failed = invalid(Run { target: "bun".into(), ..Run::default() });
    let analysis = analysis(vec![failed, with(run("millrace", "sse", 50, 0), 3.0, 400.0)]);
    let (bun, ours) = (&analysis.points[0], &analysis.points[1]);
    assert!(bun.metrics.is_empty() && bun.is_invalid && bun.series.is_none() && bun.phases.is_empty());
    assert!(!ours.is_invalid && analysis.runs[0].findings == ["server_died: it is gone"]);
}

/// All messages arrive in the end, half of them too late. The test lasts from 1.0 to 6.0, so it ends exactly at the end
/// of a second.
#[test]
fn late_messages_are_not_delivered_in_time() {
    let mut slow = with(run("millrace", "sse", 10, 0), 3.0, 2_500_000.0);
    test_of(&mut slow).drained_s = 11.0;
    slow.seconds = (0..12).map(|at| second(f64::from(at), 0, if (1..11).contains(&at) { 1000 } else { 0 })).collect();
    let analysis = analysis(vec![slow]);
    assert_eq!(figure(&analysis, 0, Metric::DeliveredShare).median, 0.5);
    assert_eq!(figure(&analysis, 0, Metric::DeliveriesPerS).median, 1000.0);
    assert_eq!(figure(&analysis, 0, Metric::OfferedPerS).median, 2000.0);
    let knee = analysis.curves[0].knee.unwrap();
    assert_eq!((knee.carried, knee.saturated, knee.why), (None, 10.0, Why::Undelivered));
}

/// Of the second in which publishing ended, only the part before the end counts.
#[test]
fn partial_last_second_is_divided_by_time() {
    let mut fast = with(run("millrace", "sse", 10, 0), 3.0, 400.0);
    let test = test_of(&mut fast);
    (test.start_s, test.end_s, test.drained_s) = (1.5, 6.5, 6.52);
    // The last half second delivered 1,000 messages in 0.52 s, 38 of them after the end.
    fast.seconds = vec![second(1.0, 0, 1000)];
    fast.seconds.extend((2..6).map(|at| second(f64::from(at), 0, 2000)));
    fast.seconds.push(second(6.0, 0, 1000));
    let analysis = analysis(vec![fast]);
    let share = figure(&analysis, 0, Metric::DeliveredShare).median;
    assert!((share - (1.0 - 1000.0 * 0.02 / 0.52 / 10_000.0)).abs() < 1e-9, "{share}");
    assert!(analysis.curves[0].knee.is_none());
}

#[test]
fn lost_and_refused_messages_count_as_offered() {
    let mut lossy = with(run("millrace", "sse", 10, 0), 3.0, 400.0);
    let counts = &mut test_of(&mut lossy).counts;
    // 1,000 publications were due and 800 were sent. 100 of their 8,000 deliveries were lost.
    (counts.sent, counts.delivered, counts.lost) = (800, 7900, 100);
    let analysis = analysis(vec![lossy]);
    assert_eq!(figure(&analysis, 0, Metric::OfferedPerS).median, 2000.0);
    assert_eq!(figure(&analysis, 0, Metric::DeliveredShare).median, 0.79);
    assert_eq!(figure(&analysis, 0, Metric::Lost).median, 100.0);
}

#[test]
fn scaling_and_its_knee_are_found() {
    // X = 200 N / (1 + 0.02 (N - 1) + 0.0001 N (N - 1)): its peak is at sqrt(0.98 / 0.0001) = 99.
    let law = |n: f64| 200.0 * n / (1.0 + 0.02 * (n - 1.0) + 0.0001 * n * (n - 1.0));
    let loads = [1u64, 5, 10, 20, 50, 100, 200];
    let runs = loads.map(|clients| {
        let mut run = with(run("millrace", "sse", clients, 0), 3.0, 400.0);
        let delivered = (law(clients as f64) * 5.0) as u64;
        run.seconds = vec![second(1.0, 0, delivered), second(6.0, 0, 1000 * clients - delivered)];
        test_of(&mut run).drained_s = 7.0;
        run
    });
    let analysis = analysis(runs.into_iter().rev().collect());
    let curve = &analysis.curves[0];
    let of_curve = curve.points.iter().map(|index| analysis.points[*index as usize].load.value);
    assert!(of_curve.is_sorted() && curve.points.len() == 7);
    let usl = curve.usl.as_ref().unwrap();
    assert!((usl.sigma.estimate - 0.02).abs() < 0.002 && (usl.peak_load.unwrap() - 99.0).abs() < 2.0, "{usl:?}");
    assert!(usl.residual_max < 0.01 && usl.points[3].load == 20.0);
    // At 5 clients, 92 % are delivered.
    assert_eq!((curve.knee.unwrap().carried, curve.knee.unwrap().saturated), (Some(1.0), 5.0));
}

#[test]
fn cost_per_connection_is_the_slope() {
    let mut runs = Vec::new();
    for (connections, repeat) in [100u64, 1000, 5000].into_iter().flat_map(|load| (0..3).map(move |i| (load, i))) {
        let mut run = run("millrace", "websocket", connections, repeat);
        run.load.counts = LoadUnit::Connections;
        // Vary by one memory page.
        run.phases[1].server.pss_bytes = 20_000_000 + 9_000 * connections + 4096 * u64::from(repeat);
        test_of(&mut run).server.pss_bytes = 99_000_000;
        runs.push(run);
    }
    let analysis = analysis(runs);
    let line = analysis.curves[0].memory.as_ref().unwrap();
    assert!((line.bytes_per_connection.estimate - 9000.0).abs() < 1.0 && line.bytes_per_connection.contains(9000.0));
    assert!((line.base_bytes.estimate - 20_004_096.0).abs() < 100.0 && line.r_squared > 0.9999);
    assert!(line.residual_max < 0.001 && line.points.len() == 9);
}

/// Returns a run with 1,000 publications per second and two receivers. Each message takes 200 ms, so 400 are in flight.
fn steady(residence_s: f64) -> Run {
    let mut run = run("millrace", "sse", 2, 0);
    let test = test_of(&mut run);
    (test.start_s, test.end_s, test.drained_s) = (1.0, 61.0, 61.2);
    (test.counts.scheduled, test.counts.sent, test.counts.delivered) = (60_000, 60_000, 120_000);
    for at in 1..62u32 {
        let delivered = match at {
            1 => 1600,
            61 => 400,
            _ => 2000,
        };
        let mut second = second(f64::from(at), if at < 61 { 1000 } else { 0 }, delivered);
        (0..delivered).for_each(|_| second.latency_us.record_us((residence_s * 1e6) as u64));
        test_of(&mut run).latency_us.add(&second.latency_us);
        run.seconds.push(second);
    }
    run
}

#[test]
fn littles_law_detects_a_wrong_clock() {
    let panel = |run: Run| analysis(vec![run]).points[0].little;
    let right = panel(steady(0.2)).unwrap();
    assert!(right.is_steady && right.little.holds && (right.little.in_flight - 400.0).abs() < 1e-6, "{right:?}");
    let wrong = panel(steady(0.18)).unwrap();
    assert!(wrong.is_broken && (wrong.little.relative_error - 1.0 / 9.0).abs() < 0.01, "{wrong:?}");
    let mut lossy = steady(0.2);
    test_of(&mut lossy).counts.lost = 1;
    assert!(panel(lossy).is_none());
    let mut growing = steady(0.2);
    growing.seconds.iter_mut().for_each(|second| second.counts.delivered = second.counts.delivered * 9 / 10);
    assert!(panel(growing).is_some_and(|panel| !panel.is_steady && !panel.is_broken));
}

#[test]
fn phases_and_seconds_are_kept_for_drawing() {
    let mut long = with(run("millrace", "sse", 50, 0), 3.0, 400.0);
    long.phases[1] = phase(PhaseName::Idle, 0.5, 1.0);
    long.phases[1].server.cpu_user_s = 0.01;
    long.phases[1].server.cpu_system_s = 0.04;
    long.phases[1].probe_us.record_us(250);
    (test_of(&mut long).end_s, test_of(&mut long).drained_s) = (1000.0, 1000.0);
    for at in 0..1000 {
        let mut second = second(f64::from(at), 200, 10_000);
        (0..20).for_each(|step| second.latency_us.record_us(300 + 10 * step + at as u64));
        long.seconds.push(second);
    }
    let analysis = analysis(vec![long]);
    let point = &analysis.points[0];
    let idle = point.phases.iter().find(|phase| phase.name == PhaseName::Idle).unwrap();
    assert!(
        (idle.server_cpu_cores.median - 0.1).abs() < 1e-9 && (idle.server_cpu_system_cores.median - 0.08).abs() < 1e-9
    );
    assert_eq!(idle.probe_p50_us.as_ref().unwrap().median, 250.0);
    let series = point.series.as_ref().unwrap();
    assert_eq!((series.at_s.len(), series.step_s, series.at_s[1]), (250, 4.0, 4.0));
    assert_eq!((series.deliveries_per_s[7], series.server_cpu_cores[7]), (Some(10_000.0), Some(0.25)));
    // The test covers 2.98 s of the first step.
    assert_eq!((series.published_per_s[0], series.published_per_s[1]), (Some(268.5), Some(200.0)));
    let drawn: u64 = series.heat.iter().flatten().map(|(_, count)| count).sum();
    assert_eq!(drawn, 20_000);
    let bytes = serde_json::to_string(series).unwrap().len();
    assert!(bytes < 250 * 250, "{bytes} bytes for 250 steps");
}

#[test]
fn rivals_are_compared_where_both_have_enough_runs() {
    let runs = |target: &str, cpu_us: f64, repeats: u32| {
        (0..repeats)
            .map(|repeat| with(run(target, "websocket", 50, repeat), cpu_us * (1.0 + 0.01 * f64::from(repeat)), 400.0))
            .collect::<Vec<_>>()
    };
    let all = [runs("ws", 6.0, 5), runs("bun", 2.0, 3), runs("millrace", 3.0, 5)].concat();
    let analysis = analysis(all);
    let verdict = |rival: &str| {
        let of =
            |one: &&millrace_lab::analysis::Rival| one.rival == rival && one.metric == Metric::ServerCpuUsPerDelivery;
        analysis.rivals.iter().find(of).unwrap().comparison
    };
    assert!(analysis.rivals.iter().all(|rival| rival.target == "millrace"));
    let ws = verdict("ws");
    assert_eq!(ws.verdict, Verdict::Improved);
    assert!((ws.ratio.unwrap().estimate - 0.5).abs() < 1e-9);
    assert_eq!(verdict("bun").verdict, Verdict::TooFewRuns);
}

#[test]
fn analysis_round_trips() {
    let mut runs: Vec<Run> = (0..4).map(|repeat| with(run("millrace", "sse", 50, repeat), 3.0, 400.0)).collect();
    runs[0].seconds = vec![second(1.0, 200, 10_000)];
    let mut recording = recording(runs);
    // Two of the four are slower.
    recording.runs[2..].iter_mut().for_each(|run| test_of(run).latency_us.record_us(70_000_000));
    recording.slo = Some("p99<2ms,p99.9<5ms".into());
    let analysis = analyse(std::slice::from_ref(&recording)).unwrap();
    let slo = analysis.head.slo.as_ref().unwrap();
    assert!(!slo.passed && analysis.points[0].meets_slo == Some(false), "two of four missed it");
    assert_eq!(slo.missed, ["millrace sse at 50 clients: p99.9 not delivered"]);
    let text = serde_json::to_string(&analysis).unwrap();
    assert!(text.contains(r#""latency_p99_9_us":{"median":"#) && text.contains(r#""server_cpu_us_per_delivery""#));
    assert_eq!(serde_json::from_str::<Analysis>(&text).unwrap(), analysis);
    assert!(!analysis.head.title.is_empty() && !analysis.head.thesis_rows.is_empty());
    assert_eq!(analysis.head.machine.cpu_pinning, "server 0, generator 1");
    recording.format += 1;
    assert!(analyse(&[recording]).is_err() && analyse(&[]).is_err());
}

#[test]
fn gate_names_worst_run_and_fails_by_findings() {
    let mut runs: Vec<Run> = (0..4).map(|repeat| with(run("millrace", "sse", 50, repeat), 3.0, 400.0)).collect();
    for (run, late_us) in runs.iter_mut().zip([100, 200, 5000, 300]) {
        test_of(run).lateness_us.record_us(late_us);
    }
    let gate = |runs: Vec<Run>| {
        let gates = analysis(runs).head.gates;
        assert_eq!(gates.iter().filter(|gate| gate.code.contains("generator")).count(), 2, "each once: {gates:?}");
        gates.into_iter().find(|gate| gate.code == "generator_lateness").unwrap()
    };
    let tolerated = gate(runs.clone());
    assert!(tolerated.passed && tolerated.note.unwrap().contains("in 1 runs"));
    assert!(tolerated.value.is_some_and(|ms| (ms - 5.0).abs() < 0.01) && tolerated.limit == Some(1.0));
    let detail = "5 ms late".to_owned();
    runs[2].validity.push(Finding { code: "generator_bound".into(), detail, invalidates: true });
    let failed = gate(runs);
    assert_eq!((failed.passed, failed.runs_failed, failed.note.as_deref()), (false, 1, Some("5 ms late")));
}

#[test]
fn invalid_table_invalidates_report_without_runs() {
    let mut recording = recording(Vec::new());
    let mut validity = vec![Finding { code: "no_link".into(), detail: "not root".into(), invalidates: false }];
    recording.tables.push(Table { title: "NATs".into(), validity: validity.clone(), ..Table::default() });
    let head = analyse(std::slice::from_ref(&recording)).unwrap().head;
    assert!(head.is_valid && head.gates.is_empty());
    validity[0].invalidates = true;
    recording.tables[0].validity = validity;
    let analysis = analyse(&[recording]).unwrap();
    let gate = &analysis.head.gates[0];
    assert!(!analysis.head.is_valid && !gate.passed && gate.note.as_ref().unwrap().contains("NATs"), "{gate:?}");
    assert!(table::summary(&analysis).contains("failed: no link"), "{}", table::summary(&analysis));
}

#[test]
fn experiments_are_judged_by_their_checks() {
    let line = |transport: &str, difference_percent| Line {
        transport: transport.into(),
        side: Side::Deliver,
        unit: Unit::Message,
        count: 8,
        measured: DirectionalBytes::default(),
        model: DirectionalBytes::default(),
        difference_percent,
        retransmitted_bytes: 0.0,
    };
    let mut recording = recording(Vec::new());
    recording.wire_cost =
        Some(WireCostReport { lines: vec![line("sse", -0.9), line("stream", -1.5)], ..WireCostReport::default() });
    let text = table::summary(&analyse(&[recording]).unwrap());
    assert_eq!(
        text,
        "1 of 2 figures differ from the model by less than 1 %\n  failed: stream deliver message: -1.50 %\n"
    );
}
