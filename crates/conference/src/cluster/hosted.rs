//! One room, as this node knows it: its owner, the owner's last update, and at the owner the nodes of its participants.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

use millrace_room::{
    Announced, Muted,
    ownership::{Owner, Ownership},
};
use millrace_sfu::cascade::NodeId;
use tokio::sync::Notify;

use super::messages::{Endpoint, Held, Outline, Refusal, Update};
use crate::rooms::RoomName;

/// Time after which a node forgets a room that it does not need.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Interval between two looks at the owner, which also changes when its lease ends.
const LOOK: Duration = Duration::from_millis(50);

/// One room on this node.
pub(super) struct Hosted {
    pub room: RoomName,
    pub ownership: RefCell<Ownership>,
    /// The ownership has seen the entry of the room, or its absence.
    pub is_seeded: Cell<bool>,
    /// Number of requests that need an owner.
    pub requests: Cell<usize>,
    pub used: Cell<Instant>,
    /// This node is the new owner, and waits for what the other nodes announce.
    pub is_collecting: Cell<bool>,
    /// SFU of the last other owner.
    pub last_owner: RefCell<Option<Endpoint>>,
    /// Last update of an owner.
    pub update: RefCell<Option<Update>>,
    /// Epoch of the owner that knows the participants of this node.
    pub announced: Cell<u64>,
    pub is_announcing: Cell<bool>,
    /// At the owner: the node of each participant.
    pub homes: RefCell<BTreeMap<Box<str>, Endpoint>>,
    /// At the owner: the last updates to the other nodes.
    pub pushes: RefCell<HashMap<Endpoint, Push>>,
    pub version: Cell<u64>,
    /// Offset of the last write of this node.
    pub written: Cell<u64>,
    /// Notified when the owner may have changed.
    pub changed: Notify,
}

/// Last update of the owner for one node.
pub(super) struct Push {
    pub update: Update,
    pub is_acknowledged: bool,
    pub is_in_flight: bool,
}

/// A request that needs the owner of its room.
pub(super) struct Waiting<'a>(&'a Hosted);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.requests.set(self.0.requests.get() - 1);
        self.0.used.set(Instant::now());
    }
}

impl Hosted {
    pub fn new(room: RoomName, name: &str, now: Instant) -> Self {
        Self {
            room,
            ownership: RefCell::new(Ownership::new(name, now)),
            is_seeded: Cell::default(),
            requests: Cell::default(),
            used: Cell::new(now),
            is_collecting: Cell::default(),
            last_owner: RefCell::default(),
            update: RefCell::default(),
            announced: Cell::default(),
            is_announcing: Cell::default(),
            homes: RefCell::default(),
            pushes: RefCell::default(),
            version: Cell::default(),
            written: Cell::default(),
            changed: Notify::new(),
        }
    }

