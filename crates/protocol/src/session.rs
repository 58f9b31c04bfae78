//! Session messages (`millrace.v1+json`): commands from the client, replies and pushes from the server. Batches of
//! publications use the same fields.

use std::{borrow::Cow, collections::HashMap, fmt, marker::PhantomData};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Value, json, value::RawValue};

use crate::{
    ChannelName, Code, Error, JSON_DEPTH_MAX, Kind, NewPublication, Pattern, Position, RpcCall, Since, TraceContext,
    publication::is_too_deep,
};

/// WebSocket subprotocol of a session.
pub const SUBPROTOCOL: &str = "millrace.v1+json";
/// Maximum number of positions in one `subscribe` to a pattern.
pub const POSITIONS_MAX: usize = 10_000;

/// Treatment of publications that a subscription's reader has not been sent yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Policy {
    /// Sends all of them, in order.
    #[default]
    Every,
    /// Sends the newest per key.
    Latest,
}

/// Target of a subscription: a channel, or all channels that match a pattern.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    Channel(ChannelName),
    Pattern(Pattern),
}

/// Subscription of a session: its target and its start.
#[derive(Clone, PartialEq, Debug)]
pub struct Subscription {
    pub target: Target,
    /// Start of the subscription. For a pattern this is never a position.
    pub since: Since,
    /// For a pattern: the positions from which already known channels continue.
    pub positions: HashMap<ChannelName, Position>,
    pub policy: Policy,
}

#[derive(Debug, PartialEq)]
pub enum Command {
    Subscribe(Subscription),
    Unsubscribe {
        target: Target,
    },
    Publish {
        channel: ChannelName,
        publication: NewPublication,
    },
    /// `members`: return a page of the roster, too.
    Presence {
        channel: ChannelName,
        members: Option<RosterPage>,
    },
    History {
        channel: ChannelName,
        since: Since,
        until: Option<Since>,
        limit: usize,
    },
    Rpc(RpcCall),
    Refresh {
        token: Token,
    },
    Ping,
}

/// One page of a roster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RosterPage {
    pub since: Since,
    /// Maximum number of members.
    pub limit: usize,
}

impl RosterPage {
    /// `after`: the `next` of the previous page; `None` for the first page.
    ///
    /// Errors: [`Code::BadRequest`] for a limit that is not from 1 to 1000; [`Code::BadPosition`].
    pub fn parse(limit: Option<usize>, after: Option<&str>) -> Result<Self, Error> {
        let limit = limit.unwrap_or(100);
        if !(1..=1000).contains(&limit) {
            return Err(Error::new(Code::BadRequest, "`limit` is 1 to 1000"));
        }
        let since = match after.map(str::parse) {
            None => Since::State,
            Some(Ok(since @ Since::StateAfter { .. })) => since,
            Some(_) => {
                let detail = "`after` is the `next` of the previous page, such as `state:5f0c12ab:57:90`";
                return Err(Error::new(Code::BadPosition, detail));
            }
        };
        Ok(Self { since, limit })
    }
}

/// Token or API key. `Debug` hides it, so that it never appears in a log.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Words<'a> {
    id: u64,
    subscribe: Option<Object<SubscribeWords>>,
    unsubscribe: Option<Object<ChannelWords>>,
    #[serde(borrow)]
    publish: Option<Object<PublishWords<'a>>>,
    presence: Option<Object<PresenceWords>>,
    history: Option<Object<HistoryWords>>,
    #[serde(borrow)]
    rpc: Option<Object<RpcWords<'a>>>,
    refresh: Option<Object<RefreshWords>>,
    ping: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubscribeWords {
    channel: String,
    since: Option<Text>,
    policy: Option<String>,
    positions: Option<HashMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChannelWords {
    channel: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PresenceWords {
    channel: String,
    #[serde(default)]
    members: bool,
    limit: Option<usize>,
    after: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RpcWords<'a> {
    method: String,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    /// Deadline in seconds.
    timeout: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RefreshWords {
    token: Token,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryWords {
    channel: String,
    since: Option<Text>,
    until: Option<Text>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishWords<'a> {
    channel: String,
    /// `None` if the field is missing; `null` is a payload.
    #[serde(borrow, default, deserialize_with = "present")]
    data: Option<&'a RawValue>,
    key: Option<String>,
    /// Time to live in seconds.
    ttl: Option<f64>,
    encoding: Option<String>,
    idempotency_key: Option<String>,
    delete: Option<bool>,
    if_match: Option<String>,
    /// Any JSON: a malformed context is ignored.
    #[serde(borrow)]
    trace: Option<&'a RawValue>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// JSON object only. By default serde also accepts an array with the values in the order of the struct's fields.
struct Object<T>(T);

/// Start or end of a range. A time may be sent as a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    String(String),
    Number(u64),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields)).map(Object)
            }
        }

        deserializer.deserialize_map(Fields(PhantomData))
    }
}

