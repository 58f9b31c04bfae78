use super::*;
use crate::recording::{Counts, Factors, Finding, Phase, ReaderEnergy};

/// A run with 100 publications to 5 readers, and these ages in milliseconds.
fn run(part: &str, transport: &str, ages_ms: &[u64], joules: Option<f64>, bytes: u64) -> Run {
    let mut latency_us = Histogram::default();
    ages_ms.iter().for_each(|ms| latency_us.record_us(ms * 1000));
    let counts = Counts { scheduled: 100, sent: 100, delivered: ages_ms.len() as u64, ..Counts::default() };
    let energy = joules.map(|joules| ReaderEnergy { radio: "lte".into(), seconds: 5.0, joules, promotions: 1 });
    let readers = ReaderTraffic {
        readers: 5,
        seconds: 6.0,
        up_bytes: 100 * ages_ms.len() as u64,
        down_bytes: bytes * ages_ms.len() as u64,
        energy,
        ..ReaderTraffic::default()
    };
    let link = LinkRun {
        congestion: "cubic".into(),
        cpu_us_per_packet: 4.0,
        late_p50_us: 60.0,
        late_p99_us: 700.0,
        readers: Some(readers),
        ..LinkRun::default()
    };
    Run {
        part: part.into(),
        target: "millrace".into(),
        transport: transport.into(),
        factors: Factors { clients: 5, each_per_s: 4.0, ..Factors::default() },
        phases: vec![Phase { name: PhaseName::Test, counts, latency_us, ..Phase::default() }],
        link: Some(link),
        ..Run::default()
    }
}

fn recording(runs: Vec<Run>) -> Recording {
    let part = |path: &str| json!({"path": path, "publisher": "server", "poll_every": "1s"});
    let json = json!({"format": 1, "scenario": "networks", "form": "full", "seed": 1, "started": "", "provenance": null,
        "runs": [], "parameters": {"3g": part("3g"), "lte": part("lte")}});
    Recording { runs, ..serde_json::from_value(json).unwrap() }
}

fn all(age_ms: u64) -> Vec<u64> {
    vec![age_ms; 500]
}

fn cell<'a>(table: &'a Table, row: usize, column: &str) -> &'a Value {
    let column = table.columns.iter().position(|known| known.name == column);
    &table.rows[row][column.unwrap_or_else(|| panic!("no such column in {table:?}"))]
}

#[test]
fn each_network_has_its_figures_and_one_recommendation() {
    let [recommended, figures] = &tables(&recording(vec![
        run("lte", "sse", &all(30), Some(20.0), 400),
        run("lte", "polling", &all(900), Some(10.0), 500),
        run("lte", "websocket", &all(29), Some(15.0), 400),
        run("3g", "websocket", &all(90), None, 400),
        run("3g", "data-channel", &all(90), None, 300),
    ]))[..] else {
        panic!("two tables")
    };
    let column = |name: &str| (0..5).map(|row| cell(figures, row, name).clone()).collect::<Vec<_>>();
    assert_eq!(column("network"), ["3g", "3g", "lte", "lte", "lte"].map(Value::from));
    assert_eq!(column("transport"), ["websocket", "data-channel", "websocket", "sse", "polling"].map(Value::from));
    assert_eq!(
        column("decision"),
        ["more bytes", "recommended", "recommended", "more joules", "older"].map(Value::from)
    );
    assert_eq!(cell(figures, 2, "p95"), &json!(29.0));
    assert_eq!(cell(figures, 2, "complete"), &json!(100.0));
    assert_eq!(
        (cell(figures, 2, "sent per message"), cell(figures, 2, "received per message")),
        (&json!(100.0), &json!(400.0))
    );
    // 15 J of five readers in 5 s each, and for 500 messages.
    assert_eq!(
        (cell(figures, 2, "energy per hour"), cell(figures, 2, "energy per message")),
        (&json!(2160.0), &json!(30.0))
    );
    assert_eq!(
        (cell(figures, 0, "energy per hour"), cell(figures, 0, "energy per message")),
        (&Value::Null, &Value::Null)
    );
    let notes = figures.notes.join("\n");
    for needle in
        ["one way over the network", "1s after each response", "(lte)", "cubic", "4.0 us of CPU", "700 us at p99"]
    {
        assert!(notes.contains(needle), "{needle}: {notes}");
    }
    assert_eq!(cell(recommended, 0, "to the reader"), "1.6Mbit/s, 75 ms, 0.5 % lost");
    assert_eq!(
        (cell(recommended, 0, "recommended"), cell(recommended, 1, "recommended")),
        (&json!("data-channel"), &json!("websocket"))
    );
    assert_eq!(
        (cell(recommended, 1, "radio"), cell(recommended, 1, "bytes per message")),
        (&json!("lte"), &json!(500.0))
    );
}

#[test]
fn repeats_are_merged_and_invalid_runs_left_out() {
    let mut failed = run("lte", "sse", &all(5000), Some(999.0), 9000);
    failed.validity.push(Finding { code: "link_late".into(), detail: String::new(), invalidates: true });
    let mut twice = run("lte", "sse", &all(50), Some(40.0), 200);
    twice.phases[0].counts.duplicated = 3;
    let only_failed = Run { transport: "stream".into(), ..failed.clone() };
    let runs = vec![run("lte", "sse", &all(30)[..250], Some(20.0), 400), twice, failed, only_failed];
    let figures = &tables(&recording(runs))[1];
    assert_eq!((cell(figures, 0, "age p50"), cell(figures, 0, "max")), (&json!(50.0), &json!(50.0)));
    // 750 of 1,000 messages; (250 x 400 + 500 x 200) / 750 bytes; 60 J of five readers in 10 s each.
    assert_eq!((cell(figures, 0, "complete"), cell(figures, 0, "duplicates")), (&json!(75.0), &json!(3)));
    assert_eq!(
        (cell(figures, 0, "received per message"), cell(figures, 0, "energy per hour")),
        (&json!(267.0), &json!(4320.0))
    );
    assert_eq!((cell(figures, 1, "decision"), cell(figures, 1, "p95")), (&json!("no valid run"), &Value::Null));
    assert_eq!(cell(figures, 1, "complete"), &Value::Null);
}

#[test]
fn runs_without_a_link_have_ages_but_no_bytes() {
    let run = Run { link: None, ..run("lte", "sse", &all(1), None, 0) };
    let [recommended, figures] = &tables(&recording(vec![run]))[..] else { panic!("two tables") };
    assert_eq!((cell(figures, 0, "p95"), cell(figures, 0, "sent per message")), (&json!(1.0), &Value::Null));
    assert_eq!(cell(recommended, 0, "recommended"), "sse");
}

#[test]
fn every_profile_is_a_network_of_its_own() {
    let file: toml::Table = include_str!("scenario.toml").parse().unwrap();
    let paths: BTreeSet<&str> =
        file["parts"].as_table().unwrap().values().filter_map(|part| part["path"].as_str()).collect();
    assert_eq!(paths, millrace_link::profiles().keys().map(String::as_str).collect());
}

#[test]
fn rounding_keeps_significant_digits() {
    let of = |value| rounded(Some(value), 3);
    assert_eq!([of(0.012345), of(12.345), of(1234.5), of(0.0)], [0.0123, 12.3, 1235.0, 0.0].map(Value::from));
    assert_eq!((rounded(None, 3), rounded(Some(f64::INFINITY), 3)), (Value::Null, Value::Null));
}
