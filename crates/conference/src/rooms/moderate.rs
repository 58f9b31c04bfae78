//! Requests of moderators: mute, remove, lock. A caller moderates with `publish` on the channel `moderate` of a room.
//! Without a token every client has this permission, so then only the host of the room moderates.

use std::rc::Rc;

use ::http::request::Parts;
use hyper::body::Incoming;
use millrace_protocol::{Code, Error, Permission};
use millrace_transport::{
    access::Caller,
    http::{Response, no_content},
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    RoomName,
    http::{JOIN_BYTES_MAX, bad_json, read_object, secret},
    request::{Moderator, Request},
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

/// Returns the right to moderate of a caller.
///
/// Errors: [`Code::Forbidden`](millrace_protocol::Code) without the permission, or without a token and a secret.
fn moderator(caller: &Caller, room: &RoomName, parts: &Parts) -> Result<Moderator, Error> {
    caller.may(Permission::Publish, &room.moderate())?;
    Ok(if caller.anonymous { Moderator::AsHost(secret(parts)?) } else { Moderator::ByToken })
}

pub(super) async fn mute(
    conference: &Rc<Conference>,
    parts: &Parts,
    body: &mut Incoming,
    caller: &Caller,
    room: RoomName,
    id: String,
) -> Result<Response, Error> {
    let by = moderator(caller, &room, parts)?;
    let asked = read_object(conference, parts, body, JOIN_BYTES_MAX).await?;
    let MuteRequest { audio, video } = serde_json::from_value(Value::Object(asked)).map_err(bad_json)?;
    if audio.or(video).is_none() {
        return Err(Error::new(Code::BadRequest, "a mute needs `audio` or `video`: true mutes, false lifts the mute"));
    }
    conference.request(&room, Request::Mute { by, id, audio, video }).await.map(|_| no_content())
}

pub(super) async fn lock(
    conference: &Rc<Conference>,
    parts: &Parts,
    body: &mut Incoming,
    caller: &Caller,
    room: RoomName,
) -> Result<Response, Error> {
    let by = moderator(caller, &room, parts)?;
    let asked = read_object(conference, parts, body, JOIN_BYTES_MAX).await?;
    let LockRequest { locked } = serde_json::from_value(Value::Object(asked)).map_err(bad_json)?;
    conference.request(&room, Request::Lock { by, is_locked: locked }).await.map(|_| no_content())
}

/// Removes a participant: itself by its own secret, others by a moderator.
pub(super) async fn remove(
    conference: &Rc<Conference>,
    parts: &Parts,
    caller: &Caller,
    room: RoomName,
    id: String,
) -> Result<Response, Error> {
    let (by, own) = (moderator(caller, &room, parts), secret(parts));
    if let (Err(error), Err(_)) = (&own, &by) {
        return Err(error.clone());
    }
    let request = Request::Remove { id, secret: own.ok(), by: by.ok() };
    conference.request(&room, request).await.map(|_| no_content())
}