impl Text {
    fn parse(text: Option<Self>, default: Since) -> Result<Since, Error> {
        match text {
            None => Ok(default),
            Some(Text::String(text)) => text.parse(),
            Some(Text::Number(ms)) => Ok(Since::Time(ms)),
        }
    }
}

impl Token {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Target {
    /// Parses a channel name or pattern.
    ///
    /// Errors: [`Code::BadChannel`].
    pub fn parse(name: &str) -> Result<Self, Error> {
        if Pattern::is_pattern(name) {
            Pattern::parse(name).map(Target::Pattern)
        } else {
            ChannelName::parse(name).map(Target::Channel)
        }
    }

    pub fn as_str(&self) -> &str {
        match self {
            Target::Channel(name) => name.as_str(),
            Target::Pattern(pattern) => pattern.as_str(),
        }
    }
}

impl Policy {
    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Every => "every",
            Policy::Latest => "latest",
        }
    }

    /// Parses `every` or `latest`.
    ///
    /// Errors: [`Code::BadRequest`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "every" => Ok(Policy::Every),
            "latest" => Ok(Policy::Latest),
            _ => Err(Error::new(Code::BadRequest, "`policy` is `every` or `latest`")),
        }
    }
}

/// Decodes one command. The id is returned even if the command is bad, so that the error reply can carry it. Id 0
/// is reserved for the server: a client that sends it gets an error without an id.
///
/// Errors: [`Code::BadJson`] if the text is not a command; otherwise the code of the first bad part.
pub fn decode_command(text: &str) -> (Option<u64>, Result<Command, Error>) {
    let words = match serde_json::from_str::<Object<Words<'_>>>(text) {
        Ok(Object(words)) => words,
        Err(error) => {
            #[derive(Deserialize)]
            struct OnlyId {
                id: u64,
            }
            let id = serde_json::from_str::<Object<OnlyId>>(text).ok().map(|Object(only)| only.id);
            return (id.filter(|id| *id > 0), Err(Error::new(Code::BadJson, error.to_string())));
        }
    };
    match words.id {
        0 => (None, Err(Error::new(Code::BadJson, "`id` is a whole number from 1"))),
        id => (Some(id), words.decode()),
    }
}

