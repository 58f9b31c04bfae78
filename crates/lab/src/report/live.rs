//! The messages that describe the progress of a run. `web/src/pages/lab/events.ts` reads them.

use serde_json::{Value, json};

use crate::{
    recording::{Form, PhaseName},
    sweep::Event,
};

/// Channel of a Millrace server whose history the page `/lab` shows.
pub const CHANNEL: &str = "lab/live";

/// Returns the first message. The page discards earlier runs when it receives this message.
pub fn announced(scenario: &str, form: Form, command: &str) -> Value {
    json!({ "is": "announced", "scenario": scenario, "form": form.name(), "command": command })
}

/// Returns the last message.
pub fn finished() -> Value {
    json!({ "is": "finished" })
}

pub fn message(event: &Event<'_>) -> Value {
    match event {
        Event::Note(text) => json!({ "is": "said", "text": text }),
        Event::Planned { runs, done, estimate_s } => {
            json!({ "is": "planned", "runs": runs, "done": done, "estimate_s": estimate_s })
        }
        Event::Begun { index, of, label, left_s } => {
            json!({ "is": "begun", "index": index, "of": of, "label": label, "left_s": left_s })
        }
        Event::Second(second) => json!({
            "is": "second",
            "at_s": second.at_s,
            "published": second.counts.sent,
            "delivered": second.counts.delivered,
            "p50_us": second.latency_us.quantile_us(0.5),
            "p99_us": second.latency_us.quantile_us(0.99),
            "server_cpu_cores": second.server_cpu_s,
            "generator_cpu_cores": second.generator_cpu_s,
            "server_memory_bytes": second.server_pss_bytes,
        }),
        Event::Ended { run, missed } => {
            let test = run.phase(PhaseName::Test);
            let quantile = |share| test.and_then(|test| test.latency_us.quantile_us(share));
            json!({
                "is": "ended",
                "target": run.target,
                "transport": run.transport,
                "load": run.load,
                "repeat": run.repeat,
                "delivered": test.map(|test| test.counts.delivered),
                "lost": test.map(|test| test.counts.lost),
                "p50_us": quantile(0.5),
                "p99_us": quantile(0.99),
                "is_valid": run.is_valid(),
                "missed": missed,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        histogram::Histogram,
        recording::{Counts, Second},
    };

    #[test]
    fn second_is_a_small_message_for_the_page() {
        let mut latency_us = Histogram::default();
        (1..=100).for_each(|us| latency_us.record_us(us * 10));
        let counts = Counts { sent: 200, delivered: 100, ..Counts::default() };
        let second = Second { at_s: 3.0, counts, latency_us, server_pss_bytes: 4096, ..Second::default() };
        let message = message(&Event::Second(&second));
        assert_eq!((&message["p50_us"], &message["p99_us"]), (&json!(500), &json!(990)));
        assert_eq!((&message["delivered"], &message["server_memory_bytes"]), (&json!(100), &json!(4096)));
        assert!(message.to_string().len() < 400, "{message}");
    }
}
