use std::{
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::JoinHandle,
    time::Duration,
};

use millrace_node::spans::{RecordSpan, Span, SpanCounts};
use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::{Resource, trace::SpanExporter};
use tokio::{
    runtime::Builder,
    sync::mpsc::{Receiver, Sender, channel},
    time::{Instant, timeout_at},
};

use crate::{
    http_client::{ClientError, ReqwestClient},
    span_data::span_data,
};

/// Maximum number of spans in one request, the default of OpenTelemetry's batch processor.
const BATCH: usize = 512;
/// Time for which the first span of a batch waits for others.
const DELAY: Duration = Duration::from_secs(1);

/// Settings of the exporter.
#[derive(Clone, Debug)]
pub struct Config {
    /// URL of the collector, with its path, such as `http://127.0.0.1:4318/v1/traces`.
    pub endpoint: String,
    /// Name of this service in traces.
    pub service: String,
    /// Maximum number of spans that wait for a request.
    pub queue_max: usize,
    /// Maximum duration of a request.
    pub timeout: Duration,
}

/// Reasons why the exporter cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// Sends spans to a collector from a thread of its own. Dropping the exporter sends the queued spans, for at most the
/// duration of one request.
#[derive(Debug)]
pub struct Exporter {
    /// `None` while the exporter is dropped.
    queue: Option<Sender<Span>>,
    thread: Option<JoinHandle<()>>,
    counts: Arc<SpanCounts>,
}

impl Exporter {
    /// Starts the thread.
    ///
    /// Errors: a malformed endpoint, no HTTP client, or no thread.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let mut exporter = OtlpExporter::builder()
            .with_http()
            .with_http_client(ReqwestClient::new(config.timeout)?)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(&config.endpoint)
            .with_timeout(config.timeout)
            .build()?;
        let service = KeyValue::new("service.name", config.service.clone());
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        exporter.set_resource(&Resource::builder_empty().with_attributes([service, version]).build());
        let (queue, spans) = channel(config.queue_max);
        let counts = Arc::new(SpanCounts::default());
        let (runtime, counted) = (Builder::new_current_thread().enable_all().build()?, counts.clone());
        let run = move || runtime.block_on(send_all(exporter, spans, &counted));
        let thread = std::thread::Builder::new().name("traces".into()).spawn(run)?;
        Ok(Self { queue: Some(queue), thread: Some(thread), counts })
    }

    pub fn counts(&self) -> Arc<SpanCounts> {
        self.counts.clone()
    }
}

impl RecordSpan for Exporter {
    fn new_id(&self) -> [u8; 8] {
        let mut id = [0; 8];
        // Without randomness, the id is that of no other span only by luck. An id of zeros is invalid.
        let _ = getrandom::fill(&mut id);
        u64::from_be_bytes(id).max(1).to_be_bytes()
    }

    fn record(&self, span: Span) {
        if self.queue.as_ref().is_none_or(|queue| queue.try_send(span).is_err()) {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // The end of the queue ends the thread.
        self.queue.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn send_all(exporter: OtlpExporter, mut spans: Receiver<Span>, counts: &SpanCounts) {
    let mut is_failing = false;
    loop {
        let batch = next_batch(&mut spans).await;
        if batch.is_empty() {
            return;
        }
        let count = batch.len() as u64;
        match exporter.export(batch.into_iter().map(span_data).collect()).await {
            Ok(()) => {
                counts.sent.fetch_add(count, Relaxed);
                if std::mem::replace(&mut is_failing, false) {
                    tracing::info!("the collector of traces accepts spans again");
                }
            }
            Err(error) => {
                counts.failed.fetch_add(count, Relaxed);
                // The server stops, and must not wait for a collector that does not answer.
                if spans.is_closed() {
                    return;
                }
                // One line per outage: the collector may be down for long.
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(%error, "the collector of traces does not accept spans; they are lost");
                }
            }
        }
    }
}

/// Returns the next spans; none if the queue has ended. The first one waits at most [`DELAY`].
async fn next_batch(spans: &mut Receiver<Span>) -> Vec<Span> {
    let mut batch = Vec::new();
    let mut room = BATCH;
    if spans.recv_many(&mut batch, room).await == 0 {
        return batch;
    }
    let end = Instant::now() + DELAY;
    while batch.len() < BATCH {
        room = BATCH - batch.len();
        match timeout_at(end, spans.recv_many(&mut batch, room)).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    batch
}
