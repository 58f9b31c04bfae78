//! `[webhooks]`: the URL that receives events, and the limits of its requests.
//!
//! Source: docs/reference/webhooks.md.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use millrace_engine::{Answer, Engine};
use millrace_hooks::{
    HookUrl,
    signature::{SECRET_BYTES_MIN, Signer},
};
use millrace_node::MetricKind;
use millrace_presence::Consumer;
use millrace_protocol::{ChannelName, Code, Error};
use millrace_webhooks::{
    EventKind, EventSet, EventSets, Limits, Webhooks,
    event::EventType,
    metrics::{Metrics, Outcome, RequestResult},
};
use serde::{Deserialize, Serialize};

use crate::{
    metrics::Exposition,
    setting::{InvalidSetting, Secret, hide_query},
};

/// Longest pause between two attempts to send a batch.
const PAUSE_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// URL that receives the events. Empty: none are sent.
    pub url: String,
    /// Secrets that sign the requests. Empty: those of `[hooks]`.
    pub secrets: Vec<Secret>,
    /// Kinds of events.
    pub events: Vec<EventKind>,
    /// Time limit of a request.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Time from the last reader of a channel until the channel is vacated, so that readers can reconnect.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    /// Maximum number of events of a request.
    pub batch_max: usize,
    /// A request is full once its events have this many bytes.
    pub batch_bytes_max: usize,
    /// Maximum time that an event waits for others.
    #[serde(with = "humantime_serde")]
    pub batch_wait: Duration,
    /// Events that were not acknowledged for this long become dead letters.
    #[serde(with = "humantime_serde")]
    pub give_up: Duration,
    /// Maximum number of dead letters.
    pub dead_max: usize,
}

/// Overrides for the channels of one first level. `None` keeps the value of `[webhooks]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NamespaceConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<EventKind>>,
}

/// Overrides by the name of their namespace.
pub type Namespaces<'a> = BTreeMap<&'a str, &'a NamespaceConfig>;

/// Settings of `[hooks]` that apply to webhooks, too.
#[derive(Clone, Copy, Debug)]
pub struct HookSettings<'a> {
    pub secrets: &'a [Secret],
    pub allow_http: bool,
    pub ca: &'a Path,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            url: String::new(),
            secrets: Vec::new(),
            events: vec![EventKind::Channel, EventKind::Member, EventKind::Connection],
            timeout: Duration::from_secs(5),
            grace: Duration::from_secs(5),
            batch_max: 1000,
            batch_bytes_max: 1 << 20,
            batch_wait: Duration::from_millis(100),
            give_up: Duration::from_secs(24 * 60 * 60),
            dead_max: 10_000,
        }
    }
}

impl Config {
    /// Checks ranges and combinations that the types cannot express.
    ///
    /// Errors: one sentence with the key and the allowed values.
    pub fn check(&self, hooks: HookSettings<'_>, namespaces: &Namespaces<'_>) -> Result<(), InvalidSetting> {
        let bad = |key: &str, what: &str| Err(InvalidSetting { key: key.into(), what: what.into() });
        if self.url.is_empty() {
            if let Some((name, _)) = namespaces.iter().find(|(_, own)| own.events.is_some()) {
                let key = format!("namespaces.{name}.webhooks.events");
                return bad(&key, "has no effect without `webhooks.url`, which receives the events");
            }
        } else {
            if let Err(what) = HookUrl::parse(&self.url, hooks.allow_http) {
                return bad("webhooks.url", &what.to_string());
            }
            if self.secrets.is_empty() && hooks.secrets.is_empty() {
                let what = "must have a secret, with which the back end verifies the requests: \
                    set MILLRACE_WEBHOOKS__SECRETS to the output of `openssl rand -hex 32`, or set `hooks.secrets`";
                return bad("webhooks.secrets", what);
            }
        }
        if self.secrets.iter().any(|secret| secret.as_bytes().len() < SECRET_BYTES_MIN) {
            return bad("webhooks.secrets", "must have at least 16 bytes each; `openssl rand -hex 32` generates one");
        }
        let is_connection = |kind: &EventKind| *kind == EventKind::Connection;
        let has_connection = |own: &NamespaceConfig| own.events.iter().flatten().any(is_connection);
        if let Some((name, _)) = namespaces.iter().find(|(_, own)| has_connection(own)) {
            let key = format!("namespaces.{name}.webhooks.events");
            return bad(
                &key,
                "must not contain `connection`, because a connection belongs to no namespace: set it in `webhooks.events`",
            );
        }
        let second = Duration::from_secs(1);
        let ms = Duration::from_millis(1);
        if !(ms..=300 * second).contains(&self.timeout) {
            return bad("webhooks.timeout", "must be from 1ms to 5m");
        }
        if self.grace > 3600 * second {
            return bad("webhooks.grace", "must be from 0s to 1h");
        }
        if !(1..=100_000).contains(&self.batch_max) {
            return bad("webhooks.batch_max", "must be from 1 to 100000 events");
        }
        if !(1024..=64 << 20).contains(&self.batch_bytes_max) {
            return bad("webhooks.batch_bytes_max", "must be from 1024 to 67108864 bytes");
        }
        if self.batch_wait > 60 * second {
            return bad("webhooks.batch_wait", "must be from 0s to 1m");
        }
        if !(second..=30 * 24 * 3600 * second).contains(&self.give_up) {
            return bad("webhooks.give_up", "must be from 1s to 30days");
        }
        if !(1..=90_000).contains(&self.dead_max) {
            return bad("webhooks.dead_max", "must be from 1 to 90000 dead letters");
        }
        Ok(())
    }

