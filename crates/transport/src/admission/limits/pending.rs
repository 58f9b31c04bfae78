use std::sync::{
    Arc,
    atomic::Ordering::{AcqRel, Relaxed},
};

use bytes::Bytes;
use millrace_protocol::{Code, Error};

use super::{Limit, Limits};

/// Bytes queued for one client, or incomplete input from it. They are released when this value is dropped.
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
    /// Reserves room for bytes that are queued for a client.
    ///
    /// Errors: `unavailable` if too many bytes are queued already.
    pub fn pend(self: &Arc<Self>, bytes: usize) -> Result<Pending, Error> {
        let mut pending = Pending { limits: self.clone(), bytes: 0 };
        pending.resize(bytes)?;
        Ok(pending)
    }

    /// Counts bytes as queued until they have been sent and dropped.
    ///
    /// Errors: those of [`Limits::pend`].
    pub fn charge(self: &Arc<Self>, bytes: Bytes) -> Result<Bytes, Error> {
        let _pending = self.pend(bytes.len())?;
        Ok(Bytes::from_owner(Charged { bytes, _pending }))
    }

    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes.load(Relaxed)
    }
}

impl Pending {
    /// Changes the number of bytes. If there is no room, the number stays the same.
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
            let detail = "too many bytes are queued for other clients; try again";
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
