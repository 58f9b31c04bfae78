//! WHIP and WHEP: publishers and viewers that signal over HTTP only. One request creates a session with a URL of its
//! own. The session ends by DELETE, or when its media connection ends.
//!
//! Source: RFC 9725 (WHIP); draft-ietf-wish-whep.

use std::{rc::Rc, time::Instant};

use http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts};
use hyper::body::Incoming;
use millrace_protocol::{ChannelName, Code, Error, Permission, session::Target};
use millrace_sfu::switch::{MIX, MemberId, Role};

use super::members::{Owner, Session, refused};
use millrace_transport::{
    access::Caller,
    admission::read_body,
    http::{Body, Query, Response, text},
    limits::RequestConnection,
    route::Endpoint,
};

use crate::{Conference, rooms::RoomName};

const SDP: &str = "application/sdp";
const FRAGMENT: &str = "application/trickle-ice-sdpfrag";
/// Maximum size of an offer, in bytes. A browser with a camera, a microphone and every codec sends about 10 KiB.
const OFFER_BYTES_MAX: usize = 64 * 1024;
const FRAGMENT_BYTES_MAX: usize = 16 * 1024;
const NAME_BYTES_MAX: usize = 64;

/// Parsed path of a WHIP or WHEP URL.
pub(crate) struct Path {
    room: String,
    place: Place,
}

/// Endpoints of WHIP and WHEP.
pub(crate) const ENDPOINTS: [&Endpoint; 3] = [&WHIP, &WHEP, &SESSION];

const WHIP: Endpoint = Endpoint::new("/v1/rooms/{room}/whip", "POST, OPTIONS");
const WHEP: Endpoint = Endpoint::new("/v1/rooms/{room}/whep", "POST, OPTIONS");
const SESSION: Endpoint = Endpoint::new("/v1/rooms/{room}/media/{session}", "PATCH, DELETE");

enum Place {
    Whip,
    Whep,
    Session(String),
}

impl Path {
    /// Parses `/v1/rooms/{room}/whip`, `/v1/rooms/{room}/whep`, and `/v1/rooms/{room}/media/{secret}` of a session.
    pub fn parse(path: &str) -> Option<Self> {
        let (room, place) = path.strip_prefix("/v1/rooms/")?.split_once('/')?;
        let place = match place {
            "whip" => Place::Whip,
            "whep" => Place::Whep,
            place => Place::Session(place.strip_prefix("media/")?.to_owned()),
        };
        Some(Self { room: room.to_owned(), place })
    }
}

/// Answers a request for one of these URLs.
///
/// Errors: `bad_request`, `not_acceptable`, `unsupported`, `conflict`, `not_found`, and those of a connection.
pub(crate) async fn answer(
    conference: &Rc<Conference>,
    parts: &Parts,
    body: &mut Incoming,
    path: Path,
) -> Result<Response, Error> {
    let room = RoomName::parse(&path.room)?;
    match (&path.place, &parts.method) {
        (Place::Whip | Place::Whep, &Method::OPTIONS) => Ok(options()),
        (Place::Whip, &Method::POST) => begin(conference, parts, body, room, Role::Publisher).await,
        (Place::Whep, &Method::POST) => begin(conference, parts, body, room, Role::Viewer).await,
        (Place::Whip, _) => Ok(not_allowed(WHIP.allow)),
        (Place::Whep, _) => Ok(not_allowed(WHEP.allow)),
        (Place::Session(secret), &Method::PATCH) => patch(conference, parts, body, room, secret.clone()).await,
        (Place::Session(secret), &Method::DELETE) => end(conference, parts, room, secret.clone()).await,
        (Place::Session(_), _) => Ok(not_allowed(SESSION.allow)),
    }
}

