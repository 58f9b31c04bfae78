//! Rooms: membership and signaling between participants. [`millrace_room`] makes all decisions; this module
//! connects it to HTTP and channels.
//!
//! The room's name determines the shard that holds its state. A request accepted by another shard is forwarded
//! ([`Shared::ask`]). A room publishes its state and signals to channels, so that every transport delivers them and
//! clients can recover after a disconnect.
//!
//! - this file: the rooms of a shard
//! - [`http`]: the requests of participants
//! - [`report`]: the checks of participants' reports
//! - [`switch`]: the interface to the SFU
//!
//! Source: docs/reference/rooms.md; docs/reference/protocol.md, "Rooms".

mod config;
mod http;
mod names;
mod report;
mod switch;

use std::{
    cell::RefCell,
    collections::{HashMap, hash_map::Entry},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use millrace_engine::{Answer, HolderCounts, may_take};
use millrace_protocol::{ChannelName, Code, Error, Holder, Kind, NewPublication, Position};
use millrace_room::{Join, Joined, Muted, Output, Refused, Room, Topology};
use serde_json::{Map, Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_local,
};

pub use config::Config;
pub(crate) use http::{Path, answer};
pub use names::RoomName;
pub use switch::{Switch, signal_from_switch};

use crate::Conference;

/// Function that a shard runs on its own thread.
pub type Question = Box<dyn FnOnce(&Rc<Conference>) + Send>;

/// Timeout of a request to another shard.
const WAIT: Duration = Duration::from_secs(10);

type Published = Answer<Result<Position, Error>>;

/// State of rooms shared by all shards of a node.
pub struct Shared {
    config: Config,
    /// Number of rooms of all shards.
    count: AtomicUsize,
    held: HolderCounts,
    /// Number of rooms that are mixed now.
    mixers: AtomicUsize,
    shards: Vec<mpsc::Sender<Question>>,
}

/// Slot of one mixer; dropping it frees the slot.
pub(crate) struct MixerSeat(Arc<Shared>);

impl Drop for MixerSeat {
    fn drop(&mut self) {
        self.0.mixers.fetch_sub(1, Relaxed);
    }
}

/// Rooms of one shard.
pub struct Rooms {
    shared: Arc<Shared>,
    rooms: RefCell<HashMap<RoomName, Open>>,
    switch: RefCell<Option<Rc<dyn Switch>>>,
}

/// A room and the client that opened it. The quota of this client pays for the room and its channels.
struct Open {
    room: Room,
    holder: Holder,
}

impl Shared {
    pub fn new(config: Config, shards: Vec<mpsc::Sender<Question>>) -> Arc<Self> {
        let (count, mixers, held) = Default::default();
        Arc::new(Self { config, count, held, mixers, shards })
    }

    /// Counts one more room. A holder of many rooms leaves the last free ones to other holders, as with channels.
    ///
    /// Errors: [`Code::TooMany`].
    fn open(&self, holder: Holder) -> Result<(), Error> {
        let (max, used) = (self.config.rooms_max, self.count.fetch_add(1, Relaxed));
        let free = max.saturating_sub(used);
        if may_take(max, free, || self.held.of(holder)) {
            self.held.take(holder);
            return Ok(());
        }
        self.count.fetch_sub(1, Relaxed);
        Err(Error::new(
            Code::TooMany,
            match free {
                0 => format!("this server has {max} rooms already (`rooms.rooms_max`); try again later"),
                _ => {
                    let held = self.held.of(holder);
                    format!(
                        "this client has opened {held} of at most {max} rooms, and the {free} free ones are kept for others"
                    )
                }
            },
        ))
    }

    fn close(&self, holder: Holder) {
        self.count.fetch_sub(1, Relaxed);
        self.held.give_back(holder);
    }

    /// Runs `question` on the shard that holds a room, and returns its result.
    ///
    /// Errors: [`Code::Unavailable`] if that shard is too busy, and the errors of `question`.
    pub(crate) async fn ask<T, F>(
        &self,
        conference: &Rc<Conference>,
        room: &RoomName,
        question: impl FnOnce(Rc<Conference>) -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        let shard = (room.hash() % self.shards.len().max(1) as u64) as usize;
        if self.shards.is_empty() || shard == conference.shard.id {
            return question(conference.clone()).await;
        }
        let busy = || Error::new(Code::Unavailable, "the room does not answer; try again");
        let (tell, told) = oneshot::channel();
        let question: Question = Box::new(move |conference| {
            let conference = conference.clone();
            spawn_local(async move { drop(tell.send(question(conference).await)) });
        });
        self.shards[shard].try_send(question).map_err(|_| busy())?;
        tokio::time::timeout(WAIT, told).await.ok().and_then(Result::ok).ok_or_else(busy)?
    }
}

impl Rooms {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, rooms: RefCell::default(), switch: RefCell::default() }
    }

    /// Enables the SFU: new rooms may have the topology `switch`.
    pub fn set_switch(&self, switch: Rc<dyn Switch>) {
        *self.switch.borrow_mut() = Some(switch);
    }

    /// Returns the shared state.
    ///
    /// Errors: [`Code::NotFound`] if rooms are disabled.
    pub(crate) fn shared(&self) -> Result<Arc<Shared>, Error> {
        match self.shared.config.rooms_max {
            0 => Err(Error::new(Code::NotFound, "this server has no rooms; `rooms.rooms_max` is 0")),
            _ => Ok(self.shared.clone()),
        }
    }

    /// Adds a participant; the first participant creates the room. The caller must publish the changes before it awaits
    /// anything else.
    ///
    /// Errors: [`Code::TooMany`] rooms or mixers, and those of [`Room::join`].
    fn join(&self, shared: &Shared, name: &RoomName, join: Join) -> Result<Joined, Error> {
        let mut rooms = self.rooms.borrow_mut();
        match rooms.entry(name.clone()) {
            Entry::Occupied(mut open) => open.get_mut().room.join(now(), join).map_err(refused),
            Entry::Vacant(place) => {
                let config = shared.config.room(self.switch.borrow().is_some());
                let mut room = Room::new(config, join.topology).map_err(refused)?;
                if room.topology() == Topology::Mixer && shared.mixers.load(Relaxed) >= shared.config.mixers_max {
                    let detail = "this server mixes as many rooms as it may (`rooms.mixers_max`); try again later";
                    return Err(Error::new(Code::TooMany, detail));
                }
                let holder = Holder::new(join.client_id);
                let joined = room.join(now(), join).map_err(refused)?;
                shared.open(holder)?;
                tracing::info!(room = name.as_str(), "room opened");
                place.insert(Open { room, holder });
                Ok(joined)
            }
        }
    }

    /// Runs `work` on a room.
    ///
    /// Errors: [`Code::NotFound`] if the room does not exist, and the errors of `work`.
    fn with<T>(&self, name: &RoomName, work: impl FnOnce(&mut Room) -> Result<T, Refused>) -> Result<T, Error> {
        match self.rooms.borrow_mut().get_mut(name) {
            Some(open) => work(&mut open.room).map_err(refused),
            None => Err(Error::new(Code::NotFound, "there is nobody in this room")),
        }
    }

    /// Returns true if the audio of this room is mixed.
    pub(crate) fn is_mixed(&self, name: &RoomName) -> bool {
        self.rooms.borrow().get(name).is_some_and(|open| open.room.topology() == Topology::Mixer)
    }

    /// Reserves a mixer slot; `None` if all are in use.
    pub(crate) fn mixer(&self) -> Option<MixerSeat> {
        let shared = &self.shared;
        let seat = MixerSeat(shared.clone());
        (shared.mixers.fetch_add(1, Relaxed) < shared.config.mixers_max).then_some(seat)
    }

    /// Returns which media of a participant a host has muted for the whole room.
    pub(crate) fn muted_by_host(&self, name: &RoomName, id: &str) -> Muted {
        self.rooms.borrow().get(name).map(|open| open.room.muted_by_host(id)).unwrap_or_default()
    }

    /// Returns the holder whose quota pays for the channels of a room.
    fn holder(&self, name: &RoomName) -> Holder {
        self.rooms.borrow().get(name).map_or(Holder::NONE, |open| open.holder)
    }

    /// Applies the pending changes of a room, and removes the room if it is empty. Returns the pending publication of
    /// the state if the state has changed.
    fn carry_out(&self, conference: &Rc<Conference>, name: &RoomName) -> Option<Published> {
        let (mut is_changed, mut moves) = (false, Vec::new());
        let mut rooms = self.rooms.borrow_mut();
        let Open { room, holder } = rooms.get_mut(name)?;
        let holder = *holder;
        while let Some(output) = room.poll_output() {
            match output {
                Output::State => is_changed = true,
                moved => moves.push(moved),
            }
        }
        // Several changes at once are published as one state.
        let published = is_changed.then(|| publish(conference, holder, &name.state(), &room.state(), None, None));
        if room.is_empty() {
            rooms.remove(name);
            self.shared.close(holder);
            tracing::info!(room = name.as_str(), "room closed");
        }
        drop(rooms);
        let switch = self.switch.borrow().clone();
        for (switch, moved) in switch.iter().flat_map(|switch| moves.iter().map(move |moved| (switch, moved))) {
            match moved {
                Output::Joined(id) => switch.joined(conference, name, id.as_str()),
                Output::Left(id) => switch.left(conference, name, id.as_str()),
                Output::Muted(id, muted) => switch.muted(conference, name, id.as_str(), *muted),
                Output::State => {}
            }
        }
        published
    }
}

