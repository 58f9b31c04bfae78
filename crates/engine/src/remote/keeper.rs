use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use millrace_protocol::{ChannelName, Pattern, Position, session::Target};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{Broker, BrokerError, Deliver, Local, Pauses, Shared};
use crate::mirror::Mirror;

/// Period in which the top of every watched channel is compared with the broker. This detects publications lost
/// without any other sign, and keeps channels alive that are read but not written.
const CHECK: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_secs(1);
/// Time that a target stays subscribed after its last reader left, because long polls come and go.
const LINGER: Duration = Duration::from_secs(30);
/// An accepted publication arrives within this time, or it is lost.
const ON_ITS_WAY: Duration = Duration::from_millis(200);
/// A publication that arrives out of order arrives within this time, or it is lost. nats-server republishes stored
/// messages from several threads.
const LATE: Duration = Duration::from_millis(50);
/// Maximum number of targets in one subscription round, and of channels whose tops are requested at once.
const TARGETS_MAX: usize = 1000;
/// Maximum number of channels of a pattern that are joined before their first publication arrives.
const PATTERN_CHANNELS_MAX: usize = 100_000;
/// Timeout of one subscription round. After it the round starts again.
const ROUND: Duration = Duration::from_secs(20);

/// Targets that this node reads, and the state of their subscriptions.
///
/// ```text
///            watch            subscribed, then its top read
///   (none) ────────► wanted ───────────────────────────────► joined ── the link is lost ──► wanted
///      ▲                ▲                                      │
///      │                └────────────── watch ──────────────┐  │ the last reader leaves
///      └─────── after `LINGER`: unsubscribed ──────────────  lingering
/// ```
#[derive(Default)]
pub(super) struct SubscriptionManager {
    state: Mutex<State>,
    /// Notified when there is work to do.
    changed: Notify,
    /// Notified when channels have been joined or are no longer wanted.
    joined: Notify,
    /// Notified when a publication has arrived before an earlier one of its channel.
    pub overtaken: Notify,
    patterns: AtomicUsize,
    /// Number of times that a channel lacked publications.
    pub repairs: AtomicU64,
    /// Number of connections lost.
    pub losses: AtomicU64,
}

#[derive(Default)]
struct State {
    targets: HashMap<Target, Want>,
    is_link_up: bool,
    /// Number of the current connection; the first one is 1.
    generation: u64,
}

#[derive(Default)]
struct Want {
    /// `None` while the target has a reader.
    idle_since: Option<Instant>,
    /// Number of the newest connection on which the target was subscribed. 0 if it was not subscribed yet.
    generation: u64,
}

/// Work of one round.
struct Todo {
    generation: u64,
    subscribe: Vec<Target>,
    /// For each target, true if it was subscribed before on another connection.
    known: Vec<bool>,
    unsubscribe: Vec<Target>,
}

impl SubscriptionManager {
    pub fn watch(&self, target: &Target, is_read: bool) {
        let mut state = self.lock();
        if is_read {
            state.targets.entry(target.clone()).or_default().idle_since = None;
        } else if let Some(want) = state.targets.get_mut(target) {
            want.idle_since = Some(Instant::now());
        }
        self.count_patterns(&state);
        self.changed.notify_one();
    }

    pub fn link(&self, is_up: bool) {
        let mut state = self.lock();
        if is_up && !state.is_link_up {
            state.generation += 1;
        } else if state.is_link_up && !is_up {
            self.losses.fetch_add(1, Relaxed);
        }
        state.is_link_up = is_up;
        self.changed.notify_one();
    }

    pub fn is_link_up(&self) -> bool {
        self.lock().is_link_up
    }

    /// Returns true if a watched pattern matches the channel.
    pub fn matches(&self, channel: &ChannelName) -> bool {
        self.patterns.load(Relaxed) > 0 && self.lock().matches(channel)
    }

