//! Runs the dispatcher while this node is the one that sends events.
//!
//! A turn begins by reading all cursors and registrations. It ends when another node with a lower name lives, when
//! another dispatcher has written a cursor, or when the engine does not answer. The next
//! turn repeats the events that were sent but whose cursors were not written, with the same ids.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use millrace_delivery::PageLimit;
use millrace_engine::{Engine, LogRateLimit, leads};
use millrace_protocol::{ChannelName, Error, Position, Since, session::Policy};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{
    Config, EventKind,
    dead_letters::DeadLetters,
    dispatcher::{Attempt, Batch, Cursor, Dispatcher, Step, Verdict},
    event::{CHANNELS, CONNECTIONS, DEAD_LETTERS, Log, decode},
    metrics::{Metrics, Outcome, RequestResult},
    registry::{Changes, KEEP, RELY, Registry},
    sender::Sender,
    store::{Registration, Store, channel},
    webhooks::changed_question,
};

/// Interval between two looks at the lists, at the registrations, and at which node sends.
const POLL: Duration = Duration::from_secs(1);
/// Interval between two looks at all channels that nodes may publish into, for lost notices.
const SCAN: Duration = Duration::from_secs(30);
/// Time for which the changes of a node that does not send are collected.
const COLLECT: Duration = Duration::from_millis(50);
/// Time limit for the notice to the dispatching node.
const NOTICE: Duration = Duration::from_millis(500);
/// Maximum number of channels in one notice.
const NOTICE_MAX: usize = 1000;
/// Number of entries that are written at the same time.
const WRITES: usize = 256;
/// Maximum number of idle channels whose registration one scan ends.
const UNREGISTER_MAX: usize = 1000;

/// Parts of the webhooks that a turn uses.
pub(crate) struct Shared {
    pub engine: Arc<dyn Engine>,
    pub config: Config,
    pub registry: Arc<Registry>,
    pub sender: Sender,
    pub metrics: Arc<Metrics>,
    pub letters: DeadLetters,
    /// Why the last attempt has failed; empty after a success.
    pub last_error: std::sync::Mutex<String>,
    /// Limits the log lines about dead letters.
    pub buried: LogRateLimit,
}

struct Turn {
    shared: Arc<Shared>,
    store: Store,
    dispatcher: Dispatcher,
    /// Cursors that the engine holds and whose logs are not read yet.
    cursors: HashMap<ChannelName, Cursor>,
    registrations: HashMap<ChannelName, Registration>,
    /// Where the next read of the registrations begins.
    since: Since,
    letters: usize,
}

/// Sends events whenever this node is the one that sends them. Never returns.
pub(crate) async fn run(shared: Arc<Shared>) {
    loop {
        if leads(&*shared.engine).await {
            shared.metrics.is_dispatching.store(true, Relaxed);
            tracing::info!(url = shared.sender.url.shown(), "this node sends the webhooks");
            if let Err(error) = Turn::new(shared.clone()).run().await {
                tracing::debug!(%error, "the turn of sending webhooks has ended");
            }
            shared.metrics.is_dispatching.store(false, Relaxed);
            for gauge in [&shared.metrics.oldest_ms, &shared.metrics.logs, &shared.metrics.letters] {
                gauge.store(0, Relaxed);
            }
        }
        let _ = timeout(POLL, forward_changes(&shared)).await;
    }
}

/// Passes the changes of this node on to the node that sends. Never returns.
async fn forward_changes(shared: &Shared) {
    loop {
        shared.registry.changed().await;
        sleep(COLLECT).await;
        let channels: Vec<ChannelName> = shared.registry.take_changes().channels.into_iter().collect();
        for part in channels.chunks(NOTICE_MAX) {
            // A lost notice delays the events until the next scan.
            let _ = shared.engine.ask_nodes(&changed_question(part), NOTICE).await;
        }
    }
}

impl Turn {
    fn new(shared: Arc<Shared>) -> Self {
        let dispatcher = Dispatcher::new(shared.config.limits.clone());
        let store = Store::new(shared.engine.clone());
        let (cursors, registrations) = Default::default();
        Self { shared, store, dispatcher, cursors, registrations, since: Since::State, letters: 0 }
    }

