use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::try_join_all;
use millrace_protocol::{Pattern, session::Target};
use redis::{PushInfo, PushKind, RedisResult, Value};
use tokio::{sync::Notify, task::JoinHandle, time::timeout};

use super::{
    keys::{BUCKETS, Keys, bucket},
    link::Link,
    url::{Kind, Url},
    wire,
};
use crate::remote::{Event, Events, Pauses};

/// Interval between checks that the connection is alive.
const PING: Duration = Duration::from_secs(1);
/// Maximum number of channels in one command.
const CHANNELS_MAX: usize = 500;

/// Pub/sub subscriptions of this node: one connection (in a cluster one per server), replaced after any fault.
pub struct Subscriptions {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    url: Url,
    keys: Keys,
    /// Pub/sub channels that are always subscribed: that of all nodes, and that of this node.
    own: [String; 2],
    events: Events,
    link: Mutex<Option<Link>>,
    /// Sharded channels that this node is unsubscribing. An unsubscription of any other channel means that the channel
    /// has moved to another server.
    leaving: Mutex<HashSet<String>>,
    /// Patterns that this node reads. In a cluster the channels of the buckets serve all of them.
    patterns: Mutex<HashSet<Pattern>>,
}

impl Subscriptions {
    pub fn start(url: Url, keys: Keys, node: &str, events: Events) -> Self {
        let own = [keys.node(None), keys.node(Some(node))];
        let (link, leaving, patterns) = Default::default();
        let shared = Arc::new(Shared { url, keys, own, events, link, leaving, patterns });
        Self { task: tokio::spawn(shared.clone().stay()), shared }
    }

    pub async fn subscribe(&self, targets: &[Target]) -> RedisResult<()> {
        self.shared.change(targets, true).await
    }

