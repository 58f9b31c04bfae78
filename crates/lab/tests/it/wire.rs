//! Starts Millrace and checks that the model, a packet capture and the kernel's counters agree.

use millrace_lab::{
    scenarios::carcare_wire::{Choice, run},
    targets::{OVER_TCP, Options},
    wire_cost::{Line, Side, Unit, WireCostReport, difference_percent},
};

/// Maximum number of measurements. On a shared machine, an answer may take longer than the ACK delay (40 ms); then a
/// separate ACK precedes it. Items that differ are measured again, and each must agree in one of the measurements.
const TRIES: usize = 5;

fn measured() -> anyhow::Result<WireCostReport> {
    let file = include_str!("../../src/scenarios/carcare_wire/scenario.toml");
    let mut parameters = file.parse::<toml::Table>()?["parameters"].as_table().cloned().unwrap_or_default();
    parameters.insert("messages".into(), toml::Value::Integer(12));
    run(&Choice::read(&parameters)?, &Options::default())
}

fn agrees(line: &Line) -> bool {
    line.difference_percent.abs() < 1.0
}

/// Returns the difference between the capture and the kernel's count in percent; `None` without a capture.
fn capture_is_off(wire_cost: &WireCostReport) -> Option<f64> {
    Some(difference_percent(wire_cost.path.captured_bytes? as f64, wire_cost.path.counted_bytes? as f64))
}

/// Muller's 174 bytes, plus TCP timestamps.
const BATCH_BYTES: f64 = 174.0 + 12.0;

fn batch(wire_cost: &WireCostReport) -> Option<f64> {
    wire_cost.published.iter().find(|row| row.item == "in one segment, TCP")?.ours
}

#[test]
fn wire_model_and_capture_agree_with_the_kernel() {
    let mut wire_cost = measured().expect("a report");
    let mut batches = batch(&wire_cost);
    for _ in 1..TRIES {
        let is_captured = capture_is_off(&wire_cost).is_none_or(|off| off.abs() < 0.1);
        if wire_cost.lines.iter().all(agrees) && batches == Some(BATCH_BYTES) && is_captured {
            break;
        }
        eprintln!("the machine is busy; once more\n{wire_cost}");
        let again = measured().expect("a report");
        if batches != Some(BATCH_BYTES) {
            batches = batch(&again);
        }
        if !is_captured {
            wire_cost.path = again.path.clone();
        }
        let what = |line: &Line| (line.transport.clone(), line.side, line.unit);
        for line in wire_cost.lines.iter_mut().filter(|line| !agrees(line)) {
            line.clone_from(again.lines.iter().find(|other| what(other) == what(line)).expect("the same lines"));
        }
    }
    println!("{wire_cost}");
    for transport in OVER_TCP {
        for unit in [Unit::Connection, Unit::Message, Unit::Silence] {
            let line = wire_cost.line(transport.name(), Side::Deliver, unit).expect("measured");
            assert!(line.count > 0 && line.measured.total() > 52.0, "{line:?}");
        }
    }
    for line in &wire_cost.lines {
        assert!(agrees(line), "the model is wrong: {line:#?}");
    }
    for row in wire_cost.published.iter().filter(|row| row.thesis == "somogyi" && !row.table.contains("TLS")) {
        assert!(row.ours.is_some() || row.printed.is_none(), "{row:?}");
    }
    assert_eq!(batches, Some(BATCH_BYTES), "eight messages of one breath left in more than one segment");
    match (wire_cost.path.captured_bytes, wire_cost.path.counted_bytes) {
        (Some(captured), Some(counted)) => {
            let off = capture_is_off(&wire_cost).expect("both are known");
            assert!(captured > 10_000 && off.abs() < 0.1, "captured {captured} B, counted {counted} B: {off:+.3} %");
        }
        _ => eprintln!("SKIPPED: no capture beside it, for that needs root; measured over {}", wire_cost.path.link),
    }
}
