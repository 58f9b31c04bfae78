//! Media hosting: connects the SFU of a shard with rooms and HTTP sessions.
//!
//! - this file: room participants, which signal through the room, and the events of the SFU
//! - [`mixing`]: rooms whose audio is mixed
//! - [`sfu`]: the SFU as a protocol of the shard's datagram port
//! - [`whip`]: publishers and viewers that use HTTP only
//!
//! The SFU itself is [`millrace_rtc::switch`].

mod mixing;
mod sfu;
mod whip;

use std::{
    cell::{OnceCell, RefCell},
    collections::HashMap,
    rc::Rc,
    time::Instant,
};

use millrace_node::Metrics;
use millrace_protocol::{Code, Error};
use millrace_room::Muted;
use millrace_sfu::switch::{Event, MemberId, Refused, Report, Role, Switch as Unit};
use serde_json::{Map, Value, json};

pub(crate) use sfu::{SendDatagram, Sfu, SfuProtocol};
pub(crate) use whip::{Path, answer};

use millrace_transport::data_channel::Guests;

use crate::{
    Conference,
    rooms::{RoomName, Switch, signal_from_switch},
};

/// Maximum length of a participant's name for its connection.
const LINK_BYTES_MAX: usize = 64;

/// Owners of the members of a shard's SFU: participants and HTTP sessions.
#[derive(Default)]
pub struct Media {
    /// SFU of the shard; empty if the shard has no port for media.
    sfu: OnceCell<Rc<Sfu>>,
    members: RefCell<HashMap<MemberId, Who>>,
    participants: RefCell<HashMap<(RoomName, Box<str>), Participant>>,
    sessions: RefCell<HashMap<Box<str>, whip::Session>>,
}

impl Media {
    /// Sets the SFU of the shard. Call it once, before the first request.
    pub(crate) fn set_sfu(&self, sfu: Rc<Sfu>) {
        let _ = self.sfu.set(sfu);
    }
}

enum Who {
    Participant(RoomName, Box<str>),
    /// WHIP or WHEP session, named by the secret part of its URL.
    Session(Box<str>),
}

struct Participant {
    member: MemberId,
    /// Session id in the origin line of its first offer. An offer with another id belongs to a new connection.
    origin: Box<str>,
    /// Participant's name for its connection.
    link: Option<Box<str>>,
}

/// [`Switch`] of the rooms: participants reach the SFU through their signals.
pub struct Participants;

impl Switch for Participants {
    fn joined(&self, _: &Rc<Conference>, _: &RoomName, _: &str) {}

    fn left(&self, conference: &Rc<Conference>, room: &RoomName, id: &str) {
        leave(conference, room, id);
    }

    fn muted(&self, conference: &Rc<Conference>, room: &RoomName, id: &str, muted: Muted) {
        let member =
            conference.media.participants.borrow().get(&(room.clone(), Box::from(id))).map(|known| known.member);
        if let Some(member) = member {
            with_unit(conference, |unit, send| unit.mute(member, muted, Instant::now(), send));
        }
    }

    fn handle_signal(
        &self,
        conference: &Rc<Conference>,
        room: &RoomName,
        from: &str,
        signal: Map<String, Value>,
        guests: Option<Guests>,
    ) {
        if signal.contains_key("bye") {
            return leave(conference, room, from);
        }
        // Ignore other signals, such as candidates: the SFU answers any address that knows the ICE password.
        let Some(description) = signal.get("description") else { return };
        let text = |name: &str| description.get(name).and_then(Value::as_str);
        let link = signal.get("link").and_then(Value::as_str).filter(|link| link.len() <= LINK_BYTES_MAX);
        let said = match (text("type"), text("sdp")) {
            (Some("offer"), Some(offer)) => take_offer(conference, room, from, (offer, link), guests).map(Some),
            (Some("answer"), Some(answer)) => take_answer(conference, room, from, answer).map(|()| None),
            _ => Err("a description is an offer or an answer, with its SDP".to_owned()),
        };
        let said = match said {
            Ok(None) => return,
            Ok(Some(answer)) => json!({ "description": { "type": "answer", "sdp": answer } }),
            Err(error) => json!({ "error": error }),
        };
        say(conference, room, from, link, said);
    }
}

/// Sends a signal to a participant about the connection that it names `link`.
fn say(conference: &Rc<Conference>, room: &RoomName, id: &str, link: Option<&str>, mut said: Value) {
    if let Some(link) = link {
        said["link"] = link.into();
    }
    if let Value::Object(said) = said {
        signal_from_switch(conference, room, id, said);
    }
}

fn take_offer(
    conference: &Rc<Conference>,
    room: &RoomName,
    id: &str,
    (offer, link): (&str, Option<&str>),
    guests: Option<Guests>,
) -> Result<String, String> {
    let key = (room.clone(), Box::from(id));
    let origin: Box<str> = offer.lines().find(|line| line.starts_with("o=")).map(origin_of).unwrap_or_default().into();
    let media = &conference.media;
    let known = media.participants.borrow().get(&key).map(|known| (known.member, known.origin == origin));
    if let Some((member, true)) = known {
        return with_unit(conference, |unit, send| unit.accept_offer(member, offer, Instant::now(), send))
            .unwrap_or(Err(Refused::Gone))
            .map_err(|error| error.to_string());
    }
    if known.is_some() {
        leave(conference, room, id);
    }
    let joined =
        with_unit(conference, |unit, send| unit.join(room.as_str(), (id, Role::Member), offer, Instant::now(), send));
    let (member, answer) = joined.unwrap_or(Err(Refused::Gone)).map_err(|error| error.to_string())?;
    if let Err(error) = begin_mixing(conference, room) {
        with_unit(conference, |unit, send| unit.leave(member, Instant::now(), send));
        return Err(error);
    }
    if let (Some(guests), Some(peers), Some(sfu)) = (guests, conference.data_channels.get(), conference.media.sfu.get())
    {
        sfu.carry(member, peers, guests);
    }
    with_unit(conference, |unit, send| {
        unit.mute(member, conference.rooms.muted_by_host(room, id), Instant::now(), send)
    });
    media.members.borrow_mut().insert(member, Who::Participant(room.clone(), id.into()));
    media.participants.borrow_mut().insert(key, Participant { member, origin, link: link.map(Box::from) });
    Ok(answer)
}

