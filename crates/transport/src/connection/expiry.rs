//! Closes established connections and wakes polls when their token expires or is revoked.

use std::rc::Rc;

use millrace_delivery::ConnId;
use millrace_protocol::{Error, websocket};

use crate::{
    Shard,
    admission::access::{Access, Caller, expired, revoked, unix_s},
};

/// Closes the connections whose token has expired. Once a second is often enough. Cost: O(expired connections).
pub fn end_expired(shard: &Rc<Shard>) {
    let now_s = unix_s();
    loop {
        let Some(id) = shard.sockets().grants.take_expired(now_s) else { return };
        end(shard, id, websocket::CLOSE_EXPIRED, &expired());
    }
}

/// After each revocation, closes the connections whose token was revoked and wakes all long polls. Cost: O(connections)
/// per revocation.
pub async fn end_revoked(shard: Rc<Shard>, access: std::sync::Arc<Access>) {
    let authority = access.authority.clone();
    let mut revocations = authority.revocations();
    while revocations.changed().await.is_ok() {
        let is_revoked = |(id, caller): (ConnId, &Caller)| authority.is_revoked(&caller.grant).then_some(id);
        let ids: Vec<ConnId> = shard.sockets().grants.iter().filter_map(is_revoked).collect();
        for id in ids {
            end(&shard, id, websocket::CLOSE_REVOKED, &revoked());
        }
        // Each poll checks its own token when it wakes.
        shard.waiters().into_iter().for_each(|waiter| shard.wake(waiter));
    }
}

/// Closes a connection with an error, and revokes its permissions.
pub fn end(shard: &Rc<Shard>, id: ConnId, close_code: u16, error: &Error) {
    shard.with(|hub, sockets| {
        let Some(encoding) = hub.encoding(id) else { return };
        let mut last = Vec::new();
        encoding.encode_denied(&mut last, close_code, error);
        hub.close(id, &last, sockets);
        // The connection is still read until its last message has been sent, so revoke its permissions now.
        sockets.remove_caller(id);
    });
}
