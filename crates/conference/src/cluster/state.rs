use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use millrace_engine::Engine;
use millrace_protocol::Error;
use millrace_room::Muted;
use millrace_sfu::cascade::NodeId;
use tokio::sync::{Mutex, Notify};

use super::{
    directory::Directory,
    hosted::Hosted,
    leases::Leases,
    messages::{Answer, Body, Question},
};
use crate::rooms::RoomName;

/// Maximum time that a node waits for the answer of another one.
pub(super) const ASK_WAIT: Duration = Duration::from_secs(2);

/// Rooms of this shard that may have participants on other nodes.
pub(crate) struct Cluster {
    /// Name of this shard among those of all nodes.
    pub(super) name: NodeId,
    /// Address at which other nodes reach the SFU of this shard; `None`: the shard has none.
    pub(super) address: Cell<Option<SocketAddr>>,
    pub(super) announced: Cell<Option<Instant>>,
    pub(super) rooms: RefCell<HashMap<RoomName, Rc<Hosted>>>,
    pub(super) leases: RefCell<Leases>,
    pub(super) directory: RefCell<Directory>,
    /// Begin of the last read of the states.
    pub(super) read_at: Cell<Option<Instant>>,
    /// Held during a read.
    pub(super) reading: Mutex<()>,
    pub(super) wake: Notify,
}

impl Cluster {
    /// Creates the cluster of a shard. `None`: no other node can share the engine.
    pub fn new(node: Option<&str>, shard: usize) -> Option<Rc<Self>> {
        let name = NodeId::new(&format!("{}.{shard}", node?))?;
        let (address, announced, rooms, read_at) = Default::default();
        Some(Rc::new(Self {
            name,
            address,
            announced,
            rooms,
            leases: RefCell::new(Leases::new()),
            directory: RefCell::new(Directory::new()),
            read_at,
            reading: Mutex::default(),
            wake: Notify::new(),
        }))
    }

    pub fn name(&self) -> &NodeId {
        &self.name
    }

    /// Sets the address at which other nodes reach the SFU of this shard.
    pub fn set_address(&self, address: SocketAddr) {
        self.address.set(Some(address));
        self.wake.notify_one();
    }

    /// Returns whether the media of any room cross the link to this node.
    pub fn needs(&self, node: &NodeId) -> bool {
        self.rooms.borrow().values().any(|hosted| hosted.linked(&self.name).contains(node))
    }

    /// Returns which media of a participant of this node are muted for the whole room.
    pub fn muted_by_host(&self, room: &RoomName, id: &str) -> Option<Muted> {
        self.rooms.borrow().get(room)?.muted_by_host(id)
    }

    pub(super) fn hosted(&self, room: &RoomName) -> Option<Rc<Hosted>> {
        self.rooms.borrow().get(room).cloned()
    }

    /// Returns a room. Its owner is not known before the next read.
    pub(super) fn host(&self, room: &RoomName) -> Rc<Hosted> {
        let mut rooms = self.rooms.borrow_mut();
        let hosted = rooms.entry(room.clone()).or_insert_with(|| {
            self.read_at.set(None);
            Rc::new(Hosted::new(room.clone(), self.name.as_str(), Instant::now()))
        });
        hosted.clone()
    }

    /// Asks the node with this SFU. Returns `None` if it has not answered in time.
    ///
    /// Errors: those of the engine; a question that is too long.
    pub(super) async fn ask(
        &self,
        engine: &dyn Engine,
        (room, to): (&RoomName, &str),
        body: Body,
        wait: Duration,
    ) -> Result<Option<Answer>, Error> {
        let question = Question { room: room.as_str().to_owned(), from: self.name.as_str().into(), body };
        let text = serde_json::to_string(&question).unwrap_or_default();
        let node = to.split('.').next().unwrap_or(to);
        let answer = engine.ask_node(node, &text, wait).await?;
        Ok(answer.and_then(|answer| serde_json::from_str(&answer).ok()))
    }
}
