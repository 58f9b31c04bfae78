//! Authentication and authorization. Every transport calls this module before it allocates anything for a request.
//!
//! - this file: [`Authority`] verifies tokens; [`Caller`] is the authenticated sender of a request
//! - [`credential`]: finds the token of a request
//! - [`origin`]: checks the browser origin and the host name of a request
//!
//! Source: docs/reference/protocol.md, "Credentials".

mod credential;
mod origin;

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use http::request::Parts;
use millrace_protocol::{
    ChannelName, Code, Error, Grant, Holder, Right, Since, is_reserved,
    session::{Subscription, Target},
};
use tokio::sync::watch;

use crate::http::ReadRequest;

pub(crate) use origin::CorsAccess;

/// Error detail for a request without a token where a token is required.
const HOW: &str = "send a token, as `Authorization: Bearer ..` (docs/reference/protocol.md, \"Credentials\")";

/// Verifies tokens and API keys and returns their grants. All shards share one authority.
pub trait Authority: Send + Sync {
    /// Returns the grant of a token or API key. The future is pending only while a key set or a remote verdict is
    /// fetched.
    ///
    /// Errors: [`Code::Unauthorized`] if the key is unknown, the signature is invalid, or the token has expired or was
    /// revoked. The error never contains the token.
    fn verify<'a>(&'a self, credential: &'a str) -> Verdict<'a>;
    /// Returns the grant of requests without a token, as configured for each namespace.
    fn anonymous(&self) -> Arc<Grant>;
    /// Returns a counter that changes after every revocation.
    fn revocations(&self) -> watch::Receiver<u64>;
    fn is_revoked(&self, grant: &Grant) -> bool;
}

pub type Verdict<'a> = Pin<Box<dyn Future<Output = Result<Arc<Grant>, Error>> + Send + 'a>>;

/// Authority that grants everything to every caller. For tests and benchmarks of other components.
pub struct AllowAll {
    grant: Arc<Grant>,
    never: watch::Sender<u64>,
}

/// Access settings of all requests, besides [`crate::Config`].
pub struct Access {
    pub authority: Arc<dyn Authority>,
    /// Name of the cookie that carries a token; empty disables token cookies. A token cookie counts only on requests
    /// from pages of this server and of allowed origins.
    pub cookie: String,
    /// True if the URL may carry the token, as `token=`.
    pub query: bool,
    /// Host names that requests may use, besides those of loopback; `None` allows any name. This protects an open
    /// server on loopback against DNS rebinding: a foreign page whose name resolves to loopback.
    pub hosts: Option<Vec<String>>,
    /// True if a proxy stands in front of this server. The proxy may replace `Host`, so a loopback name proves nothing.
    pub behind_proxy: bool,
    /// True if this server terminates TLS itself, without a proxy in front of it. Its own pages then always use
    /// `https`, so an `http` page with the same host name is foreign.
    pub is_https: bool,
}

/// Authenticated sender of a request, with its permissions.
#[derive(Clone, Debug)]
pub struct Caller {
    pub grant: Arc<Grant>,
    /// Holder whose quota pays for new channels and rooms; see [`crate::Limits::holder`].
    pub holder: Holder,
    /// True if the request had no token.
    pub anonymous: bool,
}

/// Every connection stores a caller, so it must stay small.
const _: () = assert!(size_of::<Caller>() <= 16);

impl Access {
    /// Authenticates a request and returns its caller, without a holder.
    ///
    /// Errors: [`Code::Unauthorized`] for an invalid token, [`Code::BadRequest`] for a token in the URL where that is
    /// not allowed, [`Code::Forbidden`] for a token cookie on a request from a foreign page.
    pub async fn caller(&self, parts: &Parts, allowed_origins: &[String]) -> Result<Caller, Error> {
        let (grant, anonymous) = match credential::find(self, parts, allowed_origins)? {
            Some(credential) => (self.authority.verify(&credential).await?, false),
            None => (self.authority.anonymous(), true),
        };
        Ok(Caller { grant, holder: Holder::NONE, anonymous })
    }

    /// Checks that the caller's token is still valid.
    ///
    /// Errors: [`Code::Unauthorized`] if the token has expired or was revoked since it was verified.
    pub(crate) fn check_lasts(&self, caller: &Caller) -> Result<(), Error> {
        if caller.grant.expires_s.is_some_and(|expires_s| expires_s <= unix_s()) {
            return Err(expired());
        }
        if self.authority.is_revoked(&caller.grant) { Err(revoked()) } else { Ok(()) }
    }

