//! The JSON of questions: `{"hook", "id", "subject"?, "connection"?, "transport", "address"?, ..}`.
//!
//! Source: docs/reference/hooks.md, "Questions".

use std::time::Duration;

use bytes::Bytes;
use http::HeaderName;
use millrace_protocol::{ChannelName, Kind, NewPublication, RpcCall, encoding::write_data};
use millrace_transport::admission::hooks::{Hook, HookClient};
use serde::Serialize;

/// Builder of the body of a question. Fields are written in a fixed order.
pub struct Question(Vec<u8>);

impl Question {
    /// Starts a question. `event_id` is also the header `Millrace-Event-Id`.
    pub fn new(hook: Hook, event_id: &str, client: &HookClient) -> Self {
        let mut question = Self(Vec::with_capacity(256));
        question.0.push(b'{');
        question.field("hook", hook.name());
        question.field("id", event_id);
        if let Some(subject) = &client.subject {
            question.field("subject", &**subject);
        }
        if let Some(connection) = &client.connection {
            question.field("connection", connection);
        }
        question.field("transport", client.transport);
        if let Some(address) = client.address {
            question.field("address", &address.to_canonical().to_string());
        }
        question
    }

    /// Adds the credential and the headers of `connect`.
    pub fn connect(mut self, token: Option<&str>, headers: &[(HeaderName, String)]) -> Bytes {
        if let Some(token) = token {
            self.field("token", token);
        }
        if !headers.is_empty() {
            self.name("headers");
            self.0.push(b'{');
            for (name, value) in headers {
                self.field(name.as_str(), value);
            }
            self.0.push(b'}');
        }
        self.finish()
    }

    /// Adds the channel or the pattern of `subscribe`.
    pub fn subscribe(mut self, target: &str) -> Bytes {
        self.field("channel", target);
        self.finish()
    }

    /// Adds the publication of `publish`.
    pub fn publish(mut self, channel: &ChannelName, publication: &NewPublication) -> Bytes {
        self.field("channel", channel.as_str());
        for (name, key) in [("key", &publication.key), ("idempotency_key", &publication.idempotency_key)] {
            if let Some(key) = key {
                self.field(name, &**key);
            }
        }
        if publication.is_deletion {
            self.field("deleted", &true);
            return self.finish();
        }
        let kind = if publication.kind == Kind::Utf8 { Kind::detect(&publication.data) } else { publication.kind };
        write_data(&mut self.0, kind, &publication.data);
        self.finish()
    }

    /// Adds the call of `rpc`, which must be answered within `timeout`.
    pub fn rpc(mut self, call: &RpcCall, timeout: Duration) -> Bytes {
        self.field("method", call.method.as_str());
        self.field("timeout_ms", &(timeout.as_millis() as u64));
        if let Some(params) = &call.params {
            self.name("params");
            self.0.extend_from_slice(params.as_bytes());
        }
        self.finish()
    }

    fn field(&mut self, name: &str, value: &(impl Serialize + ?Sized)) {
        self.name(name);
        serde_json::to_writer(&mut self.0, value).expect("text and numbers always serialize into memory");
    }

    fn name(&mut self, name: &str) {
        self.comma();
        serde_json::to_writer(&mut self.0, name).expect("text always serializes into memory");
        self.0.push(b':');
    }

    fn comma(&mut self) {
        if self.0.last() != Some(&b'{') {
            self.0.push(b',');
        }
    }

    fn finish(mut self) -> Bytes {
        self.0.push(b'}');
        self.0.into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn client() -> HookClient {
        HookClient {
            subject: Some("ann \"quoted\"".into()),
            connection: Some("0-1-2".into()),
            transport: "session",
            address: Some("::ffff:192.0.2.1".parse().unwrap()),
        }
    }

    fn parsed(body: &Bytes) -> Value {
        serde_json::from_slice(body).unwrap()
    }

    #[test]
    fn questions_are_json() {
        let channel = ChannelName::parse("a/b").unwrap();
        let base = json!({
            "hook": "publish", "id": "1", "subject": "ann \"quoted\"", "connection": "0-1-2", "transport": "session",
            "address": "192.0.2.1", "channel": "a/b",
        });
        let publication = |publication: NewPublication| {
            parsed(&Question::new(Hook::Publish, "1", &client()).publish(&channel, &publication))
        };
        let with = |more: Value| {
            let mut whole = base.clone();
            whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            whole
        };
        let mut keyed = NewPublication::new(Kind::Json, "{\"x\":[1]}");
        keyed.key = Some("k".into());
        assert_eq!(publication(keyed), with(json!({ "key": "k", "data": { "x": [1] } })));
        assert_eq!(publication(NewPublication::new(Kind::Text, "{\"x\":1}")), with(json!({ "data": "{\"x\":1}" })));
        assert_eq!(publication(NewPublication::new(Kind::Utf8, "[7]")), with(json!({ "data": [7] })));
        let deletion = with(json!({ "key": "k", "deleted": true }));
        assert_eq!(publication(NewPublication::deletion("k".into())), deletion);
        let binary = with(json!({ "data": "//4=", "encoding": "base64" }));
        assert_eq!(publication(NewPublication::new(Kind::Binary, [0xff, 0xfe])), binary);
    }

    #[test]
    fn absent_parts_are_left_out() {
        let nobody = HookClient { transport: "udp", ..HookClient::default() };
        let asked = parsed(&Question::new(Hook::Connect, "1", &nobody).connect(None, &[]));
        assert_eq!(asked, json!({ "hook": "connect", "id": "1", "transport": "udp" }));
        let headers = [(HeaderName::from_static("cookie"), "a=b".to_owned())];
        let asked = parsed(&Question::new(Hook::Connect, "1", &nobody).connect(Some("t"), &headers));
        assert_eq!((&asked["token"], &asked["headers"]), (&json!("t"), &json!({ "cookie": "a=b" })));
        let call = RpcCall::new("cars/start", Some("{\"a\":1}"), None).unwrap();
        let asked = parsed(&Question::new(Hook::Rpc, "1", &nobody).rpc(&call, Duration::from_secs(2)));
        assert_eq!(
            (&asked["method"], &asked["timeout_ms"], &asked["params"]),
            (&json!("cars/start"), &json!(2000), &json!({ "a": 1 }))
        );
    }
}
