//! Rooms: who is there and how they find each other. What decides is [`millrace_rtc::room`]; here is its way to HTTP and to channels.
//!
//! A room is state of one shard, by its name; a request that another shard has accepted is handed over ([`Shared::ask`]). What a room has
//! to say it publishes, so that every transport reads it and goes on after a cut.
//!
//! - this file: the rooms of a shard
//! - [`http`]: what participants ask for
//! - [`report`]: what they may report
//! - [`switch`]: where the unit that forwards for everybody comes in
//!
//! Source: docs/rooms.md; docs/protocol.md, "Rooms".

mod config;
mod http;
mod names;
mod report;
mod switch;

use std::{
    cell::{OnceCell, RefCell},
    collections::{HashMap, hash_map::Entry},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use millrace_engine::{Answer, Held, may_take};
use millrace_protocol::{ChannelName, Code, Error, Holder, Kind, NewPublication, Position};
use millrace_rtc::room::{Join, Joined, Muted, Output, Refused, Room, Topology};
use serde_json::{Map, Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_local,
};

pub use config::Config;
pub(crate) use http::{Path, answer};
pub use names::RoomName;
pub(crate) use names::is_reserved;
pub use switch::{Switch, signal_from_switch};

use crate::http::Context;

/// What a shard is asked, in its own thread.
pub type Question = Box<dyn FnOnce(&Rc<Context>) + Send>;

/// How long another shard may take to answer.
const WAIT: Duration = Duration::from_secs(10);

type Published = Answer<Result<Position, Error>>;

/// What the shards of a node share of rooms.
pub struct Shared {
    config: Config,
    /// Number of rooms of all shards, and of each holder.
    count: AtomicUsize,
    held: Held,
    /// Those of them that are mixed now.
    mixers: AtomicUsize,
    shards: Vec<mpsc::Sender<Question>>,
}

/// Of a mixer, while there is one.
pub(crate) struct MixerSeat(Arc<Shared>);

impl Drop for MixerSeat {
    fn drop(&mut self) {
        self.0.mixers.fetch_sub(1, Relaxed);
    }
}

/// The rooms of one shard.
#[derive(Default)]
pub struct Rooms {
    shared: OnceCell<Arc<Shared>>,
    rooms: RefCell<HashMap<RoomName, Open>>,
    switch: RefCell<Option<Rc<dyn Switch>>>,
}

/// A room, and the client that has opened it. The channels of the room are charged to that client.
struct Open {
    room: Room,
    holder: Holder,
}

impl Shared {
    pub fn new(config: Config, shards: Vec<mpsc::Sender<Question>>) -> Arc<Self> {
        let (count, mixers, held) = Default::default();
        Arc::new(Self { config, count, held, mixers, shards })
    }

    /// Counts one more room. A holder of many rooms leaves the last ones to others: the same rule as for channels.
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

    /// Asks the shard that a room is of.
    ///
    /// Errors: [`Code::Unavailable`] if that is too busy, and those of the answer.
    pub(crate) async fn ask<T, F>(
        &self,
        context: &Rc<Context>,
        room: &RoomName,
        question: impl FnOnce(Rc<Context>) -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        let shard = (room.hash() % self.shards.len().max(1) as u64) as usize;
        if self.shards.is_empty() || shard == context.shard.id {
            return question(context.clone()).await;
        }
        let busy = || Error::new(Code::Unavailable, "the room does not answer; try again");
        let (tell, told) = oneshot::channel();
        let question: Question = Box::new(move |context| {
            let context = context.clone();
            spawn_local(async move { drop(tell.send(question(context).await)) });
        });
        self.shards[shard].try_send(question).map_err(|_| busy())?;
        tokio::time::timeout(WAIT, told).await.ok().and_then(Result::ok).ok_or_else(busy)?
    }
}

impl Rooms {
    /// There are rooms from now on.
    pub fn open(&self, shared: Arc<Shared>) {
        let _ = self.shared.set(shared);
    }

    /// There is a switching unit from now on: rooms that begin may have the topology `switch`.
    pub fn set_switch(&self, switch: Rc<dyn Switch>) {
        *self.switch.borrow_mut() = Some(switch);
    }

    /// Errors: [`Code::NotFound`] where there are none.
    pub(crate) fn shared(&self) -> Result<Arc<Shared>, Error> {
        let shared = self.shared.get().filter(|shared| shared.config.rooms_max > 0);
        shared.cloned().ok_or_else(|| Error::new(Code::NotFound, "this server has no rooms; `rooms.rooms_max` is 0"))
    }

    /// Somebody joins; the first one makes the room. Gives what to publish: all of it before anything else is waited for.
    ///
    /// Errors: [`Code::TooMany`] rooms, and those of [`Room::join`].
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
                let holder = Holder::new(join.holder);
                let joined = room.join(now(), join).map_err(refused)?;
                shared.open(holder)?;
                tracing::info!(room = name.as_str(), "room opened");
                place.insert(Open { room, holder });
                Ok(joined)
            }
        }
    }

    /// Works on a room.
    ///
    /// Errors: [`Code::NotFound`] if there is no such room, and those of the work.
    fn with<T>(&self, name: &RoomName, work: impl FnOnce(&mut Room) -> Result<T, Refused>) -> Result<T, Error> {
        match self.rooms.borrow_mut().get_mut(name) {
            Some(open) => work(&mut open.room).map_err(refused),
            None => Err(Error::new(Code::NotFound, "there is nobody in this room")),
        }
    }

    /// The sound of this room is mixed.
    pub(crate) fn is_mixed(&self, name: &RoomName) -> bool {
        self.rooms.borrow().get(name).is_some_and(|open| open.room.topology() == Topology::Mixer)
    }

    /// One mixer more; `None`: there are as many as there may be.
    pub(crate) fn mixer(&self) -> Option<MixerSeat> {
        let shared = self.shared.get()?.clone();
        let seat = MixerSeat(shared.clone());
        (shared.mixers.fetch_add(1, Relaxed) < shared.config.mixers_max).then_some(seat)
    }

    /// What of a participant is muted for everybody.
    pub(crate) fn muted_by_host(&self, name: &RoomName, id: &str) -> Muted {
        self.rooms.borrow().get(name).map(|open| open.room.muted_by_host(id)).unwrap_or_default()
    }

    /// Returns the holder that the channels of a room are charged to.
    fn holder(&self, name: &RoomName) -> Holder {
        self.rooms.borrow().get(name).map_or(Holder::NONE, |open| open.holder)
    }

    /// Does what a room wants done, and forgets it once it is empty. Gives the state's way, if that has changed.
    fn carry_out(&self, context: &Rc<Context>, name: &RoomName) -> Option<Published> {
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
        // Several changes at once are one state.
        let published = is_changed.then(|| publish(context, holder, &name.state(), &room.state(), None, None));
        if room.is_empty() {
            rooms.remove(name);
            if let Some(shared) = self.shared.get() {
                shared.close(holder);
            }
            tracing::info!(room = name.as_str(), "room closed");
        }
        drop(rooms);
        let switch = self.switch.borrow().clone();
        for (switch, moved) in switch.iter().flat_map(|switch| moves.iter().map(move |moved| (switch, moved))) {
            match moved {
                Output::Joined(id) => switch.joined(context, name, id.as_str()),
                Output::Left(id) => switch.left(context, name, id.as_str()),
                Output::Muted(id, muted) => switch.muted(context, name, id.as_str(), *muted),
                Output::State => {}
            }
        }
        published
    }
}

