use std::{io, rc::Rc, time::Instant};

use millrace_room::Muted;
use millrace_sfu::switch::{MemberId, Refused, Role};
use millrace_transport::data_channel::AdmittedSession;
use serde_json::{Map, Value, json};

use super::{
    members::{Owner, Participant},
    mixing::{self, Mixing},
};
use crate::{
    Conference,
    rooms::{RoomName, set_composite, signal_from_switch},
};

/// Maximum length of a participant's name for its connection.
const LINK_BYTES_MAX: usize = 64;

/// Reason why the SFU rejects a description. The participant receives its text as a signal.
#[derive(Debug, thiserror::Error)]
enum Rejected {
    #[error("`description` needs a `type` (`offer` or `answer`) and an `sdp`")]
    BadDescription,
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("all mixers of this server are in use (`rooms.mixers_max`)")]
    NoMixer,
    #[error("the mixer of this room cannot start: {0}")]
    MixerThread(#[from] io::Error),
}

/// Handles a signal from a participant to the SFU: `{"description"}`, `{"candidate"}` or `{"bye"}`, with any further
/// fields. `admitted` comes with a description: the state for a session next to the media.
pub(crate) fn handle_signal(
    conference: &Rc<Conference>,
    room: &RoomName,
    from: &str,
    signal: Map<String, Value>,
    admitted: Option<AdmittedSession>,
) {
    if !conference.media.has_sfu() {
        return;
    }
    if signal.contains_key("bye") {
        return leave(conference, room, from);
    }
    // Ignore other signals, such as candidates: the SFU answers any address that knows the ICE password.
    let Some(description) = signal.get("description") else { return };
    let text = |name: &str| description.get(name).and_then(Value::as_str);
    let link = link_of(&signal);
    let answer = match (text("type"), text("sdp")) {
        (Some("offer"), Some(offer)) => accept_offer(conference, room, from, (offer, link), admitted).map(Some),
        (Some("answer"), Some(answer)) => accept_answer(conference, room, from, answer).map(|()| None),
        _ => Err(Rejected::BadDescription),
    };
    let reply = match answer {
        Ok(None) => return,
        Ok(Some(answer)) => json!({ "description": { "type": "answer", "sdp": answer } }),
        Err(error) => json!({ "error": error.to_string() }),
    };
    send_signal(conference, room, from, link, reply);
}

/// Returns the name that a participant gives to its connection.
fn link_of(signal: &Map<String, Value>) -> Option<&str> {
    signal.get("link").and_then(Value::as_str).filter(|link| link.len() <= LINK_BYTES_MAX)
}

/// Handles a signal of a participant that was connected to the SFU of a node that has ended. An offer connects the
/// participant to this SFU. Any other signal belongs to the lost connection: `bye` makes the client replace it.
pub(crate) fn handle_moved_signal(
    conference: &Rc<Conference>,
    room: &RoomName,
    from: &str,
    signal: Map<String, Value>,
    admitted: Option<AdmittedSession>,
) {
    let is_of_lost = match signal.get("description") {
        Some(description) => description.get("type").is_some_and(|kind| kind == "answer"),
        None => signal.contains_key("candidate"),
    };
    match is_of_lost && conference.media.has_sfu() {
        true => send_signal(conference, room, from, link_of(&signal), json!({ "bye": true })),
        false => handle_signal(conference, room, from, signal, admitted),
    }
}

/// Sends a signal to a participant about the connection that it names `link`.
pub(super) fn send_signal(
    conference: &Rc<Conference>,
    room: &RoomName,
    id: &str,
    link: Option<&str>,
    mut signal: Value,
) {
    if let Some(link) = link {
        signal["link"] = link.into();
    }
    if let Value::Object(fields) = signal {
        signal_from_switch(conference, room, id, fields);
    }
}

