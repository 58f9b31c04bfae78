//! `[hooks]`: the URLs of the app's back end and the limits of the requests to it.
//!
//! Source: docs/reference/hooks.md.

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use http::HeaderName;
use millrace_hooks::{
    HookUrl, Hooks, InvalidUrl, OnFailure,
    circuit_breaker::{BreakerConfig, BreakerState},
    metrics::{BUCKETS_MS, HookMetrics, Outcome},
    signature::{SECRET_BYTES_MIN, Signer},
};
use millrace_node::MetricKind;
use millrace_transport::admission::hooks::Hook;
use serde::{Deserialize, Serialize};

use crate::{
    config::Namespace,
    metrics::{Exposition, Histogram},
    setting::{InvalidSetting, Secret, hide_query},
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Secrets that sign the requests. The first is the current one; the others are announced during a rotation.
    pub secrets: Vec<Secret>,
    /// URLs of the back end. Empty: the back end is not asked.
    pub connect: String,
    pub subscribe: String,
    pub publish: String,
    pub rpc: String,
    /// Time limit of a request.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Maximum number of requests in progress, per hook and URL.
    pub concurrency: usize,
    pub answer_bytes_max: usize,
    /// Decision of Millrace itself while the back end does not answer.
    pub on_failure: OnFailure,
    /// Number of failures in a row after which a URL is not called for `pause`.
    pub failures_max: u32,
    #[serde(with = "humantime_serde")]
    pub pause: Duration,
    /// Maximum number of answers that are kept for reuse, per kind.
    pub cached_max: usize,
    /// Request headers that `connect` forwards.
    pub headers: Vec<String>,
    /// Passes tokens that are neither JWT nor API key to `connect`.
    pub opaque_tokens: bool,
    /// Allows `http` URLs to other machines.
    pub allow_http: bool,
    /// Authority that signs the certificates of the back end (PEM). Empty: the system's authorities.
    pub ca: PathBuf,
}

/// Overrides for the channels and methods of one first level. `None` keeps the value of `[hooks]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NamespaceConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscribe: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            secrets: Vec::new(),
            connect: String::new(),
            subscribe: String::new(),
            publish: String::new(),
            rpc: String::new(),
            timeout: Duration::from_secs(2),
            concurrency: 64,
            answer_bytes_max: 64 << 10,
            on_failure: OnFailure::Refuse,
            failures_max: 10,
            pause: Duration::from_secs(5),
            cached_max: 10_000,
            headers: Vec::new(),
            opaque_tokens: false,
            allow_http: false,
            ca: PathBuf::new(),
        }
    }
}

impl Config {
    /// Checks ranges and combinations that the types cannot express.
    ///
    /// Errors: one sentence with the key and the allowed values.
    pub fn check(&self, namespaces: &BTreeMap<String, Namespace>) -> Result<(), InvalidSetting> {
        let bad = |key: &str, what: &str| Err(InvalidSetting { key: key.into(), what: what.into() });
        let urls = self.urls().chain(namespaces.iter().flat_map(|(name, own)| own.hooks.urls(name)));
        let urls: Vec<(String, &String)> = urls.filter(|(_, url)| !url.is_empty()).collect();
        for (key, url) in &urls {
            if let Err(what) = HookUrl::parse(url, self.allow_http) {
                return bad(key, &what.to_string());
            }
        }
        if !urls.is_empty() && self.secrets.is_empty() {
            let what = "must have a secret, with which the back end verifies the requests: \
                set MILLRACE_HOOKS__SECRETS to the output of `openssl rand -hex 32`";
            return bad("hooks.secrets", what);
        }
        if self.secrets.iter().any(|secret| secret.as_bytes().len() < SECRET_BYTES_MIN) {
            return bad("hooks.secrets", "must have at least 16 bytes each; `openssl rand -hex 32` generates one");
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(300)).contains(&self.timeout) {
            return bad("hooks.timeout", "must be from 1ms to 5m");
        }
        if !(1..=10_000).contains(&self.concurrency) {
            return bad("hooks.concurrency", "must be from 1 to 10000");
        }
        if !(1024..=16 << 20).contains(&self.answer_bytes_max) {
            return bad("hooks.answer_bytes_max", "must be from 1024 to 16777216 bytes");
        }
        if self.failures_max == 0 {
            return bad("hooks.failures_max", "must be at least 1");
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&self.pause) {
            return bad("hooks.pause", "must be from 1ms to 1h");
        }
        if let Some(name) = self.headers.iter().find(|name| name.parse::<HeaderName>().is_err()) {
            return bad("hooks.headers", &format!("must list names of request headers; `{name}` is none"));
        }
        if self.opaque_tokens && self.connect.is_empty() {
            return bad("hooks.opaque_tokens", "has no effect without `hooks.connect`, which receives the tokens");
        }
        Ok(())
    }