    /// Checks the browser origin and the host name of a request.
    ///
    /// Errors: [`Code::Forbidden`] if the page's origin is not allowed, or the `Host` is a foreign name;
    /// [`Code::BadRequest`] if the request has no host, or several.
    pub fn check_origin(&self, parts: &Parts, allowed_origins: &[String]) -> Result<(), Error> {
        origin::check_names_host(parts)?;
        origin::check_host(self.hosts.as_deref(), parts)?;
        origin::check(parts, self, allowed_origins)
    }

    /// Returns what the requesting page may read of the answer.
    pub(crate) fn shown_to(&self, parts: &Parts, allowed_origins: &[String]) -> CorsAccess {
        origin::shown_to(parts, self, allowed_origins)
    }
}

impl From<AllowAll> for Access {
    fn from(everyone: AllowAll) -> Self {
        Self {
            authority: Arc::new(everyone),
            cookie: String::new(),
            query: false,
            hosts: None,
            behind_proxy: false,
            is_https: false,
        }
    }
}

impl Caller {
    /// Checks that the caller has a permission on a channel or pattern.
    ///
    /// Errors: [`Code::Forbidden`] if it has not; [`Code::Unauthorized`] if the request had no token.
    pub fn check(&self, right: Right, target: &Target) -> Result<(), Error> {
        if right == Right::Publish && is_reserved(target.as_str()) {
            return Err(Error::new(Code::Forbidden, "only the server publishes the state and the inboxes of a room"));
        }
        self.grant.check(right, target).map_err(|error| match self.anonymous {
            true => Error::new(Code::Unauthorized, format!("{}; {HOW}", error.detail)),
            false => error,
        })
    }

    /// Checks a permission on one channel; see [`Caller::check`].
    pub fn may(&self, right: Right, channel: &ChannelName) -> Result<(), Error> {
        self.check(right, &Target::Channel(channel.clone()))
    }

    /// Checks that the caller has any permission at all.
    ///
    /// Errors: [`Code::Unauthorized`] if the request had no token and anonymous callers have no permission.
    pub fn may_anything(&self) -> Result<(), Error> {
        match self.anonymous && self.grant.rules().is_empty() {
            true => Err(Error::new(Code::Unauthorized, HOW)),
            false => Ok(()),
        }
    }

    /// Checks the permissions of a read. A live read requires `subscribe`, also when it continues from a position. A
    /// read of history requires `history` too; a bounded range requires only `history`.
    pub fn may_read(&self, ask: &ReadRequest) -> Result<(), Error> {
        for (channel, since) in &ask.channels {
            if ask.until.is_none() {
                self.may(Right::Subscribe, channel)?;
            }
            if ask.until.is_some() || since.is_some_and(reads_back) {
                self.may(Right::History, channel)?;
            }
        }
        Ok(())
    }

    /// Checks the permissions of a subscription; see [`Caller::may_read`]. For a pattern, a start time is the only way
    /// to continue, so it does not require `history`.
    pub(crate) fn may_subscribe(&self, asked: &Subscription) -> Result<(), Error> {
        self.check(Right::Subscribe, &asked.target)?;
        match (&asked.target, asked.since) {
            (Target::Pattern(_), Since::Time(_)) => Ok(()),
            (target, since) if reads_back(since) => self.check(Right::History, target),
            _ => Ok(()),
        }
    }

    /// Returns the remaining lifetime of the token in milliseconds; `None` if the token does not expire.
    pub(crate) fn expires_ms(&self) -> Option<u64> {
        Some(self.grant.expires_s?.saturating_sub(unix_s()) * 1000)
    }
}

/// Returns true if this start may reach back before anything that the client has already received. A position counts as
/// already received; the server does not check it.
fn reads_back(since: Since) -> bool {
    matches!(since, Since::Earliest | Since::Time(_))
}

impl Default for AllowAll {
    fn default() -> Self {
        Self { grant: Arc::new(Grant::everything()), never: watch::Sender::default() }
    }
}

impl Authority for AllowAll {
    fn verify<'a>(&'a self, _: &'a str) -> Verdict<'a> {
        Box::pin(std::future::ready(Ok(self.grant.clone())))
    }

    fn anonymous(&self) -> Arc<Grant> {
        self.grant.clone()
    }

    fn revocations(&self) -> watch::Receiver<u64> {
        self.never.subscribe()
    }

    fn is_revoked(&self, _: &Grant) -> bool {
        false
    }
}

/// Returns the current time in seconds since 1970, the unit of token claims.
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns the error of a caller whose token has expired.
pub(crate) fn expired() -> Error {
    Error::new(Code::Unauthorized, "the token has expired: come again with a new one")
}

/// Returns the error of a caller whose token was revoked.
pub(crate) fn revoked() -> Error {
    Error::new(Code::Unauthorized, "the token was revoked")
}
