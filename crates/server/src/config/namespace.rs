use std::time::Duration;

use millrace_engine::HistoryConfig;
use millrace_protocol::Permission;
use serde::{Deserialize, Serialize};

/// Overrides for the channels of one first level. `None` keeps the value of `[history]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Namespace {
    pub count_max: Option<usize>,
    pub bytes_max: Option<usize>,
    #[serde(with = "humantime_serde")]
    pub age_max: Option<Duration>,
    pub durable: Option<bool>,
    pub state: Option<bool>,
    pub keys_max: Option<usize>,
    pub roster: Option<bool>,
    #[serde(with = "humantime_serde")]
    pub roster_grace: Option<Duration>,
    /// Permissions without a token.
    pub anonymous: Vec<Permission>,
    #[serde(skip_serializing_if = "is_default")]
    pub hooks: crate::hooks::NamespaceConfig,
    #[serde(skip_serializing_if = "is_default")]
    pub webhooks: crate::webhooks::NamespaceConfig,
}

fn is_default<T: Default + PartialEq>(section: &T) -> bool {
    *section == T::default()
}

impl Namespace {
    pub fn history(&self, all: HistoryConfig) -> HistoryConfig {
        HistoryConfig {
            count_max: self.count_max.unwrap_or(all.count_max),
            bytes_max: self.bytes_max.unwrap_or(all.bytes_max),
            age_max: self.age_max.unwrap_or(all.age_max),
            durable: self.durable.unwrap_or(all.durable),
            state: self.state.unwrap_or(all.state),
            keys_max: self.keys_max.unwrap_or(all.keys_max),
            roster: self.roster.unwrap_or(all.roster),
            roster_grace: self.roster_grace.unwrap_or(all.roster_grace),
        }
    }
}
