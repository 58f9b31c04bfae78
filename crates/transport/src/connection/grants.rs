use std::collections::BTreeSet;

use millrace_delivery::ConnId;
use millrace_protocol::{ChannelName, Code, Error, Permission};

use crate::admission::access::{Caller, unix_s};

/// Callers of a shard's connections. They are stored apart from the connections because most callers share one grant
/// that never expires.
#[derive(Default)]
pub(crate) struct Grants {
    callers: Vec<Option<ConnectionCaller>>,
    /// Expiry time (seconds since 1970) of each connection whose token expires, earliest first.
    ends: BTreeSet<(u64, ConnId)>,
}

struct ConnectionCaller {
    generation: u32,
    /// Time of the first caller of the connection, in seconds since 1970.
    opened_s: u32,
    caller: Caller,
}

impl Grants {
    /// Sets the caller of a connection. From now on, the caller's grant applies to the connection.
    pub fn put(&mut self, id: ConnId, caller: Caller) {
        let opened_s = self.opened_s(id).unwrap_or_else(|| unix_s() as u32);
        self.remove(id);
        let slot = id.slot as usize;
        if self.callers.len() <= slot {
            self.callers.resize_with(slot + 1, || None);
        }
        if let Some(expires_s) = caller.grant.expires_s {
            self.ends.insert((expires_s, id));
        }
        self.callers[slot] = Some(ConnectionCaller { generation: id.generation, opened_s, caller });
    }

    pub fn get(&self, id: ConnId) -> Option<&Caller> {
        Some(&self.entry(id)?.caller)
    }

    /// Returns the time at which the connection was opened, in seconds since 1970.
    pub fn opened_s(&self, id: ConnId) -> Option<u32> {
        Some(self.entry(id)?.opened_s)
    }

    fn entry(&self, id: ConnId) -> Option<&ConnectionCaller> {
        self.callers.get(id.slot as usize)?.as_ref().filter(|entry| entry.generation == id.generation)
    }

    /// Returns the caller of an open connection.
    ///
    /// Errors: [`Code::Unavailable`] if the connection is already closed.
    pub fn caller(&self, id: ConnId) -> Result<&Caller, Error> {
        self.get(id).ok_or_else(|| Error::new(Code::Unavailable, "the connection is closed"))
    }

    /// Checks a permission of a connection.
    ///
    /// Errors: those of [`Grants::caller`] and [`Caller::may`].
    pub fn may(&self, id: ConnId, permission: Permission, channel: &ChannelName) -> Result<(), Error> {
        self.caller(id)?.may(permission, channel)
    }

    /// Removes and returns a connection whose token has expired, if there is one. `now_s`: since 1970.
    pub fn take_expired(&mut self, now_s: u64) -> Option<ConnId> {
        let first = self.ends.first().filter(|(expires_s, _)| *expires_s <= now_s).copied()?;
        // The entry is removed even if the connection is already closed, so that it is handled only once.
        self.ends.remove(&first);
        Some(first.1)
    }

    /// Removes the caller of a connection. Returns false if it had none.
    pub fn remove(&mut self, id: ConnId) -> bool {
        let Some(expires_s) = self.get(id).map(|caller| caller.grant.expires_s) else { return false };
        if let Some(expires_s) = expires_s {
            self.ends.remove(&(expires_s, id));
        }
        self.callers[id.slot as usize] = None;
        true
    }

    pub fn iter(&self) -> impl Iterator<Item = (ConnId, &Caller)> {
        let id = |slot, callers: &ConnectionCaller| ConnId { slot, generation: callers.generation };
        self.callers
            .iter()
            .zip(0..)
            .filter_map(move |(callers, slot)| callers.as_ref().map(|callers| (id(slot, callers), &callers.caller)))
    }

    /// Returns the memory held here, in bytes.
    pub fn bytes(&self) -> usize {
        self.callers.capacity() * size_of::<Option<ConnectionCaller>>() + self.ends.len() * size_of::<(u64, ConnId)>()
    }
}
