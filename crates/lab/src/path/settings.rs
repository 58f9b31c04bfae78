//! The setting `path` of a run: a profile, and changes of single values.

use anyhow::{Context, anyhow, bail, ensure};
use millrace_link::{Config, profiles};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::nearest::nearest;

/// Value that removes a setting of the profile, such as its rate.
const NONE: &str = "none";
/// Settings that a link can be without: of one direction, and of the link.
const REMOVABLE: [&str; 6] = ["rate", "trace", "queue", "codel", "loss_burst", "gilbert_elliott"];
const REMOVABLE_OF_LINK: [&str; 4] = ["nat", "radio", "outage", "handover"];

/// A link as the settings of a scenario name it: `"3g"`, or `{ profile = "3g", down = { loss = "1%" } }`. The default
/// is no link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Table")]
pub struct PathSettings {
    /// Name of a profile, or empty: a link that changes nothing but what `changes` say.
    profile: String,
    /// Values of [`Config`] that differ from the profile.
    changes: Table,
}

/// The two forms in which a path is written.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Profile(String),
    Table(Table),
}

impl PathSettings {
    /// Returns the settings of a profile without changes.
    pub fn of(profile: &str) -> Self {
        Self { profile: profile.into(), changes: Table::new() }
    }

    pub fn is_none(&self) -> bool {
        self.profile.is_empty() && self.changes.is_empty()
    }

    /// Returns a short name for tables, such as `3g` or `3g, changed`.
    pub fn name(&self) -> String {
        let profile = if self.profile.is_empty() { "own" } else { &self.profile };
        if self.changes.is_empty() || self.profile.is_empty() { profile.into() } else { format!("{profile}, changed") }
    }

    /// Returns the name of the profile, or an empty text.
    pub fn profile(&self) -> &str {
        &self.profile
    }

    /// Returns the changes of the profile as `KEY=VALUE`, as [`PathSettings::set`] takes them.
    pub fn changes(&self) -> Vec<String> {
        let mut changes = Vec::new();
        collect(&self.changes, "", &mut changes);
        changes
    }

    /// Returns the link, or `None` if no path is set.
    ///
    /// Errors: an unknown profile or key, with the most similar name; a value that no link can have.
    pub fn config(&self) -> anyhow::Result<Option<Config>> {
        if self.is_none() {
            return Ok(None);
        }
        let base = match self.profile.as_str() {
            "" => Config::default(),
            name => {
                let names = profiles().keys().map(String::as_str);
                let unknown = || format!("no profile {name}{}", nearest(name, names));
                profiles().get(name).with_context(unknown)?.config.clone()
            }
        };
        let mut table = Table::try_from(base)?;
        merge(&mut table, &self.changes, "")?;
        let config: Config =
            table.try_into().map_err(|error| anyhow!("path: {}", error.to_string().trim().replace('\n', " ")))?;
        config.check().context("path")?;
        Ok(Some(config))
    }

    /// Returns the link, or `None` if no path is set.
    ///
    /// Errors: those of [`config`](Self::config); a trace, which a scenario cannot load.
    pub fn config_without_trace(&self) -> anyhow::Result<Option<Config>> {
        let config = self.config()?;
        let has_trace = config.iter().any(|config| config.up.trace.is_some() || config.down.trace.is_some());
        ensure!(!has_trace, "path: a trace needs `millrace lab link run`");
        Ok(config)
    }

    /// Sets one value as typed: `key` is empty for the profile, or a key below the path such as `down.loss`. The value
    /// `none` removes a setting that a link can be without.
    ///
    /// Errors: the key goes through a value that is not a table.
    pub fn set(&mut self, key: &str, text: &str) -> anyhow::Result<()> {
        if key.is_empty() {
            // Changes belong to the profile that they were made for.
            *self = Self::of(text);
            return Ok(());
        }
        let mut keys: Vec<&str> = key.split('.').collect();
        let last = keys.pop().expect("a text has a last part");
        let mut table = &mut self.changes;
        for part in keys {
            table = match table.entry(part).or_insert_with(|| Value::Table(Table::new())) {
                Value::Table(inner) => inner,
                _ => bail!("path.{key}: {part} is a single value"),
            };
        }
        table.insert(last.into(), typed(text));
        Ok(())
    }
}

impl From<Written> for PathSettings {
    fn from(written: Written) -> Self {
        match written {
            Written::Profile(profile) => Self { profile, changes: Table::new() },
            Written::Table(mut changes) => {
                let profile = match changes.remove("profile") {
                    Some(Value::String(profile)) => profile,
                    _ => String::new(),
                };
                Self { profile, changes }
            }
        }
    }
}

impl From<PathSettings> for Table {
    fn from(PathSettings { profile, mut changes }: PathSettings) -> Table {
        changes.insert("profile".into(), Value::String(profile));
        changes
    }
}

