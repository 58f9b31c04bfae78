//! Serves health checks, metrics and the embedded web pages, next to the channel API.

use std::{
    collections::HashMap,
    io::Read,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header, request::Parts};
use millrace_engine::Engine;
use millrace_hooks::Hooks;
use millrace_node::{MetricKind, spans::SpanCounts};
use millrace_presence::Presence;
use millrace_race::Race;
use millrace_transport::{
    Limits, Pages,
    http::{Body, Response, text},
    route::Endpoint,
};
use millrace_webhooks::Webhooks;
use serde::Deserialize;

use crate::{
    devices::Devices,
    hooks, lists, log,
    metrics::{Exposition, NodeMetrics},
    process,
    tls::acme,
    traces, turn, webhooks,
};

/// Content security policy: only content from this server may be loaded or run. The map draws in a worker, and scripts
/// set styles.
const POLICY: &str = "default-src 'self'; worker-src 'self' blob:; img-src 'self' data: blob:; \
    style-src 'self' 'unsafe-inline'; connect-src 'self' ws: wss:; base-uri 'none'; frame-ancestors 'none'";

/// The page that connects to the lanes of the race, each an origin of its own.
const RACE: &str = "/race";

/// The page for addresses that do not exist, among the built pages.
const NOT_FOUND: &str = "/404";

/// The OpenAPI document that the server serves at `/openapi.json`.
///
/// Source: OpenAPI Specification 3.1.0.
pub const DOCUMENT: &str = include_str!("openapi.json");

/// Endpoints besides the web pages.
pub const ENDPOINTS: [&Endpoint; 6] = [&HEALTH, &READY, &METRICS, &INFO, &OPENAPI, &CA];

const HEALTH: Endpoint = Endpoint::new("/healthz", "GET, HEAD");
const READY: Endpoint = Endpoint::new("/readyz", "GET, HEAD");
const METRICS: Endpoint = Endpoint::new("/metrics", "GET, HEAD");
const INFO: Endpoint = Endpoint::new("/v1/info", "GET, HEAD");
const OPENAPI: Endpoint = Endpoint::new("/openapi.json", "GET, HEAD");
const CA: Endpoint = Endpoint::new("/ca.crt", "GET, HEAD");

/// The built pages, already compressed with brotli. Empty when they have not been built.
#[derive(rust_embed::RustEmbed)]
#[folder = "../../web/pack/"]
#[allow_missing = true]
struct Packed;

/// One entry of the pack's `manifest.json`.
#[derive(Deserialize)]
struct Asset {
    path: String,
    mime: String,
    etag: String,
    file: String,
    immutable: bool,
}

struct Loaded {
    mime: HeaderValue,
    etag: HeaderValue,
    immutable: bool,
    brotli: Bytes,
    /// Uncompressed content for clients without brotli, created on first use.
    plain: OnceLock<Bytes>,
}

/// Data for `/v1/info`, `/metrics` and the other pages.
pub struct Site {
    pub started: Instant,
    pub listen: Vec<String>,
    pub udp: Option<String>,
    pub shards: usize,
    pub engine_name: String,
    pub engine: Arc<dyn Engine>,
    pub metrics: NodeMetrics,
    pub limits: Arc<Limits>,
    pub ready: Arc<AtomicBool>,
    /// True if `/metrics` needs no token.
    pub public_metrics: bool,
    /// CA certificate for clients to download and trust, as DER.
    pub ca: Option<Bytes>,
    /// ACME metrics, if certificates are requested by ACME.
    pub acme: Option<Arc<acme::Metrics>>,
    /// Metrics of the TURN server, if there is one.
    pub turn: Option<Arc<millrace_conference::turn::Metrics>>,
    /// Counters of spans, if spans are recorded.
    pub spans: Option<Arc<SpanCounts>>,
    /// The hooks to the app's back end, if any is configured.
    pub hooks: Option<Arc<Hooks>>,
    /// The lists that the nodes keep, if any.
    pub presence: Option<Arc<Presence>>,
    /// The webhooks to the app's back end, if they are configured.
    pub webhooks: Option<Arc<Webhooks>>,
    /// The lanes of the race page, if there are any.
    pub race: Option<Arc<Race>>,
    pub devices: Devices,
    assets: HashMap<String, Loaded>,
}

