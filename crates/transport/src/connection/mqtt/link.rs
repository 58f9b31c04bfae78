use std::{cell::Cell, sync::Arc};

use bytes::BytesMut;
use millrace_mqtt::{Reason, Session, SessionKey, Version, encode};
use millrace_protocol::{encoding::record::Record, websocket};

use super::{
    Will,
    node::{Node, unix_ms},
};
use crate::admission::PublishTarget;

/// Bytes for the client above which a link takes no further records.
const OUT_BYTES_MAX: usize = 64 * 1024;
/// Capacity of a buffer that is kept for the next write of the thread.
const SPARE_BYTES_MAX: usize = 256 * 1024;

thread_local! {
    /// Buffer of the last write of this thread, so that a delivery needs no allocation and an idle link no buffer.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Link between a socket and its MQTT session. It lives as long as the socket.
pub(crate) struct Link {
    pub version: Version,
    /// `None` until CONNECT was accepted.
    pub session: Option<Session>,
    /// Received bytes that are not handled yet.
    pub input: BytesMut,
    /// A task handles packets. Received bytes wait for it.
    pub is_running: bool,
    pub is_websocket: bool,
    /// `is_running` is set because the client does not read its answers.
    pub waits_for_room: bool,
    /// The client gets nothing more.
    pub is_closing: bool,
    /// How the session ends with the connection; `None` until CONNECT was accepted.
    pub ending: Option<Ending>,
    /// Target of the last publication.
    pub target: Option<PublishTarget>,
    /// Second of the last packet of the client, and the maximum time between two; 0: no limit.
    pub heard_s: u32,
    pub silence_max_s: u32,
    /// Second of the next check of the silence. Earlier entries for the connection are stale.
    pub check_s: u32,
    /// The hub has records that the link did not take.
    pub is_behind: bool,
    /// Bytes before the packets: the answer to an upgrade, and pongs of a WebSocket.
    control: Vec<u8>,
    /// Packets for the client.
    out: Vec<u8>,
    /// Bytes for the socket, and the number of those that it has taken.
    wire: Vec<u8>,
    sent: usize,
}

/// How a session ends with its connection.
pub(crate) struct Ending {
    pub node: Arc<Node>,
    pub key: SessionKey,
    pub serial: u64,
    /// The will, with its delay in seconds.
    pub will: Option<(Will, u32)>,
}

impl Link {
    pub fn new(is_websocket: bool) -> Self {
        let (session, input, is_running, is_closing, ending, target, heard_s, is_behind) = Default::default();
        let (control, out, wire, sent) = Default::default();
        Self {
            version: Version::V311,
            session,
            input,
            is_running,
            waits_for_room: false,
            is_websocket,
            is_closing,
            ending,
            target,
            heard_s,
            silence_max_s: 0,
            check_s: 0,
            is_behind,
            control,
            out,
            wire,
            sent,
        }
    }

    /// Takes records of the hub and returns the number of bytes taken. The rest waits until the client acknowledges
    /// publications, or until the socket takes bytes.
    pub fn take_records(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() {
            let Some((record, length)) = Record::decode(&bytes[taken..]) else { return bytes.len() };
            let is_full = self.pending_bytes() > OUT_BYTES_MAX || !self.wire.is_empty();
            match record {
                Record::Close(code) => self.close(Reason::of_close(code)),
                _ if self.is_closing => {}
                Record::Publication(_) if is_full => break,
                Record::Publication(publication) => {
                    let Self { session: Some(session), out, .. } = self else { return bytes.len() };
                    let now_ms = if publication.expires_ms.is_some() { unix_ms() } else { 0 };
                    if out.capacity() == 0 {
                        *out = SPARE.take();
                    }
                    if !session.deliver(&publication, now_ms, out) {
                        break;
                    }
                }
                Record::Gap { .. } => {}
            }
            taken += length;
        }
        self.is_behind = taken < bytes.len();
        taken
    }

    /// Ends the connection with a reason. The caller closes the socket.
    pub fn close(&mut self, reason: Reason) {
        if !std::mem::replace(&mut self.is_closing, true) && self.session.is_some() {
            encode::disconnect(&mut self.out, self.version, reason);
        }
    }

    /// Returns the buffer of packets for the client.
    pub fn out(&mut self) -> &mut Vec<u8> {
        if self.out.capacity() == 0 {
            self.out = SPARE.take();
        }
        &mut self.out
    }

    /// Returns the session and the buffer of packets for the client.
    pub fn session_and_out(&mut self) -> Option<(&mut Session, &mut Vec<u8>)> {
        self.out();
        Some((self.session.as_mut()?, &mut self.out))
    }

    /// Returns the buffer of bytes that precede the packets.
    pub fn control(&mut self) -> &mut Vec<u8> {
        &mut self.control
    }

    /// Returns the number of bytes that the socket has not taken.
    pub fn pending_bytes(&self) -> usize {
        self.control.len() + self.out.len() + self.wire.len() - self.sent
    }

    /// Writes to the socket what it takes. `write` returns the number of bytes taken. Returns true if nothing is left.
    pub fn flush(&mut self, mut write: impl FnMut(&[u8]) -> usize) -> bool {
        loop {
            if self.wire.is_empty() {
                std::mem::swap(&mut self.wire, &mut self.control);
                match (self.out.is_empty(), self.is_websocket) {
                    (true, _) => {}
                    (false, true) => websocket::encode(&mut self.wire, websocket::BINARY, &self.out),
                    (false, false) => std::mem::swap(&mut self.wire, &mut self.out),
                }
                self.out.clear();
                give_back(&mut self.out);
                if self.wire.is_empty() {
                    return true;
                }
            }
            self.sent += write(&self.wire[self.sent..]);
            if self.sent < self.wire.len() {
                return false;
            }
            (self.sent, _) = (0, self.wire.clear());
            give_back(&mut self.wire);
        }
    }

    /// Returns the memory of the link, in bytes.
    pub fn bytes(&self) -> usize {
        self.input.capacity() + self.out.capacity() + self.wire.capacity() + size_of::<Self>()
    }
}

/// Keeps an empty buffer for the next write of this thread.
fn give_back(buffer: &mut Vec<u8>) {
    let buffer = std::mem::take(buffer);
    if (1..=SPARE_BYTES_MAX).contains(&buffer.capacity()) {
        SPARE.set(buffer);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let (Some(session), Some(Ending { node, key, serial, will })) = (self.session.take(), self.ending.take())
        else {
            return;
        };
        let expiry_s = session.expiry_s;
        let saved = session.end();
        node.registry().disconnect(&key, serial, saved, expiry_s, will, unix_ms());
        node.ended.notify_waiters();
        node.has_will.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flush_continues_where_the_socket_stopped() {
        for is_websocket in [false, true] {
            let mut link = Link::new(is_websocket);
            link.out().extend_from_slice(&[7; 300]);
            let mut sent = Vec::new();
            let mut write = |bytes: &[u8]| {
                let taken = bytes.len().min(100);
                sent.extend_from_slice(&bytes[..taken]);
                taken
            };
            while !link.flush(&mut write) {}
            let head = if is_websocket { 4 } else { 0 };
            assert_eq!((sent.len(), sent[head..].to_vec()), (300 + head, vec![7; 300]));
            assert_eq!(link.pending_bytes(), 0);
        }
    }
}
