//! Reservations of a node's quotas. Dropping a reservation releases it.

use std::{
    net::IpAddr,
    num::NonZeroU64,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use super::{Limits, key};

/// An admitted connection. Dropping this value releases the connection's slot.
pub struct ConnectionSlot {
    pub(super) limits: Arc<Limits>,
    /// Key of the address; `None` if the address is exempt.
    pub(super) address: Option<NonZeroU64>,
}

/// A reader that is counted for its subject, or for its address behind a proxy. Dropping this value releases the slot.
pub struct ReaderSlot {
    pub(super) limits: Arc<Limits>,
    pub(super) subject: Option<Arc<str>>,
    /// Address of the reader, if a proxy has reported it.
    pub(super) address: Option<IpAddr>,
    /// True if the reader is counted for `address`.
    pub(super) is_counted: bool,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.limits.connections.fetch_sub(1, Relaxed);
        if let Some(address) = self.address {
            self.limits.addresses.with(&address, |entry| entry.connections -= 1);
        }
    }
}

impl Drop for ReaderSlot {
    fn drop(&mut self) {
        if let Some(address) = self.address.filter(|_| self.is_counted) {
            self.limits.addresses.with(&key(address), |entry| entry.connections -= 1);
        }
        if let Some(subject) = &self.subject {
            self.limits.subjects.with(subject, |entry| entry.connections -= 1);
        }
    }
}

impl std::fmt::Debug for ReaderSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReaderSlot").field("subject", &self.subject).finish_non_exhaustive()
    }
}
