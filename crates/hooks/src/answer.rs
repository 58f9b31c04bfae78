//! The JSON of answers. Unknown fields are ignored, so that a back end may send more than this version knows.
//!
//! Source: docs/reference/hooks.md, "Answers".

use std::{borrow::Cow, sync::Arc, time::Duration};

use millrace_protocol::{ChannelName, Error, Kind, NewPublication, Pattern, Permission, session::decode_data};
use millrace_transport::admission::hooks::ConnectAnswer;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Maximum length of the back end's own code, in bytes.
const CODE_BYTES_MAX: usize = 64;
/// Maximum length of the back end's text, in bytes.
const DETAIL_BYTES_MAX: usize = 512;
/// Maximum length of a subject, in bytes.
const SUBJECT_BYTES_MAX: usize = 255;
/// Maximum size of the information about a member, in bytes.
pub const INFO_BYTES_MAX: usize = 4096;
/// Maximum number of grants, and of channels to subscribe to.
const LIST_MAX: usize = 100;
/// Maximum time for which an answer may be reused.
const TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Text for the client if the back end sends none.
const NO_DETAIL: &str = "the application refuses";

/// An answer that does not have the documented form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer is not valid: {0}")]
pub struct InvalidAnswer(String);

/// A decision, and how long it may be reused.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<T> {
    /// The allowance, or the refusal for the client.
    pub allowed: Result<T, Error>,
    /// `None`: the answer counts once.
    pub ttl: Option<Duration>,
}

/// Replacement of a payload; `None` leaves the payload unchanged.
pub type Replacement = Option<(Kind, Vec<u8>)>;

#[derive(Deserialize)]
struct Common<'a> {
    allow: Option<bool>,
    ttl_s: Option<f64>,
    #[serde(borrow)]
    code: Option<Cow<'a, str>>,
    #[serde(borrow)]
    detail: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Connect<'a> {
    subject: Option<String>,
    #[serde(borrow)]
    info: Option<&'a RawValue>,
    #[serde(default)]
    grants: Vec<Grant>,
    #[serde(default)]
    subscribe: Vec<String>,
    expires_s: Option<u64>,
}

#[derive(Deserialize)]
struct Grant {
    permission: Permission,
    pattern: String,
}

#[derive(Deserialize)]
struct Publish<'a> {
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    encoding: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Rpc<'a> {
    /// `null` is a result, too.
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<RpcError<'a>>,
}

#[derive(Deserialize)]
struct RpcError<'a> {
    #[serde(borrow)]
    code: Option<Cow<'a, str>>,
    #[serde(borrow)]
    detail: Option<Cow<'a, str>>,
}

/// Decodes an answer to `connect`.
pub fn connect(body: &[u8]) -> Result<Decision<ConnectAnswer>, InvalidAnswer> {
    decide(body, |body| {
        let Connect { subject, info, grants, subscribe, expires_s } = parse(body)?;
        if subject.as_ref().is_some_and(|subject| subject.is_empty() || subject.len() > SUBJECT_BYTES_MAX) {
            return Err(InvalidAnswer(format!("`subject` has 1 to {SUBJECT_BYTES_MAX} bytes")));
        }
        if info.is_some_and(|info| info.get().len() > INFO_BYTES_MAX) {
            return Err(InvalidAnswer(format!("`info` has at most {INFO_BYTES_MAX} bytes")));
        }
        if grants.len() > LIST_MAX || subscribe.len() > LIST_MAX {
            return Err(InvalidAnswer(format!("`grants` and `subscribe` have at most {LIST_MAX} entries")));
        }
        let invalid = |error: Error| InvalidAnswer(error.to_string());
        let grants =
            grants.into_iter().map(|Grant { permission, pattern }| Ok((permission, Pattern::parse(&pattern)?)));
        let channels = subscribe.iter().map(|name| ChannelName::parse(name));
        Ok(ConnectAnswer {
            subject: subject.map(Arc::from),
            info: info.map(|info| info.get().into()),
            grants: grants.collect::<Result<_, Error>>().map_err(invalid)?,
            subscribe: channels.collect::<Result<_, Error>>().map_err(invalid)?,
            expires_s,
        })
    })
}

/// Decodes an answer to `subscribe`.
pub fn subscribe(body: &[u8]) -> Result<Decision<()>, InvalidAnswer> {
    decide(body, |_| Ok(()))
}

