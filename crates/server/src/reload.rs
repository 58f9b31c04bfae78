//! SIGHUP: determines which changed settings take effect at once, and which need a restart.

use std::collections::{BTreeMap, BTreeSet};

use toml::Table;

use crate::{
    Config, auth,
    config::{Namespace, Sources},
    tls,
};

/// Functions of the program around the server that a reload needs.
pub struct Reload {
    /// Reads file, environment and flags again.
    pub load: Box<dyn Fn() -> anyhow::Result<Sources>>,
    /// Changes the log level to a new `log.level`.
    pub set_log_level: SetLogLevel,
}

pub type SetLogLevel = Box<dyn Fn(&str) -> anyhow::Result<()>>;

/// Sections and single keys that take effect at once. All others are read only when a socket, a thread or a history is
/// created. [`in_effect`] has the same list.
const AT_ONCE: &[&str] =
    &["auth", "limits", "drain", "upgrade", "hooks.secrets", "webhooks.secrets", "log.level", "tls"];
/// Single keys in these sections that need a restart.
const LATER: &[&str] = &["auth.cookie", "auth.query", "limits.memory_bytes_max", "tls.acme", "tls.give_out_ca"];
/// Key of a namespace that takes effect at once.
const ANONYMOUS: &str = "anonymous";

/// Returns the `section.key` of each difference, and whether it takes effect at once. Values are not returned: some are
/// secret.
pub fn changes(old: &Config, new: &Config) -> Vec<(String, bool)> {
    // A certificate from another source needs a restart.
    let keeps_source = old.tls.source() == new.tls.source();
    let (old, new) = (sections(old), sections(new));
    let section = |config: &Table, name: &str| config.get(name).and_then(|section| section.as_table()).cloned();
    let mut changes = Vec::new();
    for name in old.keys() {
        let (old, new) = (section(&old, name).unwrap_or_default(), section(&new, name).unwrap_or_default());
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in keys.into_iter().filter(|key| old.get(*key) != new.get(*key)) {
            let full = format!("{name}.{key}");
            let is_among = |keys: &[&str]| keys.iter().any(|entry| *entry == name || *entry == full);
            let at_once = is_among(AT_ONCE) && !is_among(LATER) && (name != "tls" || keeps_source);
            let is_anonymous = name == "namespaces" && without(&old, key, ANONYMOUS) == without(&new, key, ANONYMOUS);
            changes.push((full, at_once || is_anonymous));
        }
    }
    changes
}

/// Returns the configuration in effect after a reload: the new values that take effect at once, and the old values of
/// all other settings. A change that needs a restart therefore stays a change, and the next reload reports it again.
pub fn in_effect(old: &Config, new: &Config) -> Config {
    let mut config = old.clone();
    let (cookie, query) = (old.auth.cookie.clone(), old.auth.query);
    config.auth = auth::Config { cookie, query, ..new.auth.clone() };
    config.limits.clone_from(&new.limits);
    config.limits.memory_bytes_max = old.limits.memory_bytes_max;
    config.drain.clone_from(&new.drain);
    config.upgrade = new.upgrade;
    config.hooks.secrets.clone_from(&new.hooks.secrets);
    config.webhooks.secrets.clone_from(&new.webhooks.secrets);
    config.log.level.clone_from(&new.log.level);
    if old.tls.source() == new.tls.source() {
        let (acme, give_out_ca) = (old.tls.acme.clone(), old.tls.give_out_ca.clone());
        config.tls = tls::Config { acme, give_out_ca, ..new.tls.clone() };
    }
    for (name, namespace) in &new.namespaces {
        config.namespaces.entry(name.clone()).or_default().anonymous.clone_from(&namespace.anonymous);
    }
    for (name, namespace) in &mut config.namespaces {
        if !new.namespaces.contains_key(name) {
            namespace.anonymous.clear();
        }
    }
    // A namespace without settings is the same as none.
    config.namespaces.retain(|name, namespace| new.namespaces.contains_key(name) || *namespace != Namespace::default());
    config
}

