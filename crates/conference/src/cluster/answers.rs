//! Answers to the questions of other nodes.

use std::{rc::Rc, time::Instant};

use millrace_engine::Answer as EngineAnswer;
use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_local,
};

use super::{
    messages::{Answer, Body, Held, PREFIX, Question, Refusal},
    state::Cluster,
};
use crate::{
    Conference, Question as ShardQuestion, media,
    rooms::{Request, RoomName, perform},
};

/// Answers a question of another node about a room, on the shard of the room. Returns `None` if the question is not
/// about a room. `shards`: queues of the rooms of all shards.
pub fn answer_question(shards: &[mpsc::Sender<ShardQuestion>], text: &str) -> Option<EngineAnswer<Option<String>>> {
    text.starts_with(PREFIX).then(|| ask_shard(shards, text).unwrap_or_else(|| EngineAnswer::now(None)))
}

/// `None`: the question is malformed, or the shard is too busy.
fn ask_shard(shards: &[mpsc::Sender<ShardQuestion>], text: &str) -> Option<EngineAnswer<Option<String>>> {
    let question: Question = serde_json::from_str(text).ok()?;
    let room = RoomName::parse(&question.room).ok()?;
    let shard = shards.get(Conference::shard_of(&room, shards.len()))?;
    let (sender, receiver) = oneshot::channel();
    let ask: ShardQuestion = Box::new(move |conference| {
        let conference = conference.clone();
        spawn_local(async move {
            let answer = answer(&conference, &room, question).await;
            drop(sender.send(answer.and_then(|answer| serde_json::to_string(&answer).ok())));
        });
    });
    shard.try_send(ask).ok()?;
    Some(EngineAnswer::Later(Box::pin(async move { receiver.await.ok().flatten() })))
}

/// Returns `None` if this node has no cluster.
async fn answer(conference: &Rc<Conference>, room: &RoomName, Question { from, body, .. }: Question) -> Option<Answer> {
    let cluster = conference.cluster()?;
    Some(match body {
        Body::Request(request) => answer_request(cluster, conference, room, (&from, *request)).await,
        Body::Signal { participant, fields } => {
            let is_here = cluster.hosted(room).is_some_and(|hosted| hosted.has_seat(&participant));
            if !is_here {
                return Some(Answer::Refused("the participant is not on this node".into()));
            }
            media::handle_signal(conference, room, &participant, fields, None);
            Answer::Accepted
        }
        Body::Update(update) => {
            if cluster.hosted(room).is_none() && update.seats.is_empty() {
                return Some(Answer::Accepted);
            }
            let (hosted, epoch) = (cluster.host(room), update.epoch);
            let answer = cluster.accept_update(conference, &hosted, *update);
            if matches!(answer, Answer::Held(_)) {
                hosted.announced.set(epoch);
            }
            answer
        }
        Body::Claimed { epoch } => {
            let held = cluster.hosted(room).and_then(|hosted| {
                let is_owner = hosted.own_epoch(Instant::now()).is_some_and(|own| own >= epoch);
                let mut held = hosted.held(cluster.name().as_str()).filter(|_| !is_owner);
                if let Some(held) = &mut held {
                    held.inherited = hosted.inherited().map(Box::new);
                    hosted.announced.set(hosted.announced.get().max(epoch));
                }
                held
            });
            Answer::Held(held.map(Box::new))
        }
        Body::Announce { epoch, held } => answer_announcement(cluster, conference, room, (&from, epoch, *held)),
    })
}

async fn answer_request(
    cluster: &Rc<Cluster>,
    conference: &Rc<Conference>,
    room: &RoomName,
    (from, request): (&str, Request),
) -> Answer {
    let Some(hosted) = cluster.hosted(room) else { return Answer::NotOwner };
    if hosted.own_epoch(Instant::now()).is_none() || hosted.is_collecting.get() {
        return Answer::NotOwner;
    }
    let _waiting = hosted.begin();
    match perform(conference, room, Some(from), request).await {
        Ok(value) => Answer::Done { value, update: cluster.update_for(&hosted, from) },
        Err(error) => Answer::Failed(error),
    }
}

fn answer_announcement(
    cluster: &Rc<Cluster>,
    conference: &Rc<Conference>,
    room: &RoomName,
    (from, epoch, held): (&str, u64, Held),
) -> Answer {
    let Some(hosted) = cluster.hosted(room).filter(|hosted| hosted.own_epoch(Instant::now()) == Some(epoch)) else {
        return Answer::NotOwner;
    };
    if *held.node != *from {
        return Answer::Refused(Refusal::OtherSender.to_string());
    }
    match cluster.restore(conference, &hosted, held) {
        Ok(()) => {
            cluster.apply(conference, room);
            Answer::Accepted
        }
        Err(refusal) => Answer::Refused(refusal.to_string()),
    }
}
