//! Spans of publications: the parts of a trace that this node has recorded.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use millrace_protocol::{ChannelName, Code, TraceContext};

/// Step of a publication that has a span of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// From the decoded publication to the answer to its publisher. Child of the publisher's span.
    Publish,
    /// The question to the app's back end. Child of [`Step::Publish`].
    Hook,
    /// From the engine's call to its answer. Child of [`Step::Publish`].
    Engine,
    /// From the mailbox of a shard to the end of its writes, for all readers of the shard. Child of the publisher's
    /// span: a node that reads the publication from a broker knows no other span.
    Deliver,
}

impl Step {
    pub fn name(self) -> &'static str {
        match self {
            Step::Publish => "publish",
            Step::Hook => "hook",
            Step::Engine => "engine",
            Step::Deliver => "deliver",
        }
    }
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub step: Step,
    /// The trace, and the parent of this span.
    pub parent: TraceContext,
    pub id: [u8; 8],
    pub start: SystemTime,
    pub end: SystemTime,
    pub channel: ChannelName,
    /// Number of readers of [`Step::Deliver`].
    pub readers: Option<usize>,
    /// Reason why the step has failed.
    pub error: Option<Code>,
}

/// Receiver of spans. All shards share one.
pub trait RecordSpan: Send + Sync {
    /// Returns a random id of a span.
    fn new_id(&self) -> [u8; 8];

    /// Takes a span. It must not wait: a span that cannot be taken is dropped and counted.
    fn record(&self, span: Span);
}

/// Counters of recorded spans.
#[derive(Debug, Default)]
pub struct SpanCounts {
    /// Spans that the collector has accepted.
    pub sent: AtomicU64,
    /// Spans that were dropped because the queue was full.
    pub dropped: AtomicU64,
    /// Spans that the collector has not accepted.
    pub failed: AtomicU64,
}

impl SpanCounts {
    /// Returns sent, dropped and failed spans, with the outcome's name in metrics.
    pub fn by_outcome(&self) -> [(&'static str, u64); 3] {
        [("sent", &self.sent), ("dropped", &self.dropped), ("failed", &self.failed)]
            .map(|(outcome, count)| (outcome, count.load(Relaxed)))
    }
}

/// A span that has not ended. It ends when it is dropped, also if its step was withdrawn.
pub struct OpenSpan {
    recorder: Arc<dyn RecordSpan>,
    span: Option<Span>,
}

impl OpenSpan {
    /// Begins a span. `parent` is its parent.
    pub fn begin(recorder: &Arc<dyn RecordSpan>, step: Step, parent: TraceContext, channel: &ChannelName) -> Self {
        let (id, start, channel) = (recorder.new_id(), SystemTime::now(), channel.clone());
        let span = Span { step, parent, id, start, end: start, channel, readers: None, error: None };
        Self { recorder: recorder.clone(), span: Some(span) }
    }

    /// Begins a child of this span.
    pub fn child(&self, step: Step, channel: &ChannelName) -> Self {
        Self::begin(&self.recorder, step, self.context(), channel)
    }

    /// Returns the context whose span is this one.
    pub fn context(&self) -> TraceContext {
        let span = self.span.as_ref().expect("it has not ended");
        TraceContext { span_id: span.id, ..span.parent }
    }

    /// Sets the outcome of the step.
    pub fn set_outcome<T>(&mut self, outcome: &Result<T, millrace_protocol::Error>) {
        if let Some(span) = &mut self.span {
            span.error = outcome.as_ref().err().map(|error| error.code);
        }
    }

    pub fn set_readers(&mut self, readers: usize) {
        if let Some(span) = &mut self.span {
            span.readers = Some(readers);
        }
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            self.recorder.record(Span { end: SystemTime::now(), ..span });
        }
    }
}
