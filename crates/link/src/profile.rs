use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use crate::Config;

/// A named link.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Where the figures come from. `ours` marks figures of this project.
    pub source: String,
    pub config: Config,
}

/// Returns all profiles by name.
pub fn profiles() -> &'static BTreeMap<String, Profile> {
    static PROFILES: LazyLock<BTreeMap<String, Profile>> =
        LazyLock::new(|| parse(include_str!("profiles.toml")).expect("valid profiles"));
    &PROFILES
}

fn parse(text: &str) -> Result<BTreeMap<String, Profile>, toml::de::Error> {
    let tables: BTreeMap<String, toml::Table> = toml::from_str(text)?;
    let profile = |(name, mut table): (String, toml::Table)| {
        let source = table.remove("source").map(String::deserialize).transpose()?.unwrap_or_default();
        Ok((name, Profile { source, config: Config::deserialize(table)? }))
    };
    tables.into_iter().map(profile).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_profile_is_a_valid_link_and_names_its_source() {
        assert!(profiles().len() >= 15);
        for (name, Profile { source, config }) in profiles() {
            assert_eq!(config.check(), Ok(()), "{name}");
            let invents_loss = config.down.loss_burst.is_some();
            assert!(!source.is_empty() && (!invents_loss || source.contains("ours")), "{name}: {source}");
        }
        let config = &profiles()["3g"].config;
        assert_eq!(config.up.delay + config.down.delay, Duration::from_millis(150));
    }

    #[test]
    fn misspelled_settings_are_errors() {
        for text in ["[a]\nup = { dealy = \"1ms\" }", "[a]\nupp = {}", "[a]\nup = { loss = 2 }"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
