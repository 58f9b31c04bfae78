use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{runtime::Handle, time::timeout};

use super::{broker::Broker, shared::Shared};
use crate::Deliver;

/// Maximum duration of one pass. The next pass continues.
const PASS: Duration = Duration::from_secs(10);

impl<B: Broker, D: Deliver> Shared<B, D> {
    /// Starts to delete the keys of states whose time to live has ended, unless that is running or no channel is a
    /// state.
    pub fn expire_keys(self: Arc<Self>, runtime: &Handle) {
        if self.config.first_state().is_none() || self.is_expiring.swap(true, Relaxed) {
            return;
        }
        runtime.spawn(async move {
            let failed = match timeout(PASS, self.broker.expire_keys(&self.config)).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("it takes too long".into()),
            };
            if let Some(why) = failed {
                tracing::debug!(why, "deleting expired keys was interrupted; it continues in a second");
            }
            self.is_expiring.store(false, Relaxed);
        });
    }
}
