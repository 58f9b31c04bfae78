//! Admin API for operators, on a listener of its own and protected by a token: metrics, settings, connections,
//! disconnects and revocations.
//!
//! Source: docs/reference/admin.md.

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, StatusCode, header, request::Parts};
use millrace_protocol::{Code, Error};
use millrace_transport::{
    Context, Question,
    admin::{Connection, ConnectionFilter, ConnectionKey},
    http::{Response, problem, text},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    auth::{Auth, Revoked},
    config::Secret,
    pages::Site,
};

/// Maximum number of connections in one response.
const CONNECTIONS_MAX: usize = 1000;
/// Timeout of a request to a shard.
const WAIT: Duration = Duration::from_secs(5);

pub struct Admin {
    pub token: Secret,
    pub site: Arc<Site>,
    pub auth: Arc<Auth>,
    /// Current configuration without its secrets.
    pub config: watch::Receiver<Value>,
    pub shards: Vec<mpsc::Sender<Question>>,
    pub now_s: fn() -> u64,
}

/// Body of a revocation: `{"jti": ..}` or `{"sub": ..}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Revoke {
    jti: Option<String>,
    sub: Option<String>,
}

/// Body of a disconnect request: one of these fields, or several.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Filter {
    id: Option<String>,
    subject: Option<String>,
    address: Option<IpAddr>,
}

impl Admin {
    pub async fn answer(&self, parts: Parts, body: Bytes) -> Response {
        self.route(&parts, &body).await.unwrap_or_else(|error| problem(&error))
    }

    async fn route(&self, parts: &Parts, body: &[u8]) -> Result<Response, Error> {
        if !self.is_authorized(parts) {
            let detail = "send `admin.token` as `Authorization: Bearer TOKEN`";
            return Err(Error::new(Code::Unauthorized, detail));
        }
        match (&parts.method, parts.uri.path()) {
            (&Method::GET, "/healthz") => Ok(text(StatusCode::OK, "text/plain", "alive\n")),
            (&Method::GET, "/metrics") => Ok(self.site.metrics()),
            (&Method::GET, "/readyz") => Ok(self.site.readiness()),
            (&Method::GET, "/admin/config") => Ok(json_response(&self.config.borrow())),
            (&Method::GET, "/admin/connections") => self.connections(parts).await,
            (&Method::POST, "/admin/disconnect") => self.disconnect(read(body)?).await,
            (&Method::POST, "/admin/revoke") => self.revoke(read(body)?),
            _ => Err(Error::new(Code::NotFound, "unknown path or method; docs/reference/admin.md lists the requests")),
        }
    }

    /// Checks the admin token in constant time.
    fn is_authorized(&self, parts: &Parts) -> bool {
        let sent = parts.headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let sent = sent.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
        let token = self.token.as_bytes();
        let differs = sent.iter().zip(token).fold(0, |differs, (a, b)| differs | (a ^ b));
        !token.is_empty() && sent.len() == token.len() && differs == 0
    }

    async fn connections(&self, parts: &Parts) -> Result<Response, Error> {
        let bad = |name: &str| Error::new(Code::BadRequest, format!("the parameter `{name}` has an invalid value"));
        let (mut filter, mut after, mut limit) = (ConnectionFilter::default(), None, 100);
        for (name, value) in form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()) {
            match name.as_ref() {
                "id" => filter.id = Some(value.into()),
                "subject" => filter.subject = Some(value.into()),
                "address" => filter.address = Some(value.parse().map_err(|_| bad("address"))?),
                "after" => after = Some(value.parse::<ConnectionKey>().map_err(|_| bad("after"))?),
                "limit" => limit = value.parse::<usize>().map_err(|_| bad("limit"))?.clamp(1, CONNECTIONS_MAX),
                _ => {
                    let known = "the parameters of this URL are id, subject, address, after, limit";
                    return Err(Error::new(Code::BadRequest, format!("unknown parameter `{name}`; {known}")));
                }
            }
        }
        let mut found: Vec<Connection> = Vec::new();
        for shard in 0..self.shards.len() {
            let (filter, left) = (filter.clone(), limit + 1 - found.len());
            found.extend(self.ask(shard, move |context| context.connections(&filter, after, left)).await?);
        }
        let more = found.len() > limit;
        found.truncate(limit);
        Ok(json_response(&json!({ "connections": found, "more": more })))
    }

    async fn disconnect(&self, Filter { id, subject, address }: Filter) -> Result<Response, Error> {
        let filter = ConnectionFilter { id, subject, address };
        if filter == ConnectionFilter::default() {
            let detail = "name the connections: {\"id\": ..}, {\"subject\": ..} or {\"address\": ..}";
            return Err(Error::new(Code::BadRequest, detail));
        }
        let mut closed = 0;
        for shard in 0..self.shards.len() {
            let filter = filter.clone();
            closed += self.ask(shard, move |context| context.disconnect(&filter)).await?;
        }
        tracing::info!(closed, "an operator closed connections");
        Ok(json_response(&json!({ "disconnected": closed })))
    }

    fn revoke(&self, revoke: Revoke) -> Result<Response, Error> {
        let revoked = match revoke {
            Revoke { jti: Some(id), sub: None } => Revoked::Id(id),
            // Tokens issued in this second are revoked, too.
            Revoke { jti: None, sub: Some(subject) } => Revoked::Subject { subject, before_s: (self.now_s)() + 1 },
            _ => return Err(Error::new(Code::BadRequest, "name what to revoke: {\"jti\": ..} or {\"sub\": ..}")),
        };
        self.auth.revoke(revoked)?;
        tracing::info!("an operator revoked a token or a subject");
        Ok(json_response(&json!({ "revoked": true })))
    }

    /// Runs `question` on a shard and returns its result.
    ///
    /// Errors: [`Code::Unavailable`] if the shard is too busy.
    async fn ask<T: Send + 'static>(
        &self,
        shard: usize,
        question: impl FnOnce(&Context) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let busy = || Error::new(Code::Unavailable, format!("shard {shard} is too busy to answer; try again"));
        let (sender, receiver) = oneshot::channel();
        let question: Question = Box::new(move |context| drop(sender.send(question(context))));
        self.shards[shard].try_send(question).map_err(|_| busy())?;
        tokio::time::timeout(WAIT, receiver).await.ok().and_then(Result::ok).ok_or_else(busy)
    }
}

/// Parses a JSON body.
///
/// Errors: [`Code::BadJson`].
fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| Error::new(Code::BadJson, error.to_string()))
}

fn json_response(value: &Value) -> Response {
    let mut response = text(StatusCode::OK, "application/json", value.to_string());
    response.headers_mut().insert(header::CACHE_CONTROL, http::HeaderValue::from_static("no-store"));
    response
}
