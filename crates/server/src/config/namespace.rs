use std::time::Duration;

use millrace_carcare::{FLEET, feedback::NAMESPACE as CARCARE};
use millrace_engine::HistoryConfig;
use millrace_protocol::Permission;
use millrace_push::NAMESPACE as PUSH;
use millrace_requests::NAMESPACE as REQUESTS;
use serde::{Deserialize, Serialize};

/// Namespaces of the page `/chat`: the messages of its channels, and the lists of its channels and members.
pub(super) const CHAT: &str = "chat";
pub(super) const CHAT_LISTS: &str = "chat-lists";

/// Namespace of the recorded runs of `/rooms`: a channel per run, and the list of all runs.
const ROOM_RUNS: &str = "room-runs";

/// Namespaces that pages and routes of the server use. They have defaults of their own.
pub(super) const OF_PAGES: [&str; 7] = [FLEET, CARCARE, CHAT, CHAT_LISTS, REQUESTS, PUSH, ROOM_RUNS];

/// Time for which messages of `/chat` stay in history.
const CHAT_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Maximum number of channels of `/chat`, and of members of one of them.
const CHAT_KEYS_MAX: usize = 1_000;

/// Maximum number of requests of a device that are not answered, and of its answers of the last day.
const REQUESTS_MAX: usize = 1_000;

/// Maximum number of runs, and of uploads of one run.
const RUN_KEYS_MAX: usize = 10_000;

/// Maximum number of browsers of a subject that get notifications.
const BROWSERS_MAX: usize = 20;

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
    /// True: a key `SUBJECT/ID` can be published by the client with this subject only.
    pub own_keys: Option<bool>,
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
    /// Fills in the defaults of a namespace that a page of the server uses, where the operator has set nothing.
    pub(super) fn with_page_defaults(mut self, name: &str, all: HistoryConfig) -> Self {
        match name {
            FLEET | CARCARE => self.state = self.state.or(Some(true)),
            CHAT => {
                self.age_max = self.age_max.or(Some(all.age_max.max(CHAT_AGE)));
                self.own_keys = self.own_keys.or(Some(true));
            }
            CHAT_LISTS => {
                self.state = self.state.or(Some(true));
                self.keys_max = self.keys_max.or(Some(all.keys_max.min(CHAT_KEYS_MAX)));
                self.own_keys = self.own_keys.or(Some(true));
            }
            PUSH => {
                self.state = self.state.or(Some(true));
                self.keys_max = self.keys_max.or(Some(all.keys_max.min(BROWSERS_MAX)));
            }
            ROOM_RUNS => {
                self.state = self.state.or(Some(true));
                self.keys_max = self.keys_max.or(Some(all.keys_max.min(RUN_KEYS_MAX)));
            }
            REQUESTS => {
                self.state = self.state.or(Some(true));
                self.keys_max = self.keys_max.or(Some(all.keys_max.min(REQUESTS_MAX)));
            }
            _ => {}
        }
        self
    }

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
