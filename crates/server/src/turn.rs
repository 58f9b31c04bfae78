//! Built-in TURN server: its settings, its metrics and its thread.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use millrace_conference::turn::{Credentials, Metrics, Offer, Peers, Port, REALM_BYTES_MAX, Settings, serve};
use millrace_node::MetricKind;
use millrace_transport::Limits;
use ring::hmac;
use serde::{Deserialize, Serialize};
use tokio::{
    runtime::{Builder, LocalOptions},
    sync::watch,
};

use crate::{
    metrics::Exposition,
    setting::Secret,
    tls::Tls,
    upgrade::{Opener, Seed},
};

/// Minimum length of the secret, in bytes, as for `server.secret`: a shorter one can be guessed.
const SECRET_BYTES_MIN: usize = 16;
/// Minimum lifetime, in seconds. Source: RFC 8656, section 3.2.
const LIFETIME_MIN: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Settings of TURN, for peers that cannot reach each other directly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Listen address HOST:PORT for UDP, TCP and (if the server has a certificate) TLS; port 0 picks a free port.
    /// Empty: a free port if the server listens on loopback, otherwise disabled. `off`: disabled.
    pub listen: String,
    /// IP addresses to advertise to clients and peers instead of the sockets' own, for a server behind a NAT.
    pub public: Vec<IpAddr>,
    /// Host name of this server in the TURN URLs; TLS needs a name of the certificate. Empty: the IP addresses.
    pub host: String,
    /// URLs of other TURN servers to advertise instead, such as a coturn with the same secret.
    pub urls: Vec<String>,
    /// Port range of the relays: FIRST-LAST.
    pub relay_ports: String,
    pub realm: String,
    /// Secret from which credentials are derived; empty: derived from `server.secret`, or else random.
    pub secret: Secret,
    /// Lifetime of credentials.
    #[serde(with = "humantime_serde")]
    pub ttl: Duration,
    pub allocations_max: usize,
    pub allocations_per_user_max: usize,
    /// Maximum time until a client must refresh its allocation.
    #[serde(with = "humantime_serde")]
    pub lifetime_max: Duration,
    /// Maximum payload bytes per second per user, both directions together; 0: no limit.
    pub bytes_per_s_max: u64,
    /// Peer addresses that relays may send to: `public`, and networks. Empty: `public`, and loopback if the TURN server
    /// listens on loopback.
    pub peers_allowed: Vec<Peers>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: String::new(),
            public: Vec::new(),
            host: String::new(),
            urls: Vec::new(),
            relay_ports: "49152-65535".into(),
            realm: "millrace".into(),
            secret: Secret::default(),
            ttl: Duration::from_secs(12 * 60 * 60),
            allocations_max: 1000,
            allocations_per_user_max: 100,
            lifetime_max: Duration::from_secs(60 * 60),
            bytes_per_s_max: 12_500_000,
            peers_allowed: Vec::new(),
        }
    }
}

impl Config {
    /// Checks ranges and formats that the types cannot express.
    ///
    /// Errors: the key and its allowed values.
    pub fn check(&self, server: SocketAddr) -> Result<(), (&'static str, &'static str)> {
        self.address(server).map_err(|what| ("turn.listen", what))?;
        if self.ports().is_none() {
            return Err(("turn.relay_ports", "must be FIRST-LAST, for example `49152-65535`, with ports from 1024 on"));
        }
        if self.realm.is_empty() || self.realm.len() > REALM_BYTES_MAX || self.realm.contains(['"', '\\', ':']) {
            return Err(("turn.realm", "must be a name of 1 to 32 bytes, for example `millrace`"));
        }
        if !self.secret.is_empty() && self.secret.as_bytes().len() < SECRET_BYTES_MIN {
            return Err((
                "turn.secret",
                "must be empty or have at least 16 bytes; `openssl rand -hex 32` generates one",
            ));
        }
        if !(LIFETIME_MIN..=DAY).contains(&self.ttl) || !(LIFETIME_MIN..=DAY).contains(&self.lifetime_max) {
            return Err(("turn.ttl and turn.lifetime_max", "must be from 1min to 1day"));
        }
        let is_url = |url: &String| ["turn:", "turns:", "stun:", "stuns:"].iter().any(|scheme| url.starts_with(scheme));
        if !self.urls.iter().all(is_url) {
            return Err(("turn.urls", "must have URLs such as `turn:turn.example:3478?transport=udp`"));
        }
        Ok(())
    }

