//! HTTP API of rooms. Source: docs/reference/protocol.md, "Rooms".

use std::rc::Rc;

use ::http::{HeaderValue, StatusCode, header, request::Parts};
use hyper::body::Incoming;
use millrace_protocol::{Code, Error, Permission};
use millrace_room::{Join, Resume, Role, SWITCH, Topology};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{RoomName, RoomSelection, moderate, report, request::Request};
use millrace_transport::{
    access::Caller,
    admission::read_body,
    data_channel::AdmittedSession,
    http::{Query, Response, json as json_answer, no_content},
    limits::RequestConnection,
    route::Endpoint,
};

use crate::{Conference, cluster};

/// Header with the participant's secret, which proves its identity.
const SECRET: &str = "millrace-participant";
/// Maximum size of a request to join or to mute, in bytes.
pub(super) const JOIN_BYTES_MAX: usize = 4096;
/// Maximum number of rooms in a list.
const LISTED_MAX: usize = 1000;

/// Parsed path of a request to `/v1/rooms` or below it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Path<'a> {
    room: &'a str,
    rest: Rest<'a>,
}

#[derive(Debug, PartialEq, Eq)]
enum Rest<'a> {
    Rooms,
    Room,
    Lock,
    Participants,
    Participant(&'a str),
    Signals(&'a str),
    Reports(&'a str),
    Mute(&'a str),
    Away(&'a str),
}

impl<'a> Path<'a> {
    /// Parses a path. Returns `None` if the path does not exist.
    pub fn parse(path: &'a str) -> Option<Self> {
        if path == ROOMS.path {
            return Some(Self { room: "", rest: Rest::Rooms });
        }
        let mut levels = path.strip_prefix("/v1/rooms/")?.split('/');
        let room = levels.next()?;
        let rest = match (levels.next(), levels.next(), levels.next(), levels.next()) {
            (None, ..) => Rest::Room,
            (Some("lock"), None, ..) => Rest::Lock,
            (Some("participants"), None, ..) => Rest::Participants,
            (Some("participants"), Some(id), None, _) => Rest::Participant(id),
            (Some("participants"), Some(id), Some("signals"), None) => Rest::Signals(id),
            (Some("participants"), Some(id), Some("reports"), None) => Rest::Reports(id),
            (Some("participants"), Some(id), Some("mute"), None) => Rest::Mute(id),
            (Some("participants"), Some(id), Some("away"), None) => Rest::Away(id),
            _ => return None,
        };
        Some(Self { room, rest })
    }

    pub fn endpoint(&self) -> &'static Endpoint {
        match self.rest {
            Rest::Rooms => &ROOMS,
            Rest::Room => &ROOM,
            Rest::Lock => &LOCK,
            Rest::Participants => &PARTICIPANTS,
            Rest::Participant(_) => &PARTICIPANT,
            Rest::Signals(_) => &SIGNALS,
            Rest::Reports(_) => &REPORTS,
            Rest::Mute(_) => &MUTE,
            Rest::Away(_) => &AWAY,
        }
    }
}

/// Endpoints of the rooms API.
pub(crate) const ENDPOINTS: [&Endpoint; 9] =
    [&ROOMS, &ROOM, &LOCK, &PARTICIPANTS, &PARTICIPANT, &SIGNALS, &REPORTS, &MUTE, &AWAY];

const ROOMS: Endpoint = Endpoint::new("/v1/rooms", "GET");
const LOCK: Endpoint = Endpoint::new("/v1/rooms/{room}/lock", "POST");
const AWAY: Endpoint = Endpoint::new("/v1/rooms/{room}/participants/{participant}/away", "POST");
const ROOM: Endpoint = Endpoint::new("/v1/rooms/{room}", "GET");
const PARTICIPANTS: Endpoint = Endpoint::new("/v1/rooms/{room}/participants", "POST");
const PARTICIPANT: Endpoint = Endpoint::new("/v1/rooms/{room}/participants/{participant}", "DELETE");
const SIGNALS: Endpoint = Endpoint::new("/v1/rooms/{room}/participants/{participant}/signals", "POST");
const REPORTS: Endpoint = Endpoint::new("/v1/rooms/{room}/participants/{participant}/reports", "POST");
const MUTE: Endpoint = Endpoint::new("/v1/rooms/{room}/participants/{participant}/mute", "POST");

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct JoinRequest {
    name: String,
    topology: Option<Topology>,
    role: Role,
    resume: Option<ResumeRequest>,
}

/// Seat that a page resumes after it was reloaded. If the ticket is used, the page joins as another participant.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResumeRequest {
    participant: String,
    ticket: String,
}

/// Answers a request of the rooms API.
///
/// Errors: `not_found`, `forbidden`, `conflict`, `too_many`, `rate_limited`, `too_large`, `bad_json`, and the engine's.
pub(crate) async fn answer(
    conference: &Rc<Conference>,
    parts: &Parts,
    body: &mut Incoming,
    path: Path<'_>,
) -> Result<Response, Error> {
    debug_assert_eq!(parts.method.as_str(), path.endpoint().allow);
    Query::parse(parts, &[])?;
    let caller = conference.admission.caller(parts).await?;
    if path.rest == Rest::Rooms {
        return list(conference, &caller).await;
    }
    let room = RoomName::parse(path.room)?;
    match path.rest {
        Rest::Lock => moderate::lock(conference, parts, body, &caller, room).await,
        Rest::Away(id) => {
            let (id, secret) = (id.to_owned(), secret(parts)?);
            away(conference, room, id, secret).await
        }
        Rest::Rooms | Rest::Room => {
            caller.may(Permission::Subscribe, &room.state())?;
            show(conference, room).await
        }
        Rest::Participants => join(conference, parts, body, &caller, room).await,
        Rest::Participant(id) => moderate::remove(conference, parts, &caller, room, id.to_owned()).await,
        Rest::Signals(id) => {
            may_take_part(&caller, &room)?;
            signals(conference, parts, body, &caller, room, id.to_owned()).await
        }
        Rest::Reports(id) => {
            may_take_part(&caller, &room)?;
            reports(conference, parts, body, room, id.to_owned()).await
        }
        Rest::Mute(id) => moderate::mute(conference, parts, body, &caller, room, id.to_owned()).await,
    }
}

/// Lists the rooms of this node whose state the caller may read, in the order of their names.
async fn list(conference: &Rc<Conference>, caller: &Caller) -> Result<Response, Error> {
    conference.rooms.config()?;
    let mut rooms = Vec::new();
    for shard in 0..conference.shards() {
        let caller = caller.clone();
        let question = move |conference: Rc<Conference>| async move {
            // Before the limit applies: rooms that the caller may not read must not hide the others.
            let is_readable = |room: &RoomName| caller.may(Permission::Subscribe, &room.state()).is_ok();
            let selection = RoomSelection { limit: LISTED_MAX, ..RoomSelection::default() };
            Ok(conference.rooms_where(&selection, is_readable).0)
        };
        rooms.extend(conference.ask_shard(shard, question).await?);
    }
    rooms.sort_by(|a, b| a.room.cmp(&b.room));
    rooms.truncate(LISTED_MAX);
    Ok(json_answer(json!({ "rooms": rooms }).to_string()))
}

async fn show(conference: &Rc<Conference>, room: RoomName) -> Result<Response, Error> {
    Ok(json_answer(conference.request(&room, Request::Show).await?.to_string()))
}

async fn join(
    conference: &Rc<Conference>,
    parts: &Parts,
    body: &mut Incoming,
    caller: &Caller,
    room: RoomName,
) -> Result<Response, Error> {
    conference.rooms.config()?;
    let is_viewer = may_take_part(caller, &room)?;
    let asked = read_object(conference, parts, body, JOIN_BYTES_MAX).await?;
    let JoinRequest { name, topology, role, resume } =
        serde_json::from_value(Value::Object(asked)).map_err(bad_json)?;
    let role = if is_viewer { Role::Viewer } else { role };
    let mut random = [[0; 16]; 5];
    for bytes in &mut random {
        getrandom::fill(bytes).map_err(|error| Error::new(Code::Internal, error.to_string()))?;
    }
    let (since_ms, holder) = (conference.shard.engine.now_ms(), caller.holder.number());
    let subject = caller.grant.subject.as_ref().map(ToString::to_string);
    let [id, secret, ticket, next @ ..] = random;
    let resume = resume.map(|ResumeRequest { participant, ticket }| Resume {
        id: participant,
        ticket,
        subject: subject.clone(),
        random: next,
    });
    let join = Join { name, topology, role, since_ms, random: [id, secret, ticket], client_id: holder, subject };
    let mut joined = conference.request(&room, Request::Join { join, resume }).await?;
    if caller.may(Permission::Publish, &room.moderate()).is_ok() {
        joined["moderates"] = json!(if caller.anonymous { "as_host" } else { "always" });
    }
    joined["ice_servers"] = json!(conference.ice_servers(caller));
    let id = joined["participant"].as_str().unwrap_or_default();
    let location = HeaderValue::from_str(&format!("/v1/rooms/{}/participants/{id}", room.as_str()));
    let mut response = json_answer(joined.to_string());
    *response.status_mut() = StatusCode::CREATED;
    if let Ok(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

async fn away(conference: &Rc<Conference>, room: RoomName, id: String, secret: String) -> Result<Response, Error> {
    conference.request(&room, Request::Away { id, secret }).await.map(|_| no_content())
}

async fn signals(
    conference: &Rc<Conference>,
    parts: &Parts,
    body: &mut Incoming,
    caller: &Caller,
    room: RoomName,
    from: String,
) -> Result<Response, Error> {
    let config = conference.rooms.config()?;
    let secret = secret(parts)?;
    let key = parts.headers.get("idempotency-key").map(HeaderValue::to_str).transpose();
    let key = key.map_err(|_| Error::new(Code::BadRequest, "`Idempotency-Key` is ASCII"))?;
    if key.is_some_and(|key| key.len() > 64) {
        return Err(Error::new(Code::TooLarge, "`Idempotency-Key` of a signal is longer than 64 bytes"));
    }
    let key = key.map(|key| format!("{from}/{key}").into_boxed_str());
    let mut fields = read_object(conference, parts, body, config.signal_bytes_max).await?;
    let Some(Value::String(to)) = fields.remove("to") else {
        return Err(Error::new(Code::BadRequest, "a signal needs `to`: the id of its receiver, or `switch`"));
    };
    if ["description", "candidate", "bye"].iter().filter(|kind| fields.contains_key(**kind)).count() != 1 {
        return Err(Error::new(Code::BadRequest, "a signal needs exactly one of `description`, `candidate` and `bye`"));
    }
    let holder = caller.holder.number();
    if to != SWITCH {
        let request = Request::Signal { from, to, secret, fields, holder, key };
        return conference.request(&room, request).await.map(|_| no_content());
    }
    let admitted = fields.contains_key("description").then(|| admit_session(conference, parts, caller)).flatten();
    let name = room.clone();
    let question = move |conference: Rc<Conference>| async move {
        cluster::signal_switch(&conference, &name, (from, secret), fields, admitted).await
    };
    conference.ask(&room, question).await.map(|()| no_content())
}

/// Returns the state that lets a participant open a session next to its media, with the same limits as a new
/// connection. Returns `None` if a limit is reached; the participant's data then uses another transport.
fn admit_session(conference: &Conference, parts: &Parts, caller: &Caller) -> Option<AdmittedSession> {
    let address = parts.extensions.get::<std::sync::Arc<RequestConnection>>()?.address;
    let connection_slot = conference.admission.limits.connect(address).ok()?;
    let reader_slot = conference.admission.admit(parts, caller).ok()?;
    Some(AdmittedSession { caller: caller.clone(), ticket: None, connection_slot, reader_slot })
}

async fn reports(
    conference: &Rc<Conference>,
    parts: &Parts,
    body: &mut Incoming,
    room: RoomName,
    from: String,
) -> Result<Response, Error> {
    let config = conference.rooms.config()?;
    let secret = secret(parts)?;
    let figures = read_object(conference, parts, body, config.signal_bytes_max / 4).await?;
    report::check(&figures)?;
    let name = room.clone();
    let question = move |conference: Rc<Conference>| async move {
        let switch = json!(conference.media.report(&name, &from));
        cluster::route(&conference, &name, Request::Report { from, secret, figures, switch }).await
    };
    conference.ask(&room, question).await.map(|_| no_content())
}

/// Checks that the caller may join a room. A caller that may publish to the chat may join; a caller that may only
/// subscribe to the chat joins as a viewer. Returns true for a viewer.
///
/// Errors: as [`Caller::may`].
fn may_take_part(caller: &Caller, room: &RoomName) -> Result<bool, Error> {
    match caller.may(Permission::Publish, &room.chat()) {
        Ok(()) => Ok(false),
        Err(error) => caller.may(Permission::Subscribe, &room.chat()).map(|()| true).map_err(|_| error),
    }
}

pub(super) fn secret(parts: &Parts) -> Result<String, Error> {
    let secret = parts.headers.get(SECRET).and_then(|secret| secret.to_str().ok());
    secret.map(str::to_owned).ok_or_else(|| {
        Error::new(Code::Forbidden, "send the `secret` of the join response, as `Millrace-Participant: SECRET`")
    })
}

pub(super) async fn read_object(
    conference: &Conference,
    parts: &Parts,
    body: &mut Incoming,
    bytes_max: usize,
) -> Result<Map<String, Value>, Error> {
    let body = read_body(&conference.admission, &parts.headers, body, bytes_max).await?;
    if body.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_slice(&body).map_err(bad_json)
}

pub(super) fn bad_json(error: serde_json::Error) -> Error {
    Error::new(Code::BadJson, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_paths_are_parsed() {
        let rest = |path| Path::parse(path).map(|path| (path.room, path.rest));
        assert_eq!(rest("/v1/rooms/a"), Some(("a", Rest::Room)));
        assert_eq!(rest("/v1/rooms"), Some(("", Rest::Rooms)));
        assert_eq!(rest("/v1/rooms/a/lock"), Some(("a", Rest::Lock)));
        assert_eq!(rest("/v1/rooms/a/participants/7/away"), Some(("a", Rest::Away("7"))));
        assert_eq!(rest("/v1/rooms/a/participants"), Some(("a", Rest::Participants)));
        assert_eq!(rest("/v1/rooms/a/participants/7"), Some(("a", Rest::Participant("7"))));
        assert_eq!(rest("/v1/rooms/a/participants/7/signals"), Some(("a", Rest::Signals("7"))));
        assert_eq!(rest("/v1/rooms/a/participants/7/reports"), Some(("a", Rest::Reports("7"))));
        assert_eq!(rest("/v1/rooms/a/participants/7/mute"), Some(("a", Rest::Mute("7"))));
        for path in [
            "/v1/room",
            "/v1/rooms/a/b",
            "/v1/rooms/a/lock/b",
            "/v1/rooms/a/participants/7/x",
            "/v1/rooms/a/participants/7/signals/x",
        ] {
            assert_eq!(rest(path), None, "{path}");
        }
        for endpoint in ENDPOINTS {
            let path = endpoint.path.replace(['{', '}'], "");
            assert_eq!(Path::parse(&path).expect("a path").endpoint(), endpoint, "{path}");
        }
    }
}
