use std::rc::Rc;

use bytes::Bytes;
use millrace_protocol::{Code, Error, session::Target};
use millrace_transport::http::Query;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{
    Admin,
    endpoints::{Action, AdminEndpoint},
    filter::Filter,
    nodes::{Gathered, NodeQuestion},
};
use crate::auth::Revoked;

/// Maximum number of items in one response, and their number by default.
pub const LIMIT_MAX: usize = 1000;
const LIMIT: usize = 100;
/// Time after which tokens expire that a refresh shortens, by default and at most, in seconds.
const WITHIN_S: u64 = 30;
const WITHIN_S_MAX: u64 = 24 * 60 * 60;

/// A request whose sender may send it.
pub struct Request {
    pub asked: &'static AdminEndpoint,
    pub query: String,
    pub body: Bytes,
}

/// Body of a revocation: `{"jti": ..}` or `{"sub": ..}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RevokeBody {
    jti: Option<String>,
    sub: Option<String>,
}

impl Admin {
    /// Answers an operator request.
    ///
    /// Errors: `bad_request`, `bad_json`, `bad_channel`, `not_found`, `too_many`, `unavailable`.
    pub async fn handle(self: &Rc<Self>, Request { asked, query, body }: Request) -> Result<Value, Error> {
        match &asked.action {
            Action::View { answer, .. } => answer(self, &query).await,
            Action::Change(change) => {
                no_parameters(&query)?;
                change(self, object(&body)?).await
            }
        }
    }

    /// Closes connections.
    pub async fn disconnect(&self, body: Map<String, Value>) -> Result<Value, Error> {
        let filter = named(decode(body)?)?;
        self.change_all("disconnected", NodeQuestion::Disconnect { filter }).await
    }

    /// Ends subscriptions.
    pub async fn unsubscribe(&self, body: Map<String, Value>) -> Result<Value, Error> {
        let filter: Filter = decode(body)?;
        let channel = filter.channel.as_deref().ok_or_else(|| {
            let detail = "name the subscription to end: {\"channel\": ..}, a channel or a pattern";
            Error::new(Code::BadRequest, detail)
        });
        Target::parse(channel?)?;
        self.change_all("unsubscribed", NodeQuestion::Unsubscribe { filter }).await
    }

    /// Shortens the lifetime of tokens of open connections.
    pub async fn refresh(&self, body: Map<String, Value>) -> Result<Value, Error> {
        let (within_s, filter) = refresh_body(body)?;
        self.change_all("refreshed", NodeQuestion::Refresh { filter, within_s }).await
    }

    async fn change_all(&self, done: &str, question: NodeQuestion) -> Result<Value, Error> {
        let gathered = self.gather(&question).await?;
        let count = gathered.count();
        tracing::info!(done, count, missing = gathered.missing.len(), "an operator changed connections");
        Ok(Gathered::with_missing(gathered.missing, json!({ done: count })))
    }

    /// Revokes a token, or all tokens of a subject.
    pub async fn revoke(&self, body: Map<String, Value>) -> Result<Value, Error> {
        let revoked = match decode(body)? {
            RevokeBody { jti: Some(id), sub: None } => Revoked::Id(id),
            // Tokens issued in this second are revoked, too.
            RevokeBody { jti: None, sub: Some(subject) } => Revoked::Subject { subject, before_s: (self.now_s)() + 1 },
            _ => return Err(Error::new(Code::BadRequest, "name what to revoke: {\"jti\": ..} or {\"sub\": ..}")),
        };
        let until_s = self.auth.revoked_until_s();
        let question = NodeQuestion::Revoke { revoked: revoked.clone(), until_s };
        let (gathered, stored) = tokio::join!(self.gather(&question), self.store_revocation(&revoked, until_s));
        let gathered = gathered?;
        tracing::info!(missing = gathered.missing.len(), "an operator revoked a token or a subject");
        if let Err(error) = stored {
            let detail = format!(
                "revoked on {} nodes, but not stored for nodes that start later or have not answered; send the request \
                 again: {}",
                gathered.answers.len(),
                error.detail
            );
            return Err(Error { detail, ..error });
        }
        Ok(Gathered::with_missing(gathered.missing, json!({ "revoked": true })))
    }
}

