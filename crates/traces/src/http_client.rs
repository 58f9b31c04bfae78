//! The server's HTTP client as OpenTelemetry's exporter needs it. The exporter's own clients bring a second version of
//! reqwest's settings, or block a thread.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry_http::{HttpClient, HttpError};
use reqwest::{Client, redirect::Policy};

/// Maximum size of a collector's answer in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The client cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("no HTTP client: {0}")]
pub struct ClientError(#[from] reqwest::Error);

/// Reasons why an answer is not read.
#[derive(Debug, thiserror::Error)]
#[error("the answer of the collector is longer than {ANSWER_BYTES_MAX} bytes")]
struct TooLarge;

/// Follows no redirect and uses no proxy.
#[derive(Clone, Debug)]
pub struct ReqwestClient(Client);

impl ReqwestClient {
    /// Errors: the certificates of the system cannot be read.
    pub fn new(timeout: Duration) -> Result<Self, ClientError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        // It does not matter if another provider of the process was installed first.
        let _ = rustls::crypto::CryptoProvider::install_default((*provider).clone());
        let client = Client::builder().redirect(Policy::none()).no_proxy().timeout(timeout);
        Ok(Self(client.user_agent(concat!("millrace/", env!("CARGO_PKG_VERSION"))).build()?))
    }
}

#[async_trait]
impl HttpClient for ReqwestClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut response = self.0.execute(request.try_into()?).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(TooLarge.into());
            }
            body.extend_from_slice(&chunk);
        }
        let mut answer = Response::new(Bytes::from(body));
        (*answer.status_mut(), *answer.headers_mut()) = (status, headers);
        Ok(answer)
    }
}
