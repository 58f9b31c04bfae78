use std::{
    cell::{OnceCell, RefCell},
    collections::{BTreeSet, HashMap},
    rc::Rc,
    time::Instant,
};

use millrace_protocol::{Code, Error};
use millrace_sfu::{
    cascade::{Announcement, NodeId, Roster},
    switch::{MemberId, Refused, Report, Switch},
};
use millrace_transport::limits::{ConnectionSlot, ReaderSlot};

use super::sfu::{SendDatagram, Sfu};
use crate::rooms::RoomName;

/// SFU of a shard, and the owners of its members: participants and HTTP sessions.
#[derive(Default)]
pub struct Media {
    /// SFU of the shard; empty if the shard has no port for media.
    sfu: OnceCell<Rc<Sfu>>,
    pub(super) members: RefCell<HashMap<MemberId, Owner>>,
    pub(super) participants: RefCell<HashMap<(RoomName, Box<str>), Participant>>,
    /// WHIP and WHEP sessions, by the secret parts of their URLs.
    pub(super) sessions: RefCell<HashMap<Box<str>, Session>>,
}

/// Sums over the links to other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFigures {
    pub links: u64,
    pub bits_per_s: u64,
    /// Layers of tracks that this node sends.
    pub layers: u64,
}

/// Owner of a member of the SFU.
pub(super) enum Owner {
    Participant(RoomName, Box<str>),
    /// WHIP or WHEP session, named by the secret part of its URL.
    Session(Box<str>),
}

/// Connection of a participant to the SFU.
pub(super) struct Participant {
    pub member: MemberId,
    /// Session id in the origin line of its first offer. An offer with another id belongs to a new connection.
    pub origin: Box<str>,
    /// Participant's name for its connection.
    pub link: Option<Box<str>>,
}

/// Session of one publisher or viewer over WHIP or WHEP.
pub(super) struct Session {
    pub member: MemberId,
    pub room: RoomName,
    /// Subject of the caller that created the session. Later requests must have the same subject.
    pub subject: Option<String>,
    /// Number of the ICE session; each ICE restart increases it.
    pub generation: u64,
    pub _connection_slot: ConnectionSlot,
    pub _reader_slot: Option<ReaderSlot>,
}

impl Media {
    /// Sets the SFU of the shard. Call it once, before the first request.
    pub(crate) fn set_sfu(&self, sfu: Rc<Sfu>) {
        let _ = self.sfu.set(sfu);
    }

    pub(super) fn sfu(&self) -> Option<&Rc<Sfu>> {
        self.sfu.get()
    }

    /// Returns true if the shard has an SFU. Without an SFU no room has the topology `switch`, and `auto` stays a mesh.
    pub(crate) fn has_sfu(&self) -> bool {
        self.sfu.get().is_some()
    }

    /// Runs `work` on the shard's SFU. Returns `None` if the shard has no port for media.
    pub(super) fn with_switch<T>(&self, work: impl FnOnce(&mut Switch, &mut SendDatagram<'_>) -> T) -> Option<T> {
        self.sfu.get().map(|sfu| sfu.with(work))
    }

    /// Sets the other nodes whose SFUs are known.
    pub(crate) fn set_nodes(&self, nodes: &[Announcement]) {
        if let Some(sfu) = self.sfu() {
            sfu.set_nodes(nodes);
        }
    }

    /// Opens the links to these nodes, and keeps them open.
    pub(crate) fn open_links(&self, nodes: &BTreeSet<NodeId>) {
        if let Some(sfu) = self.sfu().filter(|_| !nodes.is_empty()) {
            sfu.open_links(nodes);
        }
    }

    /// Returns true if there is a link to the SFU of another node, and nothing arrives over it any more.
    pub(crate) fn is_link_silent(&self, node: &str) -> bool {
        self.sfu().is_some_and(|sfu| {
            let switch = sfu.switch.borrow();
            let mut links = switch.mesh().into_iter().flat_map(|mesh| mesh.links());
            links.any(|(name, link)| name.as_str() == node && link.is_silent())
        })
    }

    /// Sets the nodes and members of a room, as its owner announces them.
    pub(crate) fn set_roster(&self, room: &RoomName, roster: Roster) {
        self.with_switch(|switch, send| switch.set_roster(room.as_str(), roster, Instant::now(), send));
    }

    /// Returns the figures of all links to other nodes.
    pub(crate) fn link_figures(&self) -> LinkFigures {
        let sum = |switch: &mut Switch| {
            let links = switch.mesh()?.links();
            Some(links.fold(LinkFigures::default(), |sum, (_, link)| LinkFigures {
                links: sum.links + 1,
                bits_per_s: sum.bits_per_s + link.bits_per_s(),
                layers: sum.layers + link.carried_layers() as u64,
            }))
        };
        self.sfu().and_then(|sfu| sum(&mut sfu.switch.borrow_mut())).unwrap_or_default()
    }

    /// Returns the member of a participant; `None` if the participant is not connected to the SFU.
    pub(super) fn member(&self, room: &RoomName, id: &str) -> Option<MemberId> {
        self.participants.borrow().get(&(room.clone(), Box::from(id))).map(|participant| participant.member)
    }

    /// Returns the rooms of the WHIP and WHEP sessions.
    pub(crate) fn rooms(&self) -> Vec<RoomName> {
        self.sessions.borrow().values().map(|session| session.room.clone()).collect()
    }

    /// Returns the SFU's reports on the members of a room.
    pub(crate) fn reports(&self, room: &RoomName) -> Vec<Report> {
        self.with_switch(|switch, _| switch.reports(room.as_str(), Instant::now())).unwrap_or_default()
    }

    /// Returns the SFU's report on one participant; `None` if the participant is not connected to the SFU.
    pub(crate) fn report(&self, room: &RoomName, id: &str) -> Option<Report> {
        let member = self.member(room, id)?;
        self.with_switch(|switch, _| switch.report_of(member, Instant::now()))?
    }
}

/// Converts a refusal of the SFU to the error of a response.
pub(super) fn refused(refused: &Refused) -> Error {
    let code = match refused {
        Refused::Offer(_) => Code::BadRequest,
        Refused::RoomFull => Code::TooMany,
        Refused::Full => Code::Unavailable,
        Refused::Gone => Code::NotFound,
    };
    Error::new(code, refused.to_string())
}
