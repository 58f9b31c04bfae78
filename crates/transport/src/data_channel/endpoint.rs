use std::{cell::RefCell, rc::Rc};

use millrace_delivery::ConnId;
use millrace_protocol::{Transport, session::Policy};
use millrace_rtc::Lane;

use super::{PeerId, Peers};
use crate::connection::VirtualConnection;

/// One channel of a peer, as a connection of the hub.
pub struct DataChannel {
    pub peers: Rc<RefCell<Peers>>,
    pub peer: PeerId,
    pub lane: Lane,
}

impl VirtualConnection for DataChannel {
    fn write(&self, bytes: &[u8]) -> usize {
        self.peers.borrow_mut().write(self.peer, self.lane, bytes)
    }

    fn close(&self) {
        self.peers.borrow_mut().end(self.peer, self.lane);
    }

    fn transport(&self) -> Option<Transport> {
        (self.lane == Lane::Session).then_some(Transport::DataChannel)
    }

    fn carrier(&self) -> Option<Transport> {
        Some(Transport::DataChannel)
    }

    fn takes_commands(&self) -> bool {
        self.lane == Lane::Session
    }

    fn set_reading(&self, read: bool) {
        self.peers.borrow_mut().watch(self.peer, read);
    }

    fn lane(&self, policy: Policy) -> Option<ConnId> {
        match (policy, self.lane) {
            (Policy::Latest, Lane::Session) => self.peers.borrow().conn(self.peer, Lane::Latest),
            _ => None,
        }
    }

    fn is_side(&self) -> bool {
        self.lane == Lane::Latest
    }

    fn main(&self) -> Option<ConnId> {
        self.is_side().then(|| self.peers.borrow().conn(self.peer, Lane::Session)).flatten()
    }

    fn incoming_bytes(&self) -> usize {
        self.peers.borrow().incoming_bytes(self.peer)
    }
}