/// Once a second: whoever is silent for too long has left.
pub(crate) fn tick(context: &Rc<Context>) {
    let now = now();
    let is_due = |room: &Room| room.poll_timeout().is_some_and(|due| due <= now);
    let due: Vec<RoomName> = {
        let mut rooms = context.rooms.rooms.borrow_mut();
        let due = rooms.iter_mut().filter(|(_, open)| is_due(&open.room));
        due.map(|(name, open)| {
            open.room.handle_timeout(now);
            name.clone()
        })
        .collect()
    };
    for name in due {
        if let Some(published) = context.rooms.carry_out(context, &name) {
            see_to(published);
        }
    }
}

/// Publishes what only the server says.
fn publish(
    context: &Rc<Context>,
    holder: Holder,
    channel: &ChannelName,
    data: &Value,
    ttl: Option<Duration>,
    idempotency_key: Option<Box<str>>,
) -> Published {
    let mut publication = NewPublication::new(Kind::Json, data.to_string()).held_by(holder);
    publication.ttl_ms = ttl.map(|ttl| ttl.as_millis() as u64);
    publication.idempotency_key = idempotency_key;
    context.shard.accept(channel, publication)
}

/// Publishes a signal to a participant's inbox. Nobody reads it who has been away for longer than it lasts.
fn signal(
    context: &Rc<Context>,
    holder: Holder,
    room: &RoomName,
    from: &str,
    to: &str,
    mut signal: Map<String, Value>,
    idempotency_key: Option<Box<str>>,
) -> Published {
    signal.insert("from".into(), from.into());
    let silence = context.rooms.shared.get().map_or(Duration::from_secs(20), |shared| shared.config.silence_max);
    publish(context, holder, &room.inbox(to), &Value::Object(signal), Some(2 * silence), idempotency_key)
}

/// For what nobody waits for.
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

/// Said first in an inbox, so that there is a position before everything else in it.
fn welcome() -> Map<String, Value> {
    Map::from_iter([("welcome".to_owned(), json!(true))])
}

fn refused(refused: Refused) -> Error {
    let code = match &refused {
        Refused::BadName | Refused::NoSwitch | Refused::NoMixer => Code::BadRequest,
        Refused::OtherTopology(_) => Code::Conflict,
        Refused::Full(..) | Refused::Crowd(..) => Code::TooMany,
        Refused::Gone => Code::NotFound,
        Refused::NotTheirs | Refused::NotHost => Code::Forbidden,
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