impl Words<'_> {
    fn decode(self) -> Result<Command, Error> {
        let mut commands = Vec::with_capacity(1);
        if let Some(Object(words)) = self.subscribe {
            commands.push(Command::Subscribe(words.decode()?));
        }
        if let Some(Object(words)) = self.unsubscribe {
            commands.push(Command::Unsubscribe { target: Target::parse(&words.channel)? });
        }
        if let Some(Object(words)) = self.publish {
            let (channel, publication) = words.decode()?;
            commands.push(Command::Publish { channel, publication });
        }
        if let Some(Object(words)) = self.presence {
            let page = || RosterPage::parse(words.limit, words.after.as_deref());
            let members = match (words.members, words.limit.is_some() || words.after.is_some()) {
                (true, _) => Some(page()?),
                (false, false) => None,
                (false, true) => {
                    return Err(Error::new(Code::BadRequest, "`limit` and `after` apply only to `\"members\": true`"));
                }
            };
            commands.push(Command::Presence { channel: ChannelName::parse(&words.channel)?, members });
        }
        if let Some(Object(words)) = self.history {
            let since = Text::parse(words.since, Since::Earliest)?;
            let until = words.until.map(|until| Text::parse(Some(until), Since::Now)).transpose()?;
            if let Some(until) = until {
                since.check_until(until)?;
            }
            let limit = words.limit.unwrap_or(100);
            if !(1..=1000).contains(&limit) {
                return Err(Error::new(Code::BadRequest, "`limit` is 1 to 1000"));
            }
            commands.push(Command::History { channel: ChannelName::parse(&words.channel)?, since, until, limit });
        }
        if let Some(Object(words)) = self.rpc {
            commands.push(Command::Rpc(RpcCall::new(&words.method, words.params.map(RawValue::get), words.timeout)?));
        }
        if let Some(Object(words)) = self.refresh {
            commands.push(Command::Refresh { token: words.token });
        }
        if self.ping.is_some() {
            commands.push(Command::Ping);
        }
        match (commands.pop(), commands.is_empty()) {
            (Some(command), true) => Ok(command),
            _ => Err(Error::new(
                Code::BadJson,
                "one command: subscribe, unsubscribe, publish, presence, history, rpc, refresh or ping",
            )),
        }
    }
}

impl Subscription {
    /// Returns the body of the `subscribe` command for this subscription.
    pub fn to_json(&self) -> Value {
        let mut body = json!({ "channel": self.target.as_str() });
        match self.since {
            Since::Now => {}
            Since::Time(ms) => body["since"] = ms.into(),
            since => body["since"] = since.to_string().into(),
        }
        if self.policy == Policy::Latest {
            body["policy"] = "latest".into();
        }
        if !self.positions.is_empty() {
            body["positions"] =
                self.positions.iter().map(|(name, at)| (name.to_string(), Value::from(at.to_string()))).collect();
        }
        body
    }
}

impl SubscribeWords {
    pub(crate) fn decode(self) -> Result<Subscription, Error> {
        let positions = self.positions.unwrap_or_default();
        if positions.len() > POSITIONS_MAX {
            return Err(Error::new(Code::TooMany, format!("at most {POSITIONS_MAX} positions")));
        }
        let positions = positions.iter().map(|(name, at)| Ok((ChannelName::parse(name)?, at.parse()?)));
        let subscription = Subscription {
            target: Target::parse(&self.channel)?,
            since: Text::parse(self.since, Since::Now)?,
            positions: positions.collect::<Result<_, Error>>()?,
            policy: self.policy.as_deref().map_or(Ok(Policy::Every), Policy::parse)?,
        };
        let is_pattern = matches!(subscription.target, Target::Pattern(_));
        if !is_pattern && !subscription.positions.is_empty() {
            return Err(Error::new(
                Code::BadRequest,
                "`positions` applies only to patterns; use `since` for a channel",
            ));
        }
        if is_pattern && subscription.since.is_state() {
            return Err(Error::new(
                Code::BadRequest,
                "a pattern has no state; subscribe to each channel by its name with `since` = `state`",
            ));
        }
        if is_pattern && matches!(subscription.since, Since::Position(_)) {
            return Err(Error::new(
                Code::BadRequest,
                "a pattern's `since` is `now`, `earliest` or a time; see `positions`",
            ));
        }
        Ok(subscription)
    }
}

/// Decodes one line of a batch: `{"channel", "data", "key"?, "ttl"?, "encoding"?, "idempotency_key"?, "if_match"?,
/// "trace"?}`, or `{"channel", "key", "delete": true, "idempotency_key"?, "if_match"?, "trace"?}`.
pub fn decode_publish(line: &str) -> Result<(ChannelName, NewPublication), Error> {
    let words = serde_json::from_str::<Object<PublishWords<'_>>>(line);
    words.map_err(|e| Error::new(Code::BadJson, e.to_string()))?.0.decode()
}