/// Removes participants that exceed the silent peer timeout. Called once a second.
pub(crate) fn tick(conference: &Rc<Conference>) {
    let now = now();
    let is_due = |room: &Room| room.poll_timeout().is_some_and(|due| due <= now);
    let due: Vec<RoomName> = {
        let mut rooms = conference.rooms.rooms.borrow_mut();
        let due = rooms.iter_mut().filter(|(_, open)| is_due(&open.room));
        due.map(|(name, open)| {
            open.room.handle_timeout(now);
            name.clone()
        })
        .collect()
    };
    for name in due {
        if let Some(published) = conference.rooms.carry_out(conference, &name) {
            see_to(published);
        }
    }
}

/// Publishes to a channel that is reserved for the server.
fn publish(
    conference: &Rc<Conference>,
    holder: Holder,
    channel: &ChannelName,
    data: &Value,
    ttl: Option<Duration>,
    idempotency_key: Option<Box<str>>,
) -> Published {
    let mut publication = NewPublication::new(Kind::Json, data.to_string()).held_by(holder);
    publication.ttl_ms = ttl.map(|ttl| ttl.as_millis() as u64);
    publication.idempotency_key = idempotency_key;
    conference.shard.append(channel, publication)
}

/// Publishes a signal to a participant's inbox. The signal expires after twice the silent peer timeout, because a
/// participant absent for so long was removed.
fn signal(
    conference: &Rc<Conference>,
    holder: Holder,
    room: &RoomName,
    from: &str,
    to: &str,
    mut signal: Map<String, Value>,
    idempotency_key: Option<Box<str>>,
) -> Published {
    signal.insert("from".into(), from.into());
    let silence = conference.rooms.shared.config.silence_max;
    publish(conference, holder, &room.inbox(to), &Value::Object(signal), Some(2 * silence), idempotency_key)
}

/// Completes a publication in the background; a failure is only logged.
fn see_to(published: Published) {
    let tell = |result: Result<Position, Error>| {
        if let Err(error) = result {
            tracing::debug!(%error, "a room could not publish");
        }
    };
    match published {
        Answer::Now(Some(result)) => tell(result),
        later => drop(spawn_local(async move { tell(later.await) })),
    }
}

/// Returns the first message of an inbox. It gives the inbox a position before all other signals.
fn welcome() -> Map<String, Value> {
    Map::from_iter([("welcome".to_owned(), json!(true))])
}

fn refused(refused: Refused) -> Error {
    let code = match &refused {
        Refused::BadName | Refused::NoSwitch | Refused::NoMixer => Code::BadRequest,
        Refused::OtherTopology(_) => Code::Conflict,
        Refused::Full(..) | Refused::ClientQuota(..) => Code::TooMany,
        Refused::NotFound => Code::NotFound,
        Refused::WrongSecret | Refused::NotHost => Code::Forbidden,
        Refused::TooFast(_) => Code::RateLimited,
    };
    let error = Error::new(code, refused.to_string());
    match refused {
        Refused::TooFast(wait) => error.retry_after(wait),
        _ => error,
    }
}

fn now() -> Instant {
    Instant::now()
}
