//! Metrics of the services for devices and their users: ingest, requests to devices, driving feedback, Web Push.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use millrace_carcare::feedback::Feedback;
use millrace_ingest::{Ingest, PointResult, RequestResult as IngestResult};
use millrace_node::MetricKind;
use millrace_push::{
    Push,
    metrics::{MessageEvent, RequestResult as PushResult, SubscriptionEvent},
};
use millrace_requests::{Metrics as Requests, RequestEvent};

use crate::metrics::Exposition;

/// The services of a node.
#[derive(Default)]
pub struct Devices {
    pub ingest: Option<Arc<Ingest>>,
    pub requests: Arc<Requests>,
    /// The driving feedback of CarCare, if it is switched on.
    pub feedback: Option<Arc<Feedback>>,
    /// Web Push, if it has a key.
    pub push: Option<Arc<Push>>,
}

impl Devices {
    /// Appends the metrics of all services.
    pub fn render(&self, out: &mut Exposition) {
        if let Some(ingest) = &self.ingest {
            render_ingest(ingest, out);
        }
        out.family(
            "millrace_device_requests_total",
            MetricKind::Counter,
            "Requests to devices, by event: queued, sent (confirmed by the device), answered; refused as late (after the \
            time to live), as conflict (another answer), or as too_many (of one device).",
            RequestEvent::ALL.map(|event| ([("event", event.name())], self.requests.events(event))),
        );
        if let Some(feedback) = &self.feedback {
            render_feedback(feedback, out);
        }
        if let Some(push) = &self.push {
            render_push(push, out);
        }
    }
}

fn render_ingest(ingest: &Ingest, out: &mut Exposition) {
    let metrics = ingest.metrics();
    out.family(
        "millrace_ingest_requests_total",
        MetricKind::Counter,
        "Requests and datagrams of phones, trackers and adapters, by result.",
        IngestResult::ALL.map(|result| ([("result", result.name())], metrics.requests(result))),
    );
    out.family(
        "millrace_ingest_points_total",
        MetricKind::Counter,
        "Points of devices, by result: published as live or late; dropped as duplicate, from the future, as a jump, or \
        as empty.",
        PointResult::ALL.map(|result| ([("result", result.name())], metrics.points(result))),
    );
}

fn render_feedback(feedback: &Feedback, out: &mut Exposition) {
    let metrics = feedback.metrics();
    out.family(
        "millrace_feedback_events_total",
        MetricKind::Counter,
        "Events of driving feedback that this node has published, by type.",
        metrics.events().map(|(kind, count)| ([("type", kind)], count)),
    );
    let counters = [
        ("millrace_feedback_records_total", "Records of cars that driving feedback has read.", &metrics.records),
        ("millrace_feedback_drives_total", "Ended drives that driving feedback has published.", &metrics.drives),
        (
            "millrace_feedback_unfollowed_total",
            "Records of cars without driving feedback, because there are more than carcare.cars_max.",
            &metrics.unfollowed,
        ),
    ];
    for (name, help, value) in counters {
        out.value(name, MetricKind::Counter, help, value.load(Relaxed));
    }
    let help = "Cars that this node follows; 0 on nodes that follow none.";
    out.value("millrace_feedback_cars", MetricKind::Gauge, help, metrics.cars.load(Relaxed));
    out.value(
        "millrace_feedback_following",
        MetricKind::Gauge,
        "1 on the node that follows the cars, otherwise 0.",
        u8::from(metrics.is_following.load(Relaxed)),
    );
}

fn render_push(push: &Push, out: &mut Exposition) {
    let metrics = push.metrics();
    out.family(
        "millrace_push_messages_total",
        MetricKind::Counter,
        "Messages of Web Push, one per subscription, by event: queued, or taken over from a node that has ended; then \
        delivered, gone (no such subscription), failed, expired, or dropped because too many waited.",
        MessageEvent::ALL.map(|event| ([("event", event.name())], metrics.messages(event))),
    );
    out.family(
        "millrace_push_requests_total",
        MetricKind::Counter,
        "Requests to push services, by result.",
        PushResult::ALL.map(|result| ([("result", result.name())], metrics.requests(result))),
    );
    out.family(
        "millrace_push_subscriptions_total",
        MetricKind::Counter,
        "Changes of subscriptions of browsers, by event: stored, ended by the browser, or removed because the push \
        service no longer knew them.",
        SubscriptionEvent::ALL.map(|event| ([("event", event.name())], metrics.subscriptions(event))),
    );
    out.value(
        "millrace_push_waiting",
        MetricKind::Gauge,
        "Messages of Web Push of this node that wait or are being sent.",
        push.waiting(),
    );
}
