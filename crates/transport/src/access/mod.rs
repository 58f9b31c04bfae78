//! Who asks, and what they may do: every way in comes by here before anything is made for a request.
//!
//! - this file: the [`Authority`] that knows tokens, and the [`Caller`] that a request becomes
//! - [`credential`]: where a request carries its token
//! - [`origin`]: which pages of a browser may ask, and under which names
//! - [`live`]: what is open goes by the same rules: it ends when its token does
//!
//! Source: docs/protocol.md, "Credentials".

mod credential;
mod live;
mod origin;

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use http::request::Parts;
use millrace_protocol::{
    ChannelName, Code, Error, Grant, Holder, Right, Since,
    session::{Subscription, Target},
};
use tokio::sync::watch;

use crate::{http::Ask, rooms::is_reserved};

pub(crate) use live::{Grants, end, end_expired, end_revoked};
pub(crate) use origin::Shown;

/// What somebody is told who shows no token where one is needed.
const HOW: &str = "send a token, as `Authorization: Bearer ..` (docs/protocol.md, \"Credentials\")";

/// Knows what tokens and API keys grant. One for all shards.
pub trait Authority: Send + Sync {
    /// What a token or API key grants. Pending only while a key set is fetched.
    ///
    /// Errors: [`Code::Unauthorized`] (no such key, a bad signature, expired, revoked), without the token in it.
    fn verify<'a>(&'a self, credential: &'a str) -> Verdict<'a>;
    /// What is granted without one: namespace by namespace, by configuration only.
    fn anonymous(&self) -> Arc<Grant>;
    /// Rises whenever something was revoked.
    fn revocations(&self) -> watch::Receiver<u64>;
    fn is_revoked(&self, grant: &Grant) -> bool;
}

pub type Verdict<'a> = Pin<Box<dyn Future<Output = Result<Arc<Grant>, Error>> + Send + 'a>>;

/// Grants everything to everybody: for tests and measurements of other things.
pub struct Everyone {
    grant: Arc<Grant>,
    never: watch::Sender<u64>,
}

/// What decides about requests, besides [`crate::Config`].
pub struct Access {
    pub authority: Arc<dyn Authority>,
    /// The name of the cookie that carries a token; empty: none does. It counts only for pages of this server and of allowed origins.
    pub cookie: String,
    /// A token may stand in the URL, as `token=`.
    pub query: bool,
    /// Names, besides those of loopback, under which this server may be asked; `None`: under any. Guards an open server on loopback
    /// against pages whose name was made to point there (DNS rebinding).
    pub hosts: Option<Vec<String>>,
    /// True if a proxy stands in front of this server. The proxy may replace `Host`, so a loopback name proves nothing.
    pub behind_proxy: bool,
    /// True if this server speaks TLS itself and no proxy stands in front of it: then its own pages come over `https` alone, and a page of
    /// `http` with the same name is foreign.
    pub is_https: bool,
}

/// Whoever a request comes from, as far as rights go.
#[derive(Clone, Debug)]
pub struct Caller {
    pub grant: Arc<Grant>,
    /// New channels and rooms are charged to this holder: [`crate::Limits::holder`].
    pub holder: Holder,
    /// It has shown no token.
    pub anonymous: bool,
}

/// Every connection has one.
const _: () = assert!(size_of::<Caller>() <= 16);

impl Access {
    /// Authenticates a request and returns its caller, without a holder.
    ///
    /// Errors: [`Code::Unauthorized`] for a token that is none, [`Code::BadRequest`] for one where none may be, [`Code::Forbidden`] for a
    /// page of a foreign origin.
    pub async fn caller(&self, parts: &Parts, allowed_origins: &[String]) -> Result<Caller, Error> {
        let (grant, anonymous) = match credential::find(self, parts, allowed_origins)? {
            Some(credential) => (self.authority.verify(&credential).await?, false),
            None => (self.authority.anonymous(), true),
        };
        Ok(Caller { grant, holder: Holder::NONE, anonymous })
    }

    /// Errors: [`Code::Unauthorized`] if this caller's token has run out, or was revoked, since it was shown.
    pub(crate) fn check_lasts(&self, caller: &Caller) -> Result<(), Error> {
        if caller.grant.expires_s.is_some_and(|expires_s| expires_s <= unix_s()) {
            return Err(live::expired());
        }
        if self.authority.is_revoked(&caller.grant) { Err(live::revoked()) } else { Ok(()) }
    }

    /// Errors: [`Code::Forbidden`] if the page's origin is not allowed, or the `Host` is a foreign name; [`Code::BadRequest`] if the
    /// request names no host, or several.
    pub fn check_origin(&self, parts: &Parts, allowed_origins: &[String]) -> Result<(), Error> {
        origin::check_names_host(parts)?;
        origin::check_host(self.hosts.as_deref(), parts)?;
        origin::check(parts, self, allowed_origins)
    }

    /// Returns what the requesting page may read of the answer.
    pub(crate) fn shown_to(&self, parts: &Parts, allowed_origins: &[String]) -> Shown {
        origin::shown_to(parts, self, allowed_origins)
    }
}

impl From<Everyone> for Access {
    fn from(everyone: Everyone) -> Self {
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
    /// Errors: [`Code::Forbidden`], or [`Code::Unauthorized`] for somebody who has not said who they are.
    pub fn check(&self, right: Right, target: &Target) -> Result<(), Error> {
        if right == Right::Publish && is_reserved(target.as_str()) {
            return Err(Error::new(Code::Forbidden, "only the server publishes the state and the inboxes of a room"));
        }
        self.grant.check(right, target).map_err(|error| match self.anonymous {
            true => Error::new(Code::Unauthorized, format!("{}; {HOW}", error.detail)),
            false => error,
        })
    }

    /// As [`Caller::check`], of one channel.
    pub fn may(&self, right: Right, channel: &ChannelName) -> Result<(), Error> {
        self.check(right, &Target::Channel(channel.clone()))
    }

    /// Errors: [`Code::Unauthorized`] for somebody who has not said who they are, where such may do nothing at all.
    pub(crate) fn may_anything(&self) -> Result<(), Error> {
        match self.anonymous && self.grant.rules().is_empty() {
            true => Err(Error::new(Code::Unauthorized, HOW)),
            false => Ok(()),
        }
    }

    /// Reading live, and on from a position, takes `subscribe`; reading back, `history`; a range of the past takes nothing but `history`.
    pub(crate) fn may_read(&self, ask: &Ask) -> Result<(), Error> {
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

    /// As [`Caller::may_read`]. A pattern goes on from a time, so for it that is no more than a position.
    pub(crate) fn may_subscribe(&self, asked: &Subscription) -> Result<(), Error> {
        self.check(Right::Subscribe, &asked.target)?;
        match (&asked.target, asked.since) {
            (Target::Pattern(_), Since::Time(_)) => Ok(()),
            (target, since) if reads_back(since) => self.check(Right::History, target),
            _ => Ok(()),
        }
    }

    /// How long its token lasts.
    pub(crate) fn expires_ms(&self) -> Option<u64> {
        Some(self.grant.expires_s?.saturating_sub(unix_s()) * 1000)
    }
}

/// Does reading from here reach further back than what the reader can have heard of? A position is taken at its word.
fn reads_back(since: Since) -> bool {
    matches!(since, Since::Earliest | Since::Time(_))
}

impl Default for Everyone {
    fn default() -> Self {
        Self { grant: Arc::new(Grant::everything()), never: watch::Sender::default() }
    }
}

impl Authority for Everyone {
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

/// Seconds since 1970, as tokens count.
pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
