//! docs/reference/webhooks.md, tested with real back ends: what they receive, and what happens when they fail.

mod dead_letters;
mod failures;
mod lists;
mod overlap;
mod publications;

use std::{collections::HashSet, time::Duration};

use millrace_server::{Config, config::Secret};
use millrace_webhooks::EventKind;
use serde_json::Value;

use crate::hooks::back_end::{BackEnd, Question};

/// Secret that signs the webhooks of these tests.
const SECRET: &str = "the secret of the webhooks, 34 bytes";

/// Sends the publications of all channels to a back end.
fn publications(config: &mut Config, back_end: &BackEnd) {
    config.webhooks.url = back_end.url("/webhooks");
    config.webhooks.secrets = vec![Secret::from(SECRET)];
    config.webhooks.events = vec![EventKind::Publication];
    config.webhooks.batch_wait = Duration::from_millis(10);
    config.webhooks.timeout = Duration::from_millis(500);
}

/// Returns the events of the requests that were answered, in the order of their arrival.
fn events(questions: &[Question]) -> Vec<Value> {
    let all = questions.iter().filter(|question| question.path == "/webhooks");
    all.flat_map(|question| question.json()["events"].as_array().expect("events").clone()).collect()
}

/// Removes repeated events: those with a known id.
fn once(events: Vec<Value>) -> Vec<Value> {
    let mut known = HashSet::new();
    events.into_iter().filter(|event| known.insert(event["id"].as_str().expect("an id").to_owned())).collect()
}

/// Returns the payloads of the publications of a channel, without repeated events.
fn data(back_end: &BackEnd, channel: &str) -> Vec<Value> {
    let all = once(events(&back_end.questions())).into_iter();
    all.filter(|event| event["channel"] == channel).map(|event| event["data"].clone()).collect()
}