    /// Sends events until the turn ends.
    ///
    /// Errors: those of the engine; `precondition_failed` if another dispatcher has written a cursor.
    async fn run(mut self) -> Result<(), Error> {
        self.cursors = self.store.cursors().await?;
        self.letters = self.shared.letters.count().await?;
        for name in self.lists() {
            let cursor = self.cursors.remove(&name).unwrap_or_default();
            self.dispatcher.add(&name, cursor);
        }
        self.look_at_registrations().await?;
        let (mut looked, mut scanned) = (Instant::now(), Instant::now());
        loop {
            if looked.elapsed() >= POLL {
                if !leads(&*self.shared.engine).await {
                    return Ok(());
                }
                self.lists().iter().for_each(|name| _ = self.dispatcher.notify(name));
                self.look_at_registrations().await?;
                looked = Instant::now();
            }
            if scanned.elapsed() >= SCAN {
                self.scan().await?;
                scanned = Instant::now();
            }
            self.report();
            match self.dispatcher.next(Instant::now()) {
                Step::Read { channel, since, limit } => {
                    let page = self.shared.engine.page(&channel, since, Policy::Every, limit).await?;
                    let wanted = &self.shared.config.events;
                    let decode = |at, publication: &_| decode(&channel, at, publication, wanted);
                    let dropped = self.dispatcher.on_page(&channel, &page, Instant::now(), decode);
                    self.shared.metrics.dropped.fetch_add(dropped, Relaxed);
                }
                Step::Send => self.send().await?,
                Step::Commit => {
                    let batch = self.dispatcher.take_batch();
                    self.commit(&batch).await?;
                }
                Step::Wait(until) => {
                    let until = until.unwrap_or(looked + POLL).min(looked + POLL);
                    // Changes need not wake the dispatcher while a batch waits for others, or for its next attempt.
                    let is_collecting = !self.dispatcher.batch().events.is_empty();
                    tokio::select! {
                        () = sleep_until(until) => {}
                        () = self.shared.registry.changed(), if !is_collecting => {}
                    }
                    self.take_changes().await?;
                }
            }
        }
    }

    /// Returns the logs that are read whether or not they are registered.
    fn lists(&self) -> Vec<ChannelName> {
        let events = &self.shared.config.events;
        let channels = events.wants_any(EventKind::Channel).then_some(CHANNELS);
        let connections = events.all.contains(EventKind::Connection).then_some(CONNECTIONS);
        [channels, connections, Some(DEAD_LETTERS)].into_iter().flatten().map(channel).collect()
    }

    async fn look_at_registrations(&mut self) -> Result<(), Error> {
        let (found, since) = self.store.registrations(self.since).await?;
        self.since = since;
        for registration in found {
            let name = registration.channel.clone();
            let from = Cursor { at: registration.from, entry: None };
            self.dispatcher.add(&name, self.cursors.remove(&name).unwrap_or(from));
            self.dispatcher.notify(&name);
            self.registrations.insert(name, registration);
        }
        Ok(())
    }

    async fn take_changes(&mut self) -> Result<(), Error> {
        let Changes { channels, is_cut } = self.shared.registry.take_changes();
        let mut is_unknown = false;
        for name in &channels {
            is_unknown |= !self.dispatcher.notify(name);
        }
        if is_unknown {
            self.look_at_registrations().await?;
        }
        if is_cut {
            self.registrations.keys().for_each(|name| _ = self.dispatcher.notify(name));
        }
        Ok(())
    }

    /// Looks at the channels that nodes may publish into, and ends the registrations of idle ones.
    async fn scan(&mut self) -> Result<(), Error> {
        let now_ms = self.shared.engine.now_ms();
        let is_older = |time_ms: u64, than: Duration| now_ms.saturating_sub(time_ms) > than.as_millis() as u64;
        let mut idle = Vec::new();
        for (name, registration) in &self.registrations {
            if !is_older(registration.touched_ms, RELY + 2 * SCAN) {
                self.dispatcher.notify(name);
            } else if is_older(registration.touched_ms, KEEP) && self.dispatcher.is_idle(name) {
                idle.push((name.clone(), registration.entry));
            }
        }
        idle.truncate(UNREGISTER_MAX);
        for (name, entry) in idle {
            let newest = self.shared.engine.newest(&name).await?;
            let is_read = self.dispatcher.cursor(&name).is_some_and(|cursor| cursor.at == Some(newest.top));
            if !is_read {
                self.dispatcher.notify(&name);
                continue;
            }
            let is_quiet = newest.publication.is_none_or(|newest| is_older(newest.time_ms, KEEP));
            if is_quiet && !self.has_members(&name).await? && self.store.unregister(&name, entry).await? {
                self.store.delete_cursor(&name).await?;
                self.dispatcher.remove(&name);
                self.registrations.remove(&name);
            }
        }
        Ok(())
    }

