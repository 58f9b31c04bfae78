//! Configuration: defaults < file < environment < flags. An unknown key is an error in every layer.

pub mod address;
mod faults;
mod layers;
mod namespace;
mod shown;

pub use crate::setting::{InvalidSetting, Secret};
pub use layers::{ConfigError, OTHER_VARIABLES, Sources, Value};
pub use namespace::Namespace;
pub use shown::{Setting, Shown};

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use millrace_protocol::ChannelName;
use millrace_transport::{
    Network,
    limits::{ForwardedHeader, Proxies},
};
use millrace_webhooks::{EventKind, EventSets};
use serde::{Deserialize, Serialize};

/// Minimum length of a secret, in bytes: a shorter one can be guessed.
const SECRET_BYTES_MIN: usize = 16;
/// Minimum memory limit that a server can keep, in bytes.
pub const MEMORY_BYTES_MIN: usize = 48 << 20;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// All settings, by section. `default.toml` lists the same settings with comments; a test compares the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub server: Server,
    pub admin: Admin,
    pub auth: crate::auth::Config,
    pub tls: crate::tls::Config,
    pub limits: millrace_transport::Config,
    pub rtc: millrace_transport::RtcConfig,
    pub mqtt: millrace_transport::MqttConfig,
    pub rooms: millrace_conference::RoomsConfig,
    pub turn: crate::turn::Config,
    pub ingest: millrace_ingest::Config,
    pub race: millrace_race::Config,
    pub lab: crate::lab::Config,
    pub engine: Engine,
    pub history: millrace_engine::HistoryConfig,
    pub carcare: millrace_carcare::feedback::Config,
    pub hooks: crate::hooks::Config,
    pub webhooks: crate::webhooks::Config,
    pub push: crate::push::Config,
    pub namespaces: BTreeMap<String, Namespace>,
    pub traces: crate::traces::Config,
    pub drain: Drain,
    pub upgrade: crate::upgrade::Config,
    pub log: Log,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    /// Listen address of HTTP and WebSocket; port 0 takes a free one.
    #[serde(deserialize_with = "address::deserialize")]
    pub listen: SocketAddr,
    /// Number of shards, each a thread with its own connections; 0: one per core.
    pub shards: usize,
    /// Listen address for UDP datagrams from devices. Empty: disabled.
    #[serde(deserialize_with = "address::optional")]
    pub udp: String,
    /// Listen address for HAProxy's agent check. Empty: disabled.
    #[serde(deserialize_with = "address::optional")]
    pub agent: String,
    /// True if a proxy in front of the server terminates TLS.
    pub behind_proxy: bool,
    /// Networks of the proxies whose forwarded header is trusted. Empty with `behind_proxy`: loopback.
    pub trusted_proxies: Vec<Network>,
    /// Header in which the proxies report the client.
    pub forwarded_header: ForwardedHeader,
    /// Host names, besides those of loopback, that requests to an open server on loopback may use.
    pub hosts: Vec<String>,
    /// True if `/metrics` needs no token. Otherwise only the admin listener and an open server on loopback serve it.
    pub public_metrics: bool,
    /// Allows clients on other machines without TLS.
    pub insecure_no_tls: bool,
    /// Allows clients on other machines without authentication.
    pub insecure_no_auth: bool,
    /// Secret shared by the nodes of a cluster, so that they accept each other's resume tickets. Empty: a random one
    /// per process.
    pub secret: Secret,
}

