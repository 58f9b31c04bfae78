//! Metrics: the numbers that are computed from one run.

use serde::{Deserialize, Serialize};

use crate::{
    histogram::Histogram,
    recording::{Phase, PhaseName, Run},
    stats::compare::Better,
};

/// Name of one number of a run. The JSON name includes the unit: `latency_p99_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// CPU time of the server in the test, divided by deliveries.
    ServerCpuUsPerDelivery,
    /// Deliveries that arrived before publishing ended, per second of publishing.
    DeliveriesPerS,
    /// Deliveries that should have arrived in the same time.
    OfferedPerS,
    /// [`Metric::DeliveriesPerS`] divided by [`Metric::OfferedPerS`].
    DeliveredShare,
    /// Time from the scheduled publication to the moment when its receiver had read it.
    LatencyP50Us,
    LatencyP90Us,
    LatencyP95Us,
    LatencyP99Us,
    #[serde(rename = "latency_p99_9_us")]
    LatencyP999Us,
    LatencyMaxUs,
    /// Mean and standard deviation over all deliveries, as the theses print them.
    LatencyMeanUs,
    LatencySdUs,
    /// Time from handing a publication to the kernel to the moment when its receiver had read it.
    ServiceP99Us,
    /// Time between the first and the last receiver of a publication.
    SpreadP99Us,
    /// Round-trip time of the probe during the test.
    ProbeP50Us,
    ProbeP99Us,
    /// Time from the scheduled connection until its subscription was active.
    ConnectP99Us,
    /// The same time for connections that were opened again during the test.
    ReconnectP99Us,
    /// Proportional set size (PSS) of the server at the end of the test.
    ServerMemoryBytes,
    /// Total memory divided by the ready connections. The cost of one more connection is the slope in `MemoryLine`.
    ServerMemoryBytesPerConnection,
    ServerDescriptors,
    ServerContextSwitchesPerDelivery,
    /// Longest response time of the server's metrics endpoint. It shows the lag of the event loop from outside.
    ServerLagMaxUs,
    /// Publications that the engine processed.
    EngineCommandsPerS,
    /// Deliveries within Nielsen's limits, as a share of all deliveries due.
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
    /// Delay of the generator: how late it published, compared with the schedule.
    GeneratorLatenessP99Us,
    GeneratorCpuCores,
    /// Upper bound of the time that received data waited in a socket because the generator was busy.
    GeneratorLagP99Us,
}

/// Display properties of a metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricInfo {
    pub metric: Metric,
    /// Readable name: `CPU per delivery`.
    pub label: String,
    /// `us`, `bytes`, `per s`, `cores`, `share` or empty.
    pub unit: String,
    /// Direction of improvement. `None` if neither direction is better.
    pub better: Option<Better>,
    /// True if a comparison bases its verdict on this metric.
    pub is_primary: bool,
}

use Metric::*;

