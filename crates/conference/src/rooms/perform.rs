//! Effects of requests. The owner of a room performs them, whichever node they have reached.

use std::{rc::Rc, time::Instant};

use millrace_protocol::{Code, Error, Holder};
use millrace_room::{Join, Joined, Refused, Resume, Room, SWITCH, Topology};
use serde_json::{Map, Value, json};

use super::{
    RoomName, changes,
    publish::{finish_in_background, publish, signal, welcome},
    request::{Moderator, Request},
};
use crate::Conference;

/// Performs a request on the room's own shard. `home`: node of the participant, if it is another node.
///
/// Errors: `not_found`, `forbidden`, `conflict`, `too_many`, `rate_limited`, and the engine's.
pub async fn perform(
    conference: &Rc<Conference>,
    name: &RoomName,
    home: Option<&str>,
    request: Request,
) -> Result<Value, Error> {
    match request {
        Request::Join { join, resume } => return enter(conference, name, home, join, resume).await,
        Request::CheckSignal { from, secret } => {
            let check = |room: &mut Room| room.check_signal(Instant::now(), &from, &secret, SWITCH);
            conference.rooms.with(name, check)?;
            return Ok(json!(conference.cluster().and_then(|cluster| cluster.home(name, &from))));
        }
        Request::Move { id, secret } => {
            conference.rooms.with(name, |room| room.check_secret(&id, &secret))?;
            if let Some(cluster) = conference.cluster() {
                cluster.set_home(name, &id, home);
                cluster.send_changes(conference, name);
            }
        }
        Request::Signal { from, to, secret, fields, holder, key } => {
            let check = |room: &mut Room| room.check_signal(Instant::now(), &from, &secret, &to);
            conference.rooms.with(name, check)?;
            signal(conference, Holder::new(holder), name, &from, &to, fields, key).await?;
        }
        Request::Report { from, secret, figures, switch } => {
            conference.rooms.with(name, |room| room.report(Instant::now(), &from, &secret, figures.clone()))?;
            // Record for the room's reports channel: the participant's own report beside the SFU's report on it.
            let record = json!({ "participant": from, "report": figures, "switch": switch });
            let holder = conference.rooms.holder(name);
            finish_in_background(publish(conference, holder, &name.reports(), &record, None, None));
            changes::apply_and_wait(conference, name).await?;
        }
        Request::Away { id, secret } => {
            change(conference, name, |room| room.set_away(Instant::now(), &id, &secret)).await?;
        }
        Request::Mute { by, id, audio, video } => {
            change(conference, name, |room| {
                by.check(room)?;
                room.mute(&id, audio, video)
            })
            .await?;
        }
        Request::Lock { by, is_locked } => {
            change(conference, name, |room| {
                by.check(room)?;
                room.lock(is_locked);
                Ok(())
            })
            .await?;
        }
        Request::Remove { id, secret, by } => {
            change(conference, name, |room| remove(room, &id, secret.as_deref(), by.as_ref())).await?;
        }
        // Not an error: a page requests a room before the room exists, and browsers log every 404.
        Request::Show => {
            let none = || json!({ "version": 0, "participants": [], "reports": {}, "switch": [] });
            return Ok(conference.room(name).unwrap_or_else(none));
        }
    }
    Ok(Value::Null)
}

fn remove(room: &mut Room, id: &str, secret: Option<&str>, by: Option<&Moderator>) -> Result<(), Refused> {
    match secret.map_or(Err(Refused::WrongSecret), |secret| room.check_secret(id, secret)) {
        Ok(()) => room.leave(Instant::now(), id),
        Err(Refused::NotFound) => return Err(Refused::NotFound),
        Err(refused) => {
            by.ok_or(refused)?.check(room)?;
            room.remove(Instant::now(), id)?;
        }
    }
    Ok(())
}

/// Changes a room, and waits until the new state is published.
async fn change(
    conference: &Rc<Conference>,
    name: &RoomName,
    work: impl FnOnce(&mut Room) -> Result<(), Refused>,
) -> Result<(), Error> {
    conference.rooms.with(name, work)?;
    changes::apply_and_wait(conference, name).await
}

/// Adds a participant to a room, or returns a seat to it.
async fn enter(
    conference: &Rc<Conference>,
    room: &RoomName,
    home: Option<&str>,
    join: Join,
    resume: Option<Resume>,
) -> Result<Value, Error> {
    if home.is_some() && (join.topology == Some(Topology::Mixer) || conference.rooms.is_mixed(room)) {
        let detail = "the audio of this room is mixed, so all its participants must join on the same node";
        return Err(Error::new(Code::Conflict, detail));
    }
    // Messages published from now on have later positions than these.
    let chat = conference.shard.engine.newest(&room.chat()).await?.top;
    let data = conference.shard.engine.newest(&room.data()).await?.top;
    let holder = Holder::new(join.client_id);
    let now = Instant::now();
    let resumed = resume.and_then(|resume| conference.rooms.with(room, |room| room.resume(now, &resume)).ok());
    let is_resumed = resumed.is_some();
    let joined = match resumed {
        Some(joined) => joined,
        None => conference.rooms.join(room, join, conference.media.has_sfu(), &chat)?,
    };
    let Joined { id, secret, ticket } = &joined;
    let id = id.as_str();
    if let Some(cluster) = conference.cluster() {
        cluster.set_home(room, id, home);
    }
    let chat_since = conference.rooms.chat_since(room).unwrap_or(chat);
    let inbox = signal(conference, holder, room, "server", id, welcome(), None);
    let state = conference.rooms.with(room, |room| Ok(room.state()))?;
    let published = changes::apply(conference, room);
    let at = async {
        let inbox = inbox.await?;
        let state =
            published.ok_or_else(|| Error::new(Code::Internal, "a join did not change the state of the room"))?.await?;
        Ok::<_, Error>([(room.state(), state), (room.inbox(id), inbox), (room.chat(), chat), (room.data(), data)])
    };
    match at.await {
        Ok(positions) => {
            let positions = positions.map(|(channel, at)| (channel.to_string(), at.to_string().into()));
            let mut answer = json!({
                "participant": id, "secret": secret, "ticket": ticket, "state": state,
                "positions": Map::from_iter(positions), "chat_since": chat_since.to_string(),
            });
            if is_resumed {
                answer["resumed"] = true.into();
            }
            Ok(answer)
        }
        Err(error) => {
            // The participant was never announced, so remove it again.
            let _ = conference.rooms.with(room, |room| {
                room.leave(Instant::now(), id);
                Ok(())
            });
            if let Some(published) = changes::apply(conference, room) {
                finish_in_background(published);
            }
            Err(error)
        }
    }
}
