//! Operator requests: lists and changes the channels and connections of a cluster.
//!
//! Source: docs/reference/admin.md.

use std::time::Duration;

use serde_json::Value;

use crate::{
    http::{body, cause, query_value},
    problem::Problem,
    server::Server,
    tls,
};

/// Timeout of a request. The server waits at most three seconds for other nodes.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Sends operator requests to one server, for the whole cluster.
pub struct Operator {
    server: Server,
    http: reqwest::Client,
}

/// Reasons why an operator request has failed.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    #[error("cannot create an HTTP client: {0}")]
    Client(String),
    /// The server was not reached, or the connection failed.
    #[error("{server}: {cause}")]
    Unreachable { server: String, cause: String },
    /// The server has refused the request.
    #[error(transparent)]
    Refused(#[from] Problem),
    #[error("unexpected response: {0}")]
    Response(#[from] serde_json::Error),
}

impl Operator {
    /// Errors: [`OperatorError::Client`].
    pub fn new(server: Server) -> Result<Self, OperatorError> {
        let http = tls::http().timeout(TIMEOUT).build();
        Ok(Self { server, http: http.map_err(|error| OperatorError::Client(cause(&error)))? })
    }

    /// Sends a request such as `channels` with the parameters that are set, and returns the answer.
    ///
    /// Errors: [`OperatorError`].
    pub async fn get(
        &self,
        name: &str,
        parameters: impl Iterator<Item = (&str, Option<&str>)>,
    ) -> Result<Value, OperatorError> {
        let set = parameters.filter_map(|(name, value)| Some(format!("{name}={}", query_value(value?))));
        let query = set.collect::<Vec<_>>().join("&");
        self.send(self.http.get(self.server.http(&format!("/v1/admin/{name}?{query}")))).await
    }

    /// Sends a change such as `disconnect`, and returns the answer.
    ///
    /// Errors: [`OperatorError`].
    pub async fn post(&self, name: &str, body: &Value) -> Result<Value, OperatorError> {
        self.send(self.http.post(self.server.http(&format!("/v1/admin/{name}"))).body(body.to_string())).await
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Value, OperatorError> {
        let unreachable = |cause: String| OperatorError::Unreachable { server: self.server.shown(), cause };
        let request = match self.server.authorization() {
            Some((name, bearer)) => request.header(name, bearer),
            None => request,
        };
        let response = request.send().await.map_err(|error| unreachable(cause(&error)))?;
        let status = response.status();
        let body = body(response).await.map_err(|error| unreachable(error.to_string()))?;
        match status.is_success() {
            true => Ok(serde_json::from_slice(&body)?),
            false => Err(Problem::of(status.as_u16(), &body).into()),
        }
    }
}
