//! Connection to NATS: its start, its losses, and the messages that arrive.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use async_nats::{Message, Subscriber};
use futures_util::StreamExt;
use millrace_protocol::{Pattern, session::Target};
use tokio::{task::AbortHandle, time::sleep};

use super::{
    append_state::AppendState,
    link::Link,
    states::States,
    streams::{Stream, Streams},
    subject,
    url::Url,
    wire::Batch,
};
use crate::{
    Config,
    remote::{BrokerError, Clock, Event, Events},
};

/// Pause between two attempts to use a new connection.
const AGAIN: Duration = Duration::from_millis(100);

/// A [`Broker`] on NATS.
pub(crate) struct Nats {
    pub prefix: String,
    pub node: String,
    pub link: Arc<Link>,
    pub streams: Streams,
    pub appends: AppendState,
    pub states: States,
    pub clock: Clock,
    events: Events,
    subscriptions: Mutex<HashMap<Target, Vec<AbortHandle>>>,
}

impl Nats {
    /// Starts to connect, on the current Tokio runtime.
    pub fn connect(url: Url, config: &Config, node: &str, events: Events) -> Arc<Self> {
        let began = Instant::now();
        // The local clock applies until the server's time is known.
        let began_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let nats = Arc::new(Self {
            prefix: config.prefix.clone(),
            node: node.into(),
            link: Link::new(),
            streams: Streams::new(config),
            appends: AppendState::default(),
            states: States::default(),
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
        let mut are_nodes_subscribed = false;
        loop {
            let state = self.link.up().await;
            tokio::select! {
                () = self.begin(&mut are_nodes_subscribed) => {
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
    async fn begin(self: &Arc<Self>, are_nodes_subscribed: &mut bool) {
        while let Err(error) = self.try_begin(are_nodes_subscribed).await {
            tracing::debug!(%error, "NATS is reachable but not ready yet; retrying");
            sleep(AGAIN).await;
        }
    }

    async fn try_begin(self: &Arc<Self>, are_nodes_subscribed: &mut bool) -> Result<(), BrokerError> {
        self.look().await?;
        if !*are_nodes_subscribed {
            // The client library renews these subscriptions after a reconnect.
            for subject in [self.subject_of_node(None), self.subject_of_node(Some(&self.node))] {
                tokio::spawn(self.clone().receive_from_nodes(self.link.subscribe(subject).await?));
            }
            *are_nodes_subscribed = true;
        }
        self.link.confirm(&self.prefix).await?;
        Ok(())
    }

    /// Checks that all streams exist. Streams that are already known are not requested.
    pub async fn look(&self) -> Result<(), BrokerError> {
        for stream in self.streams.all() {
            self.streams.known(&self.link, stream).await?;
        }
        Ok(())
    }

    pub fn subject_of_node(&self, node: Option<&str>) -> String {
        let prefix = &self.prefix;
        node.map_or_else(|| format!("{prefix}.tell"), |node| format!("{prefix}.tell.{node}"))
    }

    async fn receive_from_nodes(self: Arc<Self>, mut subscriber: Subscriber) {
        while let Some(message) = subscriber.next().await {
            if let Ok(text) = std::str::from_utf8(&message.payload) {
                (self.events)(Event::Message(text.into()));
            }
        }
    }

    async fn receive_from_channels(self: Arc<Self>, mut subscriber: Subscriber) {
        while let Some(message) = subscriber.next().await {
            self.receive(message);
        }
    }

    fn receive(&self, message: Message) {
        let place = subject::parse(&self.prefix, &message.subject);
        let (Some((epoch, channel)), Some(batch)) = (place, Batch::decode(message.payload)) else {
            tracing::debug!(subject = %message.subject, "ignoring a malformed message from NATS");
            return;
        };
        let sequence = message.headers.as_ref().and_then(|headers| headers.get("Nats-Sequence"));
        if let Some(sequence) = sequence.and_then(|sequence| sequence.as_str().parse().ok()) {
            self.appends.observe(&channel, epoch, sequence, &batch);
            if batch.carried.is_some()
                && let Some(known) = self.streams.of(&channel).known()
            {
                self.states.observe(&channel, epoch, sequence, &batch, known.kept);
            }
        }
        for publication in batch.publications {
            (self.events)(Event::Published { channel: channel.clone(), epoch, publication });
        }
    }

    /// Subscribes to the targets that are not subscribed yet, and waits until the server has confirmed it.
    pub async fn subscribe_to(self: &Arc<Self>, targets: &[Target]) -> Result<(), BrokerError> {
        for target in targets {
            if self.subscriptions().contains_key(target) {
                continue;
            }
            let mut tasks = Vec::new();
            for subject in subject::of_target(&self.prefix, target) {
                let subscriber = self.link.subscribe(subject).await?;
                tasks.push(tokio::spawn(self.clone().receive_from_channels(subscriber)).abort_handle());
            }
            self.subscriptions().insert(target.clone(), tasks);
        }
        Ok(self.link.confirm(&self.prefix).await?)
    }

    pub fn unsubscribe_from(&self, targets: &[Target]) {
        for target in targets {
            // The client library unsubscribes when the subscriber is dropped.
            self.subscriptions().remove(target).into_iter().flatten().for_each(|task| task.abort());
        }
    }

    pub fn subscriptions(&self) -> MutexGuard<'_, HashMap<Target, Vec<AbortHandle>>> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the streams that may hold channels that match the pattern.
    pub fn streams_of(&self, pattern: &Pattern) -> Vec<&Stream> {
        match pattern.as_str().split('/').next() {
            Some(level) if level != "+" && level != "#" => self.streams.of_first_level(level).collect(),
            _ => self.streams.all().iter().collect(),
        }
    }
}