/// Starts the mixer of a room with topology `mixer`, when its first participant joins the SFU.
fn begin_mixing(conference: &Rc<Conference>, room: &RoomName) -> Result<(), String> {
    let is_mixed = with_unit(conference, |unit, _| unit.is_mixed(room.as_str())).unwrap_or(false);
    if is_mixed || !conference.rooms.is_mixed(room) {
        return Ok(());
    }
    let seat = conference.rooms.mixer().ok_or("this server mixes as many rooms as it may (`rooms.mixers_max`)")?;
    let mixer = mixing::start(conference, room, seat).map_err(|error| format!("no mixer: {error}"))?;
    with_unit(conference, |unit, send| unit.set_mixer(room.as_str(), mixer, Instant::now(), send));
    Ok(())
}

/// Returns the session id of an SDP origin line. Unlike the session version, the id stays the same for each description
/// of a connection.
///
/// Source: RFC 8866, section 5.2: `o=<username> <sess-id> <sess-version> ..`.
fn origin_of(line: &str) -> &str {
    line.split(' ').nth(1).unwrap_or_default()
}

fn take_answer(conference: &Rc<Conference>, room: &RoomName, id: &str, answer: &str) -> Result<(), String> {
    let key = (room.clone(), Box::from(id));
    let Some(member) = conference.media.participants.borrow().get(&key).map(|known| known.member) else {
        return Ok(());
    };
    with_unit(conference, |unit, send| unit.accept_answer(member, answer, Instant::now(), send))
        .unwrap_or(Ok(()))
        .map_err(|error| error.to_string())
}

fn leave(conference: &Rc<Conference>, room: &RoomName, id: &str) {
    let known = conference.media.participants.borrow_mut().remove(&(room.clone(), Box::from(id)));
    if let Some(Participant { member, .. }) = known {
        conference.media.members.borrow_mut().remove(&member);
        with_unit(conference, |unit, send| unit.leave(member, Instant::now(), send));
    }
}

/// Handles the events of the SFU since the last call.
fn handle_events(conference: &Rc<Conference>, sfu: &Sfu) {
    while let Some(event) = sfu.poll_event() {
        match event {
            Event::Connected(_) => {}
            Event::Offer(member, sdp) => {
                let who = match conference.media.members.borrow().get(&member) {
                    Some(Who::Participant(room, id)) => Some((room.clone(), id.clone())),
                    _ => None,
                };
                if let Some((room, id)) = who {
                    let known = conference.media.participants.borrow();
                    let link = known.get(&(room.clone(), id.clone())).and_then(|known| known.link.clone());
                    drop(known);
                    let said = json!({ "description": { "type": "offer", "sdp": sdp } });
                    say(conference, &room, &id, link.as_deref(), said);
                }
            }
            Event::Left { id, panicked } => {
                if panicked {
                    Metrics::add(&conference.shard.socket_metrics.rtc_panicked, 1);
                    tracing::debug!("a member's library has panicked; the member is ended");
                }
                if let Some(peers) = conference.data_channels.get() {
                    sfu.uncarry(id, peers);
                }
                let who = conference.media.members.borrow_mut().remove(&id);
                match who {
                    Some(Who::Participant(room, id)) => {
                        let known = conference.media.participants.borrow_mut().remove(&(room.clone(), id.clone()));
                        // The participant may still be in the room and connect again.
                        let link = known.and_then(|known| known.link);
                        say(conference, &room, &id, link.as_deref(), json!({ "bye": true }));
                    }
                    Some(Who::Session(secret)) => drop(conference.media.sessions.borrow_mut().remove(&secret)),
                    None => {}
                }
            }
        }
    }
}

/// Runs `work` on the shard's SFU. Returns `None` if the shard has no port for media.
fn with_unit<T>(conference: &Conference, work: impl FnOnce(&mut Unit, &mut SendDatagram<'_>) -> T) -> Option<T> {
    conference.media.sfu.get().map(|sfu| sfu.with(work))
}

/// Returns the SFU's reports on the members of a room.
pub(crate) fn reports(conference: &Conference, room: &RoomName) -> Vec<Report> {
    with_unit(conference, |unit, _| unit.reports(room.as_str(), Instant::now())).unwrap_or_default()
}

/// Returns the SFU's report on one participant; `None` if the participant is not connected to the SFU.
pub(crate) fn report(conference: &Conference, room: &RoomName, id: &str) -> Option<Report> {
    let member = conference.media.participants.borrow().get(&(room.clone(), Box::from(id)))?.member;
    with_unit(conference, |unit, _| unit.report_of(member, Instant::now()))?
}

fn refused(refused: &Refused) -> Error {
    let code = match refused {
        Refused::Offer(_) => Code::BadRequest,
        Refused::RoomFull => Code::TooMany,
        Refused::Full => Code::Unavailable,
        Refused::Gone => Code::NotFound,
    };
    Error::new(code, refused.to_string())
}