/// Overwrites values in `below` with those of `above`, table by table. `parent` is empty, or the key of these tables
/// with a dot.
///
/// Errors: `none` for a setting that every link has.
fn merge(below: &mut Table, above: &Table, parent: &str) -> anyhow::Result<()> {
    for (key, value) in above {
        match (below.get_mut(key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge(below, above, &format!("{parent}{key}."))?,
            (_, Value::String(text)) if text == NONE => {
                let removable = if parent.is_empty() { &REMOVABLE_OF_LINK[..] } else { &REMOVABLE };
                if !removable.contains(&key.as_str()) {
                    bail!("path: {parent}{key} cannot be none; only {} can", removable.join(", "));
                }
                below.remove(key);
            }
            _ => {
                below.insert(key.clone(), value.clone());
            }
        }
    }
    Ok(())
}

/// Adds the values of a table as `KEY=VALUE`.
fn collect(table: &Table, parent: &str, to: &mut Vec<String>) {
    for (key, value) in table {
        match value {
            Value::Table(inner) => collect(inner, &format!("{parent}{key}."), to),
            Value::String(text) => to.push(format!("{parent}{key}={text}")),
            other => to.push(format!("{parent}{key}={other}")),
        }
    }
}

/// Reads a value as TOML; what is no TOML, such as `1%` or `40ms`, is a text.
fn typed(text: &str) -> Value {
    match format!("v = {text}").parse::<Table>() {
        Ok(mut table) if table.len() == 1 => table.remove("v").expect("the only key"),
        _ => Value::String(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millrace_link::Probability;

    use super::*;

    fn path(sets: &[(&str, &str)]) -> anyhow::Result<Option<Config>> {
        let mut path = PathSettings::default();
        sets.iter().try_for_each(|(key, text)| path.set(key, text))?;
        path.config()
    }

    #[test]
    fn path_is_a_profile_with_changes() {
        assert_eq!(path(&[]).unwrap(), None);
        let config = path(&[("", "3g"), ("down.loss", "1%"), ("down.delay", "41ms")]).unwrap().unwrap();
        let profile = &profiles()["3g"].config;
        assert_eq!(config.up, profile.up);
        assert_eq!((config.down.rate, config.down.delay), (profile.down.rate, Duration::from_millis(41)));
        assert_eq!(config.down.loss, Probability::new(0.01).unwrap());
        let own = path(&[("up.delay", "24ms"), ("down.delay", "24ms")]).unwrap().unwrap();
        assert_eq!(own.up.delay, Duration::from_millis(24));
    }

    #[test]
    fn wrong_paths_are_errors_that_name_the_setting() {
        for (sets, needle) in [
            (&[("", "3gg")][..], "3g"),
            (&[("down.loss", "2")], "loss"),
            (&[("down.los", "1%")], "los"),
            (&[("down.reorder", "true")], "reorder needs jitter"),
            (&[("down.loss", "1%"), ("down.loss.x", "1")], "single value"),
        ] {
            let error = format!("{:#}", path(sets).unwrap_err());
            assert!(error.contains(needle), "{sets:?}: {error}");
        }
    }

    #[test]
    fn none_removes_settings_that_a_link_can_be_without() {
        let none = |key: &str| path(&[("", "3g"), (key, "none")]);
        assert_eq!(none("down.rate").unwrap().unwrap().down.rate, None);
        assert_eq!(
            path(&[("", "3g"), ("down.loss", "100%"), ("down.loss_burst", "none")]).unwrap().unwrap().down.loss.get(),
            1.0
        );
        // Also if the profile does not have it.
        assert_eq!(none("nat").unwrap(), path(&[("", "3g")]).unwrap());
        for key in ["down.delay", "up.los", "down", "jitter"] {
            let error = format!("{:#}", none(key).unwrap_err());
            assert!(error.contains(&format!("{key} cannot be none; only ")), "{error}");
        }
    }

    #[test]
    fn changes_are_written_as_they_are_set() {
        let sets = [("down.loss", "1%"), ("down.loss_burst", "3"), ("nat", "{ idle = \"8min\" }"), ("up.rate", "none")];
        let mut path = PathSettings::of("3g");
        sets.iter().for_each(|(key, text)| path.set(key, text).unwrap());
        let changes = path.changes();
        assert_eq!(changes, ["down.loss=1%", "down.loss_burst=3", "nat.idle=8min", "up.rate=none"]);
        let mut again = PathSettings::of(path.profile());
        changes
            .iter()
            .map(|change| change.split_once('=').unwrap())
            .for_each(|(key, text)| again.set(key, text).unwrap());
        assert_eq!(again, path);
    }

    #[test]
    fn settings_keep_their_form_in_a_file() {
        let read = |text: &str| toml::from_str::<std::collections::BTreeMap<String, PathSettings>>(text).unwrap();
        assert_eq!(read("path = \"3g\"")["path"], PathSettings::of("3g"));
        let changed = &read("[path]\nprofile = \"3g\"\ndown.loss = \"1%\"")["path"];
        assert_eq!(changed.name(), "3g, changed");
        let again: PathSettings = Table::from(changed.clone()).try_into().unwrap();
        assert_eq!(&again, changed);
    }
}
