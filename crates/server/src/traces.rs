//! Trace contexts of publications (W3C Trace Context), and the exporter of spans.

use std::{sync::Arc, time::Duration};

use millrace_node::{
    MetricKind,
    spans::{RecordSpan, SpanCounts},
};
use serde::{Deserialize, Serialize};

use crate::{metrics::Exposition, setting::InvalidSetting};

/// Settings of traces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// When publications keep the trace contexts of their publishers.
    pub forward: Forward,
    /// URL of an OpenTelemetry collector to which spans are sent (OTLP over HTTP). Empty: no span is recorded.
    pub endpoint: String,
    /// Name of this service in traces.
    pub service: String,
    /// Maximum number of spans that wait for the collector; further ones are dropped.
    pub queue_max: usize,
    /// Maximum duration of a request to the collector.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            forward: Forward::default(),
            endpoint: String::new(),
            service: "millrace".into(),
            queue_max: 4096,
            timeout: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// Checks the values.
    ///
    /// Errors: a setting that is not allowed, or that needs another binary.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        let bad = |key: &str, what: &str| Err(InvalidSetting { key: format!("traces.{key}"), what: what.into() });
        if !(1..=1 << 20).contains(&self.queue_max) {
            return bad("queue_max", "must be from 1 to 1048576 spans");
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&self.timeout) {
            return bad("timeout", "must be from 100ms to 60s");
        }
        if self.endpoint.is_empty() {
            return Ok(());
        }
        if !cfg!(feature = "otlp") {
            let what = "has no effect, because this binary cannot send spans: build it with \
                 `cargo build --features otlp`, or leave the setting empty";
            return bad("endpoint", what);
        }
        if !["http://", "https://"].iter().any(|scheme| self.endpoint.starts_with(scheme)) {
            return bad("endpoint", "must be a URL with its path, such as `http://127.0.0.1:4318/v1/traces`, or empty");
        }
        Ok(())
    }
}

/// Recorder of spans with its counters.
pub struct Recorder {
    pub spans: Arc<dyn RecordSpan>,
    pub counts: Arc<SpanCounts>,
}

/// Starts the exporter of spans if an endpoint is configured.
///
/// Errors: no HTTP client, or no thread.
#[cfg(feature = "otlp")]
pub fn start(config: &Config) -> anyhow::Result<Option<Recorder>> {
    use anyhow::Context as _;
    if config.endpoint.is_empty() {
        return Ok(None);
    }
    let exporter = millrace_traces::Exporter::start(&millrace_traces::Config {
        endpoint: config.endpoint.clone(),
        service: config.service.clone(),
        queue_max: config.queue_max,
        timeout: config.timeout,
    });
    let exporter = exporter.context("the exporter of spans (`traces.endpoint`) cannot start")?;
    Ok(Some(Recorder { counts: exporter.counts(), spans: Arc::new(exporter) }))
}

/// This binary cannot send spans; see [`Config::check`].
#[cfg(not(feature = "otlp"))]
pub fn start(_: &Config) -> anyhow::Result<Option<Recorder>> {
    Ok(None)
}

/// When publications keep the trace contexts of their publishers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forward {
    /// On a server that only this machine reaches. Elsewhere readers would see which publications belong to one
    /// request of another client.
    #[default]
    Auto,
    On,
    Off,
}

impl Forward {
    /// Returns whether publications keep the trace contexts of their publishers. `is_reached`: other machines reach
    /// this server, perhaps through a proxy.
    pub fn applies(self, is_reached: bool) -> bool {
        match self {
            Forward::Auto => !is_reached,
            Forward::On => true,
            Forward::Off => false,
        }
    }
}

/// Appends the counters of spans.
pub fn render(counts: &SpanCounts, out: &mut Exposition) {
    out.family(
        "millrace_spans_total",
        MetricKind::Counter,
        "Spans of publications: accepted by the collector (sent), dropped because the queue was full, or lost (failed).",
        counts.by_outcome().map(|(result, count)| ([("result", result)], count)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_needs_a_binary_that_can_send_spans() {
        let what = |endpoint: &str| {
            let config = Config { endpoint: endpoint.into(), ..Config::default() };
            config.check().err().map(|error| error.to_string())
        };
        assert_eq!(what(""), None);
        let refused = what("http://127.0.0.1:4318/v1/traces");
        match cfg!(feature = "otlp") {
            true => assert_eq!(refused, None),
            false => assert!(refused.is_some_and(|text| text.contains("--features otlp"))),
        }
        assert!(what("127.0.0.1:4318").is_some());
        assert!(Config { queue_max: 0, ..Config::default() }.check().is_err());
    }

    #[test]
    fn contexts_are_forwarded_on_loopback_by_default() {
        assert!(Config::default().forward.applies(false) && !Config::default().forward.applies(true));
        assert!(Forward::On.applies(true) && !Forward::Off.applies(false));
    }
}