impl Metric {
    /// All metrics, in display order.
    pub const ALL: [Metric; 36] = [
        ServerCpuUsPerDelivery,
        DeliveriesPerS,
        OfferedPerS,
        DeliveredShare,
        LatencyP50Us,
        LatencyP90Us,
        LatencyP95Us,
        LatencyP99Us,
        LatencyP999Us,
        LatencyMaxUs,
        LatencyMeanUs,
        LatencySdUs,
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

    /// Metrics that decide a comparison of servers or of two recordings. They are few, because each additional
    /// question adds a chance of a false alarm. Each covers another aspect: cost, throughput, tail latency, memory.
    pub const PRIMARY: [Metric; 4] = [ServerCpuUsPerDelivery, DeliveriesPerS, LatencyP99Us, ServerMemoryBytes];

    pub fn info(self) -> MetricInfo {
        let (label, unit, better) = match self {
            ServerCpuUsPerDelivery => ("CPU per delivery", "us", Some(Better::Lower)),
            DeliveriesPerS => ("deliveries", "per s", Some(Better::Higher)),
            OfferedPerS => ("offered deliveries", "per s", None),
            DeliveredShare => ("delivered in time", "share", Some(Better::Higher)),
            LatencyP50Us => ("latency p50", "us", Some(Better::Lower)),
            LatencyP90Us => ("latency p90", "us", Some(Better::Lower)),
            LatencyP95Us => ("latency p95", "us", Some(Better::Lower)),
            LatencyP99Us => ("latency p99", "us", Some(Better::Lower)),
            LatencyP999Us => ("latency p99.9", "us", Some(Better::Lower)),
            LatencyMaxUs => ("latency, maximum", "us", Some(Better::Lower)),
            LatencyMeanUs => ("latency, mean", "us", Some(Better::Lower)),
            LatencySdUs => ("latency, standard deviation", "us", None),
            ServiceP99Us => ("service time p99", "us", Some(Better::Lower)),
            SpreadP99Us => ("first to last receiver, p99", "us", Some(Better::Lower)),
            ProbeP50Us => ("response time p50", "us", Some(Better::Lower)),
            ProbeP99Us => ("response time p99", "us", Some(Better::Lower)),
            ConnectP99Us => ("connect time p99", "us", Some(Better::Lower)),
            ReconnectP99Us => ("reconnect time p99", "us", Some(Better::Lower)),
            ServerMemoryBytes => ("memory", "bytes", Some(Better::Lower)),
            ServerMemoryBytesPerConnection => ("memory per connection", "bytes", Some(Better::Lower)),
            ServerDescriptors => ("descriptors", "", None),
            ServerContextSwitchesPerDelivery => ("context switches per delivery", "", Some(Better::Lower)),
            ServerLagMaxUs => ("event loop lag, maximum", "us", Some(Better::Lower)),
            EngineCommandsPerS => ("engine commands", "per s", None),
            ShareWithin100Ms => ("within 0.1 s", "share", Some(Better::Higher)),
            ShareWithin1S => ("within 1 s", "share", Some(Better::Higher)),
            ShareWithin10S => ("within 10 s", "share", Some(Better::Higher)),
            Lost => ("lost", "", Some(Better::Lower)),
            Duplicated => ("duplicated", "", Some(Better::Lower)),
            Reordered => ("out of order", "", Some(Better::Lower)),
            Gaps => ("gaps reported", "", Some(Better::Lower)),
            Refused => ("refused", "", Some(Better::Lower)),
            Broken => ("connections lost", "", Some(Better::Lower)),
            GeneratorLatenessP99Us => ("generator lateness, p99", "us", None),
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

    /// Returns the value in a run. Returns `None` if the run has no such value, such as a latency without deliveries.
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
        // In a run without publications, such as idle connections, the count is unknown rather than zero.
        let of_deliveries = |count: u64| (counts.scheduled > 0).then_some(count as f64);
        let watched = test.watched.as_ref();
        let metrics = || watched.and_then(|watched| watched.metrics);
        match self {
            ServerCpuUsPerDelivery => per_delivery(test.server.cpu_s() * 1e6),
            DeliveriesPerS => of_deliveries(0).map(|_| delivered_in_time(run, test) / published_s(test)),
            OfferedPerS => of_deliveries(0).map(|_| offered(test) / published_s(test)),
            DeliveredShare => (offered(test) > 0.0).then(|| delivered_in_time(run, test) / offered(test)),
            // Durations above the range of the histogram are counted, but their lengths are unknown.
            LatencyMaxUs | LatencyMeanUs | LatencySdUs if test.latency_us.overflow() > 0 => None,
            LatencyMeanUs => test.latency_us.mean_us().map(nanoseconds),
            LatencySdUs => test.latency_us.sd_us().map(nanoseconds),
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

    /// Returns the number of samples above this percentile in a run. Returns `None` for a metric that is not a
    /// percentile.
    pub fn samples_beyond(self, run: &Run) -> Option<u64> {
        let (histogram, share) = self.quantile(run)?;
        Some(histogram.beyond(histogram.quantile_us(share)?))
    }

    /// Returns the histogram and the share, if this metric is a percentile.
    fn quantile(self, run: &Run) -> Option<(&Histogram, f64)> {
        let test = run.phase(PhaseName::Test)?;
        Some(match self {
            LatencyP50Us => (&test.latency_us, 0.5),
            LatencyP90Us => (&test.latency_us, 0.9),
            LatencyP95Us => (&test.latency_us, 0.95),
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

/// Rounds microseconds to nanoseconds. More digits have no meaning, and would not survive JSON unchanged.
fn nanoseconds(us: f64) -> f64 {
    (us * 1000.0).round() / 1000.0
}

/// Returns the length of the whole phase, including the wait for the last delivery.
pub fn lasted_s(phase: &Phase) -> f64 {
    (phase.drained_s - phase.start_s).max(1e-9)
}

/// Returns the length of the publishing part of the test.
pub(super) fn published_s(test: &Phase) -> f64 {
    (test.end_s - test.start_s).max(1e-9)
}

/// Returns the number of expected deliveries: each due publication to each of its receivers.
pub(super) fn offered(test: &Phase) -> f64 {
    let counts = &test.counts;
    let per_publication = (counts.delivered + counts.lost) as f64 / counts.sent.max(1) as f64;
    per_publication * counts.scheduled as f64
}

/// Returns the number of deliveries before publishing ended. The deliveries of the second in which it ended are
/// divided by time.
///
/// The total number of deliveries would not show saturation: a server that gets twice its capacity still delivers all
/// messages, but later.
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
