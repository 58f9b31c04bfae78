//! Checks of the calls, some of them promised.

use super::{
    browser::Browser,
    conditions::{BOTH, Cell, FREE, LATENCY, LOSS, MESH},
    figures::Stream,
    tables::{Call, MAIN, case, first_line, of_cell, stream_name},
};
use crate::{
    recording::{Form, Table},
    scenarios::lozano::{
        figures::{Pooled, mean},
        tables::{Check, checks as checks_table},
    },
};

/// Maximum difference of the round-trip time from twice the latency.
const RTT_EXTRA_MS: f64 = 10.0;
/// Maximum part of a capture that neither payload nor heads explain.
const UNEXPLAINED_MAX: f64 = 0.01;
/// Rate of the video of the thesis, and the maximum difference from it.
const SOURCE_KBIT_S: f64 = 2000.0;
const SOURCE_TOLERANCE: f64 = 0.05;

pub fn table(cells: &[Cell], calls: &[Call], form: Form) -> Table {
    checks_table(MAIN, checks(cells, calls, form))
}

fn checks(cells: &[Cell], calls: &[Call], form: Form) -> Vec<Check> {
    // In the quick form, other programs may use the machine.
    let is_full = form != Form::Quick;
    let failures: Vec<&str> = calls.iter().filter_map(|call| call.failure.as_deref()).collect();
    let mut checks = vec![Check {
        of: "all calls".into(),
        check: "all participants have media".into(),
        is_promised: true,
        passed: failures.is_empty(),
        found: failures
            .first()
            .map_or("yes".to_owned(), |why| format!("{} failed: {}", failures.len(), first_line(why))),
    }];
    let streams = || calls.iter().flat_map(|call| &call.streams);
    let direct = streams().filter(|stream| stream.route != "relay-relay").count();
    checks.push(Check {
        of: "all calls".into(),
        check: "media pass the relay".into(),
        is_promised: true,
        passed: direct == 0,
        found: format!("{direct} streams do not"),
    });
    for browser in [Browser::Chromium, Browser::Firefox] {
        if let Some(worst) = unexplained_max(cells, calls, browser) {
            checks.push(Check {
                of: browser.name().into(),
                check: "heads explain the difference between recorder and getStats within 1 %".into(),
                // A busy Firefox reads packets late, so that they are missing in its statistics.
                is_promised: browser == Browser::Chromium,
                passed: worst < UNEXPLAINED_MAX,
                found: format!("{:.3} %", worst * 100.0),
            });
        }
    }
    for (n, cell) in cells.iter().enumerate() {
        let pooled = Pooled::of(of_cell(calls, n).flat_map(|call| &call.streams).map(|stream| &stream.figures));
        if of_cell(calls, n).next().is_some() {
            checks.extend(of_condition(cell, &pooled, of_cell(calls, n), is_full));
        }
    }
    checks
}

/// Returns the largest part of a capture at a browser that heads do not explain.
fn unexplained_max(cells: &[Cell], calls: &[Call], browser: Browser) -> Option<f64> {
    let mut worst: Option<f64> = None;
    for call in calls {
        for stream in &call.streams {
            for (end, capture) in [(stream.from, &stream.sent), (stream.to, &stream.received)] {
                if cells[call.cell].browsers[end] == browser {
                    worst = Some(worst.unwrap_or_default().max(capture.difference().unexplained()));
                }
            }
        }
    }
    worst
}

fn of_condition<'a>(cell: &Cell, pooled: &Pooled, calls: impl Iterator<Item = &'a Call>, is_full: bool) -> Vec<Check> {
    let test = cell.key[0].as_str().unwrap_or_default();
    let number = |at: usize| cell.key[at].as_f64().unwrap_or_default();
    let (twice, loss) = (2.0 * number(1), number(2) / 100.0);
    let mut checks = Vec::new();
    if [FREE, LATENCY, BOTH].contains(&test) {
        let rtt = pooled.rtt.unwrap_or(f64::NAN);
        checks.push(Check {
            of: case(cell),
            check: format!("round-trip time is {twice} ms + at most {RTT_EXTRA_MS} ms"),
            is_promised: is_full,
            passed: (twice..=twice + RTT_EXTRA_MS).contains(&rtt),
            found: format!("{rtt:.2} ms"),
        });
    }
    if loss > 0.0 && [LOSS, BOTH].contains(&test) {
        // Both passes, within four standard deviations of independent losses.
        let expected = 1.0 - (1.0 - loss).powi(2);
        let sent = pooled.delay.count() as f64 / (1.0 - pooled.packet_loss).max(0.01);
        let tolerance = 4.0 * (expected * (1.0 - expected) / sent.max(1.0)).sqrt();
        checks.push(Check {
            of: case(cell),
            check: format!("packet loss is {:.2} %, that of two passes (E-L3)", expected * 100.0),
            is_promised: true,
            passed: (pooled.packet_loss - expected).abs() <= tolerance,
            found: format!("{:.2} %", pooled.packet_loss * 100.0),
        });
    }
    if test == FREE {
        for stream in calls.flat_map(|call| &call.streams).filter(|stream| is_of_chromium(cell, stream)) {
            // The bandwidth estimate of a browser rises for some seconds.
            let rates = &stream.statistics_rates;
            let rate = mean(&rates[rates.len() / 2..]).unwrap_or_default();
            let is_near = (rate - SOURCE_KBIT_S).abs() <= SOURCE_KBIT_S * SOURCE_TOLERANCE;
            checks.push(Check {
                of: format!("{}, {}", case(cell), stream_name(stream)),
                check: "the encoded video of Chromium has 2,000 kbit/s within 5 %, 640x480".into(),
                is_promised: is_full,
                passed: is_near && stream.size == (640, 480),
                found: format!(
                    "{rate:.0} kbit/s, {}x{}, {:.1} frames/s",
                    stream.size.0, stream.size.1, stream.frames_per_s
                ),
            });
        }
    }
    if test == MESH
        && let Some(thesis) = cell.thesis_kbit_s
    {
        checks.push(Check {
            of: case(cell),
            check: format!("rate above the thesis's {thesis:.0} kbit/s"),
            is_promised: false,
            passed: pooled.rate > thesis,
            found: format!("{:.0} kbit/s", pooled.rate),
        });
    }
    checks
}

fn is_of_chromium(cell: &Cell, stream: &Stream) -> bool {
    cell.browsers[stream.from] == Browser::Chromium
}