    /// Returns true if the log is that of a roster with members, who may leave at any time.
    async fn has_members(&self, name: &ChannelName) -> Result<bool, Error> {
        if !matches!(Log::of(name), Log::Members(_)) {
            return Ok(false);
        }
        let one = PageLimit { count: 1, bytes: 1 };
        let page = self.shared.engine.page(name, Since::State, Policy::Every, one).await?;
        Ok(!page.publications.is_empty())
    }

    async fn send(&mut self) -> Result<(), Error> {
        let (attempt, why) = self.shared.sender.send(self.dispatcher.batch()).await;
        let metrics = &self.shared.metrics;
        let is_failure = attempt == Attempt::Failed;
        metrics.count_request(match attempt {
            Attempt::Acknowledged => RequestResult::Acknowledged,
            Attempt::Failed => RequestResult::Failed,
            Attempt::Rejected => RequestResult::Rejected,
        });
        let url = self.shared.sender.url.shown();
        match (metrics.is_failing.swap(is_failure, Relaxed), is_failure) {
            (false, true) => tracing::warn!(url, why, "the back end does not acknowledge the webhooks"),
            (true, false) => tracing::info!(url, "the back end acknowledges the webhooks again"),
            _ => {}
        }
        let chance = f64::from(getrandom::u32().unwrap_or_default()) / f64::from(u32::MAX);
        match self.dispatcher.on_attempt(&attempt, Instant::now(), chance) {
            Verdict::Retry(_) => self.shared.set_last_error(why),
            Verdict::Commit => {
                self.shared.set_last_error(String::new());
                let batch = self.dispatcher.take_batch();
                batch.events.iter().for_each(|event| metrics.count(event.event_type, Outcome::Delivered));
                self.commit(&batch).await?;
            }
            Verdict::Bury => {
                let batch = self.dispatcher.take_batch();
                self.bury(&batch, &why).await?;
                self.shared.set_last_error(why);
                self.write_cursors(&batch).await?;
            }
        }
        Ok(())
    }

    /// Makes the events of a batch dead letters.
    async fn bury(&mut self, batch: &Batch, why: &str) -> Result<(), Error> {
        let letters = &self.shared.letters;
        write_all(batch.events.iter().map(|event| letters.add(event, why)).collect()).await?;
        let metrics = &self.shared.metrics;
        batch.events.iter().for_each(|event| metrics.count(event.event_type, Outcome::Dead));
        if self.shared.buried.is_due() {
            tracing::warn!(
                events = batch.events.len(),
                why,
                "events have become dead letters; `millrace admin webhooks replay` sends them again"
            );
        }
        self.letters += batch.events.iter().filter(|event| !event.is_letter).count();
        if self.letters > self.shared.config.dead_max {
            let (kept, deleted) = letters.trim().await?;
            self.letters = kept;
            metrics.letters_dropped.fetch_add(deleted as u64, Relaxed);
        }
        Ok(())
    }