    /// Returns each URL with its key.
    fn urls(&self) -> impl Iterator<Item = (String, &String)> {
        let all = [
            ("connect", &self.connect),
            ("subscribe", &self.subscribe),
            ("publish", &self.publish),
            ("rpc", &self.rpc),
        ];
        all.into_iter().map(|(name, url)| (format!("hooks.{name}"), url))
    }

    /// Replaces everything that operators must not see: the secrets, and queries of URLs.
    pub fn hide_secrets(&mut self) {
        self.secrets.iter_mut().for_each(|secret| *secret = Secret::from("(hidden)"));
        [&mut self.connect, &mut self.subscribe, &mut self.publish, &mut self.rpc].into_iter().for_each(hide_query);
    }

    pub fn signer(&self) -> Signer {
        Signer::new(self.secrets.iter().map(Secret::as_bytes))
    }

    /// Starts the hooks, if any URL is configured.
    ///
    /// Errors: an unreadable or invalid certificate, or no thread.
    pub fn start(&self, namespaces: &BTreeMap<String, Namespace>) -> anyhow::Result<Option<Arc<Hooks>>> {
        let has_url = self.urls().chain(namespaces.iter().flat_map(|(name, own)| own.hooks.urls(name)));
        if has_url.into_iter().all(|(_, url)| url.is_empty()) {
            return Ok(None);
        }
        let authorities = match self.ca.as_os_str().is_empty() {
            true => Vec::new(),
            false => fs::read(&self.ca).with_context(|| format!("cannot read {} (`hooks.ca`)", self.ca.display()))?,
        };
        let all = self.of(&NamespaceConfig::default())?;
        let own = |(name, own): (&String, &Namespace)| Ok((name.clone(), self.of(&own.hooks)?));
        let namespaces = namespaces.iter().map(own).collect::<Result<_, InvalidUrl>>()?;
        let hooks = Hooks::new(millrace_hooks::Config {
            signer: self.signer(),
            connect: self.url(&self.connect)?,
            all,
            namespaces,
            timeout: self.timeout,
            concurrency: self.concurrency,
            answer_bytes_max: self.answer_bytes_max,
            cached_max: self.cached_max,
            breaker: BreakerConfig { failures_max: self.failures_max, pause: self.pause },
            headers: self.headers.iter().filter_map(|name| name.parse().ok()).collect(),
            opaque_tokens: self.opaque_tokens,
            authorities,
        });
        Ok(Some(Arc::new(hooks.context("`[hooks]`")?)))
    }

    /// Returns the settings of a namespace, completed by those of all.
    fn of(&self, own: &NamespaceConfig) -> Result<millrace_hooks::NamespaceHooks, InvalidUrl> {
        let url = |own: &Option<String>, all: &String| self.url(own.as_ref().unwrap_or(all));
        Ok(millrace_hooks::NamespaceHooks {
            subscribe: url(&own.subscribe, &self.subscribe)?,
            publish: url(&own.publish, &self.publish)?,
            rpc: url(&own.rpc, &self.rpc)?,
            on_failure: own.on_failure.unwrap_or(self.on_failure),
        })
    }

    fn url(&self, url: &str) -> Result<Option<HookUrl>, InvalidUrl> {
        if url.is_empty() { Ok(None) } else { HookUrl::parse(url, self.allow_http).map(Some) }
    }
}

impl NamespaceConfig {
    fn urls(&self, namespace: &str) -> impl Iterator<Item = (String, &String)> {
        let own = [("subscribe", &self.subscribe), ("publish", &self.publish), ("rpc", &self.rpc)];
        own.into_iter()
            .filter_map(move |(name, url)| Some((format!("namespaces.{namespace}.hooks.{name}"), url.as_ref()?)))
    }

    pub fn hide_secrets(&mut self) {
        [&mut self.subscribe, &mut self.publish, &mut self.rpc].into_iter().flatten().for_each(hide_query);
    }
}

/// Returns the state of each URL, for operators.
pub fn state(hooks: &Hooks) -> serde_json::Value {
    let endpoints = hooks.endpoints();
    endpoints
        .iter()
        .map(|endpoint| serde_json::json!({ "hook": endpoint.hook.name(), "url": endpoint.url, "breaker": endpoint.breaker.name() }))
        .collect()
}