/// Accepts an offer of a participant and returns the answer. The first offer of a connection joins the SFU.
fn accept_offer(
    conference: &Rc<Conference>,
    room: &RoomName,
    id: &str,
    (offer, link): (&str, Option<&str>),
    admitted: Option<AdmittedSession>,
) -> Result<String, Rejected> {
    let key = (room.clone(), Box::from(id));
    let origin: Box<str> = offer.lines().find(|line| line.starts_with("o=")).map(origin_of).unwrap_or_default().into();
    let media = &conference.media;
    let connected = media.participants.borrow().get(&key).map(|known| (known.member, known.origin == origin));
    if let Some((member, true)) = connected {
        let answer = media.with_switch(|switch, send| switch.accept_offer(member, offer, Instant::now(), send));
        return Ok(answer.unwrap_or(Err(Refused::Gone))?);
    }
    // The page was reloaded. The others receive the tracks of its new connection over the lines of the old one.
    if let Some(member) = forget(conference, &key) {
        media.with_switch(|switch, send| switch.disconnect(member, Instant::now(), send));
    }
    let offer = (offer, conference.rooms.video_codecs(room));
    let who = (id, Role::Member);
    let joined = media.with_switch(|switch, send| switch.join_with(room.as_str(), who, offer, Instant::now(), send));
    let (member, answer) = joined.unwrap_or(Err(Refused::Gone))?;
    if let Err(error) = start_mixer(conference, room) {
        media.with_switch(|switch, send| switch.leave(member, Instant::now(), send));
        return Err(error);
    }
    if let (Some(admitted), Some(peers), Some(sfu)) = (admitted, conference.data_channels.get(), media.sfu()) {
        sfu.carry(member, peers, admitted);
    }
    let muted = conference.muted_by_host(room, id);
    media.with_switch(|switch, send| switch.mute(member, muted, Instant::now(), send));
    media.members.borrow_mut().insert(member, Owner::Participant(room.clone(), id.into()));
    media.participants.borrow_mut().insert(key, Participant { member, origin, link: link.map(Box::from) });
    Ok(answer)
}

/// Starts the mixer of a room with topology `mixer`, when its first participant joins the SFU.
fn start_mixer(conference: &Rc<Conference>, room: &RoomName) -> Result<(), Rejected> {
    let media = &conference.media;
    let is_mixed = media.with_switch(|switch, _| switch.is_mixed(room.as_str())).unwrap_or(false);
    if is_mixed || !conference.rooms.is_mixed(room) {
        return Ok(());
    }
    let slot = conference.rooms.mixer().ok_or(Rejected::NoMixer)?;
    let Mixing { mixer, compositor } = mixing::start(conference, room, slot, set_composite)?;
    media.with_switch(|switch, send| {
        let now = Instant::now();
        switch.set_mixer(room.as_str(), mixer, now, send);
        if let Some(compositor) = compositor {
            switch.set_compositor(room.as_str(), compositor, now, send);
        }
    });
    Ok(())
}

/// Returns the session id of an SDP origin line. Unlike the session version, the id stays the same for each description
/// of a connection.
///
/// Source: RFC 8866, section 5.2: `o=<username> <sess-id> <sess-version> ..`.
fn origin_of(line: &str) -> &str {
    line.split(' ').nth(1).unwrap_or_default()
}

fn accept_answer(conference: &Rc<Conference>, room: &RoomName, id: &str, answer: &str) -> Result<(), Rejected> {
    let Some(member) = conference.media.member(room, id) else { return Ok(()) };
    let accepted =
        conference.media.with_switch(|switch, send| switch.accept_answer(member, answer, Instant::now(), send));
    Ok(accepted.unwrap_or(Ok(()))?)
}

/// Removes a participant from the SFU, if it is connected.
pub(crate) fn leave(conference: &Rc<Conference>, room: &RoomName, id: &str) {
    let member = forget(conference, &(room.clone(), Box::from(id)));
    conference.media.with_switch(|switch, send| match member {
        Some(member) => switch.leave(member, Instant::now(), send),
        // Its connection has ended before.
        None => switch.release(room.as_str(), id, Instant::now(), send),
    });
}

/// Forgets the connection of a participant to the SFU, if it has one. Returns its member.
fn forget(conference: &Rc<Conference>, key: &(RoomName, Box<str>)) -> Option<MemberId> {
    let participant = conference.media.participants.borrow_mut().remove(key)?;
    conference.media.members.borrow_mut().remove(&participant.member);
    Some(participant.member)
}

/// Removes the participants of a room from the SFU that are no longer on this node.
pub(crate) fn retain(conference: &Rc<Conference>, room: &RoomName, is_here: impl Fn(&str) -> bool) {
    let participants = conference.media.participants.borrow();
    let of_room = participants.keys().filter(|(of, _)| of == room);
    let gone: Vec<Box<str>> = of_room.filter(|(_, id)| !is_here(id)).map(|(_, id)| id.clone()).collect();
    drop(participants);
    gone.iter().for_each(|id| leave(conference, room, id));
}

/// Sets which media of a participant are muted. The SFU stops to forward muted media, and forwards all other media.
pub(crate) fn mute(conference: &Rc<Conference>, room: &RoomName, id: &str, muted: Muted) {
    if let Some(member) = conference.media.member(room, id) {
        conference.media.with_switch(|switch, send| switch.mute(member, muted, Instant::now(), send));
    }
}