/// Decodes an answer to `publish`. An answer with a payload is not reused.
pub fn publish(body: &[u8]) -> Result<Decision<Replacement>, InvalidAnswer> {
    let mut decision = decide(body, |body| {
        let Publish { data, encoding } = parse(body)?;
        let Some(data) = data else { return Ok(None) };
        let (kind, data) =
            decode_data(data.get(), encoding.as_deref()).map_err(|error| InvalidAnswer(error.to_string()))?;
        Ok(Some((kind, data.into_owned())))
    })?;
    if matches!(decision.allowed, Ok(Some(_))) {
        decision.ttl = None;
    }
    Ok(decision)
}

/// Decodes an answer to `rpc`: `{"result": ..}`, `{"error": {"code", "detail"}}`, or a refusal.
pub fn rpc(body: &[u8]) -> Result<Decision<String>, InvalidAnswer> {
    let Rpc { result, error } = parse(body)?;
    let refusal = parse::<Common<'_>>(body)?;
    let allowed = match (result, error, refusal.allow) {
        (Some(result), None, None | Some(true)) => Ok(result.get().to_owned()),
        (None, Some(RpcError { code, detail }), _) => Err(refused(code.as_deref(), detail.as_deref())),
        (None, None, Some(false)) => Err(refused(refusal.code.as_deref(), refusal.detail.as_deref())),
        _ => return Err(InvalidAnswer("it has neither `result` nor `error`".to_owned())),
    };
    Ok(Decision { allowed, ttl: None })
}

/// Replaces the payload of a publication. A deletion has none.
pub fn replace(publication: NewPublication, replacement: Replacement) -> NewPublication {
    match replacement {
        Some((kind, data)) if !publication.is_deletion => {
            let NewPublication { data, kind, .. } = NewPublication::new(kind, data).with_trailer(publication.trailer());
            NewPublication { data, kind, ..publication }
        }
        _ => publication,
    }
}

fn decide<T>(
    body: &[u8],
    allowed: impl FnOnce(&[u8]) -> Result<T, InvalidAnswer>,
) -> Result<Decision<T>, InvalidAnswer> {
    let Common { allow, ttl_s, code, detail } = parse(body)?;
    let allowed = match allow {
        Some(true) => Ok(allowed(body)?),
        Some(false) => Err(refused(code.as_deref(), detail.as_deref())),
        None => return Err(InvalidAnswer("`allow` is missing".to_owned())),
    };
    let ttl = ttl_s.filter(|ttl_s| *ttl_s > 0.0).map(|ttl_s| Duration::from_secs_f64(ttl_s.min(TTL_MAX.as_secs_f64())));
    Ok(Decision { allowed, ttl })
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, InvalidAnswer> {
    // serde would also accept an array with the values of the fields.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(InvalidAnswer("it is not a JSON object".to_owned()));
    }
    // The message of serde may repeat parts of the answer.
    serde_json::from_slice(body).map_err(|error| {
        InvalidAnswer(format!("line {}, column {} is not as documented", error.line(), error.column()))
    })
}

fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Returns the error of a refusal. Code and text are bounded, and contain no control characters.
fn refused(code: Option<&str>, detail: Option<&str>) -> Error {
    let letter = |c: char| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '_' };
    let code = code
        .filter(|code| !code.is_empty())
        .map(|code| code.chars().take(CODE_BYTES_MAX).map(letter).collect::<String>());
    let mut text = String::new();
    for c in detail.unwrap_or_default().chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if text.len() + c.len_utf8() > DETAIL_BYTES_MAX {
            break;
        }
        text.push(c);
    }
    let text = Some(text).filter(|text| !text.trim().is_empty());
    Error::refused(code.as_deref(), text.as_deref().unwrap_or(NO_DETAIL))
}

#[cfg(test)]
mod tests {
    use millrace_protocol::Code;

    use super::*;

