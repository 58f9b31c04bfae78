use std::{rc::Rc, time::Duration};

use millrace_engine::Answer;
use millrace_protocol::{ChannelName, Error, Holder, Kind, NewPublication, Position};
use millrace_room::SWITCH;
use serde_json::{Map, Value, json};
use tokio::task::spawn_local;

use super::RoomName;
use crate::Conference;

/// Pending result of a publication.
pub type Published = Answer<Result<Position, Error>>;

/// Publishes to a channel that is reserved for the server.
pub fn publish(
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

/// Key of a room in its channel `state`, which is a keyed state. One key, because the participants and the topology
/// must change together.
const STATE_KEY: &str = "room";

/// Publishes the state of a room. `None` deletes it, because the room has ended.
pub fn publish_state(conference: &Rc<Conference>, holder: Holder, room: &RoomName, state: Option<&Value>) -> Published {
    let mut publication = match state {
        Some(state) => NewPublication::new(Kind::Json, state.to_string()),
        None => NewPublication::deletion(STATE_KEY.into()),
    };
    publication.key = Some(STATE_KEY.into());
    conference.shard.append(&room.state(), publication.held_by(holder))
}

/// Publishes a signal to a participant's inbox. The signal expires after twice the silent peer timeout, because a
/// participant absent for so long was removed.
pub fn signal(
    conference: &Rc<Conference>,
    holder: Holder,
    room: &RoomName,
    from: &str,
    to: &str,
    mut signal: Map<String, Value>,
    idempotency_key: Option<Box<str>>,
) -> Published {
    signal.insert("from".into(), from.into());
    let ttl = conference.rooms.signal_ttl();
    publish(conference, holder, &room.inbox(to), &Value::Object(signal), Some(ttl), idempotency_key)
}

/// Publishes a signal from the SFU to a participant's inbox.
pub(crate) fn signal_from_switch(conference: &Rc<Conference>, room: &RoomName, to: &str, fields: Map<String, Value>) {
    let holder = conference.rooms.holder(room);
    finish_in_background(signal(conference, holder, room, SWITCH, to, fields, None));
}

/// Completes a publication in the background; a failure is only logged.
pub fn finish_in_background(published: Published) {
    let log = |result: Result<Position, Error>| {
        if let Err(error) = result {
            tracing::debug!(%error, "a publication of a room failed");
        }
    };
    match published {
        Answer::Now(Some(result)) => log(result),
        later => drop(spawn_local(async move { log(later.await) })),
    }
}

/// Returns the first message of an inbox. It gives the inbox a position before all other signals.
pub fn welcome() -> Map<String, Value> {
    Map::from_iter([("welcome".to_owned(), json!(true))])
}
