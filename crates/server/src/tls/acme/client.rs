use std::{iter::successors, pin::Pin, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};

/// Timeout of one response of the ACME server.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a response, in bytes; a certificate chain has a few kilobytes.
const RESPONSE_BYTES_MAX: usize = 256 * 1024;

/// HTTP client for ACME servers. The size and the duration of every response are limited.
#[derive(Clone)]
pub struct Client(reqwest::Client);

impl Client {
    /// Creates a client. `ca`: file with trusted CA certificates (PEM); empty: the CAs that this machine trusts.
    ///
    /// Errors: a file that is missing or not PEM.
    pub fn new(ca: &str) -> anyhow::Result<Self> {
        // reqwest uses the provider of the process. It does not matter if another provider was installed first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut client = reqwest::Client::builder()
            .https_only(true)
            .redirect(reqwest::redirect::Policy::none())
            .timeout(RESPONSE_TIMEOUT);
        if !ca.is_empty() {
            let pem = std::fs::read(ca).with_context(|| format!("`ca`: {ca} cannot be read"))?;
            let all = reqwest::Certificate::from_pem_bundle(&pem).ok().filter(|all| !all.is_empty());
            client = client.tls_certs_only(all.with_context(|| format!("`ca`: {ca} has no certificate in PEM"))?);
        }
        Ok(Self(client.build()?))
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: http::Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.0.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let Ok(body) = body.collect().await;
            let request = http::Request::from_parts(head, body.to_bytes()).try_into().map_err(with_causes)?;
            let mut response = client.execute(request).await.map_err(with_causes)?;
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(with_causes)? {
                body.extend_from_slice(&chunk);
                if body.len() > RESPONSE_BYTES_MAX {
                    return Err(Error::Other("the response is too large".into()));
                }
            }
            let mut converted = http::Response::new(Full::new(Bytes::from(body)));
            *converted.status_mut() = response.status();
            *converted.headers_mut() = std::mem::take(response.headers_mut());
            Ok(converted.into())
        })
    }
}

/// Converts an error, with all its causes in the message.
fn with_causes(error: reqwest::Error) -> Error {
    let causes = successors(Some(&error as &dyn std::error::Error), |error| error.source());
    Error::Other(causes.map(ToString::to_string).collect::<Vec<_>>().join(": ").into())
}