/// Decodes the fields `data`, as raw JSON, and `encoding` of a payload. A JSON string is a text payload; any other JSON
/// value is a JSON payload and is forwarded unchanged.
///
/// Errors: [`Code::BadJson`], [`Code::BadRequest`].
pub fn decode_data<'a>(raw: &'a str, encoding: Option<&str>) -> Result<(Kind, Cow<'a, [u8]>), Error> {
    let text = || serde_json::from_str::<String>(raw).map_err(|e| Error::new(Code::BadJson, e.to_string()));
    match encoding {
        Some("base64") => match BASE64_STANDARD.decode(text()?) {
            Ok(data) => Ok((Kind::Binary, Cow::Owned(data))),
            Err(_) => Err(Error::new(Code::BadJson, "`data` is not base64")),
        },
        Some(_) => Err(Error::new(Code::BadRequest, "`encoding` must be `base64` or absent")),
        None if raw.starts_with('"') => Ok((Kind::Text, Cow::Owned(text()?.into_bytes()))),
        None if is_too_deep(raw) => {
            let detail = format!("`data` is nested deeper than {JSON_DEPTH_MAX} levels; publish it as a text");
            Err(Error::new(Code::BadJson, detail))
        }
        None => Ok((Kind::Json, Cow::Borrowed(raw.as_bytes()))),
    }
}

/// Decodes the field `trace`. Its text needs no escapes in JSON, so an escaped one is malformed.
fn decode_trace(raw: &RawValue) -> Option<TraceContext> {
    let text = raw.get().strip_prefix('"')?.strip_suffix('"')?;
    TraceContext::parse(text.as_bytes()).ok()
}

impl PublishWords<'_> {
    fn decode(self) -> Result<(ChannelName, NewPublication), Error> {
        if self.delete == Some(true) {
            return self.decode_deletion();
        }
        let data = self.data.ok_or_else(|| Error::new(Code::BadJson, "missing field `data`"))?;
        let (kind, data) = decode_data(data.get(), self.encoding.as_deref())?;
        let mut publication = NewPublication::new(kind, data);
        publication.key = self.key.map(Into::into);
        publication.idempotency_key = self.idempotency_key.map(Into::into);
        publication.ttl_ms = self.ttl.map(ttl_ms).transpose()?;
        publication.expected = self.if_match.as_deref().map(str::parse).transpose()?;
        Ok((ChannelName::parse(&self.channel)?, publication.traced(self.trace.and_then(decode_trace)).check()?))
    }

    fn decode_deletion(self) -> Result<(ChannelName, NewPublication), Error> {
        if self.data.is_some() || self.ttl.is_some() || self.encoding.is_some() {
            let detail = "a deletion has no `data`, `ttl` or `encoding`; omit these fields, or omit `delete`";
            return Err(Error::new(Code::BadRequest, detail));
        }
        let missing = || Error::new(Code::BadRequest, "a deletion needs `key`, the key to delete");
        let mut publication = NewPublication::deletion(self.key.ok_or_else(missing)?.into());
        publication.idempotency_key = self.idempotency_key.map(Into::into);
        publication.expected = self.if_match.as_deref().map(str::parse).transpose()?;
        Ok((ChannelName::parse(&self.channel)?, publication.traced(self.trace.and_then(decode_trace)).check()?))
    }
}

/// Converts seconds to milliseconds. Errors: [`Code::BadRequest`] unless the value is a positive, finite number.
pub fn ttl_ms(seconds: f64) -> Result<u64, Error> {
    if !(seconds.is_finite() && seconds > 0.0) {
        return Err(Error::new(Code::BadRequest, "the time to live must be a positive number of seconds"));
    }
    Ok((seconds * 1000.0).min(u64::MAX as f64 / 2.0) as u64)
}

/// Encodes a reply: `{"id", "ok": {..}}` or `{"id", "error": {..}}`.
pub fn encode_reply(id: u64, result: &Result<Value, Error>) -> String {
    match result {
        Ok(ok) => json!({ "id": id, "ok": ok }).to_string(),
        Err(error) => json!({ "id": id, "error": error.to_json() }).to_string(),
    }
}