    /// Writes the cursors of an acknowledged batch, and deletes the dead letters in it.
    async fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        let replayed: Vec<&str> =
            batch.events.iter().filter(|event| event.is_letter).map(|event| event.id.as_str()).collect();
        let letters = &self.shared.letters;
        write_all(replayed.iter().map(|id| letters.delete(id)).collect()).await?;
        self.letters = self.letters.saturating_sub(replayed.len());
        self.write_cursors(batch).await
    }

    async fn write_cursors(&mut self, batch: &Batch) -> Result<(), Error> {
        let write = |(log, end): (&ChannelName, Position)| {
            let entry = self.dispatcher.cursor(log).and_then(|cursor| cursor.entry);
            let (store, log) = (&self.store, log.clone());
            async move { Ok::<_, Error>((store.write_cursor(&log, end, entry).await?, log, end)) }
        };
        for (entry, log, end) in write_all(batch.ends().map(write).collect()).await? {
            self.dispatcher.committed(&log, end, entry);
        }
        Ok(())
    }

    fn report(&self) {
        let Shared { metrics, .. } = &*self.shared;
        let oldest_ms = self.dispatcher.batch().events.iter().map(|event| event.time_ms).min();
        metrics.oldest_ms.store(oldest_ms.unwrap_or(0), Relaxed);
        metrics.logs.store(self.dispatcher.logs() as u64, Relaxed);
        metrics.letters.store(self.letters as u64, Relaxed);
    }
}

