use std::time::Duration;

use serde::{Deserialize, Serialize};

/// NAT between the client and the network. It forgets connections that are silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nat {
    /// Silent time after which an entry is forgotten.
    #[serde(with = "humantime_serde")]
    pub idle: Duration,
    #[serde(default)]
    pub on_idle: OnIdle,
}

/// Behaviour of a NAT when a packet of a forgotten connection arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnIdle {
    /// Drops the packet. Neither side notices.
    #[default]
    Swallow,
    /// Drops the packet, and answers the sender with a reset.
    Reset,
}
