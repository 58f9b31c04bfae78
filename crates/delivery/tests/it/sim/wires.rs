use std::collections::BTreeMap;

use millrace_delivery::{ConnId, Wire};

/// Both ends of every connection: bytes that the hub has written and the client has not read yet.
#[derive(Default)]
pub struct Wires {
    pipes: BTreeMap<ConnId, Pipe>,
    /// Connections that were written to, or became blocked, since the last query.
    pub touched: Vec<ConnId>,
    pub blocked: Vec<ConnId>,
    /// Operation that a correct hub never performs.
    pub fault: Option<String>,
    /// Countdown of writes to the one that loses bytes, to check that the clients detect the loss.
    pub drop_bytes_in: Option<u32>,
    pub dropped: u64,
}

struct Pipe {
    client: usize,
    in_flight: Vec<u8>,
    capacity: usize,
    blocked: bool,
    end: End,
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Open,
    /// The client has disconnected, and the hub does not know it yet.
    Dead,
    /// The hub has closed the connection; the client still reads the remaining bytes.
    Closed,
}

impl Wires {
    pub fn open(&mut self, conn: ConnId, client: usize, capacity: usize) {
        self.pipes.insert(conn, Pipe { client, in_flight: Vec::new(), capacity, blocked: false, end: End::Open });
    }

    pub fn client(&self, conn: ConnId) -> Option<usize> {
        self.pipes.get(&conn).map(|pipe| pipe.client)
    }

    /// Cuts the client's end, and drops all bytes in flight.
    pub fn cut(&mut self, conn: ConnId) {
        if let Some(pipe) = self.pipes.get_mut(&conn) {
            pipe.end = End::Dead;
            pipe.in_flight.clear();
        }
    }

    pub fn close(&mut self, conn: ConnId) {
        match self.pipes.get_mut(&conn) {
            Some(pipe) if pipe.end == End::Open => pipe.end = End::Closed,
            Some(pipe) if pipe.end == End::Closed => self.fault = Some(format!("{conn:?} was closed twice")),
            _ => {}
        }
        self.touched.push(conn);
    }

    pub fn forget(&mut self, conn: ConnId) {
        self.pipes.remove(&conn);
    }

    /// Returns the next bytes for the client, and whether no bytes will follow.
    pub fn receive(&mut self, conn: ConnId, share: impl FnOnce(usize) -> usize) -> (Vec<u8>, bool) {
        let Some(pipe) = self.pipes.get_mut(&conn) else { return (Vec::new(), false) };
        let count = share(pipe.in_flight.len());
        let bytes: Vec<u8> = pipe.in_flight.drain(..count).collect();
        let more = !pipe.in_flight.is_empty();
        if more {
            self.touched.push(conn);
        }
        (bytes, pipe.end == End::Closed && !more)
    }

    /// Unblocks the connection. Returns false if it was not blocked or no longer exists.
    pub fn unblock(&mut self, conn: ConnId, capacity: usize) -> bool {
        let Some(pipe) = self.pipes.get_mut(&conn).filter(|pipe| pipe.blocked && pipe.end == End::Open) else {
            return false;
        };
        (pipe.blocked, pipe.capacity) = (false, capacity);
        true
    }
}

impl Wire for Wires {
    fn write(&mut self, conn: ConnId, bytes: &[u8]) -> usize {
        let Some(pipe) = self.pipes.get_mut(&conn).filter(|pipe| pipe.end != End::Closed) else {
            self.fault = Some(format!("{} bytes for {conn:?}, which is closed", bytes.len()));
            return bytes.len();
        };
        if pipe.blocked {
            self.fault = Some(format!("{} bytes for {conn:?}, which is blocked", bytes.len()));
        }
        if pipe.end == End::Dead {
            return bytes.len();
        }
        let taken = bytes.len().min(pipe.capacity);
        let mut skipped = 0;
        if let Some(countdown) = self.drop_bytes_in.as_mut().filter(|_| taken > 8) {
            *countdown = countdown.saturating_sub(1);
            if *countdown == 0 {
                self.drop_bytes_in = None;
                self.dropped += 1;
                skipped = taken / 2;
            }
        }
        pipe.in_flight.extend_from_slice(&bytes[skipped..taken]);
        pipe.capacity = pipe.capacity.saturating_sub(if pipe.capacity == usize::MAX { 0 } else { taken });
        if taken < bytes.len() {
            pipe.blocked = true;
            self.blocked.push(conn);
        }
        self.touched.push(conn);
        taken
    }
}
