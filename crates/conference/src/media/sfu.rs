use std::{cell::RefCell, collections::HashMap, net::SocketAddr, rc::Rc, time::Instant};

use millrace_rtc::{Candidates, Event as DataEvent, Lane};
use millrace_sfu::{
    congestion::Algorithm,
    switch::{Event, MemberId, Switch},
};
use millrace_transport::{
    data_channel::{AdmittedSession, PeerId, Peers, SessionCarrier, SessionCarriers},
    datagram::DatagramSender,
};

/// Maximum number of participants in one room that send or receive media.
const ROOM_MEMBERS_MAX: usize = 1000;

/// Callback that sends a datagram of the SFU to an address.
pub type SendDatagram<'a> = dyn FnMut(SocketAddr, Vec<u8>) + 'a;

/// SFU of a shard: the rooms whose media pass through this shard.
pub struct Sfu {
    pub(super) switch: RefCell<Switch>,
    sender: Rc<DatagramSender>,
    /// Sessions whose data channels share the connection of a participant.
    sessions: RefCell<HashMap<MemberId, PeerId>>,
}

impl Sfu {
    pub fn new(
        sender: Rc<DatagramSender>,
        candidates: Candidates,
        members_max: usize,
        congestion_control: Algorithm,
    ) -> Rc<Self> {
        let mut switch = Switch::new(candidates, members_max, ROOM_MEMBERS_MAX);
        switch.set_congestion_control(congestion_control);
        let switch = RefCell::new(switch);
        Rc::new(Self { switch, sender, sessions: RefCell::default() })
    }

    /// Runs `work` on the SFU. Its datagrams leave with the next turn of the port at the latest.
    pub fn with<T>(&self, work: impl FnOnce(&mut Switch, &mut SendDatagram<'_>) -> T) -> T {
        let result = self.run(work);
        self.sender.wake();
        result
    }

    /// Runs `work` on the SFU during a turn of the port.
    pub(super) fn run<T>(&self, work: impl FnOnce(&mut Switch, &mut SendDatagram<'_>) -> T) -> T {
        work(&mut self.switch.borrow_mut(), &mut |to, datagram| self.sender.send(to, datagram))
    }

    pub fn poll_event(&self) -> Option<Event> {
        self.switch.borrow_mut().poll_event()
    }

    /// Allows a participant to open a session over data channels. Does nothing if the shard has no room for another
    /// peer.
    pub fn carry(self: &Rc<Self>, member: MemberId, peers: &RefCell<Peers>, admitted: AdmittedSession) {
        let connection = Rc::new(MemberConnection { sfu: self.clone(), member });
        if let Some(session) = peers.borrow_mut().carry(connection, admitted) {
            self.sessions.borrow_mut().insert(member, session);
        }
    }

    /// Removes the session of a participant that has left.
    pub fn uncarry(&self, member: MemberId, peers: &RefCell<Peers>) {
        let session = self.sessions.borrow_mut().remove(&member);
        if let Some(session) = session {
            peers.borrow_mut().remove(session);
        }
    }
}

impl SessionCarriers for Sfu {
    fn poll_event(&self) -> Option<(PeerId, DataEvent)> {
        let mut switch = self.switch.borrow_mut();
        let sessions = self.sessions.borrow();
        std::iter::from_fn(|| switch.poll_data()).find_map(|(member, event)| Some((*sessions.get(&member)?, event)))
    }
}

/// Connection of a participant, while it carries a session beside the media.
struct MemberConnection {
    sfu: Rc<Sfu>,
    member: MemberId,
}

impl SessionCarrier for MemberConnection {
    fn write(&self, now: Instant, lane: Lane, message: &[u8]) -> bool {
        self.sfu.run(|switch, send| switch.write_data(self.member, (lane, true, message), now, send))
    }

    fn buffered(&self, lane: Lane) -> usize {
        self.sfu.switch.borrow_mut().buffered_data(self.member, lane)
    }

    fn close(&self, now: Instant) {
        self.sfu.run(|switch, send| switch.close_data(self.member, now, send));
    }
}

impl Drop for MemberConnection {
    fn drop(&mut self) {
        self.sfu.sessions.borrow_mut().remove(&self.member);
    }
}
