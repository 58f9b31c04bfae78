//! Common part of all engines with a broker in the network. It mirrors watched channels, sends batches, retries
//! requests within a time limit, and asks the other nodes for their subscriptions. A [`Broker`] is the small part that
//! differs.
//!
//! ```text
//!   append ─► Appends: one batch per channel in flight, the same token until it is answered ─► Broker ─► ...
//!   page   ─► Mirror, if it covers that ─── else, once the channel is joined ────────────────► Broker
//!   watch  ─► SubscriptionManager: subscribes, reads the top, joins; all again after a lost link ─────────► Broker
//!   ... ─► Broker ─► Event ─► Mirror ─► Deliver
//! ```

mod appends;
mod broker;
mod clock;
mod keeper;
mod past;
mod presence;
mod tail;

use std::{
    future::Future,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use millrace_delivery::{Page, PageLimit};
use millrace_protocol::{
    ChannelName, Code, Error, Holder, NewPublication, Pattern, Position, Since,
    session::{Policy, Target},
};
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    time::{Instant, timeout, timeout_at},
};

use crate::{Answer, Config, Deliver, Engine, Newest, OpenError, mirror::Mirror, shares::Shares};

pub(crate) use broker::{Broker, BrokerError, Event, Events, Lease, Token};
pub(crate) use clock::Clock;
pub(crate) use past::Past;
pub(crate) use tail::{TAIL_BYTES, decode_tail, encode_tail, take_text};

use appends::Appends;
use keeper::SubscriptionManager;
use presence::Presence;

/// Duration of a node's lease, and interval between its renewals.
const LEASE: Duration = Duration::from_secs(5);
const RENEW: Duration = Duration::from_secs(1);
/// Interval between two counts of the channels.
const COUNT: Duration = Duration::from_secs(5);
/// Number of failed lease renewals between two log lines about an engine that does not answer.
const REPORT_EVERY: usize = 10;
const NO_ANSWER: &str = "no answer";
/// Minimum interval at which the channel counts of holders are halved. The interval is `history.age_max`, if that is
/// longer.
const FADE_MIN: Duration = Duration::from_secs(60);
/// Maximum time that [`Engine::close`] waits.
const CLOSE: Duration = Duration::from_secs(10);

/// An engine over a [`Broker`].
pub(crate) struct Remote<B: Broker, D: Deliver> {
    shared: Arc<Shared<B, D>>,
    runtime: Handle,
    stop: watch::Sender<bool>,
    thread: std::sync::Mutex<Option<JoinHandle<()>>>,
}

/// State shared by the tasks of an engine.
struct Shared<B: Broker, D: Deliver> {
    broker: B,
    /// URL for logs, without user and password.
    url: String,
    node: String,
    config: Config,
    local: Arc<Local<D>>,
    appends: Appends,
    /// Approximate number of channels with history. `created` counts those that this node has created since its start.
    count: AtomicUsize,
    /// Attempts to reach the broker since its last answer; 0 while it answers.
    attempts: AtomicUsize,
    created: AtomicUsize,
    /// Number of channels that each holder has created on this node. The counts are halved regularly if the broker
    /// expires channels.
    shares: Shares,
    /// True if the last attempt to renew the lease succeeded.
    is_leased: AtomicBool,
    counts: Counts,
}

/// Counters, see [`Engine::counters`].
#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    retries: AtomicU64,
    failures: AtomicU64,
}

/// State that events change. It exists before the broker does.
struct Local<D: Deliver> {
    deliver: Arc<D>,
    mirror: Mirror<D>,
    keeper: SubscriptionManager,
    presence: Presence,
    clock: Clock,
}

