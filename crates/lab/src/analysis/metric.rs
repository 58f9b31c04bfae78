//! What is measured of a run: one number each, by rule.

use serde::{Deserialize, Serialize};

use crate::{
    histogram::Histogram,
    recording::{Phase, PhaseName, Run},
    stats::compare::Better,
};

/// Names a number of a run. In JSON its name has the unit: `latency_p99_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// CPU of the server in the test, over deliveries.
    ServerCpuUsPerDelivery,
    /// That had arrived when the last publication was due, per second of publishing.
    DeliveriesPerS,
    /// That should have arrived in the same time.
    OfferedPerS,
    /// [`Metric::DeliveriesPerS`] over [`Metric::OfferedPerS`].
    DeliveredShare,
    /// From when a publication was due to when its receiver had read it.
    LatencyP50Us,
    LatencyP90Us,
    LatencyP99Us,
    #[serde(rename = "latency_p99_9_us")]
    LatencyP999Us,
    LatencyMaxUs,
    /// The same from when it was handed to the kernel.
    ServiceP99Us,
    /// From the first receiver of a publication to the last.
    SpreadP99Us,
    /// There and back, while the test ran.
    ProbeP50Us,
    ProbeP99Us,
    /// From when a connection was due to when its subscription held.
    ConnectP99Us,
    /// The same of those that came back during the test.
    ReconnectP99Us,
    /// Proportional memory (PSS) of the server at the end of the test.
    ServerMemoryBytes,
    /// The whole over the connections that were ready; what one more costs is the slope, `MemoryLine`.
    ServerMemoryBytesPerConnection,
    ServerDescriptors,
    ServerContextSwitchesPerDelivery,
    /// How long its own metrics took to answer, at the longest: the lag of its event loop, seen from outside.
    ServerLagMaxUs,
    /// Publications that its engine was given.
    EngineCommandsPerS,
    /// Nielsen's limits: deliveries within them, as a share of all that were due.
    #[serde(rename = "share_within_100_ms")]
    ShareWithin100Ms,
    #[serde(rename = "share_within_1_s")]
    ShareWithin1S,
    #[serde(rename = "share_within_10_s")]
    ShareWithin10S,
    Lost,
    Duplicated,
    Reordered,
    Gaps,
    Refused,
    Broken,
    /// How much too late the generator was to publish.
    GeneratorLatenessP99Us,
    GeneratorCpuCores,
    /// How long what had arrived could lie in a socket because the generator was busy.
    GeneratorLagP99Us,
}

/// How a metric is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricInfo {
    pub metric: Metric,
    /// `CPU per delivery`.
    pub label: String,
    /// `us`, `bytes`, `per s`, `cores`, `share` or empty.
    pub unit: String,
    /// Which way is good; none if it is neither.
    pub better: Option<Better>,
    /// What a comparison judges by.
    pub is_primary: bool,
}

use Metric::*;

impl Metric {
    /// In the order in which they are shown.
    pub const ALL: [Metric; 33] = [
        ServerCpuUsPerDelivery,
        DeliveriesPerS,
        OfferedPerS,
        DeliveredShare,
        LatencyP50Us,
        LatencyP90Us,
        LatencyP99Us,
        LatencyP999Us,
        LatencyMaxUs,
        ServiceP99Us,
        SpreadP99Us,
        ProbeP50Us,
        ProbeP99Us,
        ConnectP99Us,
        ReconnectP99Us,
        ServerMemoryBytes,
        ServerMemoryBytesPerConnection,
        ServerDescriptors,
        ServerContextSwitchesPerDelivery,
        ServerLagMaxUs,
        EngineCommandsPerS,
        ShareWithin100Ms,
        ShareWithin1S,
        ShareWithin10S,
        Lost,
        Duplicated,
        Reordered,
        Gaps,
        Refused,
        Broken,
        GeneratorLatenessP99Us,
        GeneratorCpuCores,
        GeneratorLagP99Us,
    ];

    /// What servers are judged by, among themselves and over time. Few, because every further question is one more chance for a false
    /// alarm, and each about something else: cost, speed, tail, memory.
    pub const PRIMARY: [Metric; 4] = [ServerCpuUsPerDelivery, DeliveriesPerS, LatencyP99Us, ServerMemoryBytes];