/// Returns the sources of the values in effect after a reload. A value that needs a restart keeps its old source.
pub fn sources_in_effect(
    old: &BTreeMap<String, String>,
    new: BTreeMap<String, String>,
    changes: &[(String, bool)],
) -> BTreeMap<String, String> {
    let is_later = |path: &str| {
        changes.iter().any(|(key, at_once)| {
            !at_once && path.strip_prefix(key.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let kept = old.iter().filter(|(path, _)| is_later(path)).map(|(path, from)| (path.clone(), from.clone()));
    let replaced = new.into_iter().filter(|(path, _)| !is_later(path));
    kept.chain(replaced).collect()
}

/// Returns an entry of a section, without one of its keys.
fn without(section: &Table, entry: &str, key: &str) -> Table {
    let mut entry = section.get(entry).and_then(|entry| entry.as_table()).cloned().unwrap_or_default();
    entry.remove(key);
    entry
}

fn sections(config: &Config) -> Table {
    Table::try_from(config).expect("a configuration is made of tables")
}

#[cfg(test)]
mod tests {
    use millrace_protocol::Permission;

    use super::*;
    use crate::config::Namespace;

    /// Returns two configurations that differ in settings of every kind.
    fn old_and_new() -> (Config, Config) {
        let anonymous = |right| Namespace { anonymous: vec![right], ..Namespace::default() };
        let mut old = Config::default();
        old.namespaces.insert("gone".into(), anonymous(Permission::Publish));
        let mut new = Config::default();
        new.log.level = "debug".into();
        new.limits.subscriptions_max = 7;
        new.limits.memory_bytes_max = 1 << 30;
        new.server.shards = 3;
        new.namespaces.insert("cars".into(), Namespace { count_max: Some(7), ..Namespace::default() });
        new.namespaces.insert("news".into(), anonymous(Permission::Subscribe));
        new.auth.issuer = "https://id.example".into();
        new.auth.cookie = "token".into();
        new.tls.give_out_ca = "ca.pem".into();
        (old, new)
    }

    #[test]
    fn changes_name_settings_that_need_a_restart() {
        let (old, new) = old_and_new();
        let expected = [
            ("auth.cookie", false),
            ("auth.issuer", true),
            ("limits.memory_bytes_max", false),
            ("limits.subscriptions_max", true),
            ("log.level", true),
            ("namespaces.cars", false),
            ("namespaces.gone", true),
            ("namespaces.news", true),
            ("server.shards", false),
            ("tls.give_out_ca", false),
        ];
        assert_eq!(changes(&old, &new), expected.map(|(key, at_once)| (key.to_owned(), at_once)));
        assert_eq!(changes(&old, &old), []);
    }

    #[test]
    fn setting_that_needs_a_restart_keeps_its_source() {
        let sources = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(path, from)| ((*path).to_owned(), (*from).to_owned())).collect()
        };
        let old = sources(&[("server.shards", "--shards"), ("log.level", "env MILLRACE_LOG__LEVEL")]);
        let new =
            sources(&[("log.level", "file a"), ("server.udp", "file a"), ("namespaces.cars.count_max", "file a")]);
        let changes =
            [("server.shards", false), ("server.udp", false), ("log.level", true), ("namespaces.cars", false)];
        let in_effect = sources_in_effect(&old, new, &changes.map(|(key, at_once)| (key.to_owned(), at_once)));
        assert_eq!(in_effect, sources(&[("server.shards", "--shards"), ("log.level", "file a")]));
    }

    #[test]
    fn settings_that_need_a_restart_stay_changes() {
        let (old, mut new) = old_and_new();
        let pending = |new: &Config| changes(&old, new).into_iter().filter(|(_, at_once)| !at_once).collect::<Vec<_>>();
        let reloaded = in_effect(&old, &new);
        assert_eq!(changes(&reloaded, &new), pending(&new));
        assert_eq!(in_effect(&reloaded, &new), reloaded);
        assert_eq!((&reloaded.auth.issuer[..], &reloaded.auth.cookie[..]), ("https://id.example", ""));
        // Another source of the certificate.
        (new.tls.cert, new.tls.key, new.tls.min_version) = ("cert.pem".into(), "key.pem".into(), "1.3".into());
        let reloaded = in_effect(&old, &new);
        assert_eq!((changes(&reloaded, &new), &reloaded.tls), (pending(&new), &old.tls));
    }
}
