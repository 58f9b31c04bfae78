//! The periodic work of a shard for its rooms over several nodes.

use std::{
    collections::BTreeSet,
    rc::Rc,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use millrace_protocol::Error;
use millrace_room::ownership::{Output, Owner, Written};
use tokio::task::spawn_local;

use super::{
    directory::{self, announcement},
    hosted::Hosted,
    leases,
    messages::{Answer, Body},
    state::{ASK_WAIT, Cluster},
};
use crate::{Conference, media::LinkFigures};

/// Interval between two turns while the shard has rooms.
const TURN: Duration = Duration::from_millis(100);
/// Interval between two reads of the owners and of the nodes.
const READ: Duration = Duration::from_millis(250);
/// Interval between two announcements of an SFU, and between two turns of a shard without rooms.
const ANNOUNCE: Duration = Duration::from_secs(2);

/// Runs the cluster of a shard until the task is dropped.
pub async fn run(conference: Rc<Conference>) {
    let Some(cluster) = conference.cluster().cloned() else { return };
    loop {
        cluster.turn(&conference);
        let pause = if cluster.rooms.borrow().is_empty() { ANNOUNCE } else { TURN };
        let _ = tokio::time::timeout(pause, cluster.wake.notified()).await;
    }
}

impl Cluster {
    /// Runs one turn. Whatever waits for the engine runs in tasks of its own, so that a lease ends in time.
    pub(super) fn turn(self: &Rc<Self>, conference: &Rc<Conference>) {
        let now = Instant::now();
        let is_due = |at: Option<Instant>, interval| at.is_none_or(|at| at + interval <= now);
        if is_due(self.announced.get(), ANNOUNCE)
            && let Some(address) = self.address.get()
        {
            self.announced.set(Some(now));
            let (channel, publication) = announcement(self.name.as_str(), address);
            let engine = conference.shard.engine.clone();
            spawn_local(async move {
                if let Err(error) = engine.append(&channel, publication).await {
                    tracing::debug!(%error, "the SFU of this shard cannot be announced to other nodes");
                }
            });
        }
        let all: Vec<Rc<Hosted>> = self.rooms.borrow().values().cloned().collect();
        if !all.is_empty() && is_due(self.read_at.get(), READ) {
            let (cluster, conference) = (self.clone(), conference.clone());
            self.read_at.set(Some(now));
            spawn_local(async move {
                let Ok(_reading) = cluster.reading.try_lock() else { return };
                // After an error everything stays as it is: the leases end by themselves.
                if let Err(error) = cluster.read(&conference).await {
                    tracing::debug!(%error, "the owners of rooms cannot be read");
                }
                cluster.wake.notify_one();
            });
        }
        let mut linked = BTreeSet::new();
        for hosted in &all {
            self.turn_of(conference, hosted, now);
            linked.extend(hosted.linked(&self.name));
        }
        conference.media.open_links(&linked);
        self.rooms.borrow_mut().retain(|_, hosted| !hosted.is_idle(now));
        self.measure(conference);
    }

    /// Measures the links of this shard.
    fn measure(&self, conference: &Conference) {
        let metrics = &conference.shard.socket_metrics;
        let LinkFigures { links, bits_per_s, layers } = conference.media.link_figures();
        metrics.room_links.store(links, Relaxed);
        metrics.room_link_bytes_per_s.store(bits_per_s / 8, Relaxed);
        metrics.room_link_layers.store(layers, Relaxed);
    }

    /// Reads the owners and the nodes.
    ///
    /// Errors: those of the engine.
    async fn read(self: &Rc<Self>, conference: &Rc<Conference>) -> Result<(), Error> {
        let engine = &*conference.shard.engine;
        let (owners, nodes) = (self.leases.borrow().place(), self.directory.borrow().place());
        let (owners, nodes) = tokio::join!(directory::read(engine, owners), directory::read(engine, nodes));
        if let Ok(nodes) = nodes {
            let is_changed = self.directory.borrow_mut().take(&nodes);
            if is_changed {
                conference.media.set_nodes(&self.directory.borrow().nodes());
            }
        }
        let owners = owners?;
        let has_new_epoch = self.leases.borrow_mut().take(&owners);
        let now = Instant::now();
        let all: Vec<Rc<Hosted>> = self.rooms.borrow().values().cloned().collect();
        for hosted in all {
            let lease = self.leases.borrow().get(hosted.room.as_str()).cloned();
            if has_new_epoch {
                hosted.forget_offsets(now);
            }
            // A read that has begun before the last write of this node does not show the entry of that write.
            if lease.is_some() || owners.end.offset >= hosted.written.get() {
                hosted.is_seeded.set(true);
                hosted.ownership.borrow_mut().handle_lease(lease, now);
            }
            self.turn_of(conference, &hosted, now);
        }
        Ok(())
    }

    /// Reads the owners and the nodes now.
    ///
    /// Errors: those of the engine.
    pub(super) async fn read_now(self: &Rc<Self>, conference: &Rc<Conference>) -> Result<(), Error> {
        let _reading = self.reading.lock().await;
        self.read(conference).await
    }

    /// Runs the turn of one room.
    pub(super) fn turn_of(self: &Rc<Self>, conference: &Rc<Conference>, hosted: &Rc<Hosted>, now: Instant) {
        let is_wanted = hosted.requests.get() > 0 || hosted.has_seats() || conference.rooms.contains(&hosted.room);
        if hosted.is_seeded.get() {
            hosted.ownership.borrow_mut().set_wanted(is_wanted, now);
        }
        loop {
            let output = hosted.ownership.borrow_mut().poll_output();
            let Some(output) = output else { break };
            match output {
                Output::Write { number, condition, write } => {
                    let name = self.name.as_str();
                    let publication = self.leases.borrow().publication(hosted.room.as_str(), name, condition, write);
                    let (channel, _) = self.leases.borrow().place();
                    let (cluster, conference, hosted) = (self.clone(), conference.clone(), hosted.clone());
                    spawn_local(async move {
                        let written = match publication {
                            Some(publication) => leases::write(&*conference.shard.engine, &channel, publication).await,
                            None => Written::Failed,
                        };
                        if let Written::At(offset) = written {
                            hosted.written.set(offset);
                        }
                        let now = Instant::now();
                        hosted.ownership.borrow_mut().handle_written(number, written, now);
                        cluster.turn_of(&conference, &hosted, now);
                    });
                }
                Output::Gained { epoch } => {
                    tracing::info!(room = hosted.room.as_str(), epoch, "this node owns a room");
                    conference.shard.socket_metrics.room_owner_changes.fetch_add(1, Relaxed);
                    hosted.is_collecting.set(true);
                    let (cluster, conference, hosted) = (self.clone(), conference.clone(), hosted.clone());
                    spawn_local(async move { cluster.take_over(&conference, &hosted, epoch).await });
                }
                Output::Lost => {
                    tracing::info!(room = hosted.room.as_str(), "this node no longer owns a room");
                    self.lose(conference, hosted);
                }
                Output::Follow { node, epoch } => {
                    tracing::debug!(room = hosted.room.as_str(), node = &*node, epoch, "another node owns a room");
                    *hosted.last_owner.borrow_mut() = Some(node);
                }
            }
            hosted.changed.notify_waiters();
        }
        self.announce(conference, hosted, now);
        self.repeat_updates(conference, hosted, now);
    }

    /// Announces the participants of this node to a new owner that does not know them.
    fn announce(self: &Rc<Self>, conference: &Rc<Conference>, hosted: &Rc<Hosted>, now: Instant) {
        let Owner::Other { node, epoch } = hosted.owner(now) else { return };
        if !hosted.is_unknown_to(epoch) || hosted.is_announcing.replace(true) {
            return;
        }
        let Some(held) = hosted.held(self.name.as_str()) else { return hosted.is_announcing.set(false) };
        let (cluster, conference, hosted) = (self.clone(), conference.clone(), hosted.clone());
        spawn_local(async move {
            let body = Body::Announce { epoch, held: Box::new(held) };
            let answer = cluster.ask(&*conference.shard.engine, (&hosted.room, &node), body, ASK_WAIT).await;
            match answer {
                Ok(Some(Answer::Accepted)) => hosted.announced.set(hosted.announced.get().max(epoch)),
                Ok(Some(Answer::Refused(reason))) => {
                    tracing::debug!(room = hosted.room.as_str(), reason, "the owner of a room refuses participants");
                    hosted.announced.set(hosted.announced.get().max(epoch));
                }
                _ => {}
            }
            hosted.is_announcing.set(false);
        });
    }
}