    /// Replaces everything that operators must not see: the secrets, and the query of the URL.
    pub fn hide_secrets(&mut self) {
        self.secrets.iter_mut().for_each(|secret| *secret = Secret::from("(hidden)"));
        hide_query(&mut self.url);
    }

    pub fn signer(&self, hooks: HookSettings<'_>) -> Signer {
        let secrets = if self.secrets.is_empty() { hooks.secrets } else { &self.secrets };
        Signer::new(secrets.iter().map(Secret::as_bytes))
    }

    /// Returns the kinds of events that are sent; none without a URL.
    pub fn event_sets(&self, namespaces: &Namespaces<'_>) -> EventSets {
        if self.url.is_empty() {
            return EventSets::default();
        }
        let own = |(name, own): (&&str, &&NamespaceConfig)| {
            Some(((*name).to_owned(), own.events.as_ref()?.iter().copied().collect::<EventSet>()))
        };
        EventSets {
            all: self.events.iter().copied().collect(),
            namespaces: namespaces.iter().filter_map(own).collect(),
        }
    }

    /// Starts the webhooks, if a URL is configured.
    ///
    /// Errors: an unreadable or invalid certificate, or no thread.
    pub fn start(
        &self,
        hooks: HookSettings<'_>,
        namespaces: &Namespaces<'_>,
        engine: Arc<dyn Engine>,
    ) -> anyhow::Result<Option<Arc<Webhooks>>> {
        if self.url.is_empty() {
            return Ok(None);
        }
        let authorities = match hooks.ca.as_os_str().is_empty() {
            true => Vec::new(),
            false => fs::read(hooks.ca).with_context(|| format!("cannot read {} (`hooks.ca`)", hooks.ca.display()))?,
        };
        let config = millrace_webhooks::Config {
            url: HookUrl::parse(&self.url, hooks.allow_http)?,
            signer: self.signer(hooks),
            authorities,
            events: self.event_sets(namespaces),
            timeout: self.timeout,
            limits: Limits {
                batch_max: self.batch_max,
                batch_bytes_max: self.batch_bytes_max,
                batch_wait: self.batch_wait,
                pause_max: PAUSE_MAX,
                give_up: self.give_up,
            },
            dead_max: self.dead_max,
        };
        Ok(Some(Arc::new(Webhooks::start(config, engine).context("`[webhooks]`")?)))
    }
}

/// Passes the changes of lists to the webhooks: a list is registered before its first entry.
pub struct ListEvents(pub Arc<Webhooks>);

impl Consumer for ListEvents {
    fn prepare(&self, list: &ChannelName) -> Answer<Result<(), Error>> {
        if !self.0.is_registered_by_lists(list) {
            return Answer::now(Ok(()));
        }
        let (registry, list) = (self.0.registry().clone(), list.clone());
        Answer::Later(Box::pin(async move {
            match registry.register(&list).await {
                // The roster matters more than its events, which the metric counts as unregistered.
                Err(error) if error.code == Code::TooMany => Ok(()),
                registered => registered,
            }
        }))
    }

    fn written(&self, list: &ChannelName) {
        self.0.registry().notify(list);
    }
}