/// Encodes a reply whose body is already JSON, such as a page of messages.
pub fn encode_reply_raw(id: u64, ok: &[u8]) -> String {
    format!("{{\"id\":{id},\"ok\":{}}}", String::from_utf8_lossy(ok))
}

/// Encodes `{"push": "error", ..}`, the reply to a message without a usable id.
pub fn encode_error_push(error: &Error) -> String {
    let mut push = error.to_json();
    push["push"] = "error".into();
    push.to_string()
}

/// Encodes `{"push": "close", "code", "reason"}`, the last message on a link without close frames. The codes are
/// those of a WebSocket.
pub fn encode_close_push(code: u16, reason: &str) -> String {
    // The fixed prefix lets clients recognize this push without parsing it.
    format!("{{\"push\":\"close\",\"code\":{code},\"reason\":{}}}", Value::from(reason))
}

/// Encodes `{"push": "unsubscribed", "channel", "code", "detail", "retry"}`: the server has ended a subscription.
pub fn encode_unsubscribed_push(target: &Target, error: &Error) -> String {
    let mut push = error.to_json();
    push["push"] = "unsubscribed".into();
    push["channel"] = target.as_str().into();
    push.to_string()
}

/// Encodes `{"push": "refresh", "expires_ms"}`: the session ends after this time unless it sends a new token.
pub fn encode_refresh_push(expires_ms: u64) -> String {
    json!({ "push": "refresh", "expires_ms": expires_ms }).to_string()
}

