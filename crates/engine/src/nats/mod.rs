//! Order and history in NATS. JetStream stores and orders publications; core NATS delivers them. See [`subject`] for
//! the subjects, [`append`] for the order, [`read`] for history, and docs/reference/engines.md for operators.

mod append;
mod lease;
mod link;
mod read;
mod streams;
mod subject;
mod url;
mod wire;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use async_nats::{Message, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use millrace_delivery::{Bounds, Page, PageLimit};
use millrace_protocol::{
    ChannelName, NewPublication, Pattern, Position, Since,
    session::{Policy, Target},
};
use serde_json::{Value, json};
use tokio::{task::AbortHandle, time::sleep};

use crate::{
    Config, Deliver, Newest, OpenError,
    remote::{Broker, BrokerError, Clock, Event, Events, Lease, Remote, Token},
};
use append::Writer;
use link::Link;
use streams::{Stream, Streams};
use url::Url;
use wire::Batch;

/// Maximum number of concurrent requests of one batch.
const AT_ONCE: usize = 64;
/// Pause between two attempts to use a new connection.
const AGAIN: Duration = Duration::from_millis(100);

/// The engine `nats`.
pub(crate) type NatsEngine<D> = Remote<Arc<Nats>, D>;

/// A [`Broker`] on NATS.
pub(crate) struct Nats {
    prefix: String,
    node: String,
    link: Arc<Link>,
    streams: Streams,
    writer: Writer,
    clock: Clock,
    events: Events,
    subscriptions: Mutex<HashMap<Target, Vec<AbortHandle>>>,
}

/// Checks a URL without connecting. Returns `None` if the URL is not one of NATS. No error contains any text of the
/// URL.
pub(crate) fn check_url(url: &str) -> Option<Result<(), OpenError>> {
    is_ours(url).then(|| url::parse(url).map(drop).map_err(|error| OpenError::Setting(error.to_string())))
}

fn is_ours(url: &str) -> bool {
    ["nats", "tls"].iter().any(|scheme| url.strip_prefix(scheme).is_some_and(|rest| rest.starts_with(':')))
}

/// Opens the engine and starts its thread, which connects.
///
/// Errors: a setting that NATS does not support, or a refusal by the server.
pub(crate) fn open<D: Deliver>(
    url: &str,
    config: Config,
    deliver: Arc<D>,
    clock: impl Fn() -> u64 + Send + Sync + 'static,
) -> Result<NatsEngine<D>, OpenError> {
    let shown = crate::shown_url(url);
    let url = url::parse(url).map_err(|error| OpenError::Setting(error.to_string()))?;
    let is_good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    if config.prefix.is_empty() || !config.prefix.bytes().all(is_good) {
        return Err(OpenError::Setting("`engine.prefix` is made of A-Z a-z 0-9 _ - where NATS is the engine".into()));
    }
    let kept = config.clone();
    Remote::open(shown, config, deliver, clock, move |node, events| Ok(Nats::connect(url, &kept, node, events)))
}

impl Nats {
    /// Starts to connect, on the current Tokio runtime.
    fn connect(url: Url, config: &Config, node: &str, events: Events) -> Arc<Self> {
        let began = Instant::now();
        // The local clock applies until the server's time is known.
        let began_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let nats = Arc::new(Self {
            prefix: config.prefix.clone(),
            node: node.into(),
            link: Link::new(),
            streams: Streams::new(config),
            writer: Writer::default(),
            clock: Clock::new(move || began_ms + began.elapsed().as_millis() as u64),
            events,
            subscriptions: Mutex::default(),
        });
        tokio::spawn(nats.clone().run(url));
        nats
    }

    /// Runs the connection, and reports when it is lost and when it is back.
    async fn run(self: Arc<Self>, url: Url) {
        self.link.connect(format!("{} {}", self.prefix, self.node), url).await;
        (self.events)(Event::LinkLost);
        let mut is_told = false;
        loop {
            let state = self.link.up().await;
            tokio::select! {
                () = self.begin(&mut is_told) => {
                    (self.events)(Event::LinkBack);
                    self.link.lost(state).await;
                    (self.events)(Event::LinkLost);
                }
                () = self.link.lost(state) => {}
            }
            // A server that returns may have lost its data.
            self.streams.all().iter().for_each(Stream::forget);
            sleep(AGAIN).await;
        }
    }

    /// Prepares a new connection; retries until it succeeds.
    async fn begin(self: &Arc<Self>, is_told: &mut bool) {
        while let Err(error) = self.try_begin(is_told).await {
            tracing::debug!(%error, "NATS is there, and not ready yet");
            sleep(AGAIN).await;
        }
    }

    async fn try_begin(self: &Arc<Self>, is_told: &mut bool) -> Result<(), BrokerError> {
        self.look().await?;
        if !*is_told {
            // The client library renews these subscriptions after a reconnect.
            for subject in [self.subject_of_node(None), self.subject_of_node(Some(&self.node))] {
                tokio::spawn(self.clone().hear_nodes(self.link.subscribe(subject).await?));
            }
            *is_told = true;
        }
        self.link.confirm(&self.prefix).await?;
        Ok(())
    }

    /// Checks that all streams exist. Streams that are already known are not requested.
    async fn look(&self) -> Result<(), BrokerError> {
        for stream in self.streams.all() {
            self.streams.known(&self.link, stream).await?;
        }
        Ok(())
    }

