use std::sync::{
    Arc,
    atomic::Ordering::{AcqRel, Relaxed},
};

use bytes::Bytes;
use millrace_protocol::{Code, Error};

use super::{Limit, Limits};

/// Bytes that wait for one client, or for the rest of what it sends; given back when this is dropped.
pub struct Pending {
    limits: Arc<Limits>,
    bytes: usize,
}

struct Charged {
    bytes: Bytes,
    _pending: Pending,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Limits {
    /// Room for bytes that wait for a client.
    ///
    /// Errors: `unavailable`: too much waits already.
    pub fn pend(self: &Arc<Self>, bytes: usize) -> Result<Pending, Error> {
        let mut pending = Pending { limits: self.clone(), bytes: 0 };
        pending.resize(bytes)?;
        Ok(pending)
    }

    /// Bytes that are counted as waiting until they have left.
    ///
    /// Errors: as [`Limits::pend`].
    pub fn charge(self: &Arc<Self>, bytes: Bytes) -> Result<Bytes, Error> {
        let _pending = self.pend(bytes.len())?;
        Ok(Bytes::from_owner(Charged { bytes, _pending }))
    }

    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes.load(Relaxed)
    }
}

impl Pending {
    /// Another size, if there is room for it; otherwise it stays.
    ///
    /// Errors: `unavailable`.
    pub fn resize(&mut self, bytes: usize) -> Result<(), Error> {
        let limits = &self.limits;
        if bytes <= self.bytes {
            limits.pending_bytes.fetch_sub(self.bytes - bytes, Relaxed);
            self.bytes = bytes;
            return Ok(());
        }
        let (more, max) = (bytes - self.bytes, limits.pending_bytes_max.load(Relaxed));
        let add = |pending: usize| pending.checked_add(more).filter(|pending| *pending <= max);
        if limits.pending_bytes.fetch_update(AcqRel, Relaxed, add).is_err() {
            let detail = "too much waits for other clients; try again";
            return Err(limits.refuse(Limit::Pending, Error::new(Code::Unavailable, detail)));
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.limits.pending_bytes.fetch_sub(self.bytes, Relaxed);
    }
}