    /// Waits until the channel is joined or is no longer a target.
    pub async fn joined<D: Deliver>(&self, mirror: &Mirror<D>, channel: &ChannelName) {
        self.wait(&Target::Channel(channel.clone()), || mirror.is_joined(channel)).await;
    }

    /// Waits until the target is subscribed on the current connection or is no longer a target.
    pub async fn subscribed_to(&self, target: &Target) {
        self.wait(target, || self.is_subscribed(target)).await;
    }

    async fn wait(&self, target: &Target, is_there: impl Fn() -> bool) {
        loop {
            let joined = self.joined.notified();
            if is_there() || !self.lock().targets.contains_key(target) {
                return;
            }
            joined.await;
        }
    }

    pub fn is_subscribed(&self, target: &Target) -> bool {
        let state = self.lock();
        state.is_link_up && state.targets.get(target).is_some_and(|want| want.generation == state.generation)
    }

    /// Returns the next work. `None` if there is none, or no connection.
    fn todo(&self) -> Option<Todo> {
        let state = self.lock();
        let State { targets, is_link_up: true, generation } = &*state else { return None };
        let generation = *generation;
        let is_wanted = |want: &Want| want.idle_since.is_none_or(|since| since.elapsed() < LINGER);
        let todo = targets.iter().filter(|(_, want)| is_wanted(want) && want.generation != generation);
        let (subscribe, known): (Vec<_>, Vec<_>) =
            todo.take(TARGETS_MAX).map(|(target, want)| (target.clone(), want.generation > 0)).unzip();
        let gone = targets.iter().filter(|(_, want)| !is_wanted(want)).take(TARGETS_MAX);
        let unsubscribe: Vec<_> = gone.map(|(target, _)| target.clone()).collect();
        (!subscribe.is_empty() || !unsubscribe.is_empty()).then_some(Todo { generation, subscribe, known, unsubscribe })
    }

    /// Marks targets as subscribed on the connection with this number.
    fn subscribed(&self, targets: &[Target], generation: u64) {
        let mut state = self.lock();
        for target in targets {
            if let Some(want) = state.targets.get_mut(target) {
                want.generation = generation;
            }
        }
    }

    fn is_current(&self, generation: u64) -> bool {
        let state = self.lock();
        state.is_link_up && state.generation == generation
    }

    /// Removes a target. Returns false if it has readers again.
    fn forget(&self, target: &Target) -> bool {
        let mut state = self.lock();
        let is_idle = state.targets.get(target).is_some_and(|want| want.idle_since.is_some());
        if is_idle {
            state.targets.remove(target);
            self.count_patterns(&state);
        }
        is_idle
    }

    /// Schedules a new join of the channel. Returns true if the channel or a pattern that matches it is a target.
    fn rejoin(&self, channel: &ChannelName) -> bool {
        let mut state = self.lock();
        let is_matched = state.matches(channel);
        match state.targets.get_mut(&Target::Channel(channel.clone())) {
            Some(want) => {
                want.generation = 0;
                self.changed.notify_one();
                true
            }
            None => is_matched,
        }
    }

    fn count_patterns(&self, state: &State) {
        self.patterns.store(state.patterns().count(), Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.targets.keys().filter_map(|target| match target {
            Target::Pattern(pattern) => Some(pattern),
            Target::Channel(_) => None,
        })
    }

    fn matches(&self, channel: &ChannelName) -> bool {
        self.patterns().any(|pattern| pattern.matches(channel.as_str()))
    }
}

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
    tokio::join!(shared.answer_questions(), shared.give_up_holes(), keep);
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
                        let found = self.broker.channels(pattern, PATTERN_CHANNELS_MAX).await?;
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
                    tracing::debug!(channel = %name, "a publication was lost on its way here; it is read from history");
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
        let generation = keeper.lock().generation;
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
                    tracing::debug!(channel = %name, "publications were lost on their way here; they are read from history");
                    mirror.join(name, top, self.local.clock.now_ms());
                }
            }
        }
        Ok(())
    }
}