    fn subject_of_node(&self, node: Option<&str>) -> String {
        let prefix = &self.prefix;
        node.map_or_else(|| format!("{prefix}.tell"), |node| format!("{prefix}.tell.{node}"))
    }

    async fn hear_nodes(self: Arc<Self>, mut subscriber: Subscriber) {
        while let Some(message) = subscriber.next().await {
            if let Ok(text) = std::str::from_utf8(&message.payload) {
                (self.events)(Event::Told(text.into()));
            }
        }
    }

    async fn hear_channels(self: Arc<Self>, mut subscriber: Subscriber) {
        while let Some(message) = subscriber.next().await {
            self.hear(message);
        }
    }

    fn hear(&self, message: Message) {
        let place = subject::parse(&self.prefix, &message.subject);
        let (Some((epoch, channel)), Some(batch)) = (place, Batch::decode(message.payload)) else {
            tracing::debug!(subject = %message.subject, "a message from NATS is not understood");
            return;
        };
        let sequence = message.headers.as_ref().and_then(|headers| headers.get("Nats-Sequence"));
        if let Some(sequence) = sequence.and_then(|sequence| sequence.as_str().parse().ok()) {
            self.writer.heard(&channel, epoch, sequence, &batch);
        }
        for publication in batch.publications {
            (self.events)(Event::Published { channel: channel.clone(), epoch, publication });
        }
    }

    fn subscriptions(&self) -> MutexGuard<'_, HashMap<Target, Vec<AbortHandle>>> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the streams that may hold channels that match the pattern.
    fn streams_of(&self, pattern: &Pattern) -> &[Stream] {
        match pattern.as_str().split('/').next() {
            Some(level) if level != "+" && level != "#" => std::slice::from_ref(self.streams.of_namespace(level)),
            _ => self.streams.all(),
        }
    }
}

impl Broker for Arc<Nats> {
    /// JetStream never drops the last message of a channel.
    const FORGETS: bool = false;

    async fn append(
        &self,
        channel: &ChannelName,
        batch: &[NewPublication],
        _: &Bounds,
        token: Token<'_>,
        may_create: bool,
    ) -> Result<Vec<Position>, BrokerError> {
        self.write(channel, batch, token, may_create).await
    }

    async fn page(
        &self,
        channel: &ChannelName,
        since: Since,
        policy: Policy,
        limit: PageLimit,
        bounds: &Bounds,
    ) -> Result<Page, BrokerError> {
        self.read_page(channel, since, policy, limit, bounds).await
    }

    async fn newest(&self, channel: &ChannelName, bounds: &Bounds) -> Result<Newest, BrokerError> {
        self.read_newest(channel, bounds).await
    }

    async fn tops(&self, channels: &[ChannelName]) -> Result<Vec<Position>, BrokerError> {
        let tops = channels.iter().map(|channel| self.read_top(channel).boxed());
        stream::iter(tops.collect::<Vec<_>>()).buffered(AT_ONCE).try_collect().await
    }

    async fn channels(&self, pattern: &Pattern, max: usize) -> Result<Vec<ChannelName>, BrokerError> {
        let mut found = Vec::new();
        for stream in self.streams_of(pattern) {
            let epoch = self.streams.known(&self.link, stream).await?.epoch;
            for tokens in subject::of_pattern(pattern) {
                let filter = self.streams.subject(stream, epoch, &tokens);
                let mut seen = 0;
                while found.len() < max {
                    let ask = json!({ "subjects_filter": filter, "offset": seen });
                    let info = self.streams.info(&self.link, stream, ask).await?;
                    let subjects = info.state.subjects.unwrap_or_default();
                    seen += subjects.len();
                    let is_all = subjects.is_empty() || seen >= info.total;
                    let names = subjects.keys().filter_map(|subject| subject::parse(&self.prefix, subject));
                    let names = names.map(|(_, name)| name).filter(|name| pattern.matches(name.as_str()));
                    found.extend(names.take(max - found.len()));
                    if is_all {
                        break;
                    }
                }
            }
        }
        Ok(found)
    }

    async fn subscribe(&self, targets: &[Target]) -> Result<(), BrokerError> {
        for target in targets {
            if self.subscriptions().contains_key(target) {
                continue;
            }
            let mut tasks = Vec::new();
            for subject in subject::of_target(&self.prefix, target) {
                let subscriber = self.link.subscribe(subject).await?;
                tasks.push(tokio::spawn(self.clone().hear_channels(subscriber)).abort_handle());
            }
            self.subscriptions().insert(target.clone(), tasks);
        }
        Ok(self.link.confirm(&self.prefix).await?)
    }

    async fn unsubscribe(&self, targets: &[Target]) -> Result<(), BrokerError> {
        for target in targets {
            // The client library unsubscribes when the subscriber is dropped.
            self.subscriptions().remove(target).into_iter().flatten().for_each(|task| task.abort());
        }
        Ok(())
    }

    async fn renew(&self, lease: Duration) -> Result<Lease, BrokerError> {
        self.look().await?;
        self.renew_lease(lease).await
    }

    async fn tell(&self, node: Option<&str>, message: &str) -> Result<(), BrokerError> {
        let sent = self.link.publish(self.subject_of_node(node), Bytes::copy_from_slice(message.as_bytes()));
        Ok(sent.await?)
    }

    async fn count(&self) -> Result<usize, BrokerError> {
        let mut count = 0;
        for stream in self.streams.all() {
            count += self.streams.info(&self.link, stream, Value::Null).await?.state.num_subjects;
        }
        Ok(count)
    }
}
