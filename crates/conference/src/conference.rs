use std::{
    cell::{OnceCell, RefCell},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use millrace_protocol::{Code, Error};
use millrace_room::Muted;
use millrace_transport::{
    Admission, Shard,
    access::{Caller, unix_s},
    data_channel::Peers,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_local,
};

use crate::{
    cluster::Cluster,
    media::Media,
    rooms::{RoomName, Rooms, Shared},
    turn::{IceServer, Offer},
};

/// Function that a shard runs on its own thread.
pub type Question = Box<dyn FnOnce(&Rc<Conference>) + Send>;

/// Timeout of a request to another shard.
const WAIT: Duration = Duration::from_secs(10);

/// Rooms and media of one shard.
pub struct Conference {
    pub(crate) shard: Rc<Shard>,
    pub(crate) admission: Rc<Admission>,
    pub(crate) rooms: Rooms,
    /// SFU of the shard, and the owners of its members.
    pub(crate) media: Media,
    /// Rooms over several nodes; `None`: each room is on one node.
    cluster: Option<Rc<Cluster>>,
    turn: Option<Arc<Offer>>,
    /// Peers of data channels; empty if the shard has no datagram port.
    pub(crate) data_channels: OnceCell<Rc<RefCell<Peers>>>,
    /// Queues of all shards, by their ids.
    shards: Vec<mpsc::Sender<Question>>,
}

impl Conference {
    /// Creates the rooms of a shard. `turn`: TURN URLs and short-lived credentials, if a relay is configured. `shards`:
    /// queues of all shards, including this one.
    pub fn new(
        shard: Rc<Shard>,
        admission: Rc<Admission>,
        rooms: Arc<Shared>,
        turn: Option<Arc<Offer>>,
        shards: Vec<mpsc::Sender<Question>>,
    ) -> Rc<Self> {
        let (media, data_channels) = Default::default();
        let rooms = Rooms::new(rooms);
        let node = shard.engine.node().filter(|_| rooms.span_nodes());
        let cluster = Cluster::new(node, shard.id);
        Rc::new(Self { shard, admission, rooms, media, cluster, turn, data_channels, shards })
    }

    /// Answers the questions of other shards about the rooms of this one, until the task is dropped.
    pub async fn answer_questions(self: Rc<Self>, mut questions: mpsc::Receiver<Question>) {
        while let Some(question) = questions.recv().await {
            question(&self);
        }
    }

    pub(crate) fn cluster(&self) -> Option<&Rc<Cluster>> {
        self.cluster.as_ref()
    }

    /// Returns which media of a participant are muted for the whole room.
    pub(crate) fn muted_by_host(&self, room: &RoomName, id: &str) -> Muted {
        let muted = self.cluster().and_then(|cluster| cluster.muted_by_host(room, id));
        muted.unwrap_or_else(|| self.rooms.muted_by_host(room, id))
    }

    /// Runs `question` on the shard that holds a room, and returns its result.
    ///
    /// Errors: [`Code::NotFound`] if rooms are disabled, [`Code::Unavailable`] if that shard is too busy, and the
    /// errors of `question`.
    pub(crate) async fn ask<T, F>(
        self: &Rc<Self>,
        room: &RoomName,
        question: impl FnOnce(Rc<Self>) -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        self.rooms.config()?;
        self.ask_shard(Self::shard_of(room, self.shards.len()), question).await
    }

    /// Returns the number of shards.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len().max(1)
    }

    /// Runs `question` on a shard, and returns its result.
    ///
    /// Errors: [`Code::Unavailable`] if the shard is too busy, and the errors of `question`.
    pub(crate) async fn ask_shard<T, F>(
        self: &Rc<Self>,
        shard: usize,
        question: impl FnOnce(Rc<Self>) -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        if self.shards.is_empty() || shard == self.shard.id {
            return question(self.clone()).await;
        }
        let busy = || Error::new(Code::Unavailable, "the shard of these rooms is too busy; try again");
        let (sender, receiver) = oneshot::channel();
        let question: Question = Box::new(move |conference| {
            let conference = conference.clone();
            spawn_local(async move { drop(sender.send(question(conference).await)) });
        });
        self.shards[shard].try_send(question).map_err(|_| busy())?;
        tokio::time::timeout(WAIT, receiver).await.ok().and_then(Result::ok).ok_or_else(busy)?
    }

    /// Returns TURN URLs and short-lived credentials, if a relay is configured. Peers without a direct path need
    /// them.
    pub(crate) fn turn(&self) -> Option<&Offer> {
        self.turn.as_deref()
    }

    /// Returns the ICE servers for a caller that joins a room or creates a media session; empty if no relay is
    /// configured.
    pub(crate) fn ice_servers(&self, caller: &Caller) -> Vec<IceServer> {
        self.turn().map_or_else(Vec::new, |offer| offer.ice_servers(&caller.grant, unix_s()).ice_servers)
    }
}