    /// Counts a request until the result is dropped.
    pub fn begin(&self) -> Waiting<'_> {
        self.requests.set(self.requests.get() + 1);
        Waiting(self)
    }

    /// Returns when the owner is another one than this.
    pub async fn owner_changed(&self, owner: &Owner) {
        while self.owner(Instant::now()) == *owner {
            self.wait().await;
        }
    }

    /// Waits until the owner may have changed.
    pub async fn wait(&self) {
        let _ = tokio::time::timeout(LOOK, self.changed.notified()).await;
    }

    pub fn owner(&self, now: Instant) -> Owner {
        self.ownership.borrow().owner(now)
    }

    /// Returns the epoch if this node owns the room.
    pub fn own_epoch(&self, now: Instant) -> Option<u64> {
        match self.owner(now) {
            Owner::This { epoch } => Some(epoch),
            _ => None,
        }
    }

    /// Returns true if this participant of this node is in the room.
    pub fn has_seat(&self, id: &str) -> bool {
        self.update.borrow().as_ref().is_some_and(|update| update.seats.iter().any(|seat| seat.id.as_str() == id))
    }

    /// Returns true if a participant of this node is in the room.
    pub fn has_seats(&self) -> bool {
        self.update.borrow().as_ref().is_some_and(|update| !update.seats.is_empty())
    }

    /// Returns the other SFUs that receive media of the room from this one, or send media to it.
    pub fn linked(&self, own: &NodeId) -> BTreeSet<NodeId> {
        let update = self.update.borrow();
        let mut nodes = update.as_ref().map(|update| update.roster(own).nodes).unwrap_or_default();
        nodes.remove(own);
        nodes
    }

    pub fn muted_by_host(&self, id: &str) -> Option<Muted> {
        let update = self.update.borrow();
        let seat = update.as_ref()?.seats.iter().find(|seat| seat.id.as_str() == id)?;
        Some(seat.muted_by_host)
    }

    /// Returns what this node holds of the room; `None` if it has no participant.
    pub fn held(&self, own: &str) -> Option<Held> {
        let update = self.update.borrow();
        let update = update.as_ref().filter(|update| !update.seats.is_empty())?;
        let (outline, seats) = (update.outline.clone(), update.seats.clone());
        Some(Held { node: own.into(), outline, seats, inherited: None })
    }

    /// Returns the participants of the last owner, as that owner has announced them; `None` if it has none.
    pub fn inherited(&self) -> Option<Held> {
        let update = self.update.borrow();
        let Update { owner, outline, owner_seats, .. } = update.as_ref()?;
        let (node, outline, seats) = (owner.clone(), outline.clone(), owner_seats.clone());
        (!seats.is_empty()).then_some(Held { node, outline, seats, inherited: None })
    }

    /// Returns true if an owner of this epoch does not know the participants of this node.
    pub fn is_unknown_to(&self, epoch: u64) -> bool {
        let last = self.update.borrow().as_ref().map_or(0, |update| update.epoch);
        self.has_seats() && last < epoch && self.announced.get() < epoch
    }

    /// Checks the participants that a node announces to this owner: the node of each must be the one that the last
    /// owner has announced, and no participant may be on two nodes.
    ///
    /// Errors: [`Refusal::OtherNode`].
    pub fn check(&self, from: &str, seats: &[Announced]) -> Result<(), Refusal> {
        let (homes, update) = (self.homes.borrow(), self.update.borrow());
        for seat in seats {
            let id = seat.id.as_str();
            let known = homes.get(id).or_else(|| update.as_ref()?.members.get(id));
            if known.is_some_and(|known| &**known != from) {
                return Err(Refusal::OtherNode(id.into()));
            }
        }
        Ok(())
    }

    /// Forgets all offsets, because the engine has lost its data and begins anew. The room has no owner then.
    pub fn forget_offsets(&self, now: Instant) {
        self.written.set(0);
        self.announced.set(0);
        if let Some(update) = &mut *self.update.borrow_mut() {
            (update.epoch, update.version) = (0, 0);
        }
        self.ownership.borrow_mut().handle_lease(None, now);
    }

    /// Returns true if the room can be forgotten.
    pub fn is_idle(&self, now: Instant) -> bool {
        let is_used = self.requests.get() > 0 || self.has_seats() || self.own_epoch(now).is_some();
        !is_used && now.saturating_duration_since(self.used.get()) >= IDLE_MAX
    }

    /// Outline of the room by the last update.
    pub fn outline(&self) -> Option<Outline> {
        self.update.borrow().as_ref().map(|update| update.outline.clone())
    }
}

#[cfg(test)]
mod tests {
    use millrace_room::{ParticipantId, Role, Topology, ownership::Lease};

    use super::*;

    fn seat(id: &str) -> Announced {
        let (secret, ticket, name, subject, hand) = Default::default();
        Announced {
            id: ParticipantId::parse(id).unwrap(),
            secret,
            ticket,
            subject,
            name,
            role: Role::Member,
            since_ms: 0,
            client_id: 0,
            muted: false,
            muted_by_host: Muted::default(),
            screen: false,
            hand,
            resumed: 0,
        }
    }

    fn update(topology: Topology, members: &[(&str, &str)], seats: &[&str]) -> Update {
        Update {
            owner: "a.0".into(),
            epoch: 5,
            version: 1,
            outline: Outline { topology, is_locked: false, chat_since: "1:0".into() },
            members: members.iter().map(|(id, node)| ((*id).into(), (*node).into())).collect(),
            seats: seats.iter().map(|id| seat(id)).collect(),
            owner_seats: Vec::new(),
        }
    }