impl<B: Broker, D: Deliver> Remote<B, D> {
    /// Starts the engine's thread. `url` is for logs and contains no secret. `connect` creates a broker from this
    /// node's name and the receiver of events; it runs on the engine's runtime.
    ///
    /// If the broker cannot be reached within [`Config::wait`], the engine opens anyway and retries in the background.
    ///
    /// Errors: those of `connect`, and refusals by the broker.
    pub fn open(
        url: String,
        config: Config,
        deliver: Arc<D>,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
        connect: impl FnOnce(&str, Events) -> Result<B, OpenError>,
    ) -> Result<Self, OpenError> {
        let node = format!("{:016x}", getrandom::u64()?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(OpenError::System)?;
        let handle = runtime.handle().clone();
        let local = Arc::new(Local {
            deliver: deliver.clone(),
            mirror: Mirror::new(config.clone(), deliver),
            keeper: SubscriptionManager::default(),
            presence: Presence::default(),
            clock: Clock::new(clock),
        });
        let hearing = local.clone();
        let guard = handle.enter();
        let broker = connect(&node, Arc::new(move |event| hearing.hear(event)))?;
        drop(guard);
        let shared = Arc::new(Shared {
            appends: Appends::new(config.wait),
            shares: Shares::new(&config, config.channels_max),
            created: AtomicUsize::new(0),
            broker,
            url,
            node,
            config,
            local,
            count: AtomicUsize::new(0),
            attempts: AtomicUsize::new(0),
            is_leased: AtomicBool::new(false),
            counts: Counts::default(),
        });
        let (stop, mut stopped) = watch::channel(false);
        let thread = std::thread::Builder::new().name("engine".into());
        let thread = thread.spawn(move || {
            runtime.block_on(async move { drop(stopped.wait_for(|stopped| *stopped).await) });
        });
        let thread = std::sync::Mutex::new(Some(thread.map_err(OpenError::System)?));
        let remote = Self { shared, runtime: handle, stop, thread };
        remote.begin()?;
        Ok(remote)
    }

    /// Acquires the first lease, which shows whether the broker can be used, and then starts the tasks.
    fn begin(&self) -> Result<(), OpenError> {
        let shared = self.shared.clone();
        let wait = shared.config.wait;
        let first = self.block_on(wait + RENEW, async move {
            let until = Instant::now() + wait;
            loop {
                shared.attempts.fetch_add(1, Relaxed);
                match timeout_at(until, shared.renew()).await {
                    Ok(Err(BrokerError::Unavailable(_))) if Instant::now() < until => {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    Ok(result) => return result.map(drop),
                    Err(_) => return Err(BrokerError::Unavailable(NO_ANSWER.into())),
                }
            }
        });
        match first.unwrap_or_else(|| Err(BrokerError::Unavailable(NO_ANSWER.into()))) {
            Ok(()) => self.shared.report_answer(),
            Err(BrokerError::Refused(error)) => return Err(OpenError::Setting(error.detail)),
            Err(BrokerError::Unavailable(why)) => self.shared.report_absence(&why),
        }
        self.runtime.spawn(self.shared.clone().keep_lease());
        self.runtime.spawn(keeper::run(self.shared.clone()));
        Ok(())
    }

    /// Runs a future on the engine's thread and blocks until its end, for at most `wait`.
    fn block_on<T: Send + 'static>(
        &self,
        wait: Duration,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        self.runtime.spawn(async move { drop(sender.try_send(future.await)) });
        receiver.recv_timeout(wait).ok()
    }

    /// Sends a request on the engine's thread. Retries while the broker does not answer, for at most [`Config::wait`].
    fn ask<T, F>(&self, ask: impl Fn(Arc<Shared<B, D>>) -> F + Send + Sync + 'static) -> Answer<Result<T, Error>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, BrokerError>> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let shared = self.shared.clone();
        self.runtime.spawn(async move {
            let until = Instant::now() + shared.config.wait;
            let _ = sender.send(retry(&shared.counts, until, || ask(shared.clone())).await);
        });
        later(receiver)
    }

    fn is_link_up(&self) -> bool {
        self.shared.local.keeper.is_link_up()
    }
}

impl<B: Broker, D: Deliver> Shared<B, D> {
    async fn renew(&self) -> Result<Lease, BrokerError> {
        let asked = std::time::Instant::now();
        let lease = self.broker.renew(LEASE).await;
        self.is_leased.store(lease.is_ok(), Relaxed);
        if let Ok(lease) = &lease {
            self.local.clock.set(lease.now_ms, asked.elapsed());
        }
        lease
    }

    async fn keep_lease(self: Arc<Self>) {
        let mut counted = None::<Instant>;
        let (fade, mut faded) = (self.config.history.age_max.max(FADE_MIN), Instant::now());
        loop {
            let renewed = timeout(LEASE, self.renew()).await;
            match renewed {
                Ok(Ok(_)) => {
                    self.report_answer();
                    if counted.is_none_or(|at| at.elapsed() >= COUNT) {
                        let created = self.created.load(Relaxed);
                        if let Ok(count) = self.broker.count().await {
                            // The answer may lack channels that this node created during the request. It may also
                            // include channels that this node has not counted yet, because their answers are in
                            // flight.
                            let during = self.created.load(Relaxed) - created;
                            let least = count.saturating_sub(self.appends.flying());
                            let estimate = self.count.load(Relaxed);
                            let change = estimate.clamp(least, count + during).wrapping_sub(estimate);
                            self.count.fetch_add(change, Relaxed);
                            counted = Some(Instant::now());
                        }
                    }
                }
                failed => {
                    self.is_leased.store(false, Relaxed);
                    if (self.attempts.fetch_add(1, Relaxed) + 1).is_multiple_of(REPORT_EVERY) {
                        let why = match failed {
                            Ok(Err(BrokerError::Unavailable(why))) => why,
                            Ok(Err(BrokerError::Refused(error))) => error.detail,
                            _ => NO_ANSWER.into(),
                        };
                        self.report_absence(&why);
                    }
                }
            }
            if B::FORGETS && faded.elapsed() >= fade {
                self.shares.fade();
                faded = Instant::now();
            }
            tokio::time::sleep(RENEW).await;
        }
    }

