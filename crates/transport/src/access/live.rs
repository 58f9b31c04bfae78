//! Closes established connections and polls when their token expires or is revoked.

use std::{collections::BTreeSet, rc::Rc};

use millrace_delivery::ConnId;
use millrace_protocol::{ChannelName, Code, Error, Holder, Right, websocket};

use super::{Caller, unix_s};
use crate::http::Context;

/// Callers of a shard's connections. They are stored apart from the connections because most callers share one grant
/// that never expires.
#[derive(Default)]
pub(crate) struct Grants {
    held: Vec<Option<Held>>,
    /// Expiry time (seconds since 1970) of each connection whose token expires, earliest first.
    ends: BTreeSet<(u64, ConnId)>,
}

struct Held {
    generation: u32,
    caller: Caller,
}

impl Grants {
    /// Sets the caller of a connection. From now on, the caller's grant applies to the connection.
    pub fn put(&mut self, id: ConnId, caller: Caller) {
        self.remove(id);
        let slot = id.slot as usize;
        if self.held.len() <= slot {
            self.held.resize_with(slot + 1, || None);
        }
        if let Some(expires_s) = caller.grant.expires_s {
            self.ends.insert((expires_s, id));
        }
        self.held[slot] = Some(Held { generation: id.generation, caller });
    }

    pub fn get(&self, id: ConnId) -> Option<&Caller> {
        let held = self.held.get(id.slot as usize)?.as_ref()?;
        (held.generation == id.generation).then_some(&held.caller)
    }

    /// Checks a permission and returns the holder of the connection.
    ///
    /// Errors: as [`Caller::may`]; [`Code::Unavailable`] if the connection is already closed.
    pub fn may(&self, id: ConnId, right: Right, channel: &ChannelName) -> Result<Holder, Error> {
        let caller = self.get(id).ok_or_else(|| Error::new(Code::Unavailable, "the connection has gone"))?;
        caller.may(right, channel).map(|()| caller.holder)
    }

    pub fn remove(&mut self, id: ConnId) {
        let Some(expires_s) = self.get(id).map(|caller| caller.grant.expires_s) else { return };
        if let Some(expires_s) = expires_s {
            self.ends.remove(&(expires_s, id));
        }
        self.held[id.slot as usize] = None;
    }

    pub fn iter(&self) -> impl Iterator<Item = (ConnId, &Caller)> {
        let id = |slot, held: &Held| ConnId { slot, generation: held.generation };
        self.held
            .iter()
            .zip(0..)
            .filter_map(move |(held, slot)| held.as_ref().map(|held| (id(slot, held), &held.caller)))
    }

    /// Returns the memory held here, in bytes.
    pub fn bytes(&self) -> usize {
        self.held.capacity() * size_of::<Option<Held>>() + self.ends.len() * size_of::<(u64, ConnId)>()
    }
}

/// Closes the connections whose token has expired. Once a second is often enough. Cost: O(expired connections).
pub(crate) fn end_expired(context: &Context) {
    let now_s = unix_s();
    loop {
        let mut sockets = context.shard.sockets();
        let Some(&(expires_s, id)) = sockets.grants.ends.first().filter(|(expires_s, _)| *expires_s <= now_s) else {
            return;
        };
        // Remove the entry even if the connection is already closed, so that it is handled only once.
        sockets.grants.ends.remove(&(expires_s, id));
        drop(sockets);
        end(context, id, websocket::CLOSE_EXPIRED, &expired());
    }
}

/// After each revocation, closes the connections whose token was revoked and wakes all long polls. Cost: O(connections)
/// per revocation.
pub(crate) async fn end_revoked(context: Rc<Context>) {
    let authority = context.access.authority.clone();
    let mut revocations = authority.revocations();
    while revocations.changed().await.is_ok() {
        let is_revoked = |(id, caller): (ConnId, &Caller)| authority.is_revoked(&caller.grant).then_some(id);
        let ids: Vec<ConnId> = context.shard.sockets().grants.iter().filter_map(is_revoked).collect();
        for id in ids {
            end(&context, id, websocket::CLOSE_REVOKED, &revoked());
        }
        // Each poll checks its own token when it wakes.
        context.shard.waiters().into_iter().for_each(|waiter| context.shard.wake(waiter));
    }
}

pub fn end(context: &Context, id: ConnId, close_code: u16, error: &Error) {
    context.shard.with(|hub, sockets| {
        let Some(form) = hub.form(id) else { return };
        let mut last = Vec::new();
        form.encode_denied(&mut last, close_code, error);
        hub.close(id, &last, sockets);
        // The connection is still read until its last message has been sent, so revoke its permissions now.
        sockets.grants.remove(id);
    });
}

pub fn expired() -> Error {
    Error::new(Code::Unauthorized, "the token has expired: come again with a new one")
}

pub fn revoked() -> Error {
    Error::new(Code::Unauthorized, "the token was revoked")
}
