use std::sync::Arc;

use millrace_delivery::ConnId;
use millrace_protocol::{
    Code, Error, Grant,
    session::{Target, encode_refresh_push, encode_unsubscribed_push},
    websocket,
};

use super::{ConnectionFilter, connections::targets_of};
use crate::{
    admission::access::{Caller, unix_s},
    connection::{end, send_text},
    route::Context,
    session,
};

/// End of one subscription by an operator.
enum Ended {
    /// The session goes on.
    Subscription,
    /// The connection has no commands, so it must end as a whole.
    Connection,
}

impl Context {
    /// Closes the matching connections and returns their number. The clients are notified not to reconnect.
    pub fn disconnect(&self, which: &ConnectionFilter) -> usize {
        let error = Error::new(Code::Unauthorized, "an operator has closed this connection");
        let ids = self.matching(which);
        ids.iter().for_each(|id| end(&self.shard, *id, websocket::CLOSE_REVOKED, &error));
        ids.len()
    }

    /// Ends the subscription to `target` of the matching connections, and returns their number. A session is notified
    /// and goes on; a stream and a bare WebSocket end.
    pub fn unsubscribe(&self, which: &ConnectionFilter, target: &Target) -> usize {
        let error = Error::new(Code::Forbidden, "an operator has ended this subscription");
        let push = encode_unsubscribed_push(target, &error);
        let mut ended = 0;
        for id in self.matching(which) {
            match self.end_subscription(id, target) {
                None => continue,
                Some(Ended::Subscription) => send_text(&self.shard, id, &push),
                Some(Ended::Connection) => end(&self.shard, id, websocket::CLOSE_REVOKED, &error),
            }
            ended += 1;
        }
        ended
    }

    fn end_subscription(&self, id: ConnId, target: &Target) -> Option<Ended> {
        self.shard.with(|hub, sockets| {
            if !targets_of(hub, sockets, id).any(|held| held == *target) {
                return None;
            }
            match sockets.is_session(id) {
                true => session::unsubscribe(hub, sockets, id, target).ok().map(|()| Ended::Subscription),
                false => Some(Ended::Connection),
            }
        })
    }

    /// Lets the tokens of the matching connections expire in `within_s` seconds, unless they expire earlier. Returns
    /// the number of connections. A session is notified and can send a new token. Connections without a token are
    /// ignored.
    pub fn refresh(&self, which: &ConnectionFilter, within_s: u64) -> usize {
        let latest_s = unix_s().saturating_add(within_s);
        let mut shortened = 0;
        for id in self.matching(which) {
            let Some((is_session, expires_ms)) = self.shorten(id, latest_s) else { continue };
            shortened += 1;
            if is_session {
                send_text(&self.shard, id, &encode_refresh_push(expires_ms));
            }
        }
        shortened
    }

    /// Returns whether the connection is a session, and the remaining lifetime of its token.
    fn shorten(&self, id: ConnId, latest_s: u64) -> Option<(bool, u64)> {
        self.shard.with(|_, sockets| {
            let mut caller = sockets.grants.get(id).filter(|caller| !caller.anonymous)?.clone();
            if caller.grant.expires_s.is_none_or(|expires_s| expires_s > latest_s) {
                let grant = Grant { expires_s: Some(latest_s), ..(*caller.grant).clone() };
                caller = Caller { grant: Arc::new(grant), ..caller };
                sockets.grants.put(id, caller.clone());
            }
            Some((sockets.is_session(id), caller.expires_ms()?))
        })
    }
}
