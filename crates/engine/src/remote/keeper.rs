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

/// Every watched channel's top is compared once in this time: what was lost without a trace is found, and channels that are read but not
/// written live on.
const CHECK: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_secs(1);
/// How long what nobody reads any more stays subscribed: long polls come and go.
const LINGER: Duration = Duration::from_secs(30);
/// A publication that was accepted has come within this, or it is lost.
const ON_ITS_WAY: Duration = Duration::from_millis(200);
/// A publication that another one has overtaken comes within this, or it is lost: nats-server tells what it has stored by more than one thread.
const LATE: Duration = Duration::from_millis(50);
/// Most targets that are subscribed at once, and channels whose tops are asked for at once.
const TARGETS_MAX: usize = 1000;
/// Most channels of a pattern that are known before they are heard.
const PATTERN_CHANNELS_MAX: usize = 100_000;
/// A round of subscribing that takes longer is begun again.
const ROUND: Duration = Duration::from_secs(20);

/// What this node reads, and whether all of it is heard.
///
/// ```text
///            watch            subscribed, then its top read
///   (none) ────────► wanted ───────────────────────────────► joined ── the link is lost ──► wanted
///      ▲                ▲                                      │
///      │                └────────────── watch ──────────────┐  │ nobody reads it
///      └─────── after a while: unsubscribed ───────────────  lingering
/// ```
#[derive(Default)]
pub(super) struct Keeper {
    state: Mutex<State>,
    /// Something has to be done.
    changed: Notify,
    /// Channels have been joined, or are not wanted any more.
    joined: Notify,
    /// In some channel a publication has overtaken another.
    pub overtaken: Notify,
    patterns: AtomicUsize,
    /// How often a channel was found to lack something.
    pub repairs: AtomicU64,
    /// Links that were lost.
    pub losses: AtomicU64,
}

#[derive(Default)]
struct State {
    targets: HashMap<Target, Want>,
    is_link_up: bool,
    /// Of links; the first one is 1.
    generation: u64,
}

#[derive(Default)]
struct Want {
    /// `None` while it is read.
    idle_since: Option<Instant>,
    /// The link that it is subscribed on, the newest it was ever subscribed on; 0: none.
    generation: u64,
}

/// What has to be done now.
struct Todo {
    generation: u64,
    subscribe: Vec<Target>,
    /// Was each subscribed before, on another link?
    known: Vec<bool>,
    unsubscribe: Vec<Target>,
}

impl Keeper {
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

    /// Is it among what a watched pattern matches?
    pub fn matches(&self, channel: &ChannelName) -> bool {
        self.patterns.load(Relaxed) > 0 && self.lock().matches(channel)
    }

    /// Until the channel is joined, or nobody reads it.
    pub async fn joined<D: Deliver>(&self, mirror: &Mirror<D>, channel: &ChannelName) {
        self.wait(&Target::Channel(channel.clone()), || mirror.is_joined(channel)).await;
    }

    /// Until it is subscribed on a link that is up, or nobody reads it.
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

    /// `None` while there is nothing to do, or no link to do it on.
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

    /// These are subscribed on this link, if it is still the same: then `join` runs. Nothing here is locked meanwhile.
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

    /// Forgets a target; false if it is read again.
    fn forget(&self, target: &Target) -> bool {
        let mut state = self.lock();
        let is_idle = state.targets.get(target).is_some_and(|want| want.idle_since.is_some());
        if is_idle {
            state.targets.remove(target);
            self.count_patterns(&state);
        }
        is_idle
    }

    /// Does somebody read it? Then it is to be joined anew.
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

/// Keeps subscriptions as they are wanted, for ever.
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
    /// Subscribes, then reads the tops: from there on nothing is missed.
    async fn settle(&self, todo: &Todo) -> Result<(), BrokerError> {
        let (keeper, mirror) = (&self.local.keeper, &self.local.mirror);
        if !todo.subscribe.is_empty() {
            self.broker.subscribe(&todo.subscribe).await?;
            let mut names = HashSet::new();
            // Those that a pattern brings for the first time since the link was lost: their readers have heard nothing of them.
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
            // What another target has joined on this link already lacks nothing.
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
            // A link that was lost meanwhile has parted what was joined just now, or will: the generation tells.
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

    /// Ends a channel's mirror unless somebody reads it. A page that was given before is followed by a new join, one after waits for it.
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

    /// Ends the wait for publications that were overtaken and do not come, for ever.
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

    /// Compares some tops with what was heard, so that in [`CHECK`] every channel has its turn.
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
