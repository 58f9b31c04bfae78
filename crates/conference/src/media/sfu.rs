use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    rc::Rc,
    time::Instant,
};

use millrace_rtc::{Candidates, Event as DataEvent, Lane};
use millrace_sfu::{
    cascade::{Announcement, NodeId},
    congestion::Algorithm,
    switch::{Event, MemberId, Switch},
};
use millrace_transport::{
    data_channel::{AdmittedSession, PeerId, Peers, SessionCarrier, SessionCarriers},
    datagram::DatagramSender,
};

use super::links::Links;

/// Maximum number of participants in one room that send or receive media.
const ROOM_MEMBERS_MAX: usize = 1000;

/// Callback that sends a datagram of the SFU to an address.
pub type SendDatagram<'a> = dyn FnMut(SocketAddr, Vec<u8>) + 'a;

/// SFU of a shard: the rooms whose media pass through this shard.
pub struct Sfu {
    pub(super) switch: RefCell<Switch>,
    sender: Rc<DatagramSender>,
    /// Links to other nodes; `None`: each room is on one node.
    links: RefCell<Option<Links>>,
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
        Rc::new(Self { switch, sender, links: RefCell::default(), sessions: RefCell::default() })
    }

    /// Lets the rooms of this SFU cross to other nodes. Call it before the first member joins. `unix_ms`: current time
    /// in milliseconds since 1970.
    pub fn join_cluster(&self, name: NodeId, unix_ms: u64) {
        self.switch.borrow_mut().set_cascade(name.clone(), unix_ms, Instant::now());
        *self.links.borrow_mut() = Some(Links::new(name));
    }

    /// Replaces the known nodes by those that are live.
    pub fn set_nodes(&self, nodes: &[Announcement]) {
        self.with_links(|links| links.set_nodes(nodes, Instant::now()));
    }

    /// Opens the links to these nodes, and keeps them open.
    pub fn open_links(&self, nodes: &BTreeSet<NodeId>) {
        self.with_links(|links| links.open(nodes, Instant::now()));
    }

    pub fn close_link(&self, node: &NodeId) {
        self.with_links(|links| links.close(node));
        self.with(|switch, send| switch.remove_link(node, Instant::now(), send));
    }

    fn with_links(&self, work: impl FnOnce(&mut Links)) {
        if let Some(links) = &mut *self.links.borrow_mut() {
            work(links);
        }
        self.with(|_, _| ());
    }

    /// Returns true if this address belongs to another node.
    pub(super) fn is_node(&self, address: &SocketAddr) -> bool {
        self.links.borrow().as_ref().is_some_and(|links| links.knows(address))
    }

    /// Handles a datagram of a link. Returns false if it belongs to no link.
    pub(super) fn handle_link_datagram(&self, now: Instant, from: SocketAddr, datagram: &[u8]) -> bool {
        let received = match &mut *self.links.borrow_mut() {
            Some(links) if links.claims(&from, datagram) => links.handle_datagram(from, datagram, now),
            _ => return false,
        };
        self.run(|switch, send| {
            if let Some((node, frame)) = received {
                switch.handle_link_frame(&node, &frame, now, send);
            }
        });
        true
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        let links = self.links.borrow().as_ref().and_then(Links::timeout);
        self.switch.borrow().timeout().into_iter().chain(links).min()
    }

    pub(super) fn handle_timeouts(&self, now: Instant) {
        if let Some(links) = &mut *self.links.borrow_mut() {
            links.handle_timeout(now);
        }
        self.run(|switch, send| switch.handle_timeouts(now, send));
    }

    /// Runs `work` on the SFU. Its datagrams leave with the next turn of the port at the latest.
    pub fn with<T>(&self, work: impl FnOnce(&mut Switch, &mut SendDatagram<'_>) -> T) -> T {
        let result = self.run(work);
        self.sender.wake();
        result
    }

    /// Runs `work` on the SFU during a turn of the port.
    pub(super) fn run<T>(&self, work: impl FnOnce(&mut Switch, &mut SendDatagram<'_>) -> T) -> T {
        let mut switch = self.switch.borrow_mut();
        let mut send = |to, datagram| self.sender.send(to, datagram);
        let result = work(&mut switch, &mut send);
        if let Some(links) = &mut *self.links.borrow_mut() {
            links.pump(&mut switch, &mut send);
        }
        result
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