/// Appends the metrics of the hooks.
pub fn render(hooks: &Hooks, out: &mut Exposition) {
    let metrics = |hook: &Hook| hooks.metrics().of(*hook);
    let counts = Hook::ALL.iter().flat_map(|hook| {
        let of = metrics(hook);
        Outcome::ALL.map(|outcome| ([("hook", hook.name()), ("result", outcome.name())], of.outcome(outcome)))
    });
    out.family(
        "millrace_hook_requests_total",
        MetricKind::Counter,
        "Questions to the app's back end, by hook and result. Answers from the cache are not included.",
        counts,
    );
    out.family(
        "millrace_hook_cached_total",
        MetricKind::Counter,
        "Questions answered from the cache.",
        Hook::ALL.iter().map(|hook| ([("hook", hook.name())], metrics(hook).cached())),
    );
    out.histogram(
        "millrace_hook_seconds",
        "Time until a question was answered or failed, including the wait for a free slot.",
        &BUCKETS_MS.map(|ms| ms as f64 / 1e3),
        Hook::ALL.iter().map(|hook| ([("hook", hook.name())], latencies(metrics(hook)))),
    );
    let endpoints = hooks.endpoints();
    let state = |state: BreakerState| match state {
        BreakerState::Closed => 0,
        BreakerState::HalfOpen => 1,
        BreakerState::Open => 2,
    };
    out.family(
        "millrace_hook_breaker",
        MetricKind::Gauge,
        "Circuit breaker of each hook and URL: 0 closed, 1 half open, 2 open. While it is open, the URL is not called.",
        endpoints.iter().map(|endpoint| {
            ([("hook", endpoint.hook.name()), ("url", endpoint.url.as_str())], state(endpoint.breaker))
        }),
    );
}

fn latencies(metrics: &HookMetrics) -> Histogram {
    let (counts, sum) = metrics.latencies();
    Histogram { counts: counts.into(), sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(change: impl FnOnce(&mut Config)) -> Option<String> {
        let mut config = Config { secrets: vec![Secret::from("sixteen bytes, or more")], ..Config::default() };
        change(&mut config);
        config.check(&BTreeMap::new()).err().map(|error| error.key)
    }

    #[test]
    fn invalid_settings_are_named() {
        assert_eq!(wrong(|_| {}), None);
        assert_eq!(wrong(|config| config.publish = "https://app.example/hooks".into()), None);
        assert_eq!(
            wrong(|config| config.publish = "http://app.example/hooks".into()).as_deref(),
            Some("hooks.publish")
        );
        let no_secret = |config: &mut Config| {
            config.secrets.clear();
            config.rpc = "https://app.example/hooks".into();
        };
        assert_eq!(wrong(no_secret).as_deref(), Some("hooks.secrets"));
        assert_eq!(wrong(|config| config.secrets.push(Secret::from("short"))).as_deref(), Some("hooks.secrets"));
        assert_eq!(wrong(|config| config.headers.push("no name".into())).as_deref(), Some("hooks.headers"));
        assert_eq!(wrong(|config| config.opaque_tokens = true).as_deref(), Some("hooks.opaque_tokens"));
        let own = NamespaceConfig { publish: Some("ftp://app.example".into()), ..NamespaceConfig::default() };
        let namespaces = BTreeMap::from([("chat".to_owned(), Namespace { hooks: own, ..Namespace::default() })]);
        let error = Config::default().check(&namespaces).unwrap_err();
        assert_eq!(error.key, "namespaces.chat.hooks.publish");
    }

    #[test]
    fn secrets_and_queries_are_hidden() {
        let mut config = Config {
            secrets: vec![Secret::from("a secret of 16 bytes")],
            publish: "https://app.example/hooks?key=s3cr3t".into(),
            ..Config::default()
        };
        config.hide_secrets();
        let shown = serde_json::to_string(&config).unwrap();
        assert!(!shown.contains("16 bytes") && !shown.contains("s3cr3t"), "{shown}");
        assert!(shown.contains("https://app.example/hooks?(hidden)"), "{shown}");
    }

    #[test]
    fn namespace_overrides_and_disables() {
        let all = Config { publish: "https://app.example/all".into(), ..Config::default() };
        let own =
            |publish: Option<&str>| NamespaceConfig { publish: publish.map(Into::into), ..NamespaceConfig::default() };
        let url = |own| all.of(&own).unwrap().publish.map(|url| url.shown());
        assert_eq!(url(own(None)).as_deref(), Some("https://app.example/all"));
        assert_eq!(url(own(Some("https://app.example/own"))).as_deref(), Some("https://app.example/own"));
        assert_eq!(url(own(Some(""))), None);
    }
}
