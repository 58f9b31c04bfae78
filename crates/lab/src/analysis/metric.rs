//! What is measured of a run: one number each, by rule.

use serde::{Deserialize, Serialize};

use crate::stats::compare::Better;

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
    /// Proportional memory (PSS) of the server at the end of the test.
    ServerMemoryBytes,
    /// The whole over the connections that were ready; what one more costs is the slope, `MemoryLine`.
    ServerMemoryBytesPerConnection,
    ServerDescriptors,
    ServerContextSwitchesPerDelivery,
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