/// Encodes `{"push": "connected", ..}`, the first message of a session. `expires_ms` is set if the session's token
/// expires, `resumed` if the session presented a resume ticket. `connection`: the id of the connection, unique over all
/// nodes.
pub fn encode_connected(
    connection: &str,
    ping_ms: u64,
    message_bytes_max: usize,
    time_ms: u64,
    expires_ms: Option<u64>,
    resumed: Option<&[Subscription]>,
) -> String {
    let mut push = json!({
        "push": "connected", "connection": connection, "ping_ms": ping_ms, "message_bytes_max": message_bytes_max,
        "time": time_ms,
    });
    if let Some(expires_ms) = expires_ms {
        push["expires_ms"] = expires_ms.into();
    }
    if let Some(resumed) = resumed {
        push["resumed"] = resumed.iter().map(|subscription| subscription.target.as_str()).collect();
    }
    push.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Code {
        decode_command(text).1.unwrap_err().code
    }

    #[test]
    fn commands_are_decoded() {
        let (id, command) = decode_command(
            r#"{"id":3,"subscribe":{"channel":"a/+","since":1700,"policy":"latest","positions":{"a/b":"1:2"}}}"#,
        );
        assert_eq!(id, Some(3));
        let Command::Subscribe(Subscription {
            target: Target::Pattern(_),
            since: Since::Time(1700),
            positions,
            policy: Policy::Latest,
        }) = command.unwrap()
        else {
            panic!("not what was asked")
        };
        assert_eq!(positions.len(), 1);
        assert_eq!(decode_command(r#"{"id":1,"ping":{}}"#).1.unwrap(), Command::Ping);
    }

    #[test]
    fn command_error_keeps_id() {
        let (id, command) = decode_command(r#"{"id":9,"dance":{}}"#);
        assert_eq!((id, command.unwrap_err().code), (Some(9), Code::BadJson));
        assert_eq!(decode_command("{").0, None);
        for zero in [r#"{"id":0,"ping":{}}"#, r#"{"id":0,"dance":{}}"#] {
            let (id, command) = decode_command(zero);
            assert_eq!((id, command.unwrap_err().code), (None, Code::BadJson), "{zero}");
        }
        assert_eq!(code(r#"{"id":1}"#), Code::BadJson);
        for array in ["[1]", r#"[1,null,null,null,null,null,null,null,{}]"#, r#"{"id":1,"presence":["a"]}"#] {
            assert_eq!(code(array), Code::BadJson, "{array}");
        }
        assert_eq!(decode_command("[1]").0, None);
        assert_eq!(decode_publish(r#"["a",5,null,null,null,null]"#).unwrap_err().code, Code::BadJson);
        assert_eq!(code(r#"{"id":1,"ping":{},"presence":{"channel":"a"}}"#), Code::BadJson);
        assert_eq!(code(r#"{"id":1,"subscribe":{"channel":"a b"}}"#), Code::BadChannel);
        assert_eq!(code(r#"{"id":1,"subscribe":{"channel":"a","since":"x"}}"#), Code::BadPosition);
        assert_eq!(code(r#"{"id":1,"publish":{"channel":"a/+","data":1}}"#), Code::BadChannel);
        assert_eq!(code(r#"{"id":1,"subscribe":{"channel":"a/+","since":"state"}}"#), Code::BadRequest);
        assert_eq!(code(r#"{"id":1,"publish":{"channel":"a","data":1,"ttl":-1}}"#), Code::BadRequest);
    }

    #[test]
    fn deletions_and_conditions_are_decoded() {
        let decoded = |line: &str| decode_publish(line).map(|(_, publication)| publication);
        let deletion = decoded(r#"{"channel":"a","key":"k","delete":true,"if_match":"1:5"}"#).unwrap();
        let expected = Some(crate::Expected::At("1:5".parse().unwrap()));
        assert_eq!(deletion, NewPublication { expected, ..NewPublication::deletion("k".into()) });
        let null = decoded(r#"{"channel":"a","key":"k","data":null,"delete":false,"if_match":"0"}"#).unwrap();
        assert_eq!((&*null.data, null.is_deletion), (b"null".as_slice(), false));
        assert_eq!(null.expected, Some(crate::Expected::Absent));
        for (line, code) in [
            (r#"{"channel":"a","delete":true}"#, Code::BadRequest),
            (r#"{"channel":"a","key":"k","delete":true,"data":1}"#, Code::BadRequest),
            (r#"{"channel":"a","key":"k","delete":true,"ttl":1}"#, Code::BadRequest),
            (r#"{"channel":"a","key":"k"}"#, Code::BadJson),
            (r#"{"channel":"a","key":"k","delete":1}"#, Code::BadJson),
            (r#"{"channel":"a","key":"k","data":1,"if_match":"x"}"#, Code::BadPosition),
        ] {
            assert_eq!(decoded(line).unwrap_err().code, code, "{line}");
        }
    }

    #[test]
    fn malformed_trace_is_ignored() {
        const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let trace = |json: &str| {
            let line = format!(r#"{{"channel":"a","data":1,"trace":{json}}}"#);
            decode_publish(&line).unwrap().1.trace()
        };
        assert_eq!(trace(&format!("\"{TEXT}\"")), TEXT.parse().ok());
        let deletion = format!(r#"{{"channel":"a","key":"k","delete":true,"trace":"{TEXT}"}}"#);
        assert_eq!(decode_publish(&deletion).unwrap().1.trace(), TEXT.parse().ok());
        let unsampled = format!("\"{}00\"", &TEXT[..53]);
        for bad in ["null", "1", "[]", "{\"a\":[1]}", "\"\"", "\"\\u0030\"", &unsampled] {
            assert_eq!(trace(bad), None, "{bad}");
        }
    }

    #[test]
    fn json_data_is_not_reencoded() {
        let (_, publication) = decode_publish(r#"{"channel":"a","data":{"b" : 1.50}}"#).unwrap();
        assert_eq!((publication.kind, &*publication.data), (Kind::Json, br#"{"b" : 1.50}"#.as_slice()));
        let (_, publication) = decode_publish(r#"{"channel":"a","data":"h\u00e9"}"#).unwrap();
        assert_eq!((publication.kind, &*publication.data), (Kind::Text, "hé".as_bytes()));
        let (_, publication) = decode_publish(r#"{"channel":"a","data":"//4=","encoding":"base64"}"#).unwrap();
        assert_eq!((publication.kind, &*publication.data), (Kind::Binary, [0xff, 0xfe].as_slice()));
    }
}