    pub fn info(self) -> MetricInfo {
        let (label, unit, better) = match self {
            ServerCpuUsPerDelivery => ("CPU per delivery", "us", Some(Better::Lower)),
            DeliveriesPerS => ("deliveries", "per s", Some(Better::Higher)),
            OfferedPerS => ("offered deliveries", "per s", None),
            DeliveredShare => ("delivered in time", "share", Some(Better::Higher)),
            LatencyP50Us => ("latency p50", "us", Some(Better::Lower)),
            LatencyP90Us => ("latency p90", "us", Some(Better::Lower)),
            LatencyP99Us => ("latency p99", "us", Some(Better::Lower)),
            LatencyP999Us => ("latency p99.9", "us", Some(Better::Lower)),
            LatencyMaxUs => ("latency, longest", "us", Some(Better::Lower)),
            ServiceP99Us => ("service time p99", "us", Some(Better::Lower)),
            SpreadP99Us => ("first to last receiver, p99", "us", Some(Better::Lower)),
            ProbeP50Us => ("response time p50", "us", Some(Better::Lower)),
            ProbeP99Us => ("response time p99", "us", Some(Better::Lower)),
            ConnectP99Us => ("connecting p99", "us", Some(Better::Lower)),
            ReconnectP99Us => ("reconnecting p99", "us", Some(Better::Lower)),
            ServerMemoryBytes => ("memory", "bytes", Some(Better::Lower)),
            ServerMemoryBytesPerConnection => ("memory per connection", "bytes", Some(Better::Lower)),
            ServerDescriptors => ("descriptors", "", None),
            ServerContextSwitchesPerDelivery => ("context switches per delivery", "", Some(Better::Lower)),
            ServerLagMaxUs => ("event loop lag, longest", "us", Some(Better::Lower)),
            EngineCommandsPerS => ("engine commands", "per s", None),
            ShareWithin100Ms => ("within 0.1 s", "share", Some(Better::Higher)),
            ShareWithin1S => ("within 1 s", "share", Some(Better::Higher)),
            ShareWithin10S => ("within 10 s", "share", Some(Better::Higher)),
            Lost => ("lost", "", Some(Better::Lower)),
            Duplicated => ("duplicated", "", Some(Better::Lower)),
            Reordered => ("out of order", "", Some(Better::Lower)),
            Gaps => ("gaps told", "", Some(Better::Lower)),
            Refused => ("refused", "", Some(Better::Lower)),
            Broken => ("connections broken", "", Some(Better::Lower)),
            GeneratorLatenessP99Us => ("generator late, p99", "us", None),
            GeneratorLagP99Us => ("generator busy, p99", "us", None),
            GeneratorCpuCores => ("CPU of the generator", "cores", None),
        };
        MetricInfo {
            metric: self,
            label: label.into(),
            unit: unit.into(),
            better,
            is_primary: Metric::PRIMARY.contains(&self),
        }
    }

