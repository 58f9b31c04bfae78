use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use millrace_protocol::{ChannelName, Pattern, session::Target};
use tokio::{sync::Notify, time::Instant};

use crate::{Deliver, mirror::Mirror};

/// Time that a target stays subscribed after its last reader left, because long polls come and go.
const LINGER: Duration = Duration::from_secs(30);
/// Maximum number of targets in one subscription round, and of channels whose tops are requested at once.
pub(super) const TARGETS_MAX: usize = 1000;

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
    pub changed: Notify,
    /// Notified when channels have been joined or are no longer wanted.
    pub joined: Notify,
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
pub(super) struct Todo {
    pub generation: u64,
    pub subscribe: Vec<Target>,
    /// For each target, true if it was subscribed before on another connection.
    pub known: Vec<bool>,
    pub unsubscribe: Vec<Target>,
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
    pub fn todo(&self) -> Option<Todo> {
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
    pub fn subscribed(&self, targets: &[Target], generation: u64) {
        let mut state = self.lock();
        for target in targets {
            if let Some(want) = state.targets.get_mut(target) {
                want.generation = generation;
            }
        }
    }

    /// Returns the number of the current or latest connection.
    pub fn generation(&self) -> u64 {
        self.lock().generation
    }

    pub fn is_current(&self, generation: u64) -> bool {
        let state = self.lock();
        state.is_link_up && state.generation == generation
    }

    /// Removes a target. Returns false if it has readers again.
    pub fn forget(&self, target: &Target) -> bool {
        let mut state = self.lock();
        let is_idle = state.targets.get(target).is_some_and(|want| want.idle_since.is_some());
        if is_idle {
            state.targets.remove(target);
            self.count_patterns(&state);
        }
        is_idle
    }

    /// Schedules a new join of the channel. Returns true if the channel or a pattern that matches it is a target.
    pub fn rejoin(&self, channel: &ChannelName) -> bool {
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