/// Appends the metrics of the webhooks.
pub fn render(webhooks: &Webhooks, out: &mut Exposition) {
    let metrics = webhooks.metrics();
    let counts = EventType::ALL.into_iter().flat_map(|event_type| {
        let count = move |outcome: Outcome| {
            ([("type", event_type.name()), ("result", outcome.name())], metrics.events(event_type, outcome))
        };
        Outcome::ALL.map(count)
    });
    out.family(
        "millrace_webhook_events_total",
        MetricKind::Counter,
        "Events that the back end has acknowledged, or that have become dead letters, by type.",
        counts,
    );
    out.family(
        "millrace_webhook_requests_total",
        MetricKind::Counter,
        "Requests with a batch of events, by result.",
        RequestResult::ALL.map(|result| ([("result", result.name())], metrics.requests(result))),
    );
    type Value = fn(&Metrics) -> u64;
    use std::sync::atomic::Ordering::Relaxed;
    let counters: [(&str, &str, Value); 3] = [
        (
            "millrace_webhook_dropped_total",
            "Publications of logs with events that left history before they were read. Their events are lost.",
            |metrics| metrics.dropped.load(Relaxed),
        ),
        (
            "millrace_webhook_dead_letters_dropped_total",
            "Dead letters that were deleted because there were more than webhooks.dead_max.",
            |metrics| metrics.letters_dropped.load(Relaxed),
        ),
        (
            "millrace_webhook_unregistered_total",
            "Channels that could not be registered before a publication. Events of it may be lost.",
            |metrics| metrics.unregistered.load(Relaxed),
        ),
    ];
    for (name, help, value) in counters {
        out.value(name, MetricKind::Counter, help, value(metrics));
    }
    let gauges: [(&str, &str, Value); 4] = [
        ("millrace_webhook_dispatching", "1 on the node that sends the events, otherwise 0.", |metrics| {
            metrics.is_dispatching.load(Relaxed).into()
        }),
        (
            "millrace_webhook_failing",
            "1 while the last request of this node has failed, so that its batch is repeated.",
            |metrics| metrics.is_failing.load(Relaxed).into(),
        ),
        ("millrace_webhook_dead_letters", "Dead letters, on the node that sends the events.", |metrics| {
            metrics.letters.load(Relaxed)
        }),
        ("millrace_webhook_logs", "Logs that the node that sends the events reads.", |metrics| {
            metrics.logs.load(Relaxed)
        }),
    ];
    for (name, help, value) in gauges {
        out.value(name, MetricKind::Gauge, help, value(metrics));
    }
    out.value(
        "millrace_webhook_lag_seconds",
        MetricKind::Gauge,
        "Age of the oldest event that is not acknowledged, on the node that sends the events.",
        webhooks.lag_ms() as f64 / 1e3,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Config {
        let secrets = vec![Secret::from("sixteen bytes, or more")];
        Config { url: "https://app.example/webhooks".into(), secrets, ..Config::default() }
    }

    fn hooks(secrets: &[Secret]) -> HookSettings<'_> {
        HookSettings { secrets, allow_http: false, ca: Path::new("") }
    }

    fn wrong(change: impl FnOnce(&mut Config)) -> Option<String> {
        let mut config = good();
        change(&mut config);
        config.check(hooks(&[]), &BTreeMap::new()).err().map(|error| error.key)
    }

    #[test]
    fn invalid_settings_are_named() {
        assert_eq!(wrong(|_| {}), None);
        assert_eq!(wrong(|config| config.url = "http://app.example/".into()).as_deref(), Some("webhooks.url"));
        assert_eq!(wrong(|config| config.secrets.clear()).as_deref(), Some("webhooks.secrets"));
        assert_eq!(wrong(|config| config.secrets.push("short".into())).as_deref(), Some("webhooks.secrets"));
        assert_eq!(wrong(|config| config.timeout = Duration::ZERO).as_deref(), Some("webhooks.timeout"));
        assert_eq!(wrong(|config| config.batch_max = 0).as_deref(), Some("webhooks.batch_max"));
        assert_eq!(wrong(|config| config.batch_bytes_max = 1).as_deref(), Some("webhooks.batch_bytes_max"));
        assert_eq!(wrong(|config| config.give_up = Duration::ZERO).as_deref(), Some("webhooks.give_up"));
        assert_eq!(wrong(|config| config.dead_max = 0).as_deref(), Some("webhooks.dead_max"));
        let (secrets, borrowed) = (good().secrets, Config { secrets: Vec::new(), ..good() });
        assert_eq!(borrowed.check(hooks(&secrets), &BTreeMap::new()), Ok(()), "the secrets of the hooks are used");
        let key = "namespaces.chat.webhooks.events";
        let connection = NamespaceConfig { events: Some(vec![EventKind::Connection]) };
        let error = good().check(hooks(&[]), &BTreeMap::from([("chat", &connection)])).unwrap_err();
        assert_eq!(error.key, key);
        let channel = NamespaceConfig { events: Some(vec![EventKind::Channel]) };
        let error = Config::default().check(hooks(&[]), &BTreeMap::from([("chat", &channel)])).unwrap_err();
        assert_eq!(error.key, key);
    }

    #[test]
    fn secrets_and_query_are_hidden() {
        let mut config = Config { url: "https://app.example/webhooks?key=s3cr3t".into(), ..good() };
        config.hide_secrets();
        let shown = serde_json::to_string(&config).unwrap();
        assert!(!shown.contains("sixteen") && !shown.contains("s3cr3t"), "{shown}");
    }

    #[test]
    fn nothing_is_wanted_without_a_url() {
        let chat = NamespaceConfig { events: Some(vec![EventKind::Publication]) };
        let (namespaces, none) = (BTreeMap::from([("chat", &chat)]), Config::default());
        assert_eq!(none.event_sets(&namespaces), EventSets::default());
        let sets = good().event_sets(&namespaces);
        assert!(sets.wants(EventKind::Publication, "chat/1") && sets.wants(EventKind::Channel, "news"));
    }
}
