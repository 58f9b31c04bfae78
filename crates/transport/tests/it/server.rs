//! A real server in this process, on a free port, with two shards. It stops when the test ends.

use std::{
    net::SocketAddr,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use millrace_server::{
    Config, Running,
    tls::dev::{self, Files},
};
use reqwest::{Response, StatusCode, header::HeaderMap};
use rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Maximum time that a test waits for anything.
pub const BOUND: Duration = Duration::from_secs(30);
/// Interval between two checks of a condition.
const LOOK: Duration = Duration::from_millis(10);

tokio::task_local! {
    /// True if the servers of this test use TLS.
    pub static SECURED: bool;
}

/// One certificate authority and one certificate for all tests.
static CERTIFICATES: LazyLock<(TempDir, Files)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let made = dev::make(folder.path(), &[], false).expect("certificates");
    (folder, made.files)
});

pub struct Server {
    running: Option<Running>,
    scheme: &'static str,
    pub address: SocketAddr,
    pub http: reqwest::Client,
}

/// HTTP answer with its complete body.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Server {
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        config.server.shards = 2;
        if SECURED.try_with(|secured| *secured).unwrap_or(false) {
            secure(&mut config);
        }
        change(&mut config);
        let scheme = if config.tls.is_on() { "https" } else { "http" };
        let running = millrace_server::start(config).expect("a server on a free port");
        Self { address: running.address, running: Some(running), scheme, http: client(false) }
    }

    /// Refers to a server that another owner starts and stops.
    pub fn at(address: SocketAddr) -> Self {
        Self { running: None, scheme: "http", address, http: client(false) }
    }

    /// Returns the address of the admin listener.
    pub fn admin(&self) -> SocketAddr {
        self.running.as_ref().and_then(|running| running.admin).expect("an admin listener")
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    pub fn websocket_url(&self, path: &str) -> String {
        self.url(path).replacen("http", "ws", 1)
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[]).await
    }

    pub async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = self.http.get(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::read(within(request.send()).await.expect("an answer")).await
    }

    pub async fn post(&self, path: &str, headers: &[(&str, &str)], body: impl Into<reqwest::Body>) -> Answer {
        let mut request = self.http.post(self.url(path)).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::read(within(request.send()).await.expect("an answer")).await
    }

    /// Publishes and returns the position of the publication.
    pub async fn publish(&self, channel: &str, body: impl Into<reqwest::Body>) -> String {
        self.publish_with(channel, &[], body).await
    }

    pub async fn publish_with(
        &self,
        channel: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> String {
        let answer = self.post(&format!("/v1/channels/{channel}"), headers, body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["position"].as_str().expect("a position").to_owned()
    }

    /// Publishes all `data` in order in one request. Returns the last position.
    pub async fn publish_all(&self, channel: &str, data: impl IntoIterator<Item = Value>) -> String {
        let line = |data| json!({ "channel": channel, "data": data }).to_string() + "\n";
        let lines: String = data.into_iter().map(line).collect();
        let answer = self.post("/v1/publish", &[], lines).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let results = answer.json();
        let results = results["results"].as_array().expect("results");
        assert!(results.iter().all(|result| result["position"].is_string()), "{results:?}");
        results.last().expect("one at least")["position"].as_str().expect("a position").to_owned()
    }

    pub async fn presence(&self, channel: &str) -> u64 {
        self.get(&format!("/v1/presence/{channel}")).await.json()["count"].as_u64().expect("a count")
    }

    /// Waits until the channel has `count` readers.
    pub async fn await_presence(&self, channel: &str, count: u64) {
        until(&format!("presence of {channel} is {count}"), async || self.presence(channel).await == count).await;
    }

    pub async fn metric(&self, name: &str) -> u64 {
        let metrics = self.get("/metrics").await;
        let text = metrics.text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no metric {name}")).parse().expect("a number")
    }

    /// Checks that the server still accepts and delivers a publication, so that earlier input did no harm. Repeats the
    /// check, so that both shards answer.
    pub async fn assert_well(&self) {
        for _ in 0..4 {
            let fresh = client(false);
            let sent = fresh.post(self.url("/v1/channels/well")).header("connection", "close").body("\"well\"").send();
            let sent = Answer::read(within(sent).await.expect("an answer")).await;
            assert_eq!(sent.status, 200, "{sent:?}");
            let read =
                Answer::read(within(fresh.get(self.url("/v1/channels/well")).send()).await.expect("an answer")).await;
            assert_eq!(read.json()["messages"][0]["data"], "well", "{read:?}");
        }
    }

    /// Drains the server, as SIGTERM does.
    pub async fn drain(mut self) {
        self.running.take().expect("it runs").drain().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop();
        }
    }
}

impl Answer {
    pub async fn read(response: Response) -> Self {
        let (status, headers) = (response.status(), response.headers().clone());
        let body = within(response.bytes()).await.expect("a whole body").to_vec();
        Self { status, headers, body }
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("text")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no header {name}: {self:?}")).to_str().expect("ASCII")
    }

    pub fn position(&self) -> &str {
        self.header("millrace-position")
    }

    /// Checks that the answer is a problem document with this code and this status. Returns the detail.
    #[track_caller]
    pub fn assert_problem(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{:?} {}", self.headers, String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem = self.json();
        assert_eq!((&problem["code"], &problem["status"]), (&json!(code), &json!(status)), "{problem}");
        assert_eq!(problem["type"], format!("urn:millrace:error:{code}"));
        assert!(problem["title"].is_string() && problem["retry"].is_boolean(), "{problem}");
        problem["detail"].as_str().expect("a detail").to_owned()
    }
}

/// Configures TLS with the certificate that all tests share.
pub fn secure(config: &mut Config) {
    let files = certificates();
    config.tls.cert = files.cert.display().to_string();
    config.tls.key = files.key.display().to_string();
}

pub fn certificates() -> &'static Files {
    &CERTIFICATES.1
}

/// Returns a TLS client configuration that trusts the authority of all tests.
pub fn trusting(alpn: &[&str]) -> ClientConfig {
    trusting_with(rustls::ALL_VERSIONS, alpn)
}

pub fn trusting_with(versions: &[&'static SupportedProtocolVersion], alpn: &[&str]) -> ClientConfig {
    let mut config = builder(versions).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    config
}

/// Returns a TLS client configuration that presents a client certificate.
pub fn trusting_as(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> ClientConfig {
    builder(rustls::ALL_VERSIONS).with_client_auth_cert(chain, key).expect("a certificate with its key")
}

fn builder(
    versions: &[&'static SupportedProtocolVersion],
) -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificates().ca).expect("a certificate")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions);
    builder.expect("versions that are there").with_root_certificates(roots)
}

/// Returns an HTTP client with its own connections. `http2` selects HTTP/2, in cleartext with prior knowledge.
pub fn client(http2: bool) -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().no_proxy();
    let builder = match http2 {
        true => builder.http2_prior_knowledge().tls_backend_preconfigured(trusting(&["h2"])),
        false => builder.http1_only().tls_backend_preconfigured(trusting(&["http/1.1"])),
    };
    builder.build().expect("a client")
}

/// Waits for the future, at most [`BOUND`].
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, future).await.unwrap_or_else(|_| panic!("nothing within {BOUND:?}"))
}

/// Waits until the condition holds. Panics after [`BOUND`].
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !within(condition()).await {
        assert!(started.elapsed() < BOUND, "not within {BOUND:?}: {what}");
        tokio::time::sleep(LOOK).await;
    }
}