    /// Its value in a run; none if the run does not tell, such as a latency where nothing was delivered.
    pub fn of(self, run: &Run) -> Option<f64> {
        if let Some((histogram, share)) = self.quantile(run) {
            return histogram.quantile_us(share).map(|us| us as f64);
        }
        let test = run.phase(PhaseName::Test)?;
        let counts = &test.counts;
        let per_delivery = |amount: f64| (counts.delivered > 0).then(|| amount / counts.delivered as f64);
        let within = |us: u64| {
            let due = offered(test);
            (due > 0.0).then(|| (test.latency_us.count() - test.latency_us.beyond(us)) as f64 / due)
        };
        // Idle connections deliver nothing: a count of nothing is none, not zero.
        let of_deliveries = |count: u64| (counts.scheduled > 0).then_some(count as f64);
        let watched = test.watched.as_ref();
        let metrics = || watched.and_then(|watched| watched.metrics);
        match self {
            ServerCpuUsPerDelivery => per_delivery(test.server.cpu_s() * 1e6),
            DeliveriesPerS => of_deliveries(0).map(|_| delivered_in_time(run, test) / published_s(test)),
            OfferedPerS => of_deliveries(0).map(|_| offered(test) / published_s(test)),
            DeliveredShare => (offered(test) > 0.0).then(|| delivered_in_time(run, test) / offered(test)),
            LatencyMaxUs if test.latency_us.overflow() > 0 => None,
            LatencyMaxUs => test.latency_us.max_us().map(|us| us as f64),
            ServerMemoryBytes => Some(test.server.pss_bytes as f64).filter(|bytes| *bytes > 0.0),
            ServerMemoryBytesPerConnection => {
                let connected = run.phase(PhaseName::Connect)?.counts.connected;
                (connected > 0 && test.server.pss_bytes > 0).then(|| test.server.pss_bytes as f64 / connected as f64)
            }
            ServerDescriptors => Some(test.server.descriptors as f64),
            ServerContextSwitchesPerDelivery => per_delivery(test.server.context_switches as f64),
            ServerLagMaxUs => metrics().map(|metrics| metrics.answer_us as f64),
            EngineCommandsPerS => metrics().map(|metrics| metrics.publications as f64 / lasted_s(test)),
            ShareWithin100Ms => within(100_000),
            ShareWithin1S => within(1_000_000),
            ShareWithin10S => within(10_000_000),
            Lost => of_deliveries(counts.lost),
            Duplicated => of_deliveries(counts.duplicated),
            Reordered => of_deliveries(counts.reordered),
            Gaps => of_deliveries(counts.gaps),
            Refused => of_deliveries(counts.refused),
            Broken => Some(run.phases.iter().map(|phase| phase.counts.broken).sum::<u64>() as f64),
            GeneratorCpuCores => Some(test.generator.cpu_s() / lasted_s(test)),
            _ => None,
        }
    }

    /// How many samples lie above a percentile of a run.
    pub fn samples_beyond(self, run: &Run) -> Option<u64> {
        let (histogram, share) = self.quantile(run)?;
        Some(histogram.beyond(histogram.quantile_us(share)?))
    }

    /// Of what it is a percentile, and which.
    fn quantile(self, run: &Run) -> Option<(&Histogram, f64)> {
        let test = run.phase(PhaseName::Test)?;
        Some(match self {
            LatencyP50Us => (&test.latency_us, 0.5),
            LatencyP90Us => (&test.latency_us, 0.9),
            LatencyP99Us => (&test.latency_us, 0.99),
            LatencyP999Us => (&test.latency_us, 0.999),
            ServiceP99Us => (&test.service_us, 0.99),
            SpreadP99Us => (&test.spread_us, 0.99),
            ProbeP50Us => (&test.probe_us, 0.5),
            ProbeP99Us => (&test.probe_us, 0.99),
            ConnectP99Us => (&run.phase(PhaseName::Connect)?.connect_us, 0.99),
            ReconnectP99Us => (&test.connect_us, 0.99),
            GeneratorLatenessP99Us => (&test.lateness_us, 0.99),
            GeneratorLagP99Us => (&test.lag_us, 0.99),
            _ => return None,
        })
    }
}

/// The whole phase, with the wait for the last delivery.
pub(super) fn lasted_s(phase: &Phase) -> f64 {
    (phase.drained_s - phase.start_s).max(1e-9)
}

/// That part of the test in which publications were due.
pub(super) fn published_s(test: &Phase) -> f64 {
    (test.end_s - test.start_s).max(1e-9)
}

/// Deliveries that should have been: each publication that was due, to each of its receivers.
pub(super) fn offered(test: &Phase) -> f64 {
    let counts = &test.counts;
    let per_publication = (counts.delivered + counts.lost) as f64 / counts.sent.max(1) as f64;
    per_publication * counts.scheduled as f64
}

/// Deliveries up to when the last publication was due. Of the second in which that was, those before it are reckoned by time.
///
/// What was delivered in the end says nothing: a server that is given twice what it can do delivers all of it, later.
fn delivered_in_time(run: &Run, test: &Phase) -> f64 {
    let too_late = |second: &crate::recording::Second| {
        let until_s = (second.at_s + 1.0).min(test.drained_s.max(test.end_s));
        let length_s = until_s - second.at_s.max(test.start_s);
        let share = if length_s > 0.0 { (until_s - test.end_s) / length_s } else { 0.0 };
        share.clamp(0.0, 1.0) * second.counts.delivered as f64
    };
    let of_test = run.seconds.iter().filter(|second| second.at_s < test.drained_s);
    test.counts.delivered as f64 - of_test.map(too_late).sum::<f64>()
}