    /// Returns the address to listen on, given that of the server, or `None` if TURN is disabled.
    fn address(&self, server: SocketAddr) -> Result<Option<SocketAddr>, &'static str> {
        match self.listen.as_str() {
            "off" => Ok(None),
            "" if server.ip().to_canonical().is_loopback() => Ok(Some(SocketAddr::new(server.ip(), 0))),
            "" => Ok(None),
            address => address
                .parse()
                .map(Some)
                .map_err(|_| "must be HOST:PORT, for example `0.0.0.0:3478`, or `off`, or empty"),
        }
    }

    fn ports(&self) -> Option<RangeInclusive<u16>> {
        let (first, last) = self.relay_ports.split_once('-')?;
        let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (1024 <= first && first <= last).then_some(first..=last)
    }

    /// Derives the credentials. Nodes with the same `server.secret` accept each other's credentials.
    fn credentials(&self, server_secret: &Secret, seed: &Seed) -> Credentials {
        let derived;
        let secret = match self.secret.is_empty() {
            false => self.secret.as_bytes(),
            true => {
                let source = if server_secret.is_empty() { seed.as_bytes() } else { server_secret.as_bytes() };
                derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, source), b"turn");
                derived.as_ref()
            }
        };
        Credentials::new(secret, &self.realm)
    }
}

/// TURN offer for clients, and the built-in server if it is enabled.
#[derive(Default)]
pub struct Turn {
    pub offer: Option<Arc<Offer>>,
    pub server: Option<Opened>,
}

/// TURN server whose port is bound, but not served yet.
pub struct Opened {
    pub metrics: Arc<Metrics>,
    pub address: SocketAddr,
    port: Port,
    own: Vec<IpAddr>,
    settings: Settings,
}

impl Turn {
    /// Binds the port. `own`: the addresses of this machine.
    ///
    /// Errors: the address is in use, or not an address of this machine.
    pub fn open(
        config: &crate::Config,
        own: &[IpAddr],
        tls: Option<&Tls>,
        limits: Arc<Limits>,
        (opener, handed_over): (&mut Opener, watch::Receiver<bool>),
        seed: &Seed,
    ) -> anyhow::Result<Self> {
        let turn = &config.turn;
        let address = turn.address(config.server.listen).map_err(|what| anyhow::anyhow!("`turn.listen` {what}"))?;
        let credentials = Arc::new(turn.credentials(&config.server.secret, seed));
        let offer = |urls| Some(Arc::new(Offer { credentials: credentials.clone(), urls, ttl: turn.ttl }));
        let Some(address) = address else {
            return Ok(Self {
                offer: if turn.urls.is_empty() { None } else { offer(turn.urls.clone()) },
                server: None,
            });
        };
        let bind = || Port::bind_sockets(address).map(|(datagrams, streams)| (datagrams, Some(streams)));
        let port = opener.open_pair("turn", address, true, bind).and_then(|(datagrams, streams)| {
            let mut port = Port::new(datagrams, streams.ok_or(io::ErrorKind::NotFound)?)?;
            port.relay = Some(opener.open_relay("turn", handed_over)?);
            Ok(port)
        });
        let port = port.with_context(|| format!("cannot relay on {address} (`turn.listen`)"))?;
        let address = port.address();
        let advertised: Vec<IpAddr> =
            [false, true].iter().filter_map(|is_ipv6| port.advertised(&turn.public, own, *is_ipv6)).collect();
        let urls = match turn.urls.is_empty() {
            true => Offer::urls(&turn.host, &advertised, address.port(), tls.is_some()),
            false => turn.urls.clone(),
        };
        let metrics = Arc::<Metrics>::default();
        let settings = Settings {
            public: turn.public.clone(),
            relay_ports: turn.ports().context("`turn.relay_ports` is no range")?,
            allocations_max: turn.allocations_max,
            allocations_per_user_max: turn.allocations_per_user_max,
            lifetime_max: turn.lifetime_max,
            bytes_per_s_max: turn.bytes_per_s_max,
            peers_allowed: turn.peers_allowed.clone(),
            write_timeout: config.limits.write_timeout,
            credentials: credentials.clone(),
            connection_limits: limits,
            metrics: metrics.clone(),
            tls: tls.map(Tls::subscribe),
        };
        Ok(Self { offer: offer(urls), server: Some(Opened { metrics, address, port, own: own.to_vec(), settings }) })
    }
}

