//! Shows the progress of a scenario: one line per run; on a terminal, also a progress bar and the current run.

use std::{io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};
use millrace_lab::{
    analysis::Metric,
    recording::{Phase, PhaseName, Run, Second},
    sweep::{Event, View},
};

use crate::output;

/// Lines go to standard error: standard output names the folder.
pub fn of_terminal() -> Box<dyn View> {
    if std::io::stderr().is_terminal() { Box::new(Terminal::default()) } else { Box::new(Plain) }
}

/// Passes each event to both views.
pub struct Both(pub Box<dyn View>, pub Box<dyn View>);

impl View for Both {
    fn show(&mut self, event: &Event<'_>) {
        self.0.show(event);
        self.1.show(event);
    }
}

struct Plain;

impl View for Plain {
    fn show(&mut self, event: &Event<'_>) {
        if let Some(text) = line(event) {
            output::note(text);
        }
    }
}

#[derive(Default)]
struct Terminal {
    bar: Option<ProgressBar>,
    label: String,
}

impl View for Terminal {
    fn show(&mut self, event: &Event<'_>) {
        match (&self.bar, line(event)) {
            (Some(bar), Some(text)) => bar.println(text),
            (None, Some(text)) => output::note(text),
            _ => {}
        }
        match event {
            Event::Planned { runs, done, .. } => {
                let bar = ProgressBar::new(u64::from(*runs)).with_position(u64::from(*done));
                let style = ProgressStyle::with_template("{bar:30} {pos} of {len}, {prefix} left\n{wide_msg}");
                bar.set_style(style.expect("a constant template"));
                bar.enable_steady_tick(Duration::from_millis(500));
                self.bar = Some(bar);
            }
            Event::Begun { index, label, left_s, .. } => {
                self.label = (*label).to_owned();
                if let Some(bar) = &self.bar {
                    bar.set_position(u64::from(*index));
                    bar.set_prefix(lasts(*left_s));
                    bar.set_message(self.label.clone());
                }
            }
            Event::Second(second) => {
                if let Some(bar) = &self.bar {
                    bar.set_message(format!("{}  {}", figures(second), self.label));
                }
            }
            Event::Ended { .. } => self.bar.iter().for_each(|bar| bar.inc(1)),
            Event::Note(_) => {}
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}

fn line(event: &Event<'_>) -> Option<String> {
    match event {
        Event::Note(text) => Some((*text).to_owned()),
        Event::Planned { runs, done, estimate_s } => {
            let there = if *done > 0 { format!(", {done} of them recorded before") } else { String::new() };
            Some(format!("{runs} runs{there}; about {} in all", lasts(*estimate_s)))
        }
        Event::Ended { run, missed } => Some(summary(run, missed)),
        Event::Begun { .. } | Event::Second(_) => None,
    }
}

/// Formats a run as one line, and each of its findings as another line.
fn summary(run: &Run, missed: &[String]) -> String {
    let part = if run.part.is_empty() { String::new() } else { format!("{} ", run.part) };
    let f = &run.factors;
    let what = match (f.publishers, f.each_per_s) {
        (0, _) => "idle".to_owned(),
        (_, 0.0) => format!("x most x {} B", f.bytes),
        (_, rate) => format!("x {}/s x {} B", (rate * 100.0).round() / 100.0, f.bytes),
    };
    let cpus = f.server_cpus;
    let mut text = format!("{:>3} {part}{:<9} {:<12} ", run.order + 1, run.target, run.transport);
    text += &format!("{:>6} {what:<17} {cpus} CPU, repeat {}: ", f.clients, run.repeat + 1);
    text += &match (run.phase(PhaseName::Test), run.phase(PhaseName::Connect)) {
        (Some(test), Some(connect)) if f.publishers == 0 => idle_figures(test, connect),
        (Some(test), _) => test_figures(run, test),
        _ => "no figures".into(),
    };
    for finding in &run.validity {
        let mark = if finding.invalidates { "INVALID" } else { "note" };
        text += &format!("\n      {mark} {}: {}", finding.code, finding.detail);
    }
    missed.iter().for_each(|what| text += &format!("\n      MISSED {what}"));
    text
}

fn idle_figures(test: &Phase, connect: &Phase) -> String {
    let took_s = (connect.end_s - connect.start_s).max(1e-9);
    let connected = connect.counts.connected;
    format!(
        "{connected} connected in {took_s:.2} s, server {:.1} MB, {} descriptors, {:.1} ms CPU per second",
        test.server.pss_bytes as f64 / 1e6,
        test.server.descriptors,
        test.server.cpu_s() * 1000.0 / (test.drained_s - test.start_s).max(1e-9)
    )
}

/// Figures that the table of the analysis also shows come from the analysis, so that each has one definition.
fn test_figures(run: &Run, test: &Phase) -> String {
    let took_s = (test.drained_s - test.start_s).max(1e-9);
    let figure = |metric: Metric| metric.of(run).unwrap_or_default();
    format!(
        "{:>8.0} deliveries/s, {}, server {:>3.0} % CPU ({:.2} us each) {:>5.1} MB, generator {:>3.0} %",
        figure(Metric::DeliveriesPerS),
        latency(&test.latency_us),
        test.server.cpu_s() / took_s * 100.0,
        figure(Metric::ServerCpuUsPerDelivery),
        test.server.pss_bytes as f64 / 1e6,
        test.generator.cpu_s() / took_s * 100.0,
    )
}

fn figures(second: &Second) -> String {
    format!(
        "{}/s, {}, server {:.0} % {:.0} MB, generator {:.0} %",
        second.counts.delivered,
        latency(&second.latency_us),
        second.server_cpu_s * 100.0,
        second.server_pss_bytes as f64 / 1e6,
        second.generator_cpu_s * 100.0
    )
}

fn latency(of: &millrace_lab::histogram::Histogram) -> String {
    let ms = |q| of.quantile_us(q).map_or("-".to_owned(), |us| format!("{:.2}", us as f64 / 1000.0));
    format!("p50 {} p99 {} ms", ms(0.5), ms(0.99))
}

fn lasts(seconds: f64) -> String {
    let whole = Duration::from_secs(seconds.max(0.0).round() as u64);
    humantime::format_duration(whole).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_lab::{
        analysis::{analyse, table},
        recording::{Counts, Factors, Form, Recording},
    };

    /// 10,000 publications are scheduled in two seconds; half of the deliveries arrive in the third second, as with
    /// polling.
    #[test]
    fn line_and_table_show_the_same_rate() {
        let counts = |delivered| Counts { scheduled: 10_000, sent: 10_000, delivered, ..Counts::default() };
        let second = |at_s, delivered| Second { at_s, counts: counts(delivered), ..Second::default() };
        let (test, connect) = (PhaseName::Test, PhaseName::Connect);
        let phase = |name, end_s, drained_s, counts| Phase { name, end_s, drained_s, counts, ..Phase::default() };
        let run = Run {
            target: "millrace".into(),
            transport: "polling".into(),
            factors: Factors { clients: 1, each_per_s: 5_000.0, publishers: 1, bytes: 173, server_cpus: 1 },
            phases: vec![phase(connect, 0.0, 0.0, counts(0)), phase(test, 2.0, 3.0, counts(10_000))],
            seconds: vec![second(0.0, 2_000), second(1.0, 3_000), second(2.0, 5_000)],
            ..Run::default()
        };
        let line = summary(&run, &[]);
        let recording = Recording {
            format: millrace_lab::recording::FORMAT,
            scenario: "thorsen-broadcast".into(),
            form: Form::Quick,
            parameters: serde_json::json!({}),
            seed: 1,
            started: "2026-11-24T12:00:00Z".into(),
            provenance: serde_json::Value::Null,
            command: String::new(),
            slo: None,
            planned: 1,
            runs: vec![run],
            tables: Vec::new(),
            wire_cost: None,
        };
        let table = table::summary(&analyse(&[recording]).expect("a recording"));
        assert!(line.contains(" 2500 deliveries/s"), "{line}");
        assert!(table.contains(" 2,500 "), "{table}");
    }
}
