//! Views: the server repeats a request and publishes its answer as a keyed state, so that a page shows it live.
//!
//! A view is a channel of this node (`:admin/follow/..`) with one key per row of the answer, and the key [`REST`] for
//! everything else. Only rows that changed are published. Nothing is computed without a reader.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    rc::Rc,
    time::Duration,
};

use millrace_engine::{Deliver as _, WithLocal};
use millrace_node::Router;
use millrace_protocol::{ChannelName, Code, Error, KEY_BYTES_MAX, Kind, LOCAL, NewPublication};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::{
    task::spawn_local,
    time::{Instant, sleep},
};

use super::{
    Admin,
    endpoints::{Action, FOLDER, Rows, View, find},
    requests::decode,
};

/// Interval between two answers.
const EVERY: Duration = Duration::from_secs(1);
/// Minimum interval between two answers, as a multiple of the time that an answer takes. So views use a small part of
/// the node.
const SHARE: u32 = 20;
/// Maximum interval between two answers.
const EVERY_MAX: Duration = Duration::from_secs(60);
/// A view without a reader for this time ends.
const UNREAD: Duration = Duration::from_secs(15);
/// Maximum number of open views.
pub const FOLLOWS_MAX: usize = 64;
/// Key of everything in an answer that is no row.
const REST: &str = "_";

/// The open views of this node, by their requests.
#[derive(Default)]
pub struct Follows(RefCell<HashMap<String, Follow>>);

/// A view from the outside.
struct Follow {
    channel: ChannelName,
    /// Number of further requests to follow it.
    asked: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FollowBody {
    /// Path below `/v1/admin/` with its query.
    request: String,
}

/// A view that its task publishes.
struct Publisher {
    request: String,
    query: String,
    answer: View,
    channel: ChannelName,
    published: Published,
}

/// Contents of the state as last published.
struct Published {
    rows: Rows,
    /// JSON by key.
    known: HashMap<String, String>,
}

/// Change of a state: a key with its new JSON, or without for a deletion.
type RowChange = (String, Option<String>);

impl Follows {
    /// Returns the channel of an open view, and lets the view wait for the new reader.
    fn find(&self, request: &str) -> Option<Value> {
        let mut open = self.0.borrow_mut();
        let Follow { channel, asked } = open.get_mut(request)?;
        *asked += 1;
        Some(described(channel))
    }

    fn asked(&self, request: &str) -> u64 {
        self.0.borrow().get(request).map_or(0, |open| open.asked)
    }

    /// Errors: [`Code::TooMany`].
    fn check_room(&self) -> Result<(), Error> {
        match self.0.borrow().len() < FOLLOWS_MAX {
            true => Ok(()),
            false => {
                let detail = format!(
                    "{FOLLOWS_MAX} requests are followed already; one ends {} s after its last reader left",
                    UNREAD.as_secs()
                );
                Err(Error::new(Code::TooMany, detail))
            }
        }
    }
}

impl Admin {
    /// Opens a view of a request, and returns its channel: `{"channel", "every_ms"}`. Equal requests share a view.
    ///
    /// Errors: those of the request; [`Code::NotFound`] for an unknown request, [`Code::BadRequest`] for one that
    /// changes something, [`Code::TooMany`] if [`FOLLOWS_MAX`] views are open.
    pub async fn follow(self: &Rc<Self>, body: Map<String, Value>) -> Result<Value, Error> {
        let FollowBody { request } = decode(body)?;
        if let Some(open) = self.follows.find(&request) {
            return Ok(open);
        }
        self.follows.check_room()?;
        let (path, query) = request.split_once('?').unwrap_or((&request, ""));
        let Action::View { rows, answer } = find(&format!("{FOLDER}{path}"))?.action else {
            let detail = "only GET requests can be followed; this request changes something, so send it as a POST";
            return Err(Error::new(Code::BadRequest, detail));
        };
        let first = answer(self, query).await?;
        // Meanwhile another operator may have sent the same request.
        if let Some(open) = self.follows.find(&request) {
            return Ok(open);
        }
        self.follows.check_room()?;
        let random = getrandom::u64().map_err(|error| Error::new(Code::Internal, error.to_string()))?;
        let channel = ChannelName::parse(&format!("{LOCAL}/follow/{random:016x}"))?;
        let mut publisher = Publisher {
            request: request.clone(),
            query: query.to_owned(),
            answer,
            channel: channel.clone(),
            published: Published { rows, known: HashMap::new() },
        };
        publisher.publish(&self.local, first);
        let described = described(&channel);
        self.follows.0.borrow_mut().insert(request, Follow { channel, asked: 0 });
        spawn_local(self.clone().repeat(publisher));
        Ok(described)
    }

