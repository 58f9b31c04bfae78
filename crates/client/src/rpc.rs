//! Remote procedure calls: a call is sent once, because the application may execute it without an answer.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::http::{BodyError, body, cause, query_value};
use crate::problem::Problem;
use crate::server::Server;

/// Time by which the server's answer may be later than the deadline that the server enforces.
const GRACE: Duration = Duration::from_secs(5);
/// Deadline of a call without one. The server's own limit is usually shorter.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Reason why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    /// The server or the application refuses. [`Problem::reason`] is the application's own code.
    #[error("the call is refused: {0}")]
    Refused(Problem),
    /// The request failed. Unless [`RpcError::is_unsent`], the application may have executed the call.
    #[error("the call was not answered: {cause}")]
    Unanswered { cause: String, is_unsent: bool },
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("the answer is not JSON with a `result`")]
    Malformed,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    result: Value,
}

impl RpcError {
    /// Returns true if the application has certainly not received the call, so that a repetition is safe.
    pub fn is_unsent(&self) -> bool {
        match self {
            RpcError::Refused(problem) => problem.retry,
            RpcError::Unanswered { is_unsent, .. } => *is_unsent,
            RpcError::Body(_) | RpcError::Malformed => false,
        }
    }
}

/// Calls a method of the application's back end and returns its result.
///
/// Cost: one request. Dropping the future withdraws the call over HTTP/2.
/// Errors: see [`RpcError`].
pub async fn call(
    client: &reqwest::Client,
    server: &Server,
    method: &str,
    params: &Value,
    timeout: Option<Duration>,
) -> Result<Value, RpcError> {
    let mut request = client.post(server.http(&format!("/v1/rpc/{}", query_value(method))));
    request = request.header("Content-Type", "application/json").body(params.to_string());
    request = request.timeout(timeout.unwrap_or(TIMEOUT) + GRACE);
    if let Some(timeout) = timeout {
        request = request.header("Millrace-Timeout", timeout.as_secs_f64().to_string());
    }
    if let Some((name, bearer)) = server.authorization() {
        request = request.header(name, bearer);
    }
    let response = request.send().await.map_err(|error| {
        let is_unsent = error.is_connect() || error.is_builder();
        RpcError::Unanswered { cause: cause(&error), is_unsent }
    })?;
    let status = response.status();
    let answer = body(response).await?;
    match status.is_success() {
        true => serde_json::from_slice(&answer).map(|Answer { result }| result).map_err(|_| RpcError::Malformed),
        false => Err(RpcError::Refused(Problem::of(status.as_u16(), &answer))),
    }
}
