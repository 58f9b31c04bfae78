//! Common part of all engines with a broker in the network. It mirrors watched channels, sends batches, retries
//! requests within a time limit, and asks the other nodes for their subscriptions. A [`Broker`] is the small part that
//! differs.
//!
//! ```text
//!   append ─► AppendQueues: one batch per channel in flight, the same token until it is answered ─► Broker ─► ...
//!   page   ─► Mirror, if it covers that ─── else, once the channel is joined ────────────────► Broker
//!   watch  ─► SubscriptionManager: subscribes, reads the top, joins; all again after a lost link ─────────► Broker
//!   ... ─► Broker ─► Event ─► Mirror ─► Deliver
//! ```

mod append;
mod append_queues;
mod broker;
mod clock;
mod expire;
mod lease;
mod past;
mod questions;
mod retry;
mod shared;
mod subscribe;
mod subscription_manager;
mod tail;

use std::{
    future::Future,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use millrace_delivery::{Page, PageLimit, check_fits, no_state};
use millrace_protocol::{
    ChannelName, Code, Error, NewPublication, Pattern, Position, Since,
    session::{Policy, Target},
};
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    time::{Instant, timeout, timeout_at},
};

use crate::{
    Answer, Answerer, Config, Deliver, Engine, Newest, NodeAnswers, OpenError, mirror::Mirror, shares::Shares,
};

pub(crate) use broker::{Broker, BrokerError, Event, Events, Lease, Token};
pub(crate) use clock::Clock;
pub(crate) use past::Past;
pub(crate) use retry::Pauses;
pub(crate) use tail::{TAIL_BYTES, Tail, decode_tail, encode_tail, take_text};

use append_queues::AppendQueues;
use lease::{NO_ANSWER, RENEW};
use questions::{Questions, TEXT_BYTES_MAX};
use retry::{RequestCounts, later, retry};
use shared::{Local, Shared};
use subscription_manager::SubscriptionManager;

/// Maximum time that [`Engine::close`] waits.
const CLOSE: Duration = Duration::from_secs(10);

/// An engine over a [`Broker`].
pub(crate) struct Remote<B: Broker, D: Deliver> {
    shared: Arc<Shared<B, D>>,
    runtime: Handle,
    stop: watch::Sender<bool>,
    thread: std::sync::Mutex<Option<JoinHandle<()>>>,
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
            questions: Questions::default(),
            clock: Clock::new(clock),
        });
        let shared_events = local.clone();
        let guard = handle.enter();
        let broker = connect(&node, Arc::new(move |event| shared_events.on_event(event)))?;
        drop(guard);
        let shared = Arc::new(Shared {
            appends: AppendQueues::new(config.wait),
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
            is_expiring: AtomicBool::new(false),
            counts: RequestCounts::default(),
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
        self.runtime.spawn(subscribe::run(self.shared.clone()));
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
        self.ask_longer(Duration::ZERO, ask)
    }

    /// Sends a request that may take longer than others; see [`Self::ask`].
    fn ask_longer<T, F>(
        &self,
        longer: Duration,
        ask: impl Fn(Arc<Shared<B, D>>) -> F + Send + Sync + 'static,
    ) -> Answer<Result<T, Error>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, BrokerError>> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let shared = self.shared.clone();
        self.runtime.spawn(async move {
            let until = Instant::now() + shared.config.wait + longer;
            let _ = sender.send(retry(&shared.counts, until, || ask(shared.clone())).await);
        });
        later(receiver)
    }

    fn is_link_up(&self) -> bool {
        self.shared.local.keeper.is_link_up()
    }
}

fn too_long() -> Error {
    Error::new(Code::TooLarge, format!("a question to other nodes has at most {TEXT_BYTES_MAX} bytes"))
}

impl<B: Broker, D: Deliver> Engine for Remote<B, D> {
    fn append(&self, channel: &ChannelName, publication: NewPublication) -> Answer<Result<Position, Error>> {
        let bounds = self.shared.bounds(channel);
        if let Err(error) = check_fits(&publication, bounds.keys_max > 0) {
            return Answer::now(Err(error));
        }
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
        if since.is_state() && self.shared.bounds(channel).keys_max == 0 {
            return Answer::now(Err(no_state()));
        }
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

    fn channels(
        &self,
        pattern: &Pattern,
        after: Option<&ChannelName>,
        max: usize,
    ) -> Answer<Result<Vec<ChannelName>, Error>> {
        let (pattern, after) = (pattern.clone(), after.cloned());
        self.ask(move |shared| {
            let (pattern, after) = (pattern.clone(), after.clone());
            async move { shared.broker.channels(&pattern, after.as_ref(), max).await }
        })
    }

    fn node(&self) -> Option<&str> {
        Some(&self.shared.node)
    }

    fn live_nodes(&self) -> Answer<Result<Option<Vec<String>>, Error>> {
        self.ask(|shared| async move { Ok(Some(shared.renew().await?.nodes)) })
    }

    fn ask_nodes(&self, question: &str, wait: Duration) -> Answer<Result<NodeAnswers, Error>> {
        if question.len() > TEXT_BYTES_MAX {
            return Answer::now(Err(too_long()));
        }
        let question = question.to_owned();
        self.ask_longer(wait, move |shared| {
            let question = question.clone();
            async move { shared.ask_nodes(&question, wait).await }
        })
    }

    fn ask_node(&self, node: &str, question: &str, wait: Duration) -> Answer<Result<Option<String>, Error>> {
        if question.len() > TEXT_BYTES_MAX {
            return Answer::now(Err(too_long()));
        }
        let (node, question) = (node.to_owned(), question.to_owned());
        self.ask_longer(wait, move |shared| {
            let (node, question) = (node.clone(), question.clone());
            async move { shared.ask_node(node, &question, wait).await }
        })
    }

    fn set_answerer(&self, answerer: Answerer) {
        self.shared.local.questions.set_answerer(answerer);
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
        self.shared.clone().expire_keys(&self.runtime);
    }

    fn is_up(&self) -> bool {
        self.is_link_up() && self.shared.is_leased.load(Relaxed)
    }

    fn counters(&self) -> Vec<(&'static str, &'static str, u64)> {
        let RequestCounts { requests, retries, failures } = &self.shared.counts;
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