/// Settings of the admin API for operators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// Listen address of the admin API. Empty: disabled.
    #[serde(deserialize_with = "address::optional")]
    pub listen: String,
    /// Token that every admin request must send as `Authorization: Bearer ..`.
    pub token: Secret,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Engine {
    /// Engine that stores order and history: `memory`, or a URL such as `redis://localhost:6379`.
    pub url: String,
    /// Maximum number of channels with history.
    pub channels_max: usize,
    /// Maximum memory for the history of all channels together, in bytes.
    pub history_bytes_max: usize,
    /// Time that a publication, or a page of history, waits for an engine that does not respond.
    #[serde(with = "humantime_serde")]
    pub wait: Duration,
    /// Prefix of every name in a shared engine.
    pub prefix: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Drain {
    /// Time between `/readyz` turning to 503 and the first reader being asked to move, so that a balancer notices.
    #[serde(with = "humantime_serde")]
    pub announce: Duration,
    /// Time over which readers are asked to move, each at its own moment; longer if there are many of them.
    #[serde(with = "humantime_serde")]
    pub window: Duration,
    /// Maximum number of readers that are asked to move per second; 0: no limit.
    pub per_s_max: u32,
    /// Maximum window, independent of the number of readers.
    #[serde(with = "humantime_serde")]
    pub window_max: Duration,
    /// Time for which a reader's resume ticket stays valid after the reader was asked to move.
    #[serde(with = "humantime_serde")]
    pub ticket: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Log level: `error`, `warn`, `info`, `debug`, or per module as in `info,millrace_transport=debug`.
    pub level: String,
    /// Log format: `text` or `json`.
    pub format: String,
}

impl Server {
    /// Returns the trusted proxies. With `behind_proxy` and no configured networks, only loopback is trusted.
    pub fn proxies(&self) -> Proxies {
        let mut trusted = self.trusted_proxies.clone();
        if self.behind_proxy && trusted.is_empty() {
            trusted = ["127.0.0.0/8", "::1/128"].map(|network| network.parse().expect("a network")).into();
        }
        Proxies { trusted, header: self.forwarded_header }
    }
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            shards: 0,
            udp: String::new(),
            agent: String::new(),
            behind_proxy: false,
            trusted_proxies: Vec::new(),
            forwarded_header: ForwardedHeader::default(),
            hosts: Vec::new(),
            public_metrics: false,
            insecure_no_tls: false,
            insecure_no_auth: false,
            secret: Secret::default(),
        }
    }
}

impl Default for Engine {
    fn default() -> Self {
        let millrace_engine::Config { channels_max, history_bytes_max, wait, prefix, .. } = Default::default();
        Self { url: "memory".into(), channels_max, history_bytes_max, wait, prefix }
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            announce: Duration::ZERO,
            window: Duration::from_secs(2),
            per_s_max: 1000,
            window_max: Duration::from_secs(30),
            ticket: Duration::from_secs(60),
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".into(), format: "text".into() }
    }
}

impl Drain {
    /// Returns the time over which `readers` are asked to move: at most `per_s_max` per second, unless that takes
    /// longer than `window_max`.
    pub fn spread(&self, readers: usize) -> Duration {
        let paced = match self.per_s_max {
            0 => Duration::ZERO,
            per_s => Duration::from_millis(readers as u64 * 1000 / u64::from(per_s)),
        };
        paced.min(self.window_max).max(self.window)
    }

    /// Returns the maximum duration of a drain, up to two seconds. A supervisor must not kill the process earlier.
    pub fn longest(&self) -> Duration {
        self.announce + self.window.max(self.window_max)
    }
}

/// Maximum history of a channel of the server itself, in bytes: 100,000 revocations of the longest names.
const INTERNAL_BYTES_MAX: usize = 64 << 20;

/// Maximum number of changes that a state of the server itself keeps in its log. It bounds the events about channels
/// and connections that wait for a back end.
const INTERNAL_COUNT_MAX: usize = 100_000;

/// Allowed maximum numbers of keys of a state.
const KEYS: std::ops::RangeInclusive<usize> = 1..=10_000_000;

/// Longest time for which a member without a connection may stay in a roster.
const GRACE_MAX: Duration = Duration::from_secs(60 * 60);

/// The defaults, with a comment for every key.
pub const DEFAULT_TOML: &str = include_str!("default.toml");

