use std::sync::Arc;

use millrace_protocol::{Code, Error, Grant};
use millrace_transport::access::{Access, Authority, Verdict};
use subtle::ConstantTimeEq as _;
use tokio::sync::watch;

use crate::config::Secret;

/// Authority of the admin listener: `admin.token` permits everything, and a request without it is permitted nothing.
pub struct AdminToken {
    token: Secret,
    everything: Arc<Grant>,
    nothing: Arc<Grant>,
    never: watch::Sender<u64>,
}

impl AdminToken {
    pub fn new(token: Secret) -> Self {
        let everything = Arc::new(Grant { is_admin: true, ..Grant::everything() });
        Self { token, everything, nothing: Arc::default(), never: watch::Sender::default() }
    }

    /// Checks a token in constant time.
    pub fn is_valid(&self, sent: &[u8]) -> bool {
        let token = self.token.as_bytes();
        !token.is_empty() && bool::from(sent.ct_eq(token))
    }

    /// Returns the access settings of the admin listener. Its pages send the token themselves, so neither cookies nor
    /// host names matter.
    pub fn access(self) -> Access {
        Access {
            authority: Arc::new(self),
            cookie: String::new(),
            query: false,
            hosts: None,
            trusts_own_pages: false,
            own_keys: Vec::new(),
            behind_proxy: false,
            is_https: false,
        }
    }
}

impl Authority for AdminToken {
    fn verify<'a>(&'a self, credential: &'a str) -> Verdict<'a> {
        let verdict = match self.is_valid(credential.as_bytes()) {
            true => Ok(self.everything.clone()),
            false => {
                Err(Error::new(Code::Unauthorized, "this is not `admin.token`, which the admin listener requires"))
            }
        };
        Box::pin(std::future::ready(verdict))
    }

    fn anonymous(&self) -> Arc<Grant> {
        self.nothing.clone()
    }

    fn revocations(&self) -> watch::Receiver<u64> {
        self.never.subscribe()
    }

    fn is_revoked(&self, _: &Grant) -> bool {
        false
    }
}
