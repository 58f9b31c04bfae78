//! Questions to the app's back end, besides the permissions of tokens: who connects, who may subscribe and publish,
//! and remote procedure calls.
//!
//! - this file: the interface to the back end, and the form of its questions and answers
//! - [`ask`]: where admission asks
//!
//! Source: docs/reference/hooks.md.

mod ask;

use std::{fmt, net::IpAddr, pin::Pin, sync::Arc};

use http::HeaderName;
use millrace_protocol::{ChannelName, Error, Grant, NewPublication, Pattern, Permission, RpcCall, session::Target};

pub(crate) use ask::client_of;

/// A kind of question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// A request or a connection was authenticated.
    Connect,
    /// A client wants to read a channel or a pattern.
    Subscribe,
    /// A client wants to publish.
    Publish,
    /// A client calls a procedure.
    Rpc,
}

impl Hook {
    pub const ALL: [Hook; 4] = [Hook::Connect, Hook::Subscribe, Hook::Publish, Hook::Rpc];

    /// Returns the name in requests, settings and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Hook::Connect => "connect",
            Hook::Subscribe => "subscribe",
            Hook::Publish => "publish",
            Hook::Rpc => "rpc",
        }
    }
}

/// Client that a question is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookClient {
    pub subject: Option<Arc<str>>,
    /// Id of the connection, as in the admin API; `None` for a request.
    pub connection: Option<String>,
    /// [`millrace_protocol::Transport::name`], or `http` or `udp` for a client that publishes without a connection.
    pub transport: &'static str,
    pub address: Option<IpAddr>,
}

/// Credential of a client. Answers to `connect` are cached for it.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// The client has no token.
    None,
    /// A token or API key that this server has verified. The back end does not receive it.
    Verified(String),
    /// A token of the app itself. Only the back end can verify it.
    Opaque(String),
}

/// Hides the token, so that it never appears in a log.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Credential::None => "None",
            Credential::Verified(_) => "Verified",
            Credential::Opaque(_) => "Opaque",
        })
    }
}

/// The question who connects.
#[derive(Clone, Debug)]
pub struct ConnectQuestion {
    pub client: HookClient,
    pub credential: Credential,
    /// Request headers that the configuration forwards.
    pub headers: Vec<(HeaderName, String)>,
}

/// Answer to [`ConnectQuestion`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnectAnswer {
    /// Replaces the subject of the token.
    pub subject: Option<Arc<str>>,
    /// Information about the client for other members, as JSON.
    pub info: Option<Arc<str>>,
    /// Permissions in addition to those of the token.
    pub grants: Vec<(Permission, Pattern)>,
    /// Channels that a session of the client reads from its start.
    pub subscribe: Vec<ChannelName>,
    /// End of the permissions, in seconds since 1970.
    pub expires_s: Option<u64>,
}

impl ConnectAnswer {
    /// Returns the grant of a client with the additions of this answer.
    pub fn apply(&self, grant: &Grant) -> Grant {
        let mut grant = grant.clone();
        if let Some(subject) = &self.subject {
            grant.subject = Some(subject.clone());
        }
        if let Some(info) = &self.info {
            grant.info = Some(info.clone());
        }
        grant.expires_s = [grant.expires_s, self.expires_s].into_iter().flatten().min();
        grant.rules.extend_from_slice(&self.grants);
        for channel in &self.subscribe {
            if let Ok(exact) = Pattern::parse(channel.as_str()) {
                grant.allow(Permission::Subscribe, exact);
            }
        }
        grant.channels.clone_from(&self.subscribe);
        grant
    }
}

/// Future of an answer.
///
/// Errors: [`millrace_protocol::Code::Refused`] if the back end refuses; [`millrace_protocol::Code::Unavailable`] if
/// the back end cannot be asked and the configuration refuses then. Dropping the future withdraws the question.
pub type Asked<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// The app's back end. All shards share one.
pub trait Hooks: Send + Sync {
    /// Returns true if the back end is asked. `name` is the channel, the pattern or the method; empty for `connect`.
    fn asks(&self, hook: Hook, name: &str) -> bool;

    /// Returns the request headers that `connect` forwards.
    fn headers(&self) -> &[HeaderName];

    /// Returns true if a token that is neither a JWT nor an API key is passed to `connect`.
    fn takes_opaque_tokens(&self) -> bool;

    fn connect(&self, question: ConnectQuestion) -> Asked<ConnectAnswer>;

    fn subscribe(&self, client: HookClient, target: Target) -> Asked<()>;

    /// Returns the publication, whose payload the back end may have replaced.
    fn publish(&self, client: HookClient, channel: ChannelName, publication: NewPublication) -> Asked<NewPublication>;

    /// Returns the result as JSON.
    ///
    /// Errors: additionally [`millrace_protocol::Code::NoAnswer`] if the back end may have executed the call.
    fn rpc(&self, client: HookClient, call: RpcCall) -> Asked<String>;
}