impl Config {
    /// Checks ranges and combinations that the types cannot express.
    ///
    /// Errors: one sentence with the key and the allowed values.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        let bad = |key: &str, what: &str| Err(InvalidSetting { key: key.into(), what: what.into() });
        if let Err(error) = millrace_engine::check_url(&self.engine.url) {
            return bad("engine.url", &format!("is invalid: {error}"));
        }
        if !["text", "json"].contains(&self.log.format.as_str()) {
            return bad("log.format", "must be `text` or `json`");
        }
        // A misspelt level would be parsed as the name of a module, and nothing would be logged.
        let levels = ["off", "error", "warn", "info", "debug", "trace"];
        let is_level = |part: &str| levels.contains(&part.rsplit('=').next().unwrap_or_default().trim());
        if !self.log.level.split(',').all(is_level) {
            return bad(
                "log.level",
                "must be off, error, warn, info, debug or trace, or a level per module: `info,millrace_transport=debug`",
            );
        }
        if !self.mqtt.listen.is_empty() && self.mqtt_address().is_none() {
            return bad("mqtt.listen", "must be HOST:PORT, for example `127.0.0.1:1883`, or empty");
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(65_535)).contains(&self.mqtt.keep_alive_max) {
            return bad("mqtt.keep_alive_max", "must be from 1s to 65535s, which is the largest keep alive of MQTT");
        }
        if self.mqtt.session_expiry_max > 365 * DAY {
            return bad("mqtt.session_expiry_max", "must be at most 365days");
        }
        if self.mqtt.will_bytes_max > 65_535 {
            return bad("mqtt.will_bytes_max", "must be at most 65535 bytes, which is the largest will of MQTT");
        }
        if let Err(what) = self.rtc.address(self.server.listen) {
            return bad("rtc.listen", what);
        }
        if let Err((key, what)) = self.rooms.check() {
            return bad(key, what);
        }
        if let Err((key, what)) = self.turn.check(self.server.listen) {
            return bad(key, what);
        }
        if self.race.enabled == millrace_race::Mode::On
            && (self.server.behind_proxy || !self.server.trusted_proxies.is_empty())
        {
            // The server trusts the forwarded header of its lanes like that of a proxy, and clients write it.
            return bad(
                "race.enabled",
                "must be `auto` or `off` behind a proxy: the lanes pass headers that only the proxy may set",
            );
        }
        if !self.ingest.nmea_udp.is_empty() && self.ingest.nmea_udp.parse::<SocketAddr>().is_err() {
            return bad("ingest.nmea_udp", "must be HOST:PORT, for example `127.0.0.1:5010`, or empty");
        }
        if !(1..=10_000_000).contains(&self.ingest.devices_max) {
            return bad("ingest.devices_max", "must be from 1 to 10000000 devices");
        }
        if let Err((key, what)) = self.lab.check() {
            return bad(key, what);
        }
        match self.admin.listen.parse::<SocketAddr>() {
            Err(_) if !self.admin.listen.is_empty() => {
                return bad("admin.listen", "must be HOST:PORT, for example `127.0.0.1:8082`, or empty");
            }
            Err(_) if !self.admin.token.is_empty() => {
                return bad("admin.token", "has no effect without `admin.listen`");
            }
            Err(_) => {}
            Ok(address) if !address.ip().to_canonical().is_loopback() && !self.server.insecure_no_tls => {
                return bad(
                    "admin.listen",
                    "must be a loopback address, because requests with its token are not encrypted; `--insecure-no-tls` allows any address",
                );
            }
            Ok(_) if self.admin.token.as_bytes().len() < SECRET_BYTES_MIN => {
                let what =
                    "must have at least 16 bytes: set MILLRACE_ADMIN__TOKEN to the output of `openssl rand -hex 32`";
                return bad("admin.token", what);
            }
            Ok(_) => {}
        }
        if !self.server.secret.is_empty() && self.server.secret.as_bytes().len() < SECRET_BYTES_MIN {
            return bad(
                "server.secret",
                "must be empty or have at least 16 bytes; `openssl rand -hex 32` generates one",
            );
        }
        self.auth.check()?;
        self.traces.check()?;
        self.push.check()?;
        self.hooks.check(&self.namespaces)?;
        self.webhooks.check(self.hook_settings(), &self.webhook_namespaces())?;
        if let Some(name) = self.namespaces.keys().find(|name| name.contains('/') || ChannelName::parse(name).is_err())
        {
            return bad(&format!("namespaces.{name}"), "must be the first level of a channel name");
        }
        let keys_max = |own: &Namespace| own.history(self.history).keys_max;
        if !KEYS.contains(&self.history.keys_max) {
            return bad("history.keys_max", "must be from 1 to 10000000 keys");
        }
        if let Some((name, _)) = self.namespaces.iter().find(|(_, own)| !KEYS.contains(&keys_max(own))) {
            return bad(&format!("namespaces.{name}.keys_max"), "must be from 1 to 10000000 keys");
        }
        let grace = |own: &Namespace| own.history(self.history).roster_grace;
        if self.history.roster_grace > GRACE_MAX {
            return bad("history.roster_grace", "must be at most 1h");
        }
        if let Some((name, _)) = self.namespaces.iter().find(|(_, own)| grace(own) > GRACE_MAX) {
            return bad(&format!("namespaces.{name}.roster_grace"), "must be at most 1h");
        }
        if [self.drain.announce, self.drain.window, self.drain.window_max, self.drain.ticket].iter().any(|d| *d > DAY) {
            return bad("drain", "must have durations of at most 1day");
        }
        if let Err((key, what)) = self.upgrade.check() {
            return bad(key, what);
        }
        if self.server.shards > 1024 {
            return bad("server.shards", "must be at most 1024");
        }
        if let Some((key, what)) = self.carcare.fault() {
            return bad(&format!("carcare.{key}"), &what);
        }
        if let Err((key, what)) = self.tls.check() {
            return bad(key, what);
        }
        if (1..MEMORY_BYTES_MIN).contains(&self.limits.memory_bytes_max) {
            return bad("limits.memory_bytes_max", "must be 0, or at least 50331648 bytes (48 MiB)");
        }
        if !(1..=1 << 30).contains(&self.limits.message_bytes_max) {
            return bad("limits.message_bytes_max", "must be from 1 to 1073741824 bytes");
        }
        Ok(())
    }

    /// Returns the listen address of MQTT, if it is enabled.
    pub fn mqtt_address(&self) -> Option<SocketAddr> {
        address::parse(&self.mqtt.listen).ok()
    }

    pub fn engine(&self) -> millrace_engine::Config {
        let history = |(name, own): (String, Namespace)| (name, own.history(self.history));
        millrace_engine::Config {
            history: self.history,
            namespaces: self.all_namespaces().into_iter().map(history).collect(),
            internal: millrace_engine::HistoryConfig {
                count_max: self.auth.revoked_max,
                bytes_max: INTERNAL_BYTES_MAX,
                age_max: self.auth.revocation_lifetime(),
                ..millrace_engine::HistoryConfig::default()
            },
            internal_states: self.uses_states().then(|| millrace_engine::HistoryConfig {
                count_max: INTERNAL_COUNT_MAX,
                bytes_max: INTERNAL_BYTES_MAX,
                age_max: DAY,
                state: true,
                keys_max: self.engine.channels_max.max(1),
                ..millrace_engine::HistoryConfig::default()
            }),
            reserved: vec!["rooms".into()],
            channels_max: self.engine.channels_max,
            history_bytes_max: self.engine.history_bytes_max,
            wait: self.engine.wait,
            prefix: self.engine.prefix.clone(),
        }
    }

    /// Returns the configured namespaces and those of the server's own pages, with the defaults of the latter.
    fn all_namespaces(&self) -> BTreeMap<String, Namespace> {
        let mut all = self.namespaces.clone();
        for name in namespace::OF_PAGES {
            let own = all.remove(name).unwrap_or_default();
            all.insert(name.into(), own.with_page_defaults(name, self.history));
        }
        all
    }

    /// Returns the namespaces in which a key with a subject belongs to this subject.
    pub fn own_keys(&self) -> Vec<String> {
        self.all_namespaces().into_iter().filter(|(_, own)| own.own_keys == Some(true)).map(|(name, _)| name).collect()
    }

    /// Returns the settings of `[hooks]` that apply to webhooks, too.
    pub fn hook_settings(&self) -> crate::webhooks::HookSettings<'_> {
        let crate::hooks::Config { secrets, allow_http, ca, .. } = &self.hooks;
        crate::webhooks::HookSettings { secrets, allow_http: *allow_http, ca }
    }

    /// Returns the overrides of `[webhooks]` per namespace.
    pub fn webhook_namespaces(&self) -> crate::webhooks::Namespaces<'_> {
        self.namespaces.iter().map(|(name, own)| (name.as_str(), &own.webhooks)).collect()
    }

    /// Returns the events that the app's back end wants.
    fn event_sets(&self) -> EventSets {
        self.webhooks.event_sets(&self.webhook_namespaces())
    }

    /// Returns true if the server itself needs keyed states: for lists, for webhooks, for retained publications, or for
    /// driving feedback.
    fn uses_states(&self) -> bool {
        let (has_feedback, has_push) = (self.carcare.feedback, !self.push.key.as_os_str().is_empty());
        let has_services = has_feedback || has_push || self.rooms_span_nodes();
        self.keeps_lists() || !self.webhooks.url.is_empty() || !self.mqtt.listen.is_empty() || has_services
    }

    /// Returns true if a room may have participants on several nodes.
    fn rooms_span_nodes(&self) -> bool {
        let is_shared = matches!(millrace_engine::engine_name(&self.engine.url), "redis" | "nats");
        is_shared && self.rooms.over_nodes && self.rooms.rooms_max > 0
    }

    /// Returns true if the nodes keep any list: rosters, and the channels and connections that webhooks report.
    pub fn keeps_lists(&self) -> bool {
        let events = self.event_sets();
        self.history.roster
            || self.namespaces.values().any(|own| own.history(self.history).roster)
            || events.wants_any(EventKind::Channel)
            || events.all.contains(EventKind::Connection)
    }

    /// Returns which lists this node keeps, or `None` if none.
    pub fn lists(&self) -> Option<millrace_presence::Wanted> {
        if !self.keeps_lists() {
            return None;
        }
        let (engine, events) = (self.engine(), self.event_sets());
        let roster_grace_ms = move |channel: &ChannelName| {
            let history = engine.of(channel);
            history.roster.then_some(history.roster_grace.as_millis() as u64)
        };
        Some(millrace_presence::Wanted {
            roster_grace_ms: Box::new(roster_grace_ms),
            connections: events.all.contains(EventKind::Connection),
            is_channel_listed: Box::new(move |channel| events.wants(EventKind::Channel, channel.as_str())),
            channels_grace_ms: self.webhooks.grace.as_millis() as u64,
        })
    }

    /// Returns the permissions without a token, per namespace.
    pub fn anonymous(&self) -> crate::auth::Anonymous {
        let namespaces = self.namespaces.iter().map(|(name, own)| (name.clone(), own.anonymous.clone())).collect();
        crate::auth::Anonymous { namespaces, has_connect_hook: !self.hooks.connect.is_empty() }
    }

    /// Returns whether clients are authenticated, by tokens or by the app's back end.
    pub fn authenticates(&self) -> bool {
        self.auth.is_configured() || !self.hooks.connect.is_empty()
    }

    /// Returns the configuration for operators, without secrets.
    pub fn shown(&self) -> serde_json::Value {
        serde_json::to_value(self.without_secrets()).unwrap_or_default()
    }

    /// Returns a copy that is safe to show: without secrets.
    pub fn without_secrets(&self) -> Self {
        let mut config = self.clone();
        config.engine.url = millrace_engine::shown_url(&config.engine.url);
        // The query of the URL may contain a secret.
        if let Some((url, _)) = config.auth.jwks.split_once('?') {
            config.auth.jwks = format!("{url}?(hidden)");
        }
        config.hooks.hide_secrets();
        config.webhooks.hide_secrets();
        config.namespaces.values_mut().for_each(|namespace| namespace.hooks.hide_secrets());
        let (own, turn) = (&mut config.server.secret, &mut config.turn.secret);
        for secret in [own, turn, &mut config.auth.secret, &mut config.admin.token] {
            if !secret.is_empty() {
                *secret = Secret::from("(hidden)");
            }
        }
        config
    }

    /// Returns the number of shards: `server.shards`, or one per core if that is 0.
    pub fn shards(&self) -> usize {
        match self.server.shards {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            shards => shards,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_file_matches_defaults() {
        let parsed: Config = toml::from_str(DEFAULT_TOML).unwrap();
        assert_eq!(parsed, Config::default());
        let commented: toml::Table = toml::from_str(DEFAULT_TOML).unwrap();
        let all = toml::Table::try_from(Config::default()).unwrap();
        assert_eq!(commented, all, "default.toml must show every key");
    }

    #[test]
    fn drain_window_grows_with_readers_up_to_maximum() {
        let drain = Drain::default();
        let ms = |drain: Drain, readers| drain.spread(readers).as_millis();
        assert_eq!(
            [0, 2000, 2500, 30_000, 1_000_000].map(|n| ms(drain.clone(), n)),
            [2000, 2000, 2500, 30_000, 30_000]
        );
        assert_eq!(ms(Drain { per_s_max: 0, ..drain.clone() }, 1_000_000), 2000);
        let long = Drain { window: Duration::from_secs(60), announce: Duration::from_secs(5), ..drain };
        assert_eq!((ms(long.clone(), 5), long.longest().as_secs()), (60_000, 65));
    }

    #[test]
    fn pages_have_namespaces_that_an_operator_can_override() {
        let channel = |name: &str| ChannelName::parse(name).unwrap();
        let config = Config::default();
        let (engine, all) = (config.engine(), config.history);
        let (chat, lists) = (engine.of(&channel("chat/lobby")), engine.of(&channel("chat-lists/channels")));
        assert!(
            engine.of(&channel("fleet")).state
                && lists.state
                && !chat.state
                && !engine.of(&channel("cars/1")).state
                && engine.of(&channel("requests/car-7")).state
        );
        assert_eq!((chat.age_max, lists.age_max, lists.keys_max), (7 * DAY, all.age_max, 1_000));
        assert_eq!((chat.count_max, chat.bytes_max), (all.count_max, all.bytes_max));
        assert_eq!(config.own_keys(), ["chat", "chat-lists"]);

        let own = "[namespaces.chat]\nage_max = \"1m\"\nown_keys = false\n[namespaces.orders]\nown_keys = true\n\
                   [namespaces.chat-lists]\nkeys_max = 5\nstate = false\n[namespaces.fleet]\ncount_max = 3";
        let config: Config = toml::from_str(own).unwrap();
        let engine = config.engine();
        let lists = engine.of(&channel("chat-lists/channels"));
        assert_eq!(engine.of(&channel("chat/lobby")).age_max.as_secs(), 60);
        assert_eq!((lists.keys_max, lists.state), (5, false));
        let fleet = engine.of(&channel("fleet"));
        assert_eq!((fleet.state, fleet.count_max), (true, 3));
        assert_eq!(config.own_keys(), ["chat-lists", "orders"]);
    }

    #[test]
    fn key_set_query_is_hidden() {
        let auth = crate::auth::Config { jwks: "https://id.example/keys?key=s3cr3t".into(), ..Default::default() };
        let shown = Config { auth, ..Config::default() }.without_secrets();
        assert_eq!(shown.auth.jwks, "https://id.example/keys?(hidden)");
    }

    #[test]
    fn invalid_values_are_named() {
        let mut config = Config::default();
        config.engine.url = "postgres".into();
        assert!(config.check().unwrap_err().to_string().contains("engine.url"));
        let mut config = Config::default();
        config.server.secret = Secret::from("short");
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains("server.secret") && !error.contains("short"), "{error}");
        let mut config = Config::default();
        config.race.enabled = millrace_race::Mode::On;
        assert!(config.check().is_ok());
        config.server.behind_proxy = true;
        assert!(config.check().unwrap_err().to_string().contains("race.enabled"));
        for (level, is_good) in
            [("info", true), ("warn,millrace_node=trace", true), ("inof", false), ("info,hyper=", false)]
        {
            let log = Log { level: level.into(), ..Log::default() };
            assert_eq!(Config { log, ..Config::default() }.check().is_ok(), is_good, "{level}");
        }
    }
}