    fn report_absence(&self, why: &str) {
        let (engine, attempt) = (&self.url, self.attempts.load(Relaxed));
        let wait = humantime::format_duration(self.config.wait);
        tracing::warn!(
            %engine, attempt, why,
            "the engine does not respond; retrying every second. Until it responds, publishing and history are refused with 503 \
             after {wait}, and subscribers receive nothing new"
        );
    }

    fn report_answer(&self) {
        let attempts = self.attempts.swap(0, Relaxed);
        if attempts > 1 {
            tracing::info!(engine = %self.url, attempts, "the engine responds again");
        }
    }

    /// Returns the approximate number of channels with history.
    fn used(&self) -> usize {
        self.count.load(Relaxed)
    }

    fn may_create(&self, holder: Holder, channel: &ChannelName) -> bool {
        self.shares.may_create(holder, self.shares.namespace(channel), self.used())
    }

    /// Counts a channel that this node has created.
    fn created(&self, holder: Holder, channel: &ChannelName) {
        self.created.fetch_add(1, Relaxed);
        self.count.fetch_add(1, Relaxed);
        self.shares.take(holder, self.shares.namespace(channel));
    }

    fn bounds(&self, channel: &ChannelName) -> millrace_delivery::Bounds {
        self.config.bounds(channel.namespace())
    }
}

impl<D: Deliver> Local<D> {
    fn hear(&self, event: Event) {
        match event {
            Event::Published { channel, epoch, publication } => {
                let is_matched = self.keeper.matches(&channel);
                if self.mirror.hear(&channel, epoch, publication, self.clock.now_ms(), is_matched) {
                    self.keeper.overtaken.notify_one();
                }
            }
            Event::Told(message) => self.presence.hear(&message),
            Event::LinkLost => {
                self.keeper.link(false);
                self.mirror.part();
            }
            Event::LinkBack => self.keeper.link(true),
        }
    }
}

impl<B: Broker, D: Deliver> Engine for Remote<B, D> {
    fn append(&self, channel: &ChannelName, publication: NewPublication) -> Answer<Result<Position, Error>> {
        match self.shared.clone().append(&self.runtime, channel, publication) {
            Ok(receiver) => later(receiver),
            Err(error) => Answer::now(Err(error)),
        }
    }

    fn page(
        &self,
        channel: &ChannelName,
        since: Since,
        policy: Policy,
        limit: PageLimit,
    ) -> Answer<Result<Page, Error>> {
        let heard = move |shared: &Shared<B, D>, channel: &ChannelName, is_down: bool| {
            let now_ms = shared.local.clock.now_ms();
            shared.local.mirror.page(channel, since, policy, limit, now_ms, is_down)
        };
        if let Some(page) = heard(&self.shared, channel, !self.is_up()) {
            return Answer::now(Ok(page));
        }
        let channel = channel.clone();
        self.ask(move |shared| {
            let channel = channel.clone();
            async move {
                // The channel is joined first, so that every publication after the page is delivered.
                shared.local.keeper.joined(&shared.local.mirror, &channel).await;
                match heard(&shared, &channel, false) {
                    Some(page) => Ok(page),
                    None => shared.broker.page(&channel, since, policy, limit, &shared.bounds(&channel)).await,
                }
            }
        })
    }

    fn newest(&self, channel: &ChannelName) -> Answer<Result<Newest, Error>> {
        let is_down = !self.is_up();
        if let Some(newest) = self.shared.local.mirror.newest(channel, self.now_ms(), is_down) {
            return Answer::now(Ok(newest));
        }
        let channel = channel.clone();
        self.ask(move |shared| {
            let channel = channel.clone();
            async move { shared.broker.newest(&channel, &shared.bounds(&channel)).await }
        })
    }