async fn begin(
    conference: &Rc<Conference>,
    parts: &Parts,
    body: &mut Incoming,
    room: RoomName,
    role: Role,
) -> Result<Response, Error> {
    let caller = conference.admission.caller(parts).await?;
    let right = if role == Role::Publisher { Permission::Publish } else { Permission::Subscribe };
    caller.check(right, &Target::Channel(media_channel(&room)?))?;
    let query = Query::parse(parts, &["name"])?;
    let name = query.get("name").unwrap_or(if role == Role::Publisher { "whip" } else { "whep" }).to_owned();
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        let detail = format!("`name` is 1 to {NAME_BYTES_MAX} visible ASCII characters");
        return Err(Error::new(Code::BadRequest, detail));
    }
    if name == MIX {
        return Err(Error::new(Code::BadRequest, "the name `mix` is reserved for the mixed audio of a room"));
    }
    check_type(&parts.headers, SDP)?;
    let accepted = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    let takes = |kind: &str| matches!(kind.split(';').next().unwrap_or_default().trim(), SDP | "application/*" | "*/*");
    if !accepted.split(',').any(takes) {
        return Err(Error::new(Code::NotAcceptable, "the answer is `application/sdp`"));
    }
    let Some(address) =
        parts.extensions.get::<std::sync::Arc<RequestConnection>>().map(|connection| connection.address)
    else {
        return Err(Error::new(Code::BadRequest, "the address of the request is not known"));
    };
    let (connection_slot, reader_slot) =
        (conference.admission.limits.connect(address)?, conference.admission.admit(parts, &caller)?);
    let offer = read_text(conference, parts, body, OFFER_BYTES_MAX).await?;
    let subject = subject_of(&caller);
    let secret = random_name();
    let location = format!("/v1/rooms/{room}/media/{secret}", room = room.as_str());
    let (known, key) = (room.clone(), secret.clone());
    let answer = conference
        .ask(&room, move |conference| async move {
            let offer = (offer.as_str(), conference.rooms.video_codecs(&known));
            let who = (name.as_str(), role);
            let joined = conference
                .media
                .with_switch(|switch, send| switch.join_with(known.as_str(), who, offer, Instant::now(), send));
            let no_port = "this server has no port for media (`rtc.listen` is off)";
            let joined = joined.ok_or_else(|| Error::new(Code::NotFound, no_port))?;
            let (member, answer) = joined.map_err(|error| refused(&error))?;
            let session = Session {
                member,
                room: known,
                subject,
                generation: 1,
                _connection_slot: connection_slot,
                _reader_slot: reader_slot,
            };
            conference.media.members.borrow_mut().insert(member, Owner::Session(key.as_str().into()));
            conference.media.sessions.borrow_mut().insert(key.into(), session);
            Ok(answer)
        })
        .await?;
    let mut response = text(StatusCode::CREATED, SDP, answer);
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, HeaderValue::try_from(location).expect("a room's name and hexadecimal digits"));
    headers.insert(header::ETAG, etag(1));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("accept-patch", HeaderValue::from_static(FRAGMENT));
    for server in conference.ice_servers(&caller) {
        let (username, credential) = (&server.username, &server.credential);
        for url in &server.urls {
            let link = format!(
                r#"<{url}>; rel="ice-server"; username="{username}"; credential="{credential}"; credential-type="password""#
            );
            headers.extend(HeaderValue::try_from(link).map(|link| (header::LINK, link)));
        }
    }
    Ok(response)
}

/// Handles candidates of the client, or restarts ICE with new credentials of the client.
///
/// Source: RFC 9725, sections 4.3.1 and 4.3.2.
async fn patch(
    conference: &Rc<Conference>,
    parts: &Parts,
    body: &mut Incoming,
    room: RoomName,
    secret: String,
) -> Result<Response, Error> {
    let caller = conference.admission.caller(parts).await?;
    check_type(&parts.headers, FRAGMENT)?;
    let fragment = read_text(conference, parts, body, FRAGMENT_BYTES_MAX).await?;
    let wanted = parts.headers.get(header::IF_MATCH).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let subject = subject_of(&caller);
    let of = room.clone();
    let patched = conference.ask(&of, move |conference| async move {
        let (member, generation) = find(&conference, &room, &secret, &subject)?;
        let names = names(&fragment).filter(|_| wanted.as_deref() == Some("*"));
        let Some((ufrag, password)) = names else {
            // The candidates are not needed: the SFU answers whichever address the client sends from.
            return Ok(match wanted.as_deref() {
                None => Patched::Precondition(StatusCode::PRECONDITION_REQUIRED),
                Some(tag) if tag != "*" && tag != etag(generation) => {
                    Patched::Precondition(StatusCode::PRECONDITION_FAILED)
                }
                Some(_) => Patched::Taken,
            });
        };
        let restarted = conference
            .media
            .with_switch(|switch, send| switch.restart(member, (&ufrag, &password), Instant::now(), send));
        let gone = || Error::new(Code::NotFound, "the session has ended");
        let fragment = restarted.ok_or_else(gone)?.map_err(|error| refused(&error))?;
        let mut sessions = conference.media.sessions.borrow_mut();
        let session = sessions.get_mut(secret.as_str()).ok_or_else(gone)?;
        session.generation += 1;
        Ok(Patched::Restarted(fragment, session.generation))
    });
    Ok(match patched.await? {
        Patched::Taken => empty(StatusCode::NO_CONTENT),
        Patched::Precondition(status) => empty(status),
        Patched::Restarted(fragment, generation) => {
            let mut response = text(StatusCode::OK, FRAGMENT, fragment);
            response.headers_mut().insert(header::ETAG, etag(generation));
            response
        }
    })
}

