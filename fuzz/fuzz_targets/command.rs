//! Fuzzes commands of a session and lines of a batch: decodes, encodes and decodes them again. Input: JSON, one value
//! per line.

#![no_main]

use std::collections::HashMap;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use libfuzzer_sys::fuzz_target;
use millrace_protocol::{
    Expected, KEY_BYTES_MAX, Kind, NewPublication, Since,
    session::{Command, RosterPage, decode_command, decode_publish, encode_error_push, encode_reply},
};
use serde_json::{Value, json, value::RawValue};

fuzz_target!(|text: &str| {
    for line in text.split('\n').take(16) {
        command(line);
        publication(line);
    }
});

fn command(text: &str) {
    let (id, command) = decode_command(text);
    // Not a `Value`: a payload may contain numbers that `Value` cannot hold.
    let fields: Option<HashMap<String, &RawValue>> = serde_json::from_str(text).ok();
    let written = fields.map(|fields| fields.get("id").and_then(|id| id.get().parse().ok().filter(|id| *id > 0)));
    match command {
        Ok(command) => {
            let id = id.expect("a command has an id");
            assert_eq!(written, Some(Some(id)));
            let said = encode(id, &command);
            let (same_id, same) = decode_command(&said);
            assert_eq!((same_id, same.expect(&said)), (Some(id), command), "{said}");
        }
        Err(error) => {
            assert!((400..500).contains(&error.code.status()), "{error}");
            let said = match id {
                Some(id) => encode_reply(id, &Err(error)),
                None => encode_error_push(&error),
            };
            let said: Value = serde_json::from_str(&said).expect("JSON");
            assert_eq!(said.get("id").and_then(Value::as_u64), id);
            // A response must carry the id if the command has exactly one.
            if let Some(written) = written
                && text.matches("id").count() == 1
                && !text.contains('\\')
            {
                assert_eq!(id, written, "{text}");
            }
        }
    }
}

/// Checks that a batch line decodes like the `publish` command of a session.
fn publication(line: &str) {
    let alone = decode_publish(line);
    let (_, command) = decode_command(&format!("{{\"id\":1,\"publish\":{line}}}"));
    match (alone, command) {
        (Ok((channel, publication)), Ok(Command::Publish { channel: same_channel, publication: same })) => {
            assert_eq!((&channel, &publication), (&same_channel, &same));
            let keys = [&publication.key, &publication.idempotency_key];
            assert!(keys.into_iter().flatten().all(|key| key.len() <= KEY_BYTES_MAX));
            assert!(publication.data.len() <= line.len(), "a payload is no longer than its spelling");
        }
        (Err(_), Err(_)) => {}
        // The line closes the command's object and appends more fields.
        (Err(_), Ok(_)) => assert!(serde_json::from_str::<&RawValue>(line).is_err(), "{line}"),
        (alone, command) => panic!("{alone:?} {command:?}"),
    }
}

/// Encodes a command as a client does.
fn encode(id: u64, command: &Command) -> String {
    let command = match command {
        Command::Subscribe(subscription) => json!({ "subscribe": subscription.to_json() }),
        Command::Unsubscribe { target } => json!({ "unsubscribe": { "channel": target.as_str() } }),
        Command::Presence { channel, members } => {
            let mut body = json!({ "channel": channel.as_str() });
            if let Some(RosterPage { since, limit }) = members {
                body["members"] = true.into();
                body["limit"] = (*limit).into();
                if *since != Since::State {
                    body["after"] = place(*since);
                }
            }
            json!({ "presence": body })
        }
        Command::Refresh { token } => json!({ "refresh": { "token": token.as_str() } }),
        Command::Ping => json!({ "ping": {} }),
        Command::History { channel, since, until, limit } => {
            let mut body = json!({ "channel": channel.as_str(), "limit": limit, "since": place(*since) });
            if let Some(until) = until {
                body["until"] = place(*until);
            }
            json!({ "history": body })
        }
        // Keeps the original text: a `Value` would change numbers.
        Command::Publish { channel, publication } => {
            return format!("{{\"publish\":{},\"id\":{id}}}", encode_publication(channel.as_str(), publication));
        }
        Command::Rpc(call) => {
            let params = call.params.as_ref().map(|params| format!(",\"params\":{params}")).unwrap_or_default();
            // A positive time below half a nanosecond is decoded as zero, which is refused when it is written as 0.
            let timeout = call.timeout.map(|timeout| format!(",\"timeout\":{}", timeout.as_secs_f64().max(1e-10)));
            let (method, timeout) = (call.method.as_str(), timeout.unwrap_or_default());
            return format!("{{\"rpc\":{{\"method\":\"{method}\"{params}{timeout}}},\"id\":{id}}}");
        }
    };
    let Value::Object(mut fields) = command else { unreachable!("all are objects") };
    fields.insert("id".into(), id.into());
    Value::from(fields).to_string()
}

fn place(since: Since) -> Value {
    match since {
        Since::Time(ms) => ms.into(),
        since => since.to_string().into(),
    }
}

fn encode_publication(channel: &str, publication: &NewPublication) -> String {
    let mut body = json!({ "channel": channel });
    let text = || std::str::from_utf8(&publication.data).expect("text is UTF-8");
    let data = match publication.kind {
        Kind::Json => text().to_owned(),
        Kind::Binary => {
            body["encoding"] = "base64".into();
            json!(BASE64_STANDARD.encode(&*publication.data)).to_string()
        }
        Kind::Text | Kind::Utf8 => json!(text()).to_string(),
    };
    for (name, value) in [("key", &publication.key), ("idempotency_key", &publication.idempotency_key)] {
        if let Some(value) = value {
            body[name] = value.as_ref().into();
        }
    }
    match publication.expected {
        Some(Expected::Absent) => body["if_match"] = "0".into(),
        Some(Expected::At(position)) => body["if_match"] = position.to_string().into(),
        None => {}
    }
    if publication.is_deletion {
        body["delete"] = true.into();
        return body.to_string();
    }
    // Milliseconds as seconds: exact within the precision of a double. The decoder truncates fractions of a
    // millisecond.
    if let Some(ms) = publication.ttl_ms {
        body["ttl"] = ((ms as f64 + 0.5) / 1000.0).into();
    }
    let body = body.to_string();
    format!("{},\"data\":{data}}}", &body[..body.len() - 1])
}