/// Runs writes to the engine, a bounded number at the same time.
async fn write_all<T>(writes: Vec<impl Future<Output = Result<T, Error>>>) -> Result<Vec<T>, Error> {
    stream::iter(writes).buffer_unordered(WRITES).try_collect().await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use millrace_engine::{Deliver, HistoryConfig, MemoryEngine};
    use millrace_hooks::{HookUrl, http_client::HttpClient, signature::Signer};
    use millrace_protocol::{Epoch, Kind, NewPublication, Publication};

    use super::*;
    use crate::{EventSets, Limits};

    /// Receives nothing: no test here has a reader.
    struct NoReaders;

    impl Deliver for NoReaders {
        type Route = ();

        fn route(&self, _: &ChannelName) {}

        fn deliver(&self, (): &(), _: &ChannelName, _: Epoch, _: &Publication) {}

        fn moved(&self, (): &(), _: &ChannelName, _: Position, _: Position) {}

        fn readers(&self, _: &ChannelName) -> u32 {
            0
        }
    }

    /// A turn over an engine whose clock the test sets.
    fn turn() -> (Turn, Arc<AtomicU64>) {
        let clock = Arc::new(AtomicU64::new(1_000_000));
        let state = HistoryConfig { state: true, age_max: Duration::from_secs(3 << 20), ..HistoryConfig::default() };
        let roster = HistoryConfig { roster: true, ..HistoryConfig::default() };
        let config = millrace_engine::Config { internal_states: Some(state), history: roster, ..Default::default() };
        let (read, time) = (clock.clone(), clock);
        let now = move || read.load(Relaxed);
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new(config, Epoch(1), Arc::new(NoReaders), now));
        let limits = Limits {
            batch_max: 10,
            batch_bytes_max: 1000,
            batch_wait: Duration::ZERO,
            pause_max: Duration::ZERO,
            give_up: Duration::ZERO,
        };
        let url = HookUrl::parse("http://127.0.0.1:1/", false).expect("a URL");
        let signer = Signer::new(["a secret of 16 bytes"]);
        let timeout = Duration::from_secs(1);
        let client = HttpClient::new(1024, &[]).expect("a client");
        let sender =
            Sender { client, url: url.clone(), signer: std::sync::RwLock::new(Arc::new(signer.clone())), timeout };
        let events = EventSets::default();
        let config = Config { url, signer, authorities: Vec::new(), events, timeout, limits, dead_max: 10 };
        let metrics = Arc::new(Metrics::default());
        let registry = Registry::new(engine.clone(), config.events.clone(), metrics.clone());
        let letters = DeadLetters::new(engine.clone(), 10);
        let last_error = std::sync::Mutex::default();
        let buried = LogRateLimit::new();
        let shared = Shared { engine, config, registry, sender, metrics, letters, last_error, buried };
        (Turn::new(Arc::new(shared)), time)
    }

    /// Reads all logs. No publication is an event here, so that nothing is sent.
    async fn drain(turn: &mut Turn) {
        loop {
            match turn.dispatcher.next(Instant::now()) {
                Step::Read { channel, since, limit } => {
                    let page = turn.shared.engine.page(&channel, since, Policy::Every, limit).await.expect("a page");
                    turn.dispatcher.on_page(&channel, &page, Instant::now(), |_, _| None);
                }
                Step::Commit => {
                    let batch = turn.dispatcher.take_batch();
                    turn.commit(&batch).await.expect("cursors");
                }
                step => return assert_eq!(step, Step::Wait(None)),
            }
        }
    }

    async fn append(turn: &Turn, channel: &ChannelName, publication: NewPublication) {
        turn.shared.engine.append(channel, publication).await.expect("a position");
    }

    #[tokio::test]
    async fn registration_of_an_idle_channel_ends_unless_it_is_renewed() {
        let (mut turn, clock) = turn();
        let [idle, renewed, unread] = ["idle", "renewed", "unread"].map(channel);
        for name in [&idle, &renewed, &unread] {
            turn.store.register(name).await.expect("registered");
            append(&turn, name, NewPublication::new(Kind::Text, "1")).await;
        }
        turn.look_at_registrations().await.expect("registrations");
        drain(&mut turn).await;
        clock.fetch_add(KEEP.as_millis() as u64 + 1000, Relaxed);
        // A node renews the registration, which the dispatcher has not read yet.
        turn.store.register(&renewed).await.expect("registered");
        // A publication whose notice was lost.
        append(&turn, &unread, NewPublication::new(Kind::Text, "2")).await;
        turn.scan().await.expect("a scan");
        let is_known = |turn: &Turn, name: &ChannelName| turn.dispatcher.cursor(name).is_some();
        assert_eq!([&idle, &renewed, &unread].map(|name| is_known(&turn, name)), [false, true, true]);
        assert_eq!(turn.store.cursors().await.expect("cursors").keys().filter(|name| **name == idle).count(), 0);
        assert!(!turn.dispatcher.is_idle(&unread), "the scan finds a lost notice");

        // A channel that is registered again begins at the end of its log.
        turn.store.register(&idle).await.expect("registered");
        let (found, _) = turn.store.registrations(Since::State).await.expect("registrations");
        let of = |name: &ChannelName| found.iter().rev().find(|found| found.channel == *name).expect("registered");
        assert_eq!(of(&idle).from.map(|from| from.offset), Some(1));
        assert_eq!(of(&renewed).from, None, "the second registration does not know which events are unsent");
    }

    #[tokio::test]
    async fn registration_of_a_roster_with_members_stays() {
        let (mut turn, clock) = turn();
        let roster = channel("chat/1/:members");
        turn.store.register(&roster).await.expect("registered");
        let joined = NewPublication { key: Some("ann".into()), ..NewPublication::new(Kind::Json, "{}") };
        append(&turn, &roster, joined).await;
        turn.look_at_registrations().await.expect("registrations");
        drain(&mut turn).await;
        clock.fetch_add(10 * KEEP.as_millis() as u64, Relaxed);
        turn.scan().await.expect("a scan");
        assert!(turn.dispatcher.cursor(&roster).is_some(), "a member may leave at any time");
        append(&turn, &roster, NewPublication::deletion("ann".into())).await;
        turn.dispatcher.notify(&roster);
        drain(&mut turn).await;
        turn.scan().await.expect("a scan");
        assert!(turn.dispatcher.cursor(&roster).is_some(), "the member left just now");
        clock.fetch_add(2 * KEEP.as_millis() as u64, Relaxed);
        turn.scan().await.expect("a scan");
        assert!(turn.dispatcher.cursor(&roster).is_none());
    }

    #[tokio::test]
    async fn cursor_of_another_dispatcher_ends_the_turn() {
        let (mut turn, _) = turn();
        let name = channel("a");
        turn.store.register(&name).await.expect("registered");
        append(&turn, &name, NewPublication::new(Kind::Text, "1")).await;
        turn.look_at_registrations().await.expect("registrations");
        let at = Position { epoch: Epoch(1), offset: 1 };
        turn.store.write_cursor(&name, at, None).await.expect("the first");
        while let Step::Read { channel, since, limit } = turn.dispatcher.next(Instant::now()) {
            let page = turn.shared.engine.page(&channel, since, Policy::Every, limit).await.expect("a page");
            turn.dispatcher.on_page(&channel, &page, Instant::now(), |_, _| None);
        }
        let batch = turn.dispatcher.take_batch();
        let error = turn.commit(&batch).await.expect_err("it is too late");
        assert_eq!(error.code, millrace_protocol::Code::PreconditionFailed);
    }
}
