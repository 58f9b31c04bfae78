use std::{net::IpAddr, sync::Mutex, sync::PoisonError, time::Duration};

use millrace_protocol::Error;

use super::{Bucket, ConnectionSlot, Limits, Pending, Publishes, ReaderSlot};

/// Buffers up to this size are not counted, so an idle or ordinary connection updates no counter of the node.
pub(crate) const UNCOUNTED_BYTES: usize = 16 * 1024;

/// Connection that a request arrived on. It is an extension of each request.
#[derive(Debug)]
pub struct RequestConnection {
    pub address: IpAddr,
    publishes: Mutex<Publishes>,
}

impl RequestConnection {
    pub fn new(address: IpAddr) -> Self {
        Self { address, publishes: Mutex::default() }
    }

    /// Checks a publication like [`Limits::check_publish`], for this connection.
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

/// Quotas in use by a connection on the event loop. Rarely used fields are in a separate allocation.
pub struct ConnectionQuotas {
    connection_slot: ConnectionSlot,
    more: Option<Box<More>>,
}

/// This must be small: there are many connections, and most of them only read.
const _: () = assert!(size_of::<Option<ConnectionQuotas>>() <= 24);

#[derive(Default)]
struct More {
    reader_slot: Option<ReaderSlot>,
    publishes: Publishes,
    messages: Bucket,
    /// Bytes of incomplete messages from the client.
    incoming: Option<Pending>,
    /// Bytes queued for the client.
    outgoing: Option<Pending>,
}

/// Direction of queued bytes.
#[derive(Clone, Copy, Debug)]
pub enum Direction {
    In,
    Out,
}

impl ConnectionQuotas {
    pub fn new(connection_slot: ConnectionSlot, reader_slot: Option<ReaderSlot>) -> Self {
        let more = reader_slot.map(|reader_slot| Box::new(More { reader_slot: Some(reader_slot), ..More::default() }));
        Self { connection_slot, more }
    }

    /// Adds the slot of a reader that was admitted after its connection.
    pub fn set_reader_slot(&mut self, reader_slot: Option<ReaderSlot>) {
        if reader_slot.is_some() {
            self.more.get_or_insert_default().reader_slot = reader_slot;
        }
    }

    /// Returns the slot of the connection and releases all other quotas.
    pub fn into_connection_slot(self) -> ConnectionSlot {
        self.connection_slot
    }

    /// Returns the address of the client, if a proxy has reported it.
    pub fn client(&self) -> Option<IpAddr> {
        self.more.as_ref()?.reader_slot.as_ref()?.address
    }

    /// Returns true if bytes in this direction are counted.
    pub fn counts(&self, direction: Direction) -> bool {
        self.more.as_ref().is_some_and(|more| more.pending(direction).is_some())
    }

    /// Sets the number of bytes queued for the client, or of incomplete input from it.
    ///
    /// Errors: those of [`Pending::resize`]; then the connection must be closed.
    pub fn set_pending(&mut self, direction: Direction, bytes: usize) -> Result<(), Error> {
        if bytes <= UNCOUNTED_BYTES {
            if let Some(more) = &mut self.more {
                *more.pending_mut(direction) = None;
            }
            return Ok(());
        }
        let pending = self.more.get_or_insert_default().pending_mut(direction);
        match pending {
            Some(pending) => pending.resize(bytes),
            None => {
                *pending = Some(self.connection_slot.limits.pend(bytes)?);
                Ok(())
            }
        }
    }

    /// Checks a publication like [`Limits::check_publish`].
    pub fn check_publish(&mut self, subject: Option<&std::sync::Arc<str>>, bytes: usize) -> Result<(), Error> {
        let limits = &self.connection_slot.limits;
        let own = limits.counts_incoming().then(|| &mut self.more.get_or_insert_default().publishes);
        limits.check_publish(own, subject, bytes)
    }

    /// Counts a publication like [`Limits::owe_publish`].
    pub fn owe_publish(&mut self, subject: Option<&std::sync::Arc<str>>, bytes: usize) -> Duration {
        let limits = &self.connection_slot.limits;
        match limits.counts_incoming() {
            true => limits.owe_publish(&mut self.more.get_or_insert_default().publishes, subject, bytes),
            false => Duration::ZERO,
        }
    }

    /// Counts messages like [`Limits::owe_messages`].
    pub fn owe_messages(&mut self, messages: u64) -> Duration {
        let limits = &self.connection_slot.limits;
        match limits.counts_incoming() {
            true => limits.owe_messages(&mut self.more.get_or_insert_default().messages, messages),
            false => Duration::ZERO,
        }
    }

    /// Returns the memory that the quotas use in addition to its own size, in bytes.
    pub fn bytes(&self) -> usize {
        self.more.as_ref().map_or(0, |_| size_of::<More>())
    }
}

impl More {
    fn pending(&self, direction: Direction) -> &Option<Pending> {
        match direction {
            Direction::In => &self.incoming,
            Direction::Out => &self.outgoing,
        }
    }

    fn pending_mut(&mut self, direction: Direction) -> &mut Option<Pending> {
        match direction {
            Direction::In => &mut self.incoming,
            Direction::Out => &mut self.outgoing,
        }
    }
}
