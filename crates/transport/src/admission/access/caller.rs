use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use millrace_protocol::{
    ChannelName, Code, Error, Grant, Holder, Permission, Since, is_internal, is_local, is_reserved, roster_of,
    session::{Subscription, Target},
};

use crate::http::ReadRequest;

/// Error detail for a request without a token where a token is required.
const HOW: &str = "send a token, as `Authorization: Bearer ..` (docs/reference/protocol.md, \"Credentials\")";

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

impl Caller {
    /// Checks that the caller has a permission on a channel or pattern. Reading the roster of a channel requires
    /// `presence` on the channel. An operator may read the channels for operators; no client may publish to them.
    ///
    /// Errors: [`Code::Forbidden`] if it has not; [`Code::Unauthorized`] if the request had no token.
    pub fn check(&self, permission: Permission, target: &Target) -> Result<(), Error> {
        if let Target::Channel(channel) = target
            && is_local(channel.as_str())
            && permission != Permission::Publish
        {
            return self.may_administer();
        }
        if is_internal(target.as_str()) {
            return Err(Error::new(Code::Forbidden, "no client may use the channels of the server itself"));
        }
        if permission == Permission::Publish && is_reserved(target.as_str()) {
            return Err(Error::new(
                Code::Forbidden,
                "only the server publishes to rosters, and to the state and inbox channels of a room",
            ));
        }
        if let Some(channel) = roster_of(target.as_str()) {
            return self.check_grant(Permission::Presence, &Target::parse(channel)?);
        }
        self.check_grant(permission, target)
    }

    fn check_grant(&self, permission: Permission, target: &Target) -> Result<(), Error> {
        self.grant.check(permission, target).map_err(|error| match self.anonymous {
            true => {
                let (permission, target) = (permission.name(), target.as_str());
                let detail = format!("a request without a token may not `{permission}` on `{target}`: {HOW}");
                Error::new(Code::Unauthorized, detail)
            }
            false => error,
        })
    }

    /// Checks a permission on one channel; see [`Caller::check`].
    pub fn may(&self, permission: Permission, channel: &ChannelName) -> Result<(), Error> {
        self.check(permission, &Target::Channel(channel.clone()))
    }

    /// Checks that the caller may send operator requests. A request without a token may only if it comes from a page of
    /// this server where those are trusted ([`Access::trusts_own_pages`](super::Access)), not even where requests
    /// without a token have all permissions on channels.
    ///
    /// Errors: [`Code::Unauthorized`] if the request had no token; [`Code::Forbidden`] if the token does not grant it.
    pub fn may_administer(&self) -> Result<(), Error> {
        match (self.grant.is_admin, self.anonymous) {
            (true, _) => Ok(()),
            (false, true) => Err(Error::new(
                Code::Unauthorized,
                "operator requests need a token or API key with `admin`, as `Authorization: Bearer ..` \
                 (docs/reference/admin.md)",
            )),
            (false, false) => {
                Err(Error::new(Code::Forbidden, "the token does not permit `admin`, which operator requests need"))
            }
        }
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
    pub(in crate::admission) fn may_read(&self, request: &ReadRequest) -> Result<(), Error> {
        for (channel, since) in &request.channels {
            if request.until.is_none() {
                self.may(Permission::Subscribe, channel)?;
            }
            if request.until.is_some() || since.is_some_and(reads_back) {
                self.may(Permission::History, channel)?;
            }
        }
        Ok(())
    }

    /// Checks the permissions of a subscription; see [`Caller::may_read`]. For a pattern, a start time is the only way
    /// to continue, so it does not require `history`.
    pub(in crate::admission) fn may_subscribe(&self, asked: &Subscription) -> Result<(), Error> {
        self.check(Permission::Subscribe, &asked.target)?;
        match (&asked.target, asked.since) {
            (Target::Pattern(_), Since::Time(_)) => Ok(()),
            (target, since) if reads_back(since) => self.check(Permission::History, target),
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

/// Returns the current time in seconds since 1970, the unit of token claims.
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
