//! Requests of participants, to the owner of their room.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use millrace_protocol::{Code, Error, Holder};
use millrace_room::ownership::Owner;
use millrace_transport::data_channel::AdmittedSession;
use serde_json::{Map, Value, json};

use super::messages::{Answer, Body};
use crate::{
    Conference, media,
    rooms::{Request, RoomName, perform},
};

/// Maximum time that a request waits for an owner of its room.
const OWNER_WAIT: Duration = Duration::from_secs(6);
/// Time without an answer after which a request is repeated, possibly to another owner.
const REQUEST_WAIT: Duration = Duration::from_secs(1);
/// Minimum time for which the node of a participant is asked, even if the link to it is silent.
const HOME_WAIT: Duration = Duration::from_millis(150);

impl Conference {
    /// Performs a request to a room, on whichever node owns it.
    ///
    /// Errors: those of [`Conference::ask`] and of the request.
    pub(crate) async fn request(self: &Rc<Self>, room: &RoomName, request: Request) -> Result<Value, Error> {
        let name = room.clone();
        self.ask(room, move |conference| async move { route(&conference, &name, request).await }).await
    }
}

/// Performs a request on the owner of the room. Runs on the room's own shard.
///
/// Errors: those of the request; [`Code::Unavailable`] if the room has no owner in time.
pub(crate) async fn route(conference: &Rc<Conference>, room: &RoomName, request: Request) -> Result<Value, Error> {
    let Some(cluster) = conference.cluster() else { return perform(conference, room, None, request).await };
    let is_show = matches!(request, Request::Show);
    if cluster.hosted(room).is_none() {
        cluster.read_now(conference).await?;
        let has_owner = cluster.leases.borrow().get(room.as_str()).is_some();
        match &request {
            _ if has_owner => {}
            // Only a join opens a room, so that requests for other names cost no lease.
            Request::Join { join, .. } => conference.rooms.check_free(Holder::new(join.client_id))?,
            _ => return perform(conference, room, None, request).await,
        }
    }
    let hosted = cluster.host(room);
    let _waiting = hosted.begin();
    cluster.wake.notify_one();
    let until = Instant::now() + OWNER_WAIT;
    while Instant::now() < until {
        let owner = hosted.owner(Instant::now());
        match &owner {
            Owner::This { .. } if !hosted.is_collecting.get() => {
                return perform(conference, room, None, request).await;
            }
            Owner::Other { node, .. } => {
                let body = Body::Request(Box::new(request.clone()));
                let answer = tokio::select! {
                    answer = cluster.ask(&*conference.shard.engine, (room, node), body, REQUEST_WAIT) => answer?,
                    () = hosted.owner_changed(&owner) => None,
                };
                match answer {
                    Some(Answer::Done { mut value, update }) => {
                        if let Some(update) = update {
                            cluster.accept_update(conference, &hosted, *update);
                        }
                        if is_show && let Some(reports) = value["switch"].as_array_mut() {
                            reports.extend(conference.media.reports(room).into_iter().map(|report| json!(report)));
                        }
                        return Ok(value);
                    }
                    Some(Answer::Failed(error)) => return Err(error),
                    // The owner may have performed the request before it died. A signal must not arrive twice.
                    None if matches!(request, Request::Signal { key: None, .. }) => break,
                    None => {}
                    Some(_) => {
                        // The node no longer owns the room.
                        cluster.read_at.set(None);
                        cluster.wake.notify_one();
                        hosted.wait().await;
                    }
                }
            }
            _ => hosted.wait().await,
        }
    }
    let detail = "the node that owns this room does not answer; another one takes over within seconds";
    Err(Error::new(Code::Unavailable, detail).retry_after(Duration::from_secs(1)))
}

/// Handles a signal of a participant to the SFU, on the node of the participant. If that node has ended, this node
/// takes its place. Clients whose SFU is silent send a signal for this purpose.
///
/// Errors: those of [`route`].
pub(crate) async fn signal_switch(
    conference: &Rc<Conference>,
    room: &RoomName,
    (from, secret): (String, String),
    fields: Map<String, Value>,
    admitted: Option<AdmittedSession>,
) -> Result<(), Error> {
    let check = Request::CheckSignal { from: from.clone(), secret: secret.clone() };
    let home = route(conference, room, check).await?;
    if let (Some(cluster), Some(home)) = (conference.cluster(), home.as_str())
        && home != cluster.name().as_str()
    {
        let body = Body::Signal { participant: from.clone(), fields: fields.clone() };
        let answer = tokio::select! {
            answer = cluster.ask(&*conference.shard.engine, (room, home), body, REQUEST_WAIT) => answer?,
            () = link_lost(conference, home) => None,
        };
        if !matches!(answer, Some(Answer::Accepted)) {
            route(conference, room, Request::Move { id: from.clone(), secret }).await?;
            media::handle_moved_signal(conference, room, &from, fields, admitted);
        }
        return Ok(());
    }
    media::handle_signal(conference, room, &from, fields, admitted);
    Ok(())
}

/// Returns when the link to a node is silent, at the earliest after [`HOME_WAIT`].
async fn link_lost(conference: &Conference, node: &str) {
    loop {
        tokio::time::sleep(HOME_WAIT).await;
        if conference.media.is_link_silent(node) {
            return;
        }
    }
}