    pub async fn unsubscribe(&self, targets: &[Target]) -> RedisResult<()> {
        self.shared.change(targets, false).await
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    /// Connects, and reconnects after each loss.
    async fn stay(self: Arc<Self>) {
        let mut pauses = Pauses::new();
        loop {
            let lost = Arc::new(Notify::new());
            let is_alive = Arc::new(AtomicBool::new(true));
            let on_push = {
                let (shared, lost, is_alive) = (Arc::downgrade(&self), lost.clone(), is_alive.clone());
                move |info: PushInfo| {
                    if let Some(shared) = shared.upgrade()
                        && is_alive.load(SeqCst)
                        && !shared.on_push(info)
                        && is_alive.swap(false, SeqCst)
                    {
                        (shared.events)(Event::LinkLost);
                        lost.notify_one();
                    }
                }
            };
            match self.connect(Arc::new(on_push)).await {
                Ok(mut link) => {
                    pauses = Pauses::new();
                    *lock(&self.link) = Some(link.clone());
                    (self.events)(Event::LinkBack);
                    // A loss that came before `LinkBack` would be overlooked, so it is checked here.
                    if is_alive.load(SeqCst) {
                        loop {
                            tokio::select! {
                                () = lost.notified() => break,
                                () = tokio::time::sleep(PING) => {}
                            }
                            if !matches!(timeout(2 * PING, link.ping()).await, Ok(Ok(()))) {
                                break;
                            }
                        }
                    }
                    is_alive.store(false, SeqCst);
                    *lock(&self.link) = None;
                    lock(&self.patterns).clear();
                    lock(&self.leaving).clear();
                    (self.events)(Event::LinkLost);
                    tracing::warn!("lost the Redis connection for subscriptions; reconnecting");
                }
                Err(error) => tracing::debug!(%error, "Redis cannot be subscribed to"),
            }
            pauses.pause().await;
        }
    }

    async fn connect(&self, on_push: super::link::OnPush) -> RedisResult<Link> {
        let mut link = Link::open(&self.url, Some(on_push)).await?;
        link.subscribe(Kinds::Plain, self.own.to_vec()).await?;
        Ok(link)
    }

    /// Handles a push message. Returns false if publications may have been missed.
    fn on_push(&self, PushInfo { kind, mut data }: PushInfo) -> bool {
        match kind {
            PushKind::Disconnection => return false,
            PushKind::SUnsubscribe => {
                let name = data.into_iter().next().and_then(|name| redis::from_redis_value::<String>(name).ok());
                return name.is_some_and(|name| lock(&self.leaving).remove(&name));
            }
            PushKind::Message | PushKind::SMessage | PushKind::PMessage => {}
            _ => return true,
        }
        let (Some(Value::BulkString(payload)), Some(Value::BulkString(name))) = (data.pop(), data.pop()) else {
            return true;
        };
        if self.own.iter().any(|own| own.as_bytes() == name) {
            if let Ok(text) = String::from_utf8(payload) {
                (self.events)(Event::Message(text));
            }
            return true;
        }
        match wire::message(Bytes::from(payload)) {
            Some((channel, publications)) => {
                for (epoch, publication) in publications {
                    (self.events)(Event::Published { channel: channel.clone(), epoch, publication });
                }
            }
            None => tracing::warn!(
                "ignoring a malformed message from Redis; another version of Millrace may use the same prefix"
            ),
        }
        true
    }

    async fn change(&self, targets: &[Target], is_read: bool) -> RedisResult<()> {
        let Some(link) = lock(&self.link).clone() else {
            return Err((redis::ErrorKind::Io, "there is no connection to Redis").into());
        };
        let (mut channels, mut globs) = (Vec::new(), Vec::new());
        let mut sharded = BTreeMap::<u32, Vec<String>>::new();
        for target in targets {
            match target {
                Target::Channel(channel) if self.url.kind == Kind::Cluster => {
                    sharded.entry(bucket(channel)).or_default().push(self.keys.publications(channel));
                }
                Target::Channel(channel) => channels.push(self.keys.publications(channel)),
                Target::Pattern(pattern) if self.url.kind == Kind::Cluster => {
                    let needed = {
                        let mut patterns = lock(&self.patterns);
                        if is_read {
                            patterns.insert(pattern.clone())
                        } else {
                            patterns.remove(pattern)
                        };
                        is_read || patterns.is_empty()
                    };
                    if needed {
                        (0..BUCKETS).for_each(|bucket| sharded.entry(bucket).or_default().push(self.keys.all(bucket)));
                    }
                }
                Target::Pattern(pattern) => globs.push(self.keys.glob(pattern)),
            }
        }
        if !is_read {
            lock(&self.leaving).extend(sharded.values().flatten().cloned());
        }
        let groups = [(Kinds::Plain, channels), (Kinds::Glob, globs)].into_iter();
        let groups = groups.chain(sharded.into_values().map(|names| (Kinds::Sharded, names)));
        let commands = groups.flat_map(|(kind, names)| {
            let chunks: Vec<_> = names.chunks(CHANNELS_MAX).map(<[_]>::to_vec).collect();
            chunks.into_iter().map(move |names| (kind, names))
        });
        let sent = commands.map(|(kind, names)| {
            let mut link = link.clone();
            async move { if is_read { link.subscribe(kind, names).await } else { link.unsubscribe(kind, names).await } }
        });
        try_join_all(sent).await.map(drop)
    }
}

#[derive(Clone, Copy)]
enum Kinds {
    Plain,
    Glob,
    Sharded,
}

impl Link {
    async fn subscribe(&mut self, kind: Kinds, names: Vec<String>) -> RedisResult<()> {
        match (self, kind) {
            (Link::Single(link), Kinds::Glob) => link.psubscribe(names).await,
            (Link::Single(link), _) => link.subscribe(names).await,
            (Link::Cluster(link), Kinds::Plain) => link.subscribe(names).await,
            (Link::Cluster(link), Kinds::Glob) => link.psubscribe(names).await,
            (Link::Cluster(link), Kinds::Sharded) => link.ssubscribe(names).await,
        }
    }

    async fn unsubscribe(&mut self, kind: Kinds, names: Vec<String>) -> RedisResult<()> {
        match (self, kind) {
            (Link::Single(link), Kinds::Glob) => link.punsubscribe(names).await,
            (Link::Single(link), _) => link.unsubscribe(names).await,
            (Link::Cluster(link), Kinds::Plain) => link.unsubscribe(names).await,
            (Link::Cluster(link), Kinds::Glob) => link.punsubscribe(names).await,
            (Link::Cluster(link), Kinds::Sharded) => link.sunsubscribe(names).await,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