enum Patched {
    Taken,
    Precondition(StatusCode),
    Restarted(String, u64),
}

async fn end(conference: &Rc<Conference>, parts: &Parts, room: RoomName, secret: String) -> Result<Response, Error> {
    let subject = subject_of(&conference.admission.caller(parts).await?);
    let of = room.clone();
    let ended = conference.ask(&of, move |conference| async move {
        let (member, _) = find(&conference, &room, &secret, &subject)?;
        conference.media.members.borrow_mut().remove(&member);
        conference.media.sessions.borrow_mut().remove(secret.as_str());
        conference.media.with_switch(|switch, send| switch.leave(member, Instant::now(), send));
        Ok(())
    });
    ended.await?;
    Ok(empty(StatusCode::OK))
}

/// Returns the member and the ICE generation of a session.
///
/// Errors: `not_found`, also for a session of another subject.
fn find(
    conference: &Conference,
    room: &RoomName,
    secret: &str,
    subject: &Option<String>,
) -> Result<(MemberId, u64), Error> {
    let sessions = conference.media.sessions.borrow();
    let session = sessions.get(secret).filter(|session| session.room == *room && session.subject == *subject);
    let session = session.ok_or_else(|| Error::new(Code::NotFound, "the session does not exist, or it has ended"))?;
    Ok((session.member, session.generation))
}

/// Returns the channel whose permissions apply to a room's media. Nothing is ever published to this channel.
fn media_channel(room: &RoomName) -> Result<ChannelName, Error> {
    ChannelName::parse(&format!("rooms/{}/media", room.as_str()))
}

fn subject_of(caller: &Caller) -> Option<String> {
    caller.grant.subject.as_ref().map(ToString::to_string)
}

fn check_type(headers: &HeaderMap, wanted: &str) -> Result<(), Error> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    match kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(wanted) {
        true => Ok(()),
        false => Err(Error::new(Code::Unsupported, format!("expected `Content-Type: {wanted}`"))),
    }
}

async fn read_text(conference: &Conference, parts: &Parts, body: &mut Incoming, max: usize) -> Result<String, Error> {
    let bytes = read_body(&conference.admission, &parts.headers, body, max).await?;
    String::from_utf8(bytes.to_vec()).map_err(|_| Error::new(Code::BadRequest, "the body is not UTF-8"))
}

/// Returns the new ICE user name fragment and password of a client, if the fragment has both.
fn names(fragment: &str) -> Option<(String, String)> {
    let value = |name: &str| fragment.lines().find_map(|line| line.trim_end().strip_prefix(name)).map(str::to_owned);
    let is_name = |text: &String| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
    let (ufrag, password) = (value("a=ice-ufrag:").filter(is_name)?, value("a=ice-pwd:").filter(is_name)?);
    // Source: RFC 8839, section 5.4.
    ((4..=256).contains(&ufrag.len()) && (22..=256).contains(&password.len())).then_some((ufrag, password))
}

fn etag(generation: u64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{generation}\"")).expect("digits")
}

fn random_name() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has random bytes");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn options() -> Response {
    let mut response = empty(StatusCode::NO_CONTENT);
    response.headers_mut().insert("accept-post", HeaderValue::from_static(SDP));
    response
}

fn not_allowed(methods: &'static str) -> Response {
    let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    response
}

fn empty(status: StatusCode) -> Response {
    let mut response = http::Response::new(Body::Whole(None));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ice_credentials_are_taken_only_together() {
        let both = "a=ice-options:trickle\r\na=ice-ufrag:abcd\r\na=ice-pwd:0123456789012345678901\r\n";
        assert_eq!(names(both), Some(("abcd".into(), "0123456789012345678901".into())));
        for bad in ["", "a=ice-ufrag:abcd\r\n", &both.replace("abcd", "abc"), &both.replace("abcd", "ab cd\rx")] {
            assert_eq!(names(bad), None, "{bad}");
        }
    }

    #[test]
    fn session_urls_differ_from_room_urls() {
        let is = |path: &str| Path::parse(path).map(|path| (path.room, matches!(path.place, Place::Session(_))));
        assert_eq!(is("/v1/rooms/a/whip"), Some(("a".into(), false)));
        assert_eq!(is("/v1/rooms/a/media/f00"), Some(("a".into(), true)));
        assert!(is("/v1/rooms/a").is_none() && is("/v1/rooms/a/participants").is_none() && is("/v1/x").is_none());
    }
}