    /// Publishes a view until it has had no reader for [`UNREAD`].
    async fn repeat(self: Rc<Self>, mut publisher: Publisher) {
        let (mut pause, mut read, mut asked) = (EVERY, Instant::now(), 0);
        loop {
            sleep(pause).await;
            let asked_now = self.follows.asked(&publisher.request);
            if asked_now != asked {
                (asked, read) = (asked_now, Instant::now());
            }
            if self.router.readers(&publisher.channel) == 0 {
                if read.elapsed() >= UNREAD {
                    break;
                }
                pause = EVERY;
                continue;
            }
            let began = Instant::now();
            read = began;
            let answer = (publisher.answer)(&self, &publisher.query).await;
            let answer = answer.unwrap_or_else(|error| json!({ "error": error.to_json() }));
            // An answer without some nodes has waited for them, which costs nothing.
            pause = match answer.get("missing") {
                Some(_) => EVERY,
                None => (began.elapsed() * SHARE).clamp(EVERY, EVERY_MAX),
            };
            publisher.publish(&self.local, answer);
        }
        self.follows.0.borrow_mut().remove(&publisher.request);
        self.local.remove(&publisher.channel);
    }
}

fn described(channel: &ChannelName) -> Value {
    json!({ "channel": channel.as_str(), "every_ms": EVERY.as_millis() as u64 })
}

impl Publisher {
    /// Publishes what has changed since the last answer. A failed request keeps the rows and publishes its error.
    fn publish(&mut self, local: &WithLocal<Router>, answer: Value) {
        for (key, value) in self.published.changes(answer) {
            let publication = match &value {
                Some(json) => {
                    NewPublication { key: Some(key.as_str().into()), ..NewPublication::new(Kind::Json, json) }
                }
                None => NewPublication::deletion(key.as_str().into()),
            };
            match local.publish(&self.channel, publication) {
                Ok(_) => self.published.apply((key, value)),
                // The next answer tries again.
                Err(error) => tracing::debug!(%error, request = self.request, "a row of a view was not published"),
            }
        }
    }
}

impl Published {
    /// Returns the changes from the published state to an answer, in the order of the answer.
    fn changes(&self, mut answer: Value) -> Vec<RowChange> {
        let is_error = answer.get("error").is_some();
        let rows = match answer.get_mut(self.rows.array).map(Value::take) {
            Some(Value::Array(rows)) => rows,
            _ => Vec::new(),
        };
        if let Some(rest) = answer.as_object_mut() {
            rest.remove(self.rows.array);
        }
        let rows = rows.into_iter().map(|row| (self.rows.key_of(&row), row.to_string()));
        let new: Vec<(String, String)> = rows.chain([(REST.to_owned(), answer.to_string())]).collect();
        let kept: HashSet<&str> = new.iter().map(|(key, _)| key.as_str()).collect();
        let is_gone = |key: &&String| !is_error && !kept.contains(key.as_str());
        let gone: Vec<RowChange> = self.known.keys().filter(is_gone).map(|key| (key.clone(), None)).collect();
        let changed = new.into_iter().filter(|(key, json)| self.known.get(key) != Some(json));
        gone.into_iter().chain(changed.map(|(key, json)| (key, Some(json)))).collect()
    }

