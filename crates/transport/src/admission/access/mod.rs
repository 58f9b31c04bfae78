//! Authentication and authorization. Every transport calls this module before it allocates anything for a request.
//!
//! - this file: checks a request, and returns its caller
//! - [`settings`]: the settings of these checks
//! - [`authority`]: verifies tokens
//! - [`caller`]: the authenticated sender of a request, with its permissions
//! - [`credential`]: finds the token of a request
//! - [`origin`]: checks the browser origin and the host name of a request
//!
//! Source: docs/reference/protocol.md, "Credentials".

mod authority;
mod caller;
mod credential;
mod origin;
mod settings;

use std::{borrow::Cow, sync::Arc};

use http::request::Parts;
use millrace_protocol::{ChannelName, Code, Error, Grant, Holder};

pub use authority::{AllowAll, Authority, Verdict};
pub use caller::{Caller, unix_s};
pub(crate) use origin::CorsAccess;
pub use settings::Access;

impl Access {
    /// Returns the token of a request; see [`credential::find`].
    ///
    /// Errors: [`Code::Unauthorized`] for a header that is no bearer token, [`Code::BadRequest`] for a token in the URL
    /// where that is not allowed, [`Code::Forbidden`] for a token cookie on a request from a foreign page.
    pub fn credential<'a>(&self, parts: &'a Parts, allowed_origins: &[String]) -> Result<Option<Cow<'a, str>>, Error> {
        credential::find(self, parts, allowed_origins)
    }

    /// Verifies the token of a request and returns its caller, without a holder. A request without a token from a page
    /// of this server is from an operator if [`Access::trusts_own_pages`] is set.
    ///
    /// Errors: [`Code::Unauthorized`] for an invalid token.
    pub async fn identify(&self, parts: &Parts, credential: Option<&str>) -> Result<Caller, Error> {
        let caller = self.verify(credential).await?;
        match credential.is_none() && self.trusts_own_pages && origin::is_own_page(parts) {
            true => Ok(Caller { grant: Grant { is_admin: true, ..(*caller.grant).clone() }.into(), ..caller }),
            false => Ok(caller),
        }
    }

    /// Verifies a token and returns its caller, without a holder. `None` is a request without a token.
    ///
    /// Errors: [`Code::Unauthorized`] for an invalid token.
    pub async fn verify(&self, credential: Option<&str>) -> Result<Caller, Error> {
        let (grant, anonymous) = match credential {
            Some(credential) => (self.authority.verify(credential).await?, false),
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

    /// Checks that a client does not publish with the key of another one. In the namespaces of `own_keys`, a key
    /// `SUBJECT/ID` belongs to the client with this subject; a key without `/` belongs to no client.
    ///
    /// Errors: [`Code::Forbidden`] if the key belongs to another client.
    pub(crate) fn check_key_owner(
        &self,
        channel: &ChannelName,
        key: Option<&str>,
        subject: impl FnOnce() -> Option<Arc<str>>,
    ) -> Result<(), Error> {
        let Some((owner, _)) = key.and_then(|key| key.rsplit_once('/')) else { return Ok(()) };
        let namespace = channel.as_str().split('/').next();
        if !self.own_keys.iter().any(|name| Some(name.as_str()) == namespace) || subject().as_deref() == Some(owner) {
            return Ok(());
        }
        Err(Error::new(
            Code::Forbidden,
            "the key belongs to another client: in this namespace (`own_keys`), a key `SUBJECT/ID` needs a token with \
             the subject `SUBJECT`",
        ))
    }

    /// Returns what the requesting page may read of the answer.
    pub(crate) fn shown_to(&self, parts: &Parts, allowed_origins: &[String]) -> CorsAccess {
        origin::shown_to(parts, self, allowed_origins)
    }
}

/// Returns the error of a caller whose token has expired.
pub(crate) fn expired() -> Error {
    Error::new(Code::Unauthorized, "the token has expired; connect again with a new token")
}

/// Returns the error of a caller whose token was revoked.
pub(crate) fn revoked() -> Error {
    Error::new(Code::Unauthorized, "the token was revoked")
}
