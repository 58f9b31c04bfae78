//! SIGHUP: what of a changed configuration holds at once, and what only after a restart.

use std::collections::BTreeSet;

use toml::Table;

use crate::Config;

/// What the program around the server can do that the server cannot.
pub struct Reload {
    /// Reads file, environment and flags again.
    pub load: Box<dyn Fn() -> anyhow::Result<Config>>,
    /// Takes a new `log.level`.
    pub set_log_level: SetLogLevel,
}

pub type SetLogLevel = Box<dyn Fn(&str) -> anyhow::Result<()>>;

/// Sections, and single keys, that hold at once. All others are read when something is made: a socket, a thread, a history.
const AT_ONCE: &[&str] = &["limits", "drain", "log.level", "tls"];

/// `section.key` of everything that differs, and whether it holds at once. Values are not named: some are secret.
pub fn changes(old: &Config, new: &Config) -> Vec<(String, bool)> {
    let (old, new) = (sections(old), sections(new));
    let section = |config: &Table, name: &str| config.get(name).and_then(|section| section.as_table()).cloned();
    let mut changes = Vec::new();
    for name in old.keys() {
        let (old, new) = (section(&old, name).unwrap_or_default(), section(&new, name).unwrap_or_default());
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in keys.into_iter().filter(|key| old.get(*key) != new.get(*key)) {
            let full = format!("{name}.{key}");
            let at_once = AT_ONCE.iter().any(|entry| *entry == name || *entry == full);
            changes.push((full, at_once));
        }
    }
    changes
}

fn sections(config: &Config) -> Table {
    Table::try_from(config).expect("a configuration is made of tables")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_named_with_what_it_takes() {
        let old = Config::default();
        let mut new = old.clone();
        new.log.level = "debug".into();
        new.limits.subscriptions_max = 7;
        new.server.shards = 3;
        new.namespaces.insert("cars".into(), Default::default());
        let named: Vec<_> = changes(&old, &new);
        let expected = [
            ("limits.subscriptions_max", true),
            ("log.level", true),
            ("namespaces.cars", false),
            ("server.shards", false),
        ];
        assert_eq!(named, expected.map(|(key, at_once)| (key.to_owned(), at_once)));
        assert_eq!(changes(&old, &old), []);
    }
}