    #[test]
    fn decisions_are_decoded() {
        assert_eq!(subscribe(br#"{"allow":true}"#), Ok(Decision { allowed: Ok(()), ttl: None }));
        let kept = subscribe(br#"{"allow":true,"ttl_s":60,"later":1}"#).unwrap();
        assert_eq!(kept.ttl, Some(Duration::from_secs(60)));
        assert_eq!(subscribe(br#"{"allow":true,"ttl_s":1e300}"#).unwrap().ttl, Some(TTL_MAX));
        assert_eq!(subscribe(br#"{"allow":true,"ttl_s":-1}"#).unwrap().ttl, None);
        for bad in ["", "{", "[]", "[true]", "null", "{}", r#"{"allow":"yes"}"#, r#"{"allow":true} x"#, "\u{feff}{}"] {
            assert!(subscribe(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn refusal_is_bounded_and_sanitized() {
        let refusal = |body: String| subscribe(body.as_bytes()).unwrap().allowed.unwrap_err();
        let error = refusal(r#"{"allow":false,"code":"no credit\n","detail":"line 1\nline\u00002"}"#.into());
        assert_eq!((error.code, error.reason.as_deref()), (Code::Refused, Some("no_credit_")));
        assert_eq!(error.detail, "line 1 line 2");
        let long = refusal(format!(r#"{{"allow":false,"code":"{}","detail":"{}"}}"#, "c".repeat(999), "ü".repeat(999)));
        assert_eq!(long.reason.map(|code| code.len()), Some(CODE_BYTES_MAX));
        assert_eq!(long.detail.len(), DETAIL_BYTES_MAX);
        let bare = refusal(r#"{"allow":false,"code":"","detail":" "}"#.into());
        assert_eq!((bare.reason, bare.detail.as_str()), (None, NO_DETAIL));
    }

    #[test]
    fn connect_answer_is_checked() {
        let body = br#"{"allow":true,"subject":"ann","info":{"name" : "Ann"},"expires_s":9,"subscribe":["news"],
            "grants":[{"permission":"publish","pattern":"rooms/+/chat"}]}"#;
        let answer = connect(body).unwrap().allowed.unwrap();
        assert_eq!((answer.subject.as_deref(), answer.info.as_deref()), (Some("ann"), Some(r#"{"name" : "Ann"}"#)));
        assert_eq!((answer.grants.len(), answer.subscribe.len(), answer.expires_s), (1, 1, Some(9)));
        for bad in [
            r#"{"allow":true,"subject":""}"#.to_owned(),
            r#"{"allow":true,"grants":[{"permission":"dance","pattern":"a"}]}"#.to_owned(),
            r#"{"allow":true,"grants":[{"permission":"publish","pattern":"a b"}]}"#.to_owned(),
            r#"{"allow":true,"subscribe":["a/+"]}"#.to_owned(),
            format!(r#"{{"allow":true,"info":"{}"}}"#, "x".repeat(INFO_BYTES_MAX)),
            format!(r#"{{"allow":true,"subscribe":[{}"a"]}}"#, r#""a","#.repeat(LIST_MAX)),
        ] {
            assert!(connect(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn replaced_payload_is_decoded_and_not_reused() {
        let replaced = publish(br#"{"allow":true,"ttl_s":60,"data":{"a" : 1}}"#).unwrap();
        assert_eq!(replaced, Decision { allowed: Ok(Some((Kind::Json, br#"{"a" : 1}"#.to_vec()))), ttl: None });
        let binary = publish(br#"{"allow":true,"data":"//4=","encoding":"base64"}"#).unwrap().allowed;
        assert_eq!(binary, Ok(Some((Kind::Binary, vec![0xff, 0xfe]))));
        assert!(publish(br#"{"allow":true,"ttl_s":60}"#).unwrap().ttl.is_some());
        assert!(publish(br#"{"allow":true,"data":"a","encoding":"gzip"}"#).is_err());
        let mut publication = NewPublication::new(Kind::Text, "before");
        publication.key = Some("k".into());
        let after = replace(publication, Some((Kind::Json, b"1".to_vec())));
        assert_eq!((after.kind, &*after.data, after.key.as_deref()), (Kind::Json, b"1".as_slice(), Some("k")));
    }

    #[test]
    fn rpc_has_result_or_error() {
        assert_eq!(rpc(br#"{"result":{"a" : 1}}"#).unwrap().allowed, Ok(r#"{"a" : 1}"#.to_owned()));
        assert_eq!(rpc(br#"{"result":null}"#).map(|decision| decision.allowed), Ok(Ok("null".to_owned())));
        let error =
            rpc(br#"{"error":{"code":"no_car","detail":"there is no such car"}}"#).unwrap().allowed.unwrap_err();
        assert_eq!((error.reason.as_deref(), error.detail.as_str()), (Some("no_car"), "there is no such car"));
        assert!(rpc(br#"{"allow":false,"code":"x"}"#).unwrap().allowed.is_err());
        for bad in ["{}", r#"{"allow":true}"#, r#"{"result":1,"error":{}}"#] {
            assert!(rpc(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
