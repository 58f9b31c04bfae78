use std::{future::Future, pin::Pin, sync::Arc};

use millrace_protocol::{Error, Grant};
use tokio::sync::watch;

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
