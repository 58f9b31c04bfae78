//! Requests of moderators: mute, remove, lock. A caller moderates with `publish` on the channel `moderate` of a room.
//! Without a token every client has this permission, so then only the host of the room moderates.

use std::{rc::Rc, time::Instant};

use ::http::request::Parts;
use hyper::body::Incoming;
use millrace_protocol::{Code, Error, Permission};
use millrace_room::{Refused, Room};
use millrace_transport::{
    access::Caller,
    http::{Response, no_content},
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    RoomName, changes,
    http::{JOIN_BYTES_MAX, bad_json, read_object, secret},
};
use crate::Conference;

/// Request to mute a participant for the whole room. An absent field changes nothing.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MuteRequest {
    audio: Option<bool>,
    video: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LockRequest {
    locked: bool,
}

/// A caller that may moderate.
enum Moderator {
    ByToken,
    /// The host, if this secret is the host's.
    AsHost(String),
}

impl Moderator {
    /// Errors: [`Code::Forbidden`] without the permission, or without a token and a secret.
    fn of(caller: &Caller, room: &RoomName, parts: &Parts) -> Result<Self, Error> {
        caller.may(Permission::Publish, &room.moderate())?;
        Ok(if caller.anonymous { Self::AsHost(secret(parts)?) } else { Self::ByToken })
    }

    fn check(&self, room: &Room) -> Result<(), Refused> {
        match self {
            Self::ByToken => Ok(()),
            Self::AsHost(secret) => room.check_host(secret),
        }
    }
}

pub(super) async fn mute(
    conference: &Rc<Conference>,
    parts: &Parts,
    body: &mut Incoming,
    caller: &Caller,
    room: RoomName,
    id: String,
) -> Result<Response, Error> {
    let moderator = Moderator::of(caller, &room, parts)?;
    let asked = read_object(conference, parts, body, JOIN_BYTES_MAX).await?;
    let MuteRequest { audio, video } = serde_json::from_value(Value::Object(asked)).map_err(bad_json)?;
    if audio.or(video).is_none() {
        return Err(Error::new(Code::BadRequest, "a mute needs `audio` or `video`: true mutes, false lifts the mute"));
    }
    change(conference, room, move |room| {
        moderator.check(room)?;
        room.mute(&id, audio, video)
    })
    .await
}

pub(super) async fn lock(
    conference: &Rc<Conference>,
    parts: &Parts,
    body: &mut Incoming,
    caller: &Caller,
    room: RoomName,
) -> Result<Response, Error> {
    let moderator = Moderator::of(caller, &room, parts)?;
    let asked = read_object(conference, parts, body, JOIN_BYTES_MAX).await?;
    let LockRequest { locked } = serde_json::from_value(Value::Object(asked)).map_err(bad_json)?;
    change(conference, room, move |room| {
        moderator.check(room)?;
        room.lock(locked);
        Ok(())
    })
    .await
}

/// Removes a participant: itself by its own secret, others by a moderator.
pub(super) async fn remove(
    conference: &Rc<Conference>,
    parts: &Parts,
    caller: &Caller,
    room: RoomName,
    id: String,
) -> Result<Response, Error> {
    let moderator = Moderator::of(caller, &room, parts);
    let own = secret(parts);
    if let (Err(error), Err(_)) = (&own, &moderator) {
        return Err(error.clone());
    }
    change(conference, room, move |room| {
        let is_own = own.as_ref().map_or(Err(Refused::WrongSecret), |secret| room.check_secret(&id, secret));
        match (is_own, moderator) {
            (Ok(()), _) => room.leave(Instant::now(), &id),
            (Err(Refused::NotFound), _) => return Err(Refused::NotFound),
            (Err(refused), Err(_)) => return Err(refused),
            (Err(_), Ok(moderator)) => {
                moderator.check(room)?;
                room.remove(Instant::now(), &id)?;
            }
        }
        Ok(())
    })
    .await
}

/// Changes a room on its own shard, and waits until the new state is published.
async fn change(
    conference: &Rc<Conference>,
    room: RoomName,
    work: impl FnOnce(&mut Room) -> Result<(), Refused> + Send + 'static,
) -> Result<Response, Error> {
    let name = room.clone();
    let question = move |conference: Rc<Conference>| async move {
        conference.rooms.with(&name, work)?;
        changes::apply_and_wait(&conference, &name).await
    };
    conference.ask(&room, question).await.map(|()| no_content())
}
