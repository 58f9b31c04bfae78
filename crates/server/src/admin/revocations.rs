use std::time::Duration;

use millrace_delivery::PageLimit;
use millrace_protocol::{ChannelName, Error, INTERNAL, Kind, NewPublication, Publication, Since, session::Policy};
use serde::{Deserialize, Serialize};

use super::Admin;
use crate::auth::Revoked;

/// Interval between two reads of the stored revocations. A node that a revocation did not reach applies it that late.
const READ: Duration = Duration::from_secs(1);
const PAGE: PageLimit = PageLimit { count: 1000, bytes: 1 << 20 };

/// A stored revocation.
#[derive(Serialize, Deserialize)]
struct Stored {
    revoked: Revoked,
    until_s: u64,
}

/// Returns the channel that holds the revocations of the cluster. No client can read it.
fn channel() -> ChannelName {
    ChannelName::parse(&format!("{INTERNAL}/revocations")).expect("a channel name")
}

impl Admin {
    /// Stores a revocation in the engine, for nodes that start later or that the revocation did not reach.
    ///
    /// Errors: those of the engine.
    pub async fn store_revocation(&self, revoked: &Revoked, until_s: u64) -> Result<(), Error> {
        let stored = Stored { revoked: revoked.clone(), until_s };
        let data = serde_json::to_vec(&stored).expect("texts and numbers");
        let mut publication = NewPublication::new(Kind::Json, data);
        publication.ttl_ms = Some(until_s.saturating_sub((self.now_s)()).saturating_mul(1000).max(1));
        self.engine.append(&channel(), publication).await.map(drop)
    }

    /// Applies the stored revocations and then follows new ones. Never returns. Calls `read` after the first complete
    /// read.
    pub async fn follow_revocations(&self, read: impl FnOnce()) {
        let (channel, mut since, mut read) = (channel(), Since::Earliest, Some(read));
        loop {
            match self.engine.page(&channel, since, Policy::Every, PAGE).await {
                Ok(page) => {
                    page.publications.iter().for_each(|publication| self.restore(publication));
                    since = Since::Position(page.end);
                    if page.has_more() {
                        continue;
                    }
                    if let Some(read) = read.take() {
                        read();
                    }
                }
                Err(error) => tracing::debug!(%error, "the stored revocations cannot be read; trying again"),
            }
            tokio::time::sleep(READ).await;
        }
    }

    /// Applies a stored revocation. Ignores what this version does not understand.
    fn restore(&self, publication: &Publication) {
        let Ok(Stored { revoked, until_s }) = serde_json::from_slice(publication.data()) else {
            return tracing::debug!(offset = publication.offset, "a stored revocation is not understood");
        };
        if let Err(error) = self.auth.revoke(revoked, until_s) {
            tracing::error!(%error, "a stored revocation does not apply on this node");
        }
    }
}