impl Site {
    pub fn new(
        listen: Vec<String>,
        udp: Option<String>,
        engine_name: String,
        engine: Arc<dyn Engine>,
        metrics: NodeMetrics,
        limits: Arc<Limits>,
        ready: Arc<AtomicBool>,
    ) -> Self {
        let shards = metrics.shards.len();
        let (started, public_metrics, assets) = (Instant::now(), true, load());
        Self {
            started,
            listen,
            udp,
            shards,
            engine_name,
            engine,
            metrics,
            limits,
            ready,
            public_metrics,
            ca: None,
            acme: None,
            turn: None,
            spans: None,
            hooks: None,
            presence: None,
            webhooks: None,
            race: None,
            devices: Devices::default(),
            assets,
        }
    }

    fn info(&self) -> Response {
        let mut info = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"), "uptime_s": self.started.elapsed().as_secs(),
            "time": self.engine.now_ms(), "listen": self.listen, "shards": self.shards, "engine": self.engine_name,
        });
        if let Some(udp) = &self.udp {
            info["udp"] = udp.as_str().into();
        }
        fresh(text(StatusCode::OK, "application/json", info.to_string()))
    }

    /// Returns whether the node accepts new readers, with details for operators.
    pub fn readiness(&self) -> Response {
        let (ready, engine_up) = (self.ready.load(Relaxed), self.engine.is_up());
        let readers: usize = self.metrics.shards.iter().map(|shard| shard.sockets.open_readers()).sum();
        let mut details = serde_json::json!({
            "ready": ready, "engine_up": engine_up, "readers": readers, "uptime_s": self.started.elapsed().as_secs(),
        });
        if let Some(hooks) = &self.hooks {
            details["hooks"] = hooks::state(hooks);
        }
        let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        fresh(text(status, "application/json", details.to_string()))
    }

    pub fn metrics(&self) -> Response {
        let (channels, bytes) = self.engine.size();
        let mut out = Exposition::default();
        out.node(&self.metrics, bytes);
        process::render(&mut out);
        let mut gauge = |name: &str, help: &str, value: u64| out.value(name, MetricKind::Gauge, help, value);
        gauge("millrace_engine_channels", "Channels with history.", channels as u64);
        gauge("millrace_uptime_seconds", "Seconds since the start.", self.started.elapsed().as_secs());
        gauge("millrace_ready", "1 while the node accepts readers; 0 once it drains.", self.ready.load(Relaxed).into());
        gauge(
            "millrace_sockets_open",
            "Open connections, including idle connections and connections in a handshake.",
            self.limits.connections() as u64,
        );
        gauge("millrace_pending_bytes", "Bytes queued for single clients.", self.limits.pending_bytes() as u64);
        gauge(
            "millrace_memory_pressure",
            "Memory pressure from 0 (none) to 3. docs/reference/limits.md lists what each level does.",
            self.limits.pressure() as u64,
        );
        gauge("millrace_engine_up", "1 while the engine answers, otherwise 0.", self.engine.is_up().into());
        if let Some(acme) = &self.acme {
            gauge(
                "millrace_acme_expires_seconds",
                "Expiry of the ACME certificate in seconds since 1970; 0 without a certificate.",
                acme.expires_s.load(Relaxed),
            );
        }
        out.family(
            "millrace_refused_total",
            MetricKind::Counter,
            "Requests, messages and connections refused, closed or slowed down, by limit.",
            self.limits.refused().map(|(limit, count)| ([("limit", limit)], count)),
        );
        let mut counter = |name: &str, help: &str, value: u64| out.value(name, MetricKind::Counter, help, value);
        for (name, help, value) in self.engine.counters() {
            counter(&format!("millrace_engine_{name}_total"), help, value);
        }
        if let Some(acme) = &self.acme {
            let (certificates, errors) = (acme.certificates.load(Relaxed), acme.errors.load(Relaxed));
            counter("millrace_acme_certificates_total", "Certificates issued by the ACME server.", certificates);
            counter("millrace_acme_errors_total", "Failed ACME orders.", errors);
        }
        if let Some(metrics) = &self.turn {
            turn::render(metrics, &mut out);
        }
        if let Some(hooks) = &self.hooks {
            hooks::render(hooks, &mut out);
        }
        if let Some(presence) = &self.presence {
            lists::render(&presence.stats(), &mut out);
        }
        if let Some(webhooks) = &self.webhooks {
            webhooks::render(webhooks, &mut out);
        }
        self.devices.render(&mut out);
        if let Some(counts) = &self.spans {
            traces::render(counts, &mut out);
        }
        log::render(&mut out);
        let out = out.into_text();
        fresh(text(StatusCode::OK, "text/plain; version=0.0.4", out))
    }

    fn asset(&self, path: &str, request: &Parts) -> Option<Response> {
        let asset = self.assets.get(path)?;
        let given = |name: header::HeaderName| request.headers.get(name).and_then(|value| value.to_str().ok());
        let accepts = given(header::ACCEPT_ENCODING).unwrap_or_default();
        let brotli = accepts.split(',').any(|coding| coding.trim().split(';').next() == Some("br"));
        let is_known = given(header::IF_NONE_MATCH).is_some_and(|etag| etag.as_bytes() == asset.etag.as_bytes());
        let body = match (is_known, brotli) {
            (true, _) => Bytes::new(),
            (false, true) => asset.brotli.clone(),
            (false, false) => asset.plain.get_or_init(|| unpack(&asset.brotli)).clone(),
        };
        let mut response = http::Response::new(Body::from(body));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, asset.mime.clone());
        headers.insert(header::ETAG, asset.etag.clone());
        headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        let cache = if asset.immutable { "public, max-age=31536000, immutable" } else { "no-cache" };
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
        headers.insert(header::CONTENT_SECURITY_POLICY, self.policy(path));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else if brotli {
            response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("br"));
        }
        Some(response)
    }

    /// Returns the content security policy of a page. The race page may also connect to the lanes.
    fn policy(&self, path: &str) -> HeaderValue {
        let lanes = self.race.as_ref().filter(|_| path == RACE).and_then(|race| race.lanes().ok());
        let Some(lanes) = lanes else { return HeaderValue::from_static(POLICY) };
        let ports: String = lanes.iter().map(|lane| format!(" *:{}", lane.port)).collect();
        let policy = POLICY.replace("connect-src 'self'", &format!("connect-src 'self'{ports}"));
        HeaderValue::try_from(policy).unwrap_or_else(|_| HeaderValue::from_static(POLICY))
    }

    /// Redirects from the name of a folder, such as `/docs`, to its page `/docs/`.
    fn folder(&self, path: &str) -> Option<Response> {
        let address = format!("{path}/");
        // A known address is a valid header, and never an address of another host (`//host/`).
        self.assets.contains_key(&address).then_some(())?;
        let location = HeaderValue::from_str(&address).ok()?;
        let mut response = text(StatusCode::PERMANENT_REDIRECT, "text/plain", format!("{address}\n"));
        response.headers_mut().insert(header::LOCATION, location);
        Some(fresh(response))
    }

    /// Returns the page for a browser that opened an address that does not exist. Other clients get problem details.
    fn not_found(&self, request: &Parts) -> Option<Response> {
        let accept = request.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let is_read_method = matches!(request.method, Method::GET | Method::HEAD);
        if !is_read_method || !accept.contains("text/html") || request.uri.path().starts_with("/v1/") {
            return None;
        }
        let mut response = self.asset(NOT_FOUND, request)?;
        *response.status_mut() = StatusCode::NOT_FOUND;
        response.headers_mut().remove(header::ETAG);
        Some(fresh(response))
    }
}