impl Opened {
    /// Serves clients until `stop` completes.
    ///
    /// Errors: the runtime cannot be created, or cannot watch the sockets.
    pub fn run(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
        runtime.block_on(serve(self.port, &self.own, self.settings, stop))
    }
}

/// Appends the metrics of the TURN server.
pub fn render(metrics: &Metrics, out: &mut Exposition) {
    use std::sync::atomic::Ordering::Relaxed;
    let families = [
        ("allocations", MetricKind::Gauge, "TURN allocations in use.", &metrics.allocations),
        ("allocated_total", MetricKind::Counter, "TURN allocations granted.", &metrics.allocated),
        (
            "unauthorized_total",
            MetricKind::Counter,
            "TURN requests without valid credentials. The first request of each client is one of them.",
            &metrics.unauthorized,
        ),
        (
            "refused_total",
            MetricKind::Counter,
            "TURN requests refused for another reason: a quota, no free port, or malformed.",
            &metrics.refused,
        ),
        (
            "forbidden_total",
            MetricKind::Counter,
            "TURN requests for peers that turn.peers_allowed excludes.",
            &metrics.forbidden,
        ),
        (
            "over_quota_total",
            MetricKind::Counter,
            "TURN datagrams dropped because a user exceeded turn.bytes_per_s_max.",
            &metrics.over_quota,
        ),
        (
            "dropped_total",
            MetricKind::Counter,
            "TURN datagrams dropped for another reason: no allocation or permission, malformed, or a full socket.",
            &metrics.dropped,
        ),
    ];
    for (name, kind, help, value) in families {
        out.value(&format!("millrace_turn_{name}"), kind, help, value.load(Relaxed));
    }
    let both = [
        ("datagrams", "TURN datagrams relayed.", &metrics.datagrams_to_peers, &metrics.datagrams_to_clients),
        ("bytes", "Payload bytes relayed by TURN.", &metrics.bytes_to_peers, &metrics.bytes_to_clients),
    ];
    for (name, help, to_peers, to_clients) in both {
        let samples = [([("to", "peers")], to_peers.load(Relaxed)), ([("to", "clients")], to_clients.load(Relaxed))];
        out.family(&format!("millrace_turn_{name}_total"), MetricKind::Counter, help, samples);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_is_on_by_default_only_on_loopback() {
        let at = |listen: &str, server: &str| {
            Config { listen: listen.into(), ..Config::default() }.address(server.parse().unwrap())
        };
        assert_eq!(at("", "127.0.0.1:8080"), Ok(Some("127.0.0.1:0".parse().unwrap())));
        assert_eq!((at("", "0.0.0.0:8080"), at("off", "127.0.0.1:8080")), (Ok(None), Ok(None)));
        assert_eq!(at("0.0.0.0:3478", "127.0.0.1:8080"), Ok(Some("0.0.0.0:3478".parse().unwrap())));
        assert!(at("3478", "127.0.0.1:8080").is_err());
    }

    #[test]
    fn invalid_values_are_named() {
        let wrong = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check("127.0.0.1:1".parse().unwrap()).map_err(|(key, _)| key)
        };
        assert_eq!(wrong(|_| {}), Ok(()));
        for ports in ["", "1-2", "5000", "5000-4000", "1024-70000"] {
            let config = Config { relay_ports: ports.into(), ..Config::default() };
            assert!(config.ports().is_none(), "{ports}");
        }
        assert_eq!(wrong(|config| config.relay_ports = "80-90".into()), Err("turn.relay_ports"));
        assert_eq!(wrong(|config| config.realm = "x".repeat(33)), Err("turn.realm"));
        assert_eq!(wrong(|config| config.secret = Secret::from("short")), Err("turn.secret"));
        assert_eq!(wrong(|config| config.urls = vec!["https://turn.example".into()]), Err("turn.urls"));
        assert_eq!(wrong(|config| config.ttl = Duration::ZERO), Err("turn.ttl and turn.lifetime_max"));
    }

    #[test]
    fn nodes_with_same_secret_share_credentials() {
        let password = |own: &str, shared: &str| {
            let config = Config { secret: Secret::from(own), ..Config::default() };
            config.credentials(&Secret::from(shared), &Seed::random().unwrap()).login("alice", 1).password
        };
        assert_eq!(password("", "what all nodes share"), password("", "what all nodes share"));
        assert_ne!(password("", "what all nodes share"), password("", "what others share"));
        assert_eq!(password("a secret of its own", "x"), password("a secret of its own", "y"));
        assert_ne!(password("", ""), password("", ""), "else of chance");
    }
}
