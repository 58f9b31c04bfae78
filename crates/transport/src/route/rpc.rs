//! Remote procedure calls over HTTP.

use http::{HeaderName, request::Parts};
use hyper::body::Incoming;
use millrace_protocol::{Code, Error, RpcCall};

use super::{context::Context, decode, publish::RequestPublisher};
use crate::{
    admission::{Publisher, read_body},
    http::{Query, Response, json},
};

static TIMEOUT: HeaderName = HeaderName::from_static("millrace-timeout");

/// Handles `POST /v1/rpc/{method}`: passes the parameters in the body to the app's back end, and returns its result. A
/// call uses the quota of publications.
///
/// Errors: `not_found` if no back end answers the method; `bad_request`, `bad_json`, `too_large`; `refused`,
/// `unavailable` and `no_answer` of the back end.
pub async fn answer(context: &Context, parts: &Parts, body: &mut Incoming, method: &str) -> Result<Response, Error> {
    let caller = context.admission.caller(parts).await?;
    caller.may_anything()?;
    Query::parse(parts, &[])?;
    let bytes_max = context.admission.config().message_bytes_max;
    let params = read_body(&context.admission, &parts.headers, body, bytes_max).await?;
    let text = std::str::from_utf8(&params).map_err(|_| Error::new(Code::BadJson, "the body is not UTF-8"))?;
    if !text.is_empty() {
        serde_json::from_str::<serde::de::IgnoredAny>(text)
            .map_err(|error| Error::new(Code::BadJson, format!("the body is not JSON: {error}")))?;
    }
    let call = RpcCall::new(&decode(method)?, Some(text).filter(|text| !text.is_empty()), timeout_s(parts)?)?;
    let publisher = RequestPublisher { admission: &context.admission, parts, caller: &caller };
    publisher.take_quota(params.len())?;
    let result = context.admission.rpc(publisher.client(), call).await?;
    Ok(json(format!("{{\"result\":{result}}}")))
}

/// Returns the deadline that the client has sent, in seconds. Errors: `bad_request`.
fn timeout_s(parts: &Parts) -> Result<Option<f64>, Error> {
    let Some(value) = parts.headers.get(&TIMEOUT) else { return Ok(None) };
    let seconds = value.to_str().ok().and_then(|text| text.parse().ok());
    seconds.map(Some).ok_or_else(|| Error::new(Code::BadRequest, "`Millrace-Timeout` must be a number of seconds"))
}