impl Pages for Site {
    fn answer(&self, request: &Parts) -> Option<Response> {
        let plain = |status, body: &'static str| Some(fresh(text(status, "text/plain", body)));
        match request.uri.path() {
            path if path == HEALTH.path => plain(StatusCode::OK, "alive\n"),
            path if path == READY.path && self.ready.load(Relaxed) => plain(StatusCode::OK, "ready\n"),
            path if path == READY.path => plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
            path if path == METRICS.path => self.public_metrics.then(|| self.metrics()),
            path if path == INFO.path => Some(self.info()),
            path if path == OPENAPI.path => Some(fresh(text(StatusCode::OK, "application/json", DOCUMENT))),
            // The media type makes phones offer to install the certificate.
            path if path == CA.path => {
                self.ca.clone().map(|ca| fresh(text(StatusCode::OK, "application/x-x509-ca-cert", ca)))
            }
            path if self.assets.is_empty()
                && matches!(
                    page_of(path),
                    "/" | "/carcare"
                        | "/docs"
                        | "/rooms"
                        | "/gateway"
                        | "/lab"
                        | "/link"
                        | "/ball"
                        | "/arm"
                        | "/battery"
                        | "/ticker"
                        | "/race"
                        | "/ui"
                ) =>
            {
                Some(not_built())
            }
            path => {
                let page = || self.asset(page_of(path), request);
                page().or_else(|| self.folder(path)).or_else(|| self.not_found(request))
            }
        }
    }
}

