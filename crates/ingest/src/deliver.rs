use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use millrace_carcare::publish_record;
use millrace_engine::unix_ms;
use millrace_protocol::{Error, Kind, NewPublication};
use millrace_transport::{
    Context,
    admission::{PublishTarget, Publisher},
    route::publish,
};
use serde_json::Value;
use tokio::task::coop::consume_budget;

use crate::{
    Config, DeviceId, Filter, Report,
    filter::{Acceptance, Verdict},
    metrics::{Metrics, PointResult},
};

/// Number of points that are remembered, for repeated batches: 8 MiB of memory.
const POINTS_MAX: usize = 1 << 18;

/// Publishes reports of devices. All shards share one.
pub struct Ingest {
    filter: Mutex<Filter>,
    metrics: Metrics,
}

/// Numbers of the reports of one request, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub live: usize,
    pub late: usize,
    pub duplicate: usize,
    pub dropped: usize,
}

impl Ingest {
    pub fn new(config: &Config) -> Self {
        Self { filter: Mutex::new(Filter::new(config.devices_max, POINTS_MAX)), metrics: Metrics::default() }
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Publishes the reports of one device in the order of their times, and returns once the engine has stored them.
    /// `target` is the channel of the live records of the device.
    ///
    /// A report that is dropped is no error, because a repetition would not help: the app would repeat it forever.
    ///
    /// Errors: those of [`publish::publish`]. Reports before the error are stored, and are duplicates when the request
    /// is repeated.
    pub async fn deliver(
        &self,
        context: &Context,
        publisher: &(impl Publisher + ?Sized),
        device: &DeviceId,
        mut target: PublishTarget,
        mut reports: Vec<Report>,
    ) -> Result<Summary, Error> {
        let mut summary = Summary::default();
        if !self.filter().knows(device.as_str()) {
            self.restore(context, device).await?;
        }
        let mut late = target.copy_to(device.late());
        let received_ms = unix_ms();
        reports.sort_by_key(|report| report.time_ms.unwrap_or(received_ms));
        for Report { time_ms, mut reading, .. } in reports {
            // Let other tasks run between the points of a large batch.
            consume_budget().await;
            let now_ms = unix_ms();
            let time_ms = time_ms.unwrap_or(now_ms);
            let verdict = self.filter().judge(device.as_str(), time_ms, &mut reading, now_ms);
            let publication = |acceptance: &Acceptance| {
                let data = reading.to_json(device, time_ms);
                let mut publication = NewPublication::new(Kind::Json, data);
                publication.idempotency_key = Some(acceptance.key().into());
                publication.check()
            };
            match verdict {
                Verdict::Live(acceptance) => {
                    let publication = publication(&acceptance)?;
                    publish_record(context, publisher, &mut target, device.as_str(), publication).await?;
                    self.filter().accept(device.as_str(), acceptance);
                    self.metrics.count_point(PointResult::Live);
                    summary.live += 1;
                }
                Verdict::Late(acceptance) => {
                    publish::publish(context, publisher, &mut late, publication(&acceptance)?).await?;
                    self.filter().accept(device.as_str(), acceptance);
                    self.metrics.count_point(PointResult::Late);
                    summary.late += 1;
                }
                Verdict::Duplicate => {
                    self.metrics.count_point(PointResult::Duplicate);
                    summary.duplicate += 1;
                }
                Verdict::Dropped(reason) => {
                    tracing::debug!(device = device.as_str(), ?reason, "dropped a point of a device");
                    self.metrics.count_point(reason.into());
                    summary.dropped += 1;
                }
            }
        }
        Ok(summary)
    }

    /// Takes the state of a device from its newest stored record.
    async fn restore(&self, context: &Context, device: &DeviceId) -> Result<(), Error> {
        let newest = context.shard.engine.newest(&device.telemetry()).await?;
        let record: Option<Value> = newest.publication.and_then(|newest| serde_json::from_slice(newest.data()).ok());
        let Some(record) = record else { return Ok(()) };
        let number = |name: &str| record.get(name).and_then(Value::as_f64);
        if let Some(time_ms) = record.get("timestamp").and_then(Value::as_u64) {
            let position = number("gpsLatitude").zip(number("gpsLongitude"));
            self.filter().restore(device.as_str(), time_ms, position, unix_ms());
        }
        Ok(())
    }

    fn filter(&self) -> MutexGuard<'_, Filter> {
        self.filter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.live += other.live;
        self.late += other.late;
        self.duplicate += other.duplicate;
        self.dropped += other.dropped;
    }
}

/// Writes the value of the header `Millrace-Ingest`.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { live, late, duplicate, dropped } = self;
        write!(f, "live={live}, late={late}, duplicate={duplicate}, dropped={dropped}")
    }
}
