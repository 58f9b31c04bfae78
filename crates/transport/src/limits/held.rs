//! What somebody has of a node, and gives back when it is dropped.

use std::{
    net::IpAddr,
    num::NonZeroU64,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use super::{Limits, key};

/// A connection that was let in, until this is dropped.
pub struct Permit {
    pub(super) limits: Arc<Limits>,
    /// `None` for those whose addresses are exempt.
    pub(super) address: Option<NonZeroU64>,
}

/// A reader that counts for its subject, or for the address behind a proxy, until this is dropped.
pub struct Seat {
    pub(super) limits: Arc<Limits>,
    pub(super) subject: Option<Arc<str>>,
    /// Where the reader is, if a proxy has said so, and whether it counts there.
    pub(super) address: Option<IpAddr>,
    pub(super) is_counted: bool,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limits.connections.fetch_sub(1, Relaxed);
        if let Some(address) = self.address {
            self.limits.addresses.with(&address, |entry| entry.connections -= 1);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(address) = self.address.filter(|_| self.is_counted) {
            self.limits.addresses.with(&key(address), |entry| entry.connections -= 1);
        }
        if let Some(subject) = &self.subject {
            self.limits.subjects.with(subject, |entry| entry.connections -= 1);
        }
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("subject", &self.subject).finish_non_exhaustive()
    }
}
