//! Idle connections: a heartbeat keeps an idle connection alive in every middlebox on the path, and a WebSocket
//! that answers no ping is dead.

use super::{Conn, ConnId, Hub, Out, Output, Wire};

/// Heartbeat intervals after which a blocked connection is dead if it neither sends nor takes a byte.
const BLOCKED_HEARTBEATS: u32 = 8;

/// Result of the heartbeat check of a connection.
enum Seen {
    /// The next check is due at this second.
    Quiet(u32),
    /// The connection was idle for one heartbeat interval.
    Silent,
    Dead,
}

impl Hub {
    /// Sends due heartbeats and closes dead connections. Call it about once per second.
    ///
    /// Cost: O(connections that are due). Each connection is due about once per heartbeat, a blocked one at every
    /// call.
    pub fn tick(&mut self, now_s: u32, wire: &mut impl Wire) {
        self.now_s = now_s;
        let (heartbeat_s, grace_s) = (self.config.heartbeat_s, self.config.grace_s);
        while let Some(entry) = self.due.first_entry().filter(|entry| *entry.key() <= now_s) {
            for id in entry.remove() {
                let Some(conn) = self.conn_mut(id) else { continue };
                let next_s = match conn.look(now_s, heartbeat_s, grace_s) {
                    Seen::Quiet(next_s) => next_s,
                    Seen::Silent => {
                        let is_websocket = conn.encoding.is_websocket();
                        let heartbeat_s = conn.heartbeat_s(heartbeat_s);
                        conn.pinged_s = is_websocket.then_some(now_s);
                        conn.send(id, conn.encoding.heartbeat(), now_s, wire);
                        now_s + if is_websocket { grace_s.min(heartbeat_s) } else { heartbeat_s }
                    }
                    Seen::Dead => {
                        self.drop_readers(id);
                        let conn = &mut self.conns[id.slot as usize];
                        (conn.closing, conn.out) = (true, Out::default());
                        self.outputs.push_back(Output::Close(id));
                        continue;
                    }
                };
                self.look_at(id, next_s.max(now_s + 1));
            }
        }
    }

    pub(super) fn look_at(&mut self, id: ConnId, at_s: u32) {
        self.due.entry(at_s).or_default().push(id);
    }
}

impl Conn {
    fn heartbeat_s(&self, of_hub: u32) -> u32 {
        self.heartbeat_s.map_or(of_hub, |own| own.get().into())
    }

    fn look(&self, now_s: u32, heartbeat_s: u32, grace_s: u32) -> Seen {
        let is_websocket = self.encoding.is_websocket();
        if self.closing && self.out.is_empty() {
            return Seen::Quiet(now_s + heartbeat_s);
        }
        // A slow peer cannot answer a ping that it has not received yet: while it takes bytes, it is alive. The
        // limit on how long it may take nothing is the hub's own heartbeat, not the interval that the peer chose.
        if self.blocked {
            let stuck_s = now_s.saturating_sub(self.heard_s.max(self.wrote_s));
            let dead = (is_websocket || self.closing) && stuck_s >= BLOCKED_HEARTBEATS * heartbeat_s;
            return if dead { Seen::Dead } else { Seen::Quiet(now_s + 1) };
        }
        if let Some(at_s) = self.pinged_s {
            let dead = now_s.saturating_sub(at_s) >= grace_s;
            return if dead { Seen::Dead } else { Seen::Quiet(at_s + grace_s) };
        }
        let heartbeat_s = self.heartbeat_s(heartbeat_s);
        let last_s = if is_websocket { self.heard_s } else { self.wrote_s };
        if now_s.saturating_sub(last_s) >= heartbeat_s { Seen::Silent } else { Seen::Quiet(last_s + heartbeat_s) }
    }
}
