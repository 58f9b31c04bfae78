//! Session messages (`millrace.v1+json`): commands from the client, replies and pushes from the server. Batches of
//! publications use the same fields.

mod decode;
mod encode;

use std::{collections::HashMap, fmt};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{ChannelName, Code, Error, NewPublication, Pattern, Position, RpcCall, Since};

pub(crate) use decode::SubscribeFields;
pub use decode::{POSITIONS_MAX, decode_command, decode_data, decode_publish, ttl_ms};
pub use encode::{
    encode_close_push, encode_connected, encode_error_push, encode_refresh_push, encode_reply, encode_reply_raw,
    encode_unsubscribed_push,
};

/// WebSocket subprotocol of a session.
pub const SUBPROTOCOL: &str = "millrace.v1+json";

/// Treatment of publications that a subscription's reader has not been sent yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Policy {
    /// Sends all of them, in order.
    #[default]
    Every,
    /// Sends the newest per key.
    Latest,
}

/// Target of a subscription: a channel, or all channels that match a pattern.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    Channel(ChannelName),
    Pattern(Pattern),
}

/// Subscription of a session: its target and its start.
#[derive(Clone, PartialEq, Debug)]
pub struct Subscription {
    pub target: Target,
    /// Start of the subscription. For a pattern this is never a position.
    pub since: Since,
    /// For a pattern: the positions from which already known channels continue.
    pub positions: HashMap<ChannelName, Position>,
    pub policy: Policy,
}

/// Command of a client.
#[derive(Debug, PartialEq)]
pub enum Command {
    Subscribe(Subscription),
    Unsubscribe {
        target: Target,
    },
    Publish {
        channel: ChannelName,
        publication: NewPublication,
    },
    /// `members`: return a page of the roster, too.
    Presence {
        channel: ChannelName,
        members: Option<RosterPage>,
    },
    History {
        channel: ChannelName,
        since: Since,
        until: Option<Since>,
        limit: usize,
    },
    Rpc(RpcCall),
    Refresh {
        token: Token,
    },
    Ping,
}

/// One page of a roster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RosterPage {
    pub since: Since,
    /// Maximum number of members.
    pub limit: usize,
}

impl RosterPage {
    /// `after`: the `next` of the previous page; `None` for the first page.
    ///
    /// Errors: [`Code::BadRequest`] for a limit that is not from 1 to 1000; [`Code::BadPosition`].
    pub fn parse(limit: Option<usize>, after: Option<&str>) -> Result<Self, Error> {
        let limit = limit.unwrap_or(100);
        if !(1..=1000).contains(&limit) {
            return Err(Error::new(Code::BadRequest, "`limit` is 1 to 1000"));
        }
        let since = match after.map(str::parse) {
            None => Since::State,
            Some(Ok(since @ Since::StateAfter { .. })) => since,
            Some(_) => {
                let detail = "`after` is the `next` of the previous page, such as `state:5f0c12ab:57:90`";
                return Err(Error::new(Code::BadPosition, detail));
            }
        };
        Ok(Self { since, limit })
    }
}

/// Token or API key. `Debug` hides it, so that it never appears in a log.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl Token {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Target {
    /// Parses a channel name or pattern.
    ///
    /// Errors: [`Code::BadChannel`].
    pub fn parse(name: &str) -> Result<Self, Error> {
        if Pattern::is_pattern(name) {
            Pattern::parse(name).map(Target::Pattern)
        } else {
            ChannelName::parse(name).map(Target::Channel)
        }
    }

    pub fn as_str(&self) -> &str {
        match self {
            Target::Channel(name) => name.as_str(),
            Target::Pattern(pattern) => pattern.as_str(),
        }
    }
}

impl Policy {
    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Every => "every",
            Policy::Latest => "latest",
        }
    }

    /// Parses `every` or `latest`.
    ///
    /// Errors: [`Code::BadRequest`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "every" => Ok(Policy::Every),
            "latest" => Ok(Policy::Latest),
            _ => Err(Error::new(Code::BadRequest, "`policy` is `every` or `latest`")),
        }
    }
}

impl Subscription {
    /// Returns the body of the `subscribe` command for this subscription.
    pub fn to_json(&self) -> Value {
        let mut body = json!({ "channel": self.target.as_str() });
        match self.since {
            Since::Now => {}
            Since::Time(ms) => body["since"] = ms.into(),
            since => body["since"] = since.to_string().into(),
        }
        if self.policy == Policy::Latest {
            body["policy"] = "latest".into();
        }
        if !self.positions.is_empty() {
            body["positions"] =
                self.positions.iter().map(|(name, at)| (name.to_string(), Value::from(at.to_string()))).collect();
        }
        body
    }
}