/// Checks that a request has no parameters.
///
/// Errors: [`Code::BadRequest`].
pub fn no_parameters(query: &str) -> Result<(), Error> {
    Query::parse_text(query, &[], &[]).map(drop)
}

/// Parses a JSON object.
///
/// Errors: [`Code::BadJson`].
fn object(body: &[u8]) -> Result<Map<String, Value>, Error> {
    serde_json::from_slice(body).map_err(|error| Error::new(Code::BadJson, error.to_string()))
}

/// Decodes the fields of a body.
///
/// Errors: [`Code::BadJson`].
pub fn decode<T: DeserializeOwned>(body: Map<String, Value>) -> Result<T, Error> {
    serde_json::from_value(Value::Object(body)).map_err(|error| Error::new(Code::BadJson, error.to_string()))
}

/// Refuses a filter that would select every connection.
fn named(filter: Filter) -> Result<Filter, Error> {
    match filter.is_empty() {
        false => Ok(filter),
        true => Err(Error::new(
            Code::BadRequest,
            "name the connections by at least one of `id`, `subject`, `address`, `transport` and `channel`",
        )),
    }
}

fn refresh_body(mut body: Map<String, Value>) -> Result<(u64, Filter), Error> {
    let within_s = match body.remove("within_s") {
        None => WITHIN_S,
        Some(within_s) => within_s.as_u64().filter(|within_s| *within_s <= WITHIN_S_MAX).ok_or_else(|| {
            Error::new(Code::BadRequest, format!("`within_s` is a number of seconds from 0 to {WITHIN_S_MAX}"))
        })?,
    };
    Ok((within_s, named(decode(body)?)?))
}

/// Returns the parameter `limit`.
pub fn limit(query: &Query<'_>) -> Result<usize, Error> {
    let Some(text) = query.get("limit") else { return Ok(LIMIT) };
    let limit = text.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
    limit.ok_or_else(|| Error::new(Code::BadRequest, format!("`limit` is 1 to {LIMIT_MAX}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_objects_with_known_fields() {
        let filter = |body: &str| object(body.as_bytes()).and_then(decode::<Filter>).and_then(named);
        assert!(filter(r#"{"subject": "ann", "transport": "sse"}"#).is_ok());
        for (body, code) in [
            ("", Code::BadJson),
            ("[\"ab-1-2-3\"]", Code::BadJson),
            ("null", Code::BadJson),
            (r#"{"subject": 5}"#, Code::BadJson),
            (r#"{"subjekt": "ann"}"#, Code::BadJson),
            (r#"{"address": "127.0.0.1:80"}"#, Code::BadJson),
            ("{}", Code::BadRequest),
        ] {
            assert_eq!(filter(body).unwrap_err().code, code, "{body}");
        }
    }

    #[test]
    fn refresh_time_is_bounded() {
        let refresh = |body: &str| refresh_body(object(body.as_bytes()).unwrap());
        assert_eq!(refresh(r#"{"subject": "ann"}"#).unwrap().0, WITHIN_S);
        assert_eq!(refresh(r#"{"subject": "ann", "within_s": 0}"#).unwrap().0, 0);
        for within_s in ["-1", "1.5", "86401", "\"5\"", "null"] {
            let body = format!(r#"{{"subject": "ann", "within_s": {within_s}}}"#);
            assert_eq!(refresh(&body).unwrap_err().code, Code::BadRequest, "{within_s}");
        }
        assert_eq!(refresh(r#"{"within_s": 5}"#).unwrap_err().code, Code::BadRequest, "it would select everyone");
    }
}