/// Maps all rooms to one page, all gateways to another, and all views of operators to a third. The page reads the name
/// from its own address.
fn page_of(path: &str) -> &str {
    let is_name = |page: &str| {
        path.strip_prefix(page).and_then(|rest| rest.strip_prefix('/')).is_some_and(|name| !name.contains('/'))
    };
    ["/rooms", "/gateway", "/ui"].into_iter().find(|page| is_name(page)).unwrap_or(path)
}

fn load() -> HashMap<String, Loaded> {
    let manifest = Packed::get("manifest.json").map(|file| file.data).unwrap_or_default();
    let assets: Vec<Asset> = serde_json::from_slice(&manifest).unwrap_or_default();
    let load = |asset: Asset| {
        let brotli = match Packed::get(&asset.file)?.data {
            std::borrow::Cow::Borrowed(bytes) => Bytes::from_static(bytes),
            std::borrow::Cow::Owned(bytes) => Bytes::from(bytes),
        };
        let (mime, etag) = (HeaderValue::from_str(&asset.mime).ok()?, HeaderValue::from_str(&asset.etag).ok()?);
        Some((asset.path, Loaded { mime, etag, immutable: asset.immutable, brotli, plain: OnceLock::new() }))
    };
    assets.into_iter().filter_map(load).collect()
}

fn unpack(brotli: &[u8]) -> Bytes {
    let mut plain = Vec::new();
    match brotli_decompressor::Decompressor::new(brotli, 64 * 1024).read_to_end(&mut plain) {
        Ok(_) => Bytes::from(plain),
        Err(error) => {
            tracing::error!(%error, "cannot decompress an embedded page");
            Bytes::new()
        }
    }
}

fn fresh(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn not_built() -> Response {
    let page = "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
        <title>Millrace</title><style>:root{color-scheme:light dark}body{font:1rem/1.5 system-ui;max-width:40rem;margin:4rem auto;padding:0 1rem}</style>\
        <h1>Millrace is running</h1><p>This binary was built without its pages. Build them with <code>make web</code>, then build the \
        server again. The API works without them:</p><pre>curl -d '{\"hello\":1}' localhost:8080/v1/channels/demo\ncurl 'localhost:8080/v1/channels/demo?since=earliest'</pre>";
    fresh(text(StatusCode::OK, "text/html; charset=utf-8", page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_a_page_serve_the_page() {
        for (path, page) in [
            ("/", "/"),
            ("/rooms", "/rooms"),
            ("/rooms/kitchen", "/rooms"),
            ("/gateway", "/gateway"),
            ("/gateway/mill-1", "/gateway"),
            ("/gateway/a/b", "/gateway/a/b"),
            ("/gateways/a", "/gateways/a"),
            ("/carcare/a", "/carcare/a"),
        ] {
            assert_eq!(page_of(path), page);
        }
    }
}