    fn apply(&mut self, (key, value): RowChange) {
        match value {
            Some(json) => _ = self.known.insert(key, json),
            None => _ = self.known.remove(&key),
        }
    }
}

impl Rows {
    /// Returns the identity of a row: the values of its key fields, joined by `/`.
    fn key_of(&self, row: &Value) -> String {
        let field = |name: &&str| match &row[*name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let mut key = self.key.iter().map(field).collect::<Vec<_>>().join("/");
        let end = (0..=KEY_BYTES_MAX.min(key.len())).rev().find(|end| key.is_char_boundary(*end));
        key.truncate(end.unwrap_or_default());
        // A channel may be called like the key of the rest. No channel begins with a slash.
        if key == REST { format!("/{REST}") } else { key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies an answer, and returns its changes as `KEY=JSON` or `no KEY`.
    fn answered(published: &mut Published, answer: Value) -> Vec<String> {
        let changes = published.changes(answer);
        changes.iter().cloned().for_each(|change| published.apply(change));
        let show = |(key, value): &RowChange| match value {
            Some(json) => format!("{key}={json}"),
            None => format!("no {key}"),
        };
        let mut shown: Vec<String> = changes.iter().map(show).collect();
        shown.sort();
        shown
    }

    fn published(key: &'static [&'static str]) -> Published {
        Published { rows: Rows::of("rows", key), known: HashMap::new() }
    }

    #[test]
    fn only_changed_rows_are_published() {
        let mut state = published(&["id"]);
        let first =
            answered(&mut state, json!({ "rows": [{ "id": "a", "n": 1 }, { "id": "b", "n": 1 }], "more": true }));
        assert_eq!(first, [r#"_={"more":true}"#, r#"a={"id":"a","n":1}"#, r#"b={"id":"b","n":1}"#]);
        let second = json!({ "rows": [{ "id": "b", "n": 2 }, { "id": "c", "n": 1 }], "more": true });
        let changes = [r#"b={"id":"b","n":2}"#, r#"c={"id":"c","n":1}"#, "no a"];
        assert_eq!(answered(&mut state, second.clone()), changes);
        assert_eq!(answered(&mut state, second), [""; 0]);
        assert_eq!(answered(&mut state, json!({ "rows": [], "more": false })), [r#"_={"more":false}"#, "no b", "no c"]);
    }

    #[test]
    fn failed_request_keeps_rows() {
        let mut state = published(&["id"]);
        answered(&mut state, json!({ "rows": [{ "id": 7 }] }));
        let failed = answered(&mut state, json!({ "error": { "code": "unavailable" } }));
        assert_eq!(failed, [r#"_={"error":{"code":"unavailable"}}"#]);
        assert_eq!(answered(&mut state, json!({ "rows": [{ "id": 7 }] })), ["_={}"]);
    }

    #[test]
    fn rows_have_distinct_keys() {
        let mut state = published(&["node", "thread"]);
        let rows = json!([{ "node": "a", "thread": 1 }, { "node": "a", "thread": 2 }]);
        let changes = answered(&mut state, json!({ "rows": rows }));
        assert!(changes[1].starts_with("a/1=") && changes[2].starts_with("a/2="), "{changes:?}");
        let rows = Rows::of("rows", &["channel"]);
        assert_eq!(rows.key_of(&json!({ "channel": "_" })), "/_", "a channel may have this name");
        assert_eq!(rows.key_of(&json!({ "channel": "ä".repeat(200) })).len(), 254, "a key has a maximum length");
    }

    #[test]
    fn answer_without_rows_is_one_entry() {
        let mut state = Published { rows: Rows::NONE, known: HashMap::new() };
        assert_eq!(answered(&mut state, json!({ "server": { "listen": "x" } })), [r#"_={"server":{"listen":"x"}}"#]);
    }
}
