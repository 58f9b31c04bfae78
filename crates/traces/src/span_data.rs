//! Spans in the form of OpenTelemetry. The attributes follow its semantic conventions for messaging, where there is
//! one.
//!
//! Source: OpenTelemetry semantic conventions 1.37, "Messaging spans".

use millrace_node::spans::{Span, Step};
use opentelemetry::{
    InstrumentationScope, KeyValue, SpanId, TraceFlags, TraceId,
    trace::{SpanContext, SpanKind, Status, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

pub fn span_data(span: Span) -> SpanData {
    let Span { step, parent, id, start, end, channel, readers, error } = span;
    let flags = TraceFlags::new(parent.flags);
    let context =
        SpanContext::new(TraceId::from_bytes(parent.trace_id), SpanId::from_bytes(id), flags, false, TraceState::NONE);
    let mut attributes = vec![
        KeyValue::new("messaging.system", "millrace"),
        KeyValue::new("messaging.destination.name", channel.as_str().to_owned()),
    ];
    attributes.extend(readers.map(|readers| KeyValue::new("millrace.readers", readers as i64)));
    attributes.extend(error.map(|code| KeyValue::new("error.type", code.name())));
    SpanData {
        span_context: context,
        parent_span_id: SpanId::from_bytes(parent.span_id),
        parent_span_is_remote: matches!(step, Step::Publish | Step::Deliver),
        span_kind: match step {
            Step::Publish => SpanKind::Server,
            Step::Hook => SpanKind::Client,
            Step::Engine => SpanKind::Internal,
            Step::Deliver => SpanKind::Producer,
        },
        name: step.name().into(),
        start_time: start,
        end_time: end,
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: error.map_or(Status::Unset, |code| Status::error(code.name())),
        instrumentation_scope: InstrumentationScope::builder("millrace").build(),
    }
}