    fn channels(&self, pattern: &Pattern, max: usize) -> Answer<Result<Vec<ChannelName>, Error>> {
        let pattern = pattern.clone();
        self.ask(move |shared| {
            let pattern = pattern.clone();
            async move { shared.broker.channels(&pattern, max).await }
        })
    }

    fn presence(&self, channel: &ChannelName) -> Answer<Result<u32, Error>> {
        let channel = channel.clone();
        self.ask(move |shared| {
            let channel = channel.clone();
            async move { shared.presence(&channel).await }
        })
    }

    fn watch(&self, target: &Target, is_read: bool) {
        self.shared.local.keeper.watch(target, is_read);
    }

    fn joined(&self, pattern: &Pattern) -> Answer<Result<(), Error>> {
        let target = Target::Pattern(pattern.clone());
        if self.shared.local.keeper.is_subscribed(&target) {
            return Answer::now(Ok(()));
        }
        self.ask(move |shared| {
            let target = target.clone();
            async move {
                shared.local.keeper.subscribed_to(&target).await;
                Ok(())
            }
        })
    }

    fn now_ms(&self) -> u64 {
        self.shared.local.clock.now_ms()
    }

    fn size(&self) -> (usize, usize) {
        self.shared.local.mirror.size()
    }

    fn sweep(&self) {
        self.shared.local.mirror.sweep(self.now_ms());
    }

    fn is_up(&self) -> bool {
        self.is_link_up() && self.shared.is_leased.load(Relaxed)
    }

    fn counters(&self) -> Vec<(&'static str, &'static str, u64)> {
        let Counts { requests, retries, failures } = &self.shared.counts;
        let repairs = &self.shared.local.keeper.repairs;
        vec![
            (
                "requests",
                "Requests to the engine's broker: batches of publications, and reads.",
                requests.load(Relaxed),
            ),
            ("retries", "Requests to the broker that were sent again.", retries.load(Relaxed)),
            ("failures", "Requests to the broker without a response in time.", failures.load(Relaxed)),
            ("losses", "Lost connections to the broker.", self.shared.local.keeper.losses.load(Relaxed)),
            (
                "repairs",
                "Channels that missed publications although the connection to the broker was up. The node read them again.",
                repairs.load(Relaxed),
            ),
        ]
    }

    /// Waits until accepted publications are answered or time out, then ends the lease and the thread.
    fn close(&self) {
        let shared = self.shared.clone();
        self.block_on(CLOSE, async move {
            let _ = timeout(shared.config.wait, shared.appends.idle()).await;
            let _ = timeout(RENEW, shared.broker.renew(Duration::ZERO)).await;
        });
        self.end();
    }
}

impl<B: Broker, D: Deliver> Remote<B, D> {
    fn end(&self) {
        self.stop.send_replace(true);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl<B: Broker, D: Deliver> Drop for Remote<B, D> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Pauses between attempts. They double from 20-40 ms to 1-2 s, with random jitter.
pub(crate) struct Pauses(u32);

impl Pauses {
    pub fn new() -> Self {
        Self(0)
    }

    pub async fn pause(&mut self) {
        let longest_ms = 40u64 << self.0.min(6);
        self.0 += 1;
        let chance = u64::from(getrandom::u32().unwrap_or_default());
        tokio::time::sleep(Duration::from_millis(longest_ms / 2 + chance % (longest_ms / 2))).await;
    }
}

/// Repeats a request until the broker answers or the time is over.
async fn retry<T, F>(counts: &Counts, until: Instant, ask: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, BrokerError>>,
{
    let mut pauses = Pauses::new();
    counts.requests.fetch_add(1, Relaxed);
    let attempts = async {
        loop {
            match ask().await {
                Err(BrokerError::Unavailable(why)) => tracing::debug!(why, "retrying an engine request"),
                Err(BrokerError::Refused(error)) => return Err(error),
                Ok(value) => return Ok(value),
            }
            pauses.pause().await;
            counts.retries.fetch_add(1, Relaxed);
        }
    };
    timeout_at(until, attempts).await.unwrap_or_else(|_| {
        counts.failures.fetch_add(1, Relaxed);
        Err(unavailable())
    })
}

fn unavailable() -> Error {
    Error::new(Code::Unavailable, "the engine does not answer; try again")
}

fn later<T: Send + 'static>(receiver: oneshot::Receiver<Result<T, Error>>) -> Answer<Result<T, Error>> {
    Answer::Later(Box::pin(async move { receiver.await.unwrap_or_else(|_| Err(unavailable())) }))
}
