use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use millrace_protocol::{ChannelName, Position, session::Target};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    broker::{Broker, BrokerError},
    retry::Pauses,
    shared::{Local, Shared},
    subscription_manager::{TARGETS_MAX, Todo},
};
use crate::Deliver;

/// Period in which the top of every watched channel is compared with the broker. This detects publications lost
/// without any other sign, and keeps channels alive that are read but not written.
const CHECK: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_secs(1);
/// An accepted publication arrives within this time, or it is lost.
const ON_ITS_WAY: Duration = Duration::from_millis(200);
/// A publication that arrives out of order arrives within this time, or it is lost. nats-server republishes stored
/// messages from several threads.
const LATE: Duration = Duration::from_millis(50);
/// Maximum number of channels of a pattern that are joined before their first publication arrives.
const PATTERN_CHANNELS_MAX: usize = 100_000;
/// Timeout of one subscription round. After it the round starts again.
const ROUND: Duration = Duration::from_secs(20);

/// Keeps the subscriptions as they are wanted. Never returns.
pub(super) async fn run<B: Broker, D: Deliver>(shared: Arc<Shared<B, D>>) {
    let keep = async {
        let keeper = &shared.local.keeper;
        let mut pauses = Pauses::new();
        let (mut rotation, mut next_check) = (Vec::new(), Instant::now() + TICK);
        loop {
            if let Some(todo) = keeper.todo() {
                match timeout(ROUND, shared.settle(&todo)).await {
                    Ok(Ok(())) => pauses = Pauses::new(),
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "subscribing again");
                        pauses.pause().await;
                    }
                    Err(_) => tracing::warn!("subscribing timed out; retrying"),
                }
                keeper.joined.notify_waiters();
            } else {
                let _ = timeout_at(next_check, keeper.changed.notified()).await;
            }
            if Instant::now() >= next_check {
                let _ = timeout(ROUND, shared.check(&mut rotation)).await;
                next_check = Instant::now() + TICK;
            }
        }
    };
    let Shared { broker, node, local, .. } = &*shared;
    let answer = local.questions.answer_questions(broker, node, |channel| local.deliver.readers(channel));
    tokio::join!(answer, shared.give_up_holes(), keep);
}

impl<B: Broker, D: Deliver> Shared<B, D> {
    /// Subscribes and unsubscribes targets. Reads the tops after subscribing: from there on no publication is missed.
    async fn settle(&self, todo: &Todo) -> Result<(), BrokerError> {
        let (keeper, mirror) = (&self.local.keeper, &self.local.mirror);
        if !todo.subscribe.is_empty() {
            self.broker.subscribe(&todo.subscribe).await?;
            let mut names = HashSet::new();
            // Channels that a known pattern matches for the first time since the connection was lost. Their readers
            // have no position in them yet.
            let mut news = HashSet::new();
            for (target, &is_known) in todo.subscribe.iter().zip(&todo.known) {
                match target {
                    Target::Channel(name) => drop(names.insert(name.clone())),
                    Target::Pattern(pattern) => {
                        names.extend(mirror.names().into_iter().filter(|name| pattern.matches(name.as_str())));
                        let found = self.broker.channels(pattern, None, PATTERN_CHANNELS_MAX).await?;
                        let is_new = |name: &&ChannelName| is_known && mirror.top(name).is_none();
                        news.extend(found.iter().filter(is_new).cloned());
                        names.extend(found);
                    }
                }
            }
            // A channel that another target has joined on this connection is complete.
            let names: Vec<_> = names.into_iter().filter(|name| !mirror.is_joined(name)).collect();
            for names in names.chunks(TARGETS_MAX) {
                names.iter().for_each(|name| mirror.open(name));
                let tops = self.broker.tops(names).await?;
                if !keeper.is_current(todo.generation) {
                    return Ok(());
                }
                for (name, top) in names.iter().zip(tops) {
                    if mirror.is_joined(name) {
                        continue;
                    }
                    if news.contains(name) && top.offset > 0 {
                        let route = self.local.deliver.route(name);
                        self.local.deliver.moved(&route, name, Position { offset: 0, ..top }, top);
                    }
                    mirror.join(name, top, self.local.clock.now_ms());
                }
            }
            // If the connection was lost meanwhile, the channels joined just now are marked as incomplete. The
            // generation shows it.
            keeper.subscribed(&todo.subscribe, todo.generation);
        }
        let gone: Vec<_> = todo.unsubscribe.iter().filter(|target| keeper.forget(target)).cloned().collect();
        if !gone.is_empty() {
            for target in &gone {
                match target {
                    Target::Channel(name) => self.drop_unread(name),
                    Target::Pattern(pattern) => {
                        let names = mirror.names().into_iter().filter(|name| pattern.matches(name.as_str()));
                        names.for_each(|name| self.drop_unread(&name));
                    }
                }
            }
            self.broker.unsubscribe(&gone).await?;
        }
        Ok(())
    }

    /// Ends a channel's mirror unless it has a reader. The channel is marked as incomplete first. So a page answered
    /// before this call is followed by a new join, and a later request waits for that join.
    fn drop_unread(&self, name: &ChannelName) {
        let mirror = &self.local.mirror;
        if self.local.keeper.matches(name) {
            return;
        }
        mirror.part_one(name);
        if !self.local.keeper.rejoin(name) {
            mirror.close(name);
        }
    }

    /// Gives up publications that are missing for too long. Never returns.
    async fn give_up_holes(&self) {
        let Local { keeper, mirror, clock, .. } = &*self.local;
        loop {
            let holes = mirror.holes();
            if holes.is_empty() {
                keeper.overtaken.notified().await;
                continue;
            }
            sleep(LATE).await;
            for (name, before) in holes {
                if mirror.give_up(&name, before, clock.now_ms()) {
                    keeper.repairs.fetch_add(1, Relaxed);
                    tracing::debug!(channel = %name, "a publication was lost between broker and node; the node reads it from history");
                }
            }
        }
    }

    /// Compares some tops with the mirror, so that every channel is checked once per [`CHECK`].
    async fn check(&self, rotation: &mut Vec<ChannelName>) -> Result<(), BrokerError> {
        let (keeper, mirror) = (&self.local.keeper, &self.local.mirror);
        if rotation.is_empty() {
            *rotation = mirror.names();
        }
        let generation = keeper.generation();
        let share = mirror.size().0.div_ceil(CHECK.as_secs() as usize).min(rotation.len());
        let names = rotation.split_off(rotation.len() - share);
        for names in names.chunks(TARGETS_MAX) {
            let heard: Vec<_> = names.iter().map(|name| mirror.top(name)).collect();
            let tops = self.broker.tops(names).await?;
            let differ = |(heard, top): &(&Option<Position>, &Position)| heard.as_ref() != Some(*top);
            if !heard.iter().zip(&tops).any(|both| differ(&both)) {
                continue;
            }
            sleep(ON_ITS_WAY).await;
            for ((name, heard), top) in names.iter().zip(&heard).zip(tops) {
                let is_same = heard.is_some() && mirror.top(name) == *heard && mirror.is_joined(name);
                if is_same && heard.as_ref() != Some(&top) && keeper.is_current(generation) {
                    keeper.repairs.fetch_add(1, Relaxed);
                    tracing::debug!(channel = %name, "publications were lost between broker and node; the node reads them from history");
                    mirror.join(name, top, self.local.clock.now_ms());
                }
            }
        }
        Ok(())
    }
}
