//! Commands and publications of the client, decoded from JSON.

use std::{borrow::Cow, collections::HashMap, fmt, marker::PhantomData};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Value, value::RawValue};

use super::{Command, Policy, RosterPage, Subscription, Target, Token};
use crate::{
    ChannelName, Code, Error, JSON_DEPTH_MAX, Kind, NewPublication, RpcCall, Since, TraceContext,
    publication::is_too_deep,
};

/// Maximum number of positions in one `subscribe` to a pattern.
pub const POSITIONS_MAX: usize = 10_000;

/// Decodes one command. The id is returned even if the command is bad, so that the error reply can carry it. Id 0
/// is reserved for the server: a client that sends it gets an error without an id.
///
/// Errors: [`Code::BadJson`] if the text is not a command; otherwise the code of the first bad part.
pub fn decode_command(text: &str) -> (Option<u64>, Result<Command, Error>) {
    let fields = match serde_json::from_str::<Object<CommandFields<'_>>>(text) {
        Ok(Object(fields)) => fields,
        Err(error) => {
            #[derive(Deserialize)]
            struct OnlyId {
                id: u64,
            }
            let id = serde_json::from_str::<Object<OnlyId>>(text).ok().map(|Object(only)| only.id);
            return (id.filter(|id| *id > 0), Err(Error::new(Code::BadJson, error.to_string())));
        }
    };
    match fields.id {
        0 => (None, Err(Error::new(Code::BadJson, "`id` is a whole number from 1"))),
        id => (Some(id), fields.decode()),
    }
}

/// Decodes one line of a batch: `{"channel", "data", "key"?, "ttl"?, "encoding"?, "idempotency_key"?, "if_match"?,
/// "trace"?}`, or `{"channel", "key", "delete": true, "idempotency_key"?, "if_match"?, "trace"?}`.
pub fn decode_publish(line: &str) -> Result<(ChannelName, NewPublication), Error> {
    let fields = serde_json::from_str::<Object<PublishFields<'_>>>(line);
    fields.map_err(|e| Error::new(Code::BadJson, e.to_string()))?.0.decode()
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

/// Converts seconds to milliseconds. Errors: [`Code::BadRequest`] unless the value is a positive, finite number.
pub fn ttl_ms(seconds: f64) -> Result<u64, Error> {
    if !(seconds.is_finite() && seconds > 0.0) {
        return Err(Error::new(Code::BadRequest, "the time to live must be a positive number of seconds"));
    }
    Ok((seconds * 1000.0).min(u64::MAX as f64 / 2.0) as u64)
}

/// Message of a client: an id, and exactly one command with its fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandFields<'a> {
    id: u64,
    subscribe: Option<Object<SubscribeFields>>,
    unsubscribe: Option<Object<ChannelFields>>,
    #[serde(borrow)]
    publish: Option<Object<PublishFields<'a>>>,
    presence: Option<Object<PresenceFields>>,
    history: Option<Object<HistoryFields>>,
    #[serde(borrow)]
    rpc: Option<Object<RpcFields<'a>>>,
    refresh: Option<Object<RefreshFields>>,
    ping: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubscribeFields {
    channel: String,
    since: Option<RangeBound>,
    policy: Option<String>,
    positions: Option<HashMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChannelFields {
    channel: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PresenceFields {
    channel: String,
    #[serde(default)]
    members: bool,
    limit: Option<usize>,
    after: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RpcFields<'a> {
    method: String,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    /// Deadline in seconds.
    timeout: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RefreshFields {
    token: Token,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryFields {
    channel: String,
    since: Option<RangeBound>,
    until: Option<RangeBound>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishFields<'a> {
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
enum RangeBound {
    String(String),
    Number(u64),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields)).map(Object)
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

impl RangeBound {
    fn parse(bound: Option<Self>, default: Since) -> Result<Since, Error> {
        match bound {
            None => Ok(default),
            Some(RangeBound::String(text)) => text.parse(),
            Some(RangeBound::Number(ms)) => Ok(Since::Time(ms)),
        }
    }
}

impl CommandFields<'_> {
    fn decode(self) -> Result<Command, Error> {
        let mut commands = Vec::with_capacity(1);
        if let Some(Object(fields)) = self.subscribe {
            commands.push(Command::Subscribe(fields.decode()?));
        }
        if let Some(Object(fields)) = self.unsubscribe {
            commands.push(Command::Unsubscribe { target: Target::parse(&fields.channel)? });
        }
        if let Some(Object(fields)) = self.publish {
            let (channel, publication) = fields.decode()?;
            commands.push(Command::Publish { channel, publication });
        }
        if let Some(Object(fields)) = self.presence {
            let page = || RosterPage::parse(fields.limit, fields.after.as_deref());
            let members = match (fields.members, fields.limit.is_some() || fields.after.is_some()) {
                (true, _) => Some(page()?),
                (false, false) => None,
                (false, true) => {
                    return Err(Error::new(Code::BadRequest, "`limit` and `after` apply only to `\"members\": true`"));
                }
            };
            commands.push(Command::Presence { channel: ChannelName::parse(&fields.channel)?, members });
        }
        if let Some(Object(fields)) = self.history {
            let since = RangeBound::parse(fields.since, Since::Earliest)?;
            let until = fields.until.map(|until| RangeBound::parse(Some(until), Since::Now)).transpose()?;
            if let Some(until) = until {
                since.check_until(until)?;
            }
            let limit = fields.limit.unwrap_or(100);
            if !(1..=1000).contains(&limit) {
                return Err(Error::new(Code::BadRequest, "`limit` is 1 to 1000"));
            }
            commands.push(Command::History { channel: ChannelName::parse(&fields.channel)?, since, until, limit });
        }
        if let Some(Object(fields)) = self.rpc {
            commands.push(Command::Rpc(RpcCall::new(
                &fields.method,
                fields.params.map(RawValue::get),
                fields.timeout,
            )?));
        }
        if let Some(Object(fields)) = self.refresh {
            commands.push(Command::Refresh { token: fields.token });
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

impl SubscribeFields {
    pub(crate) fn decode(self) -> Result<Subscription, Error> {
        let positions = self.positions.unwrap_or_default();
        if positions.len() > POSITIONS_MAX {
            return Err(Error::new(Code::TooMany, format!("at most {POSITIONS_MAX} positions")));
        }
        let positions = positions.iter().map(|(name, at)| Ok((ChannelName::parse(name)?, at.parse()?)));
        let subscription = Subscription {
            target: Target::parse(&self.channel)?,
            since: RangeBound::parse(self.since, Since::Now)?,
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

/// Decodes the field `trace`. Its text needs no escapes in JSON, so an escaped one is malformed.
fn decode_trace(raw: &RawValue) -> Option<TraceContext> {
    let text = raw.get().strip_prefix('"')?.strip_suffix('"')?;
    TraceContext::parse(text.as_bytes()).ok()
}

impl PublishFields<'_> {
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
