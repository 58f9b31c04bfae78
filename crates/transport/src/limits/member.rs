use std::{net::IpAddr, sync::Mutex, sync::PoisonError, time::Duration};

use millrace_protocol::Error;

use super::{Bucket, Limits, Pending, Permit, Publishes, Seat};

/// Less than this is held without being counted: an idle or ordinary connection touches no counter of the node.
pub(super) const UNCOUNTED_BYTES: usize = 16 * 1024;

/// What a request knows of the connection that it comes on: an extension of each.
#[derive(Debug)]
pub struct Guest {
    pub address: IpAddr,
    publishes: Mutex<Publishes>,
}

impl Guest {
    pub fn new(address: IpAddr) -> Self {
        Self { address, publishes: Mutex::default() }
    }

    /// As [`Limits::check_publish`], for the connection of this guest.
    pub fn check_publish(
        &self,
        limits: &Limits,
        subject: Option<&std::sync::Arc<str>>,
        bytes: usize,
    ) -> Result<(), Error> {
        let mut own = self.publishes.lock().unwrap_or_else(PoisonError::into_inner);
        limits.check_publish(Some(&mut own), subject, bytes)
    }
}

/// What a connection of the event loop has of the node. What few have is beside.
pub struct Member {
    permit: Permit,
    more: Option<Box<More>>,
}

/// Connections are many, and most of them only read.
const _: () = assert!(size_of::<Option<Member>>() <= 24);

#[derive(Default)]
struct More {
    seat: Option<Seat>,
    publishes: Publishes,
    messages: Bucket,
    /// For the rest of a message.
    incoming: Option<Pending>,
    /// For what the client has not taken.
    outgoing: Option<Pending>,
}

/// Which way bytes wait.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    In,
    Out,
}

impl Member {
    pub fn new(permit: Permit, seat: Option<Seat>) -> Self {
        let more = seat.map(|seat| Box::new(More { seat: Some(seat), ..More::default() }));
        Self { permit, more }
    }

    /// Gives back what was taken when the connection was accepted; the rest ends.
    pub fn into_permit(self) -> Permit {
        self.permit
    }

    /// Where its client is, if a proxy between them has said so.
    pub fn client(&self) -> Option<IpAddr> {
        self.more.as_ref()?.seat.as_ref()?.address
    }

    /// Is anything counted that waits?
    pub fn counts(&self, way: Way) -> bool {
        self.more.as_ref().is_some_and(|more| more.pending(way).is_some())
    }

    /// So many bytes wait for the client, or for the rest of what it sends.
    ///
    /// Errors: as [`Pending::resize`]; then the connection has to end.
    pub fn set_pending(&mut self, way: Way, bytes: usize) -> Result<(), Error> {
        if bytes <= UNCOUNTED_BYTES {
            if let Some(more) = &mut self.more {
                *more.pending_mut(way) = None;
            }
            return Ok(());
        }
        let pending = self.more.get_or_insert_default().pending_mut(way);
        match pending {
            Some(pending) => pending.resize(bytes),
            None => {
                *pending = Some(self.permit.limits.pend(bytes)?);
                Ok(())
            }
        }
    }

    /// As [`Limits::check_publish`].
    pub fn check_publish(&mut self, subject: Option<&std::sync::Arc<str>>, bytes: usize) -> Result<(), Error> {
        let limits = &self.permit.limits;
        let own = limits.counts_incoming().then(|| &mut self.more.get_or_insert_default().publishes);
        limits.check_publish(own, subject, bytes)
    }

    /// As [`Limits::owe_publish`].
    pub fn owe_publish(&mut self, subject: Option<&std::sync::Arc<str>>, bytes: usize) -> Duration {
        let limits = &self.permit.limits;
        match limits.counts_incoming() {
            true => limits.owe_publish(&mut self.more.get_or_insert_default().publishes, subject, bytes),
            false => Duration::ZERO,
        }
    }

    /// As [`Limits::owe_messages`].
    pub fn owe_messages(&mut self, messages: u64) -> Duration {
        let limits = &self.permit.limits;
        match limits.counts_incoming() {
            true => limits.owe_messages(&mut self.more.get_or_insert_default().messages, messages),
            false => Duration::ZERO,
        }
    }

    /// Memory beside the member itself, in bytes.
    pub fn bytes(&self) -> usize {
        self.more.as_ref().map_or(0, |_| size_of::<More>())
    }
}

impl More {
    fn pending(&self, way: Way) -> &Option<Pending> {
        match way {
            Way::In => &self.incoming,
            Way::Out => &self.outgoing,
        }
    }

    fn pending_mut(&mut self, way: Way) -> &mut Option<Pending> {
        match way {
            Way::In => &mut self.incoming,
            Way::Out => &mut self.outgoing,
        }
    }
}
