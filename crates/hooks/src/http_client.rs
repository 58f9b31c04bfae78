//! One bounded POST request over reused connections, by HTTP/1.1, or by HTTP/2 where TLS negotiates it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use reqwest::{Certificate, Client, Response, redirect::Policy, retry};

use crate::HookUrl;

/// Time after which an idle connection is closed. Node.js closes idle connections after 5 s; a request on a connection
/// that is being closed would fail.
const IDLE: Duration = Duration::from_secs(4);
/// Maximum time to open a connection. The deadline of a request may be shorter.
const CONNECT: Duration = Duration::from_secs(10);

/// Client of one or several URLs. It follows no redirect and uses no proxy. A clone shares the connections.
#[derive(Clone, Debug)]
pub struct HttpClient {
    client: Client,
    answer_bytes_max: usize,
}

/// The client cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("no HTTP client: {0}")]
pub struct ClientError(reqwest::Error);

/// Reasons why a request has no answer that counts. No message contains the URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No connection could be opened. The server has not received the request.
    #[error("no connection: {0}")]
    NotSent(String),
    /// The connection broke before the first byte of an answer. The server may have received the request.
    #[error("the connection broke before the answer: {0}")]
    NoAnswer(String),
    #[error("the connection broke in the middle of the answer")]
    Interrupted,
    #[error("the answer is longer than {0} bytes")]
    TooLarge(usize),
    #[error("the answer has status {0}")]
    Status(StatusCode),
}

impl HttpClient {
    /// Creates a client. `authorities` are certificates (PEM) to trust in addition to those of the system.
    ///
    /// Errors: an invalid certificate.
    pub fn new(answer_bytes_max: usize, authorities: &[u8]) -> Result<Self, ClientError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        // reqwest uses the provider of the process. It does not matter if another provider was installed first.
        let _ = rustls::crypto::CryptoProvider::install_default((*provider).clone());
        let own = if authorities.is_empty() { Ok(Vec::new()) } else { Certificate::from_pem_bundle(authorities) };
        let client = Client::builder()
            .redirect(Policy::none())
            .retry(retry::never())
            .no_proxy()
            .connect_timeout(CONNECT)
            .pool_idle_timeout(IDLE)
            .user_agent(concat!("millrace/", env!("CARGO_PKG_VERSION")))
            .tls_certs_merge(own.map_err(ClientError)?)
            .build()
            .map_err(ClientError)?;
        Ok(Self { client, answer_bytes_max })
    }

    /// Sends a JSON body and returns the body of a `200` answer.
    ///
    /// Cost: the answer is read up to the limit. Dropping the future ends the request.
    pub async fn post(&self, url: &HookUrl, headers: HeaderMap, body: Bytes) -> Result<Vec<u8>, CallError> {
        let response = self.send(url, headers, body).await?;
        match response.status() {
            StatusCode::OK => self.read(response).await,
            status => Err(CallError::Status(status)),
        }
    }

    /// Sends a JSON body and returns the status of the answer. The body of the answer has no meaning: it is read up to
    /// the limit, so that the connection can be reused.
    ///
    /// Errors: no status has arrived.
    pub async fn deliver(&self, url: &HookUrl, headers: HeaderMap, body: Bytes) -> Result<StatusCode, CallError> {
        let response = self.send(url, headers, body).await?;
        let status = response.status();
        let _ = self.read(response).await;
        Ok(status)
    }

    /// Sends a body with its own `Content-Type` and returns status and headers of the answer; see
    /// [`HttpClient::deliver`].
    ///
    /// Errors: no status has arrived.
    pub async fn exchange(
        &self,
        url: &HookUrl,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(StatusCode, HeaderMap), CallError> {
        let mut response = self.send(url, headers, body).await?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let _ = self.read(response).await;
        Ok((status, headers))
    }

    /// Sends a body; it is JSON unless `headers` has another type.
    async fn send(&self, url: &HookUrl, mut headers: HeaderMap, body: Bytes) -> Result<Response, CallError> {
        headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        let request = self.client.post(url.url().clone()).headers(headers).body(body);
        request.send().await.map_err(|error| match error.is_connect() {
            true => CallError::NotSent(root_cause(&error)),
            false => CallError::NoAnswer(root_cause(&error)),
        })
    }

    async fn read(&self, mut response: Response) -> Result<Vec<u8>, CallError> {
        let max = self.answer_bytes_max;
        if response.content_length().is_some_and(|length| length > max as u64) {
            return Err(CallError::TooLarge(max));
        }
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|_| CallError::Interrupted)? {
            if answer.len() + chunk.len() > max {
                return Err(CallError::TooLarge(max));
            }
            answer.extend_from_slice(&chunk);
        }
        Ok(answer)
    }
}

/// Returns the innermost cause, such as "connection refused". The outer ones contain the URL.
fn root_cause(error: &reqwest::Error) -> String {
    let mut root: &dyn std::error::Error = error;
    while let Some(source) = root.source() {
        root = source;
    }
    match std::ptr::addr_eq(root, error) {
        true => "the request cannot be sent".to_owned(),
        false => root.to_string(),
    }
}
