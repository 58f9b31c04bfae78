//! `[push]`: the key of this server for Web Push, and the push services that it may call.
//!
//! Source: docs/reference/protocol.md, "Notifications".

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use millrace_carcare::feedback::{Notice, Notify};
use millrace_engine::Engine;
use millrace_push::{HOSTS, Hosts, Push, Vapid};
use serde::{Deserialize, Serialize};

use crate::setting::InvalidSetting;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// File with the private key (P-256, PEM). Empty: no Web Push.
    pub key: PathBuf,
    /// Contact of the operator for push services, a `mailto:` or `https:` URL.
    pub contact: String,
    /// Hosts of push services that may be called.
    pub hosts: Vec<String>,
    /// Time limit of a request.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            key: PathBuf::new(),
            contact: String::new(),
            hosts: HOSTS.map(str::to_owned).into(),
            timeout: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// Checks the values. Errors: one sentence with the key and the allowed values.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        let bad = |key: &str, what: &str| Err(InvalidSetting { key: format!("push.{key}"), what: what.into() });
        if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&self.timeout) {
            return bad("timeout", "must be from 100ms to 60s");
        }
        let is_contact = ["mailto:", "https://"].iter().any(|scheme| self.contact.starts_with(scheme));
        if !self.key.as_os_str().is_empty() && !is_contact {
            let what =
                "must be a `mailto:` or `https:` URL, such as `mailto:ops@example.org`: push services require it";
            return bad("contact", what);
        }
        if let Some(host) = self.hosts.iter().find(|host| host.is_empty() || host.contains(char::is_whitespace)) {
            let what = format!("`{host}` is no host, such as `fcm.googleapis.com` or `*.notify.windows.com`");
            return bad("hosts", &what);
        }
        Ok(())
    }

    /// Starts Web Push, if a key is configured.
    ///
    /// Errors: an unreadable or invalid key, or no thread.
    pub fn start(&self, engine: Arc<dyn Engine>) -> anyhow::Result<Option<Arc<Push>>> {
        if self.key.as_os_str().is_empty() {
            return Ok(None);
        }
        let path = self.key.display();
        let pem = fs::read_to_string(&self.key).with_context(|| format!("cannot read {path} (`push.key`)"))?;
        let vapid = Vapid::parse(&pem, self.contact.clone()).with_context(|| format!("{path} (`push.key`)"))?;
        let hosts = Hosts::new(self.hosts.iter().map(|host| host.to_ascii_lowercase()).collect());
        let config = millrace_push::Config { vapid, hosts, timeout: self.timeout, authorities: Vec::new() };
        Ok(Some(Arc::new(Push::start(config, engine).context("`[push]`")?)))
    }
}

/// Time for which a push service keeps a notification about a car.
const NOTICE_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Sends the notifications of the driving feedback to the browsers that want those of the car.
pub struct NotifyCars(pub Arc<Push>);

impl Notify for NotifyCars {
    fn notify(&self, notice: Notice) {
        let urgency = if notice.is_urgent { "high" } else { "normal" };
        self.0.notify(notice.subject, notice.message.to_string().into(), NOTICE_TTL, urgency);
    }
}
