//! Duties of the owner of a room: the owner takes the room over, and sends its changes to the other nodes.

use std::{
    collections::BTreeSet,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::{
    task::{JoinSet, spawn_local},
    time::timeout_at,
};

use super::{
    hosted::{Hosted, Push},
    messages::{Answer, Body, Endpoint, Held, Refusal, Update},
    state::{ASK_WAIT, Cluster},
};
use crate::{
    Conference,
    rooms::{self, RoomName},
};

/// Maximum time that a new owner waits for what the other nodes hold. A node that answers later announces itself.
const COLLECT_MAX: Duration = Duration::from_millis(500);

impl Cluster {
    /// Returns true if this node owns a room.
    pub fn owns(&self, room: &RoomName) -> bool {
        self.hosted(room).is_some_and(|hosted| hosted.own_epoch(Instant::now()).is_some())
    }

    /// Sets the node of a participant. `home`: another node; `None`: this one.
    pub fn set_home(&self, room: &RoomName, id: &str, home: Option<&str>) {
        if let Some(hosted) = self.hosted(room) {
            hosted.homes.borrow_mut().insert(id.into(), home.unwrap_or(self.name.as_str()).into());
        }
    }

    /// Returns the node of a participant; `None` if this node does not own the room.
    pub fn home(&self, room: &RoomName, id: &str) -> Option<Endpoint> {
        self.hosted(room)?.homes.borrow().get(id).cloned()
    }

    /// Takes a room over: collects the participants of all nodes, then continues the room with them and with those of
    /// the last owner, who have time to connect to another node.
    pub(super) async fn take_over(self: &Rc<Self>, conference: &Rc<Conference>, hosted: &Rc<Hosted>, epoch: u64) {
        let collected = self.collect(conference, hosted, epoch).await;
        if hosted.own_epoch(Instant::now()) != Some(epoch) {
            return;
        }
        let mut held: Vec<Held> = hosted.held(self.name.as_str()).into_iter().chain(collected).collect();
        let inherited = held.iter_mut().filter_map(|held| held.inherited.take()).map(|held| *held);
        let inherited: Vec<Held> = hosted.inherited().into_iter().chain(inherited).collect();
        let restore = |held: Held| {
            if let Err(reason) = self.restore(conference, hosted, held) {
                tracing::debug!(room = hosted.room.as_str(), %reason, "the participants of a node are refused");
            }
        };
        held.into_iter().for_each(restore);
        for mut held in inherited {
            // Another node may have announced a participant of the last owner as its own.
            held.seats.retain(|seat| !hosted.homes.borrow().contains_key(seat.id.as_str()));
            restore(held);
        }
        hosted.is_collecting.set(false);
        self.apply(conference, &hosted.room);
        hosted.changed.notify_waiters();
    }

    /// Asks the other live nodes which participants they hold. The last owner is not asked: it does not answer, or it
    /// announces itself.
    async fn collect(self: &Rc<Self>, conference: &Rc<Conference>, hosted: &Rc<Hosted>, epoch: u64) -> Vec<Held> {
        let until = tokio::time::Instant::now() + COLLECT_MAX;
        let Ok(Ok(Some(nodes))) = timeout_at(until, conference.shard.engine.live_nodes()).await else {
            return Vec::new();
        };
        let node_of = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let last = hosted.last_owner.borrow().as_deref().map(node_of);
        let own = node_of(self.name.as_str());
        let mut asking = JoinSet::new();
        for node in nodes.into_iter().filter(|node| *node != own && Some(node) != last.as_ref()) {
            let (cluster, conference, hosted) = (self.clone(), conference.clone(), hosted.clone());
            asking.spawn_local(async move {
                let body = Body::Claimed { epoch };
                match cluster.ask(&*conference.shard.engine, (&hosted.room, &node), body, COLLECT_MAX).await {
                    Ok(Some(Answer::Held(held))) => held.map(|held| *held),
                    _ => None,
                }
            });
        }
        let mut all = Vec::new();
        while let Ok(Some(answer)) = timeout_at(until, asking.join_next()).await {
            all.extend(answer.ok().flatten());
        }
        all
    }

    /// Takes the participants of a node into the room of this owner.
    ///
    /// Errors: the reason for which the node is refused.
    pub(super) fn restore(
        &self,
        conference: &Rc<Conference>,
        hosted: &Hosted,
        Held { node, outline, seats, .. }: Held,
    ) -> Result<(), Refusal> {
        hosted.check(&node, &seats)?;
        let ids: Vec<Box<str>> = seats.iter().map(|seat| seat.id.as_str().into()).collect();
        let restored = conference.rooms.adopt(
            &hosted.room,
            &outline,
            (conference.media.has_sfu(), conference.shard.engine.now_ms()),
            seats,
        );
        restored?;
        let mut homes = hosted.homes.borrow_mut();
        ids.into_iter().for_each(|id| drop(homes.insert(id, node.clone())));
        Ok(())
    }

    /// Applies the pending changes of a room, in the background.
    pub(super) fn apply(&self, conference: &Rc<Conference>, room: &RoomName) {
        if let Some(published) = rooms::apply(conference, room) {
            rooms::finish_in_background(published);
        }
    }

    /// Sends the changes of a room of this owner to all its nodes.
    pub fn send_changes(self: &Rc<Self>, conference: &Rc<Conference>, room: &RoomName) {
        let Some(hosted) = self.hosted(room) else { return };
        let now = Instant::now();
        let Some(epoch) = hosted.own_epoch(now).filter(|_| !hosted.is_collecting.get()) else { return };
        hosted.homes.borrow_mut().retain(|id, _| conference.rooms.announce(room, id).is_some());
        let Some(outline) = conference.rooms.outline(room).or_else(|| hosted.outline()) else { return };
        let (homes, own) = (hosted.homes.borrow().clone(), self.name.as_str());
        let seats_of = |node: &str| {
            let here = homes.iter().filter(|(_, home)| ***home == *node);
            here.filter_map(|(id, _)| conference.rooms.announce(room, id)).collect::<Vec<_>>()
        };
        let mut nodes: BTreeSet<Endpoint> = homes.values().chain(hosted.pushes.borrow().keys()).cloned().collect();
        nodes.insert(own.into());
        for node in nodes {
            let (seats, owner_seats) = (seats_of(&node), if *node == *own { Vec::new() } else { seats_of(own) });
            let (version, members, outline) = (hosted.version.get() + 1, homes.clone(), outline.clone());
            let update = Update { owner: own.into(), epoch, version, outline, members, seats, owner_seats };
            if *node == *own {
                let is_known = hosted.update.borrow().as_ref().is_some_and(|known| known.is_same(&update));
                if !is_known {
                    hosted.version.set(version);
                    self.follow(conference, &hosted, update);
                }
                continue;
            }
            let mut pushes = hosted.pushes.borrow_mut();
            let known = pushes.get(&node);
            if known.is_some_and(|known| known.update.is_same(&update)) {
                continue;
            }
            let is_in_flight = known.is_some_and(|known| known.is_in_flight);
            hosted.version.set(version);
            pushes.insert(node, Push { update, is_acknowledged: false, is_in_flight });
        }
        self.repeat_updates(conference, &hosted, now);
    }

    /// Returns the newest update for a node.
    pub(super) fn update_for(&self, hosted: &Hosted, node: &str) -> Option<Box<Update>> {
        hosted.pushes.borrow().get(node).map(|push| Box::new(push.update.clone()))
    }

    /// Sends the updates that their nodes have not acknowledged.
    pub(super) fn repeat_updates(self: &Rc<Self>, conference: &Rc<Conference>, hosted: &Rc<Hosted>, now: Instant) {
        if hosted.own_epoch(now).is_none() {
            return;
        }
        let mut due = Vec::new();
        for (node, push) in hosted.pushes.borrow_mut().iter_mut() {
            if !push.is_acknowledged && !std::mem::replace(&mut push.is_in_flight, true) {
                due.push((node.clone(), push.update.clone()));
            }
        }
        for (node, update) in due {
            let (cluster, conference, hosted) = (self.clone(), conference.clone(), hosted.clone());
            spawn_local(async move {
                let sent = update.order();
                let body = Body::Update(Box::new(update));
                let answer = cluster.ask(&*conference.shard.engine, (&hosted.room, &node), body, ASK_WAIT).await;
                cluster.handle_acknowledgement(&conference, &hosted, (&node, sent), answer.ok().flatten());
            });
        }
    }

    fn handle_acknowledgement(
        self: &Rc<Self>,
        conference: &Rc<Conference>,
        hosted: &Rc<Hosted>,
        (node, sent): (&str, (u64, u64)),
        answer: Option<Answer>,
    ) {
        let is_home = hosted.homes.borrow().values().any(|home| **home == *node);
        let is_live = self.directory.borrow().contains(node);
        let mut pushes = hosted.pushes.borrow_mut();
        let Some(push) = pushes.get_mut(node) else { return };
        push.is_in_flight = false;
        match answer {
            Some(Answer::Accepted | Answer::Refused(_)) if push.update.order() == sent => push.is_acknowledged = true,
            Some(Answer::Held(Some(held))) => {
                drop(pushes);
                if hosted.own_epoch(Instant::now()) == Some(sent.0) && *held.node == *node {
                    let _ = self.restore(conference, hosted, *held);
                    self.apply(conference, &hosted.room);
                }
                return;
            }
            _ => {}
        }
        if !is_home && (push.is_acknowledged || !is_live) {
            pushes.remove(node);
        }
    }

    /// Ends the ownership: this node must not act as owner, and keeps the last update for the next one.
    pub(super) fn lose(&self, conference: &Rc<Conference>, hosted: &Hosted) {
        hosted.is_collecting.set(false);
        hosted.homes.borrow_mut().clear();
        hosted.pushes.borrow_mut().clear();
        conference.rooms.surrender(&hosted.room);
    }
}