    fn hosted(update: Update) -> Hosted {
        let hosted = Hosted::new(RoomName::parse("r").unwrap(), "b.0", Instant::now());
        *hosted.update.borrow_mut() = Some(update);
        hosted
    }

    #[test]
    fn node_that_announces_participants_of_another_node_is_refused() {
        let hosted = hosted(update(Topology::Switch, &[("00000a", "a.0"), ("00000c", "c.0")], &[]));
        assert!(hosted.check("c.0", &[seat("00000c")]).is_ok());
        assert!(hosted.check("c.0", &[seat("00000d")]).is_ok(), "it has joined after the last update");
        let refused = hosted.check("c.0", &[seat("00000c"), seat("00000a")]).unwrap_err();
        assert_eq!(refused.to_string(), "the participant 00000a is on another node");
        // It has joined again, on this node.
        hosted.homes.borrow_mut().insert("00000c".into(), "b.0".into());
        assert!(hosted.check("c.0", &[seat("00000c")]).is_err());
    }

    #[test]
    fn participants_of_the_last_owner_are_inherited() {
        let mut update = update(Topology::Switch, &[("00000a", "a.0"), ("00000b", "b.0")], &["00000b"]);
        assert_eq!(hosted(update.clone()).inherited(), None);
        update.owner_seats = vec![seat("00000a")];
        let hosted = hosted(update);
        let inherited = hosted.inherited().unwrap();
        assert_eq!((&*inherited.node, inherited.seats.len()), ("a.0", 1));
        assert!(hosted.check("a.0", &inherited.seats).is_ok());
        assert_eq!(hosted.held("b.0").map(|held| held.seats), Some(vec![seat("00000b")]), "its own ones are apart");
    }

    #[test]
    fn only_nodes_of_a_switched_room_are_linked() {
        let own = NodeId::new("b.0").unwrap();
        let members = [("00000a", "a.0"), ("00000b", "b.0")];
        let linked = |topology, members: &[(&str, &str)]| {
            hosted(update(topology, members, &[]))
                .linked(&own)
                .iter()
                .map(|node| node.as_str().to_owned())
                .collect::<Vec<_>>()
        };
        let none = Vec::<String>::new();
        assert_eq!(linked(Topology::Switch, &members), ["a.0".to_owned()]);
        assert_eq!(linked(Topology::Auto, &members), ["a.0".to_owned()]);
        assert_eq!(linked(Topology::Mesh, &members), none);
        assert_eq!(linked(Topology::Mixer, &members), none);
        assert_eq!(linked(Topology::Switch, &members[..1]), none, "it has no participant");
    }

    #[test]
    fn earlier_offsets_are_void_after_the_engine_lost_its_data() {
        let hosted = hosted(update(Topology::Switch, &[("00000b", "b.0")], &["00000b"]));
        let lease = |node: &str, offset| Some(Lease { node: node.into(), epoch: offset, offset });
        let now = Instant::now();
        hosted.ownership.borrow_mut().handle_lease(lease("a.0", 100), now);
        hosted.forget_offsets(now);
        hosted.ownership.borrow_mut().handle_lease(lease("c.0", 3), now);
        assert_eq!(hosted.owner(now), Owner::Other { node: "c.0".into(), epoch: 3 });
        assert!(hosted.is_unknown_to(3), "it announces its participants again");
    }

    #[test]
    fn later_owner_knows_participants_once_announced() {
        let hosted = hosted(update(Topology::Switch, &[("00000b", "b.0")], &["00000b"]));
        assert_eq!([5, 6].map(|epoch| hosted.is_unknown_to(epoch)), [false, true]);
        hosted.announced.set(6);
        assert_eq!([6, 7].map(|epoch| hosted.is_unknown_to(epoch)), [false, true]);
        assert!(!Hosted::new(RoomName::parse("r").unwrap(), "b.0", Instant::now()).is_unknown_to(7), "it has none");
    }
}
