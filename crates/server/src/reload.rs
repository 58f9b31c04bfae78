//! SIGHUP: determines which changed settings take effect at once, and which need a restart.

use std::collections::BTreeSet;

use toml::Table;

use crate::Config;

/// Functions of the program around the server that a reload needs.
pub struct Reload {
    /// Reads file, environment and flags again.
    pub load: Box<dyn Fn() -> anyhow::Result<Config>>,
    /// Changes the log level to a new `log.level`.
    pub set_log_level: SetLogLevel,
}

pub type SetLogLevel = Box<dyn Fn(&str) -> anyhow::Result<()>>;

/// Sections and single keys that take effect at once. All others are read only when a socket, a thread or a history is
/// created.
const AT_ONCE: &[&str] = &["auth", "limits", "drain", "log.level", "tls"];
/// Single keys in these sections that need a restart.
const LATER: &[&str] = &["auth.cookie", "auth.query", "tls.acme"];
/// Key of a namespace that takes effect at once.
const ANONYMOUS: &str = "anonymous";

/// Returns the `section.key` of each difference, and whether it takes effect at once. Values are not returned: some are
/// secret.
pub fn changes(old: &Config, new: &Config) -> Vec<(String, bool)> {
    let (old, new) = (sections(old), sections(new));
    let section = |config: &Table, name: &str| config.get(name).and_then(|section| section.as_table()).cloned();
    let mut changes = Vec::new();
    for name in old.keys() {
        let (old, new) = (section(&old, name).unwrap_or_default(), section(&new, name).unwrap_or_default());
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in keys.into_iter().filter(|key| old.get(*key) != new.get(*key)) {
            let full = format!("{name}.{key}");
            let is_among = |keys: &[&str]| keys.iter().any(|entry| *entry == name || *entry == full);
            let at_once = is_among(AT_ONCE) && !is_among(LATER);
            let is_anonymous = name == "namespaces" && without(&old, key, ANONYMOUS) == without(&new, key, ANONYMOUS);
            changes.push((full, at_once || is_anonymous));
        }
    }
    changes
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

    #[test]
    fn every_change_is_named_with_what_it_takes() {
        let old = Config::default();
        let mut new = old.clone();
        new.log.level = "debug".into();
        new.limits.subscriptions_max = 7;
        new.server.shards = 3;
        new.namespaces.insert("cars".into(), Namespace { count_max: Some(7), ..Namespace::default() });
        new.namespaces
            .insert("news".into(), Namespace { anonymous: vec![Permission::Subscribe], ..Namespace::default() });
        new.auth.issuer = "https://id.example".into();
        let named: Vec<_> = changes(&old, &new);
        let expected = [
            ("auth.issuer", true),
            ("limits.subscriptions_max", true),
            ("log.level", true),
            ("namespaces.cars", false),
            ("namespaces.news", true),
            ("server.shards", false),
        ];
        assert_eq!(named, expected.map(|(key, at_once)| (key.to_owned(), at_once)));
        assert_eq!(changes(&old, &old), []);
    }
}
