//! Order and history in Redis 7 or later: one server, a server that Sentinel watches, or a cluster.
//!
//! One function call on the server appends a batch to the channel's stream, enforces the history limits and publishes
//! the batch (`library.lua`). The nodes receive it by pub/sub. A publication that pub/sub loses is detected by its
//! offset and read from the stream. docs/reference/engines.md, "Redis", describes the keys.

mod keys;
mod link;
mod state;
mod subscriptions;
mod url;
mod wire;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{StreamExt, TryStreamExt, future::try_join_all, stream};
use millrace_delivery::{Bounds, Page, PageLimit};
use millrace_protocol::{
    ChannelName, Code, Epoch, Error, NewPublication, Pattern, Position, Publication, Since,
    session::{Policy, Target},
};
use redis::{Cmd, RedisError, RedisResult, Value};

use crate::{
    Config, Deliver, Newest, OpenError,
    remote::{Broker, BrokerError, Events, Lease, Past, Remote, Token},
    smallest::Smallest,
};

use keys::{BUCKETS, Keys, bucket};
use link::{Commands, Link, is_answer};
use subscriptions::Subscriptions;
use url::Kind;

pub(crate) use url::Url;

const LIBRARY: &str = include_str!("library.lua");
const FUNCTIONS: [&str; 8] = ["append", "expire", "due", "read_state", "read", "tops", "count", "renew"];
/// Maximum publications and bytes of one read, when a page needs several reads.
const CHUNK_COUNT: usize = 1000;
const CHUNK_BYTES: usize = 1 << 20;
/// Number of buckets whose channels are listed at the same time.
const BUCKETS_AT_ONCE: usize = 16;
/// Maximum number of reads for one page.
const CHUNKS_MAX: usize = 1000;
/// Pause for publishers after Redis was out of memory: memory returns as histories expire.
const OOM_RETRY: Duration = Duration::from_secs(10);

/// The engine `redis`.
pub(crate) type RedisEngine<D> = Remote<Redis, D>;

/// Opens the engine and starts its thread, which connects. `shown` is the URL for logs.
///
/// Errors: a setting that Redis does not support, or a refusal by the server.
pub(crate) fn open<D: Deliver>(
    shown: String,
    url: Url,
    config: Config,
    deliver: Arc<D>,
    clock: impl Fn() -> u64 + Send + Sync + 'static,
) -> Result<RedisEngine<D>, OpenError> {
    if let Some(setting) = config.first_durable() {
        return Err(OpenError::Setting(format!(
            "`{setting} = true` asks for publications on disk before they are answered, which Redis cannot promise: take sqlite or nats"
        )));
    }
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b':');
    if config.prefix.is_empty() || !config.prefix.bytes().all(good) {
        return Err(OpenError::Setting("`engine.prefix` is made of A-Z a-z 0-9 _ - . :".into()));
    }
    let prefix = config.prefix.clone();
    Remote::open(shown, config, deliver, clock, move |node, events| Ok(Redis::new(url, &prefix, node, events)))
}

pub(crate) struct Redis {
    node: String,
    keys: Keys,
    is_cluster: bool,
    commands: Commands,
    subscriptions: Subscriptions,
    /// Name of the function library. It contains a hash of the text, so that different versions can coexist.
    library: String,
}

impl Redis {
    fn new(url: Url, prefix: &str, node: &str, events: Events) -> Self {
        let is_cluster = url.kind == Kind::Cluster;
        let hash = LIBRARY
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        Self {
            node: node.into(),
            keys: Keys::new(prefix),
            is_cluster,
            commands: Commands::new(url.clone()),
            subscriptions: Subscriptions::start(url, Keys::new(prefix), node, events),
            library: format!("millrace_{hash:016x}"),
        }
    }

    /// Loads the function library into every server that may need it.
    async fn load(&self, link: &mut Link) -> RedisResult<()> {
        let library = &self.library;
        let mut text = format!("#!lua name={library}\n{LIBRARY}");
        for function in FUNCTIONS {
            text.push_str(&format!("redis.register_function('{library}_{function}', {function})\n"));
        }
        let loaded = link.query(redis::cmd("FUNCTION").arg("LOAD").arg(text)).await.and_then(Value::extract_error);
        match loaded {
            Err(error) if error.detail().is_some_and(|detail| detail.contains("already exists")) => Ok(()),
            loaded => loaded.map(drop),
        }
    }

    async fn prepare(&self, link: &mut Link) -> RedisResult<()> {
        if !self.is_cluster {
            let info = redis::from_redis_value::<String>(link.query(redis::cmd("INFO").arg("cluster")).await?)?;
            if info.contains("cluster_enabled:1") {
                return Err((redis::ErrorKind::InvalidClientConfig, "it is a cluster: use redis+cluster://").into());
            }
        }
        self.load(link).await
    }

    /// Calls a function of the library. If the server does not have the library, loads it and calls again.
    async fn call(
        &self,
        function: &str,
        keys: &[String],
        arguments: impl FnOnce(&mut Cmd),
    ) -> Result<Value, BrokerError> {
        let mut command = redis::cmd("FCALL");
        command.arg(format!("{}_{function}", self.library)).arg(keys.len()).arg(keys);
        arguments(&mut command);
        match self.query(&command).await {
            Err(error) if is_not_loaded(&error) => {
                let mut in_use = self.link().await?;
                self.load(&mut in_use.link).await.map_err(broker_error)?;
                self.query(&command).await.map_err(broker_error)
            }
            result => result.map_err(broker_error),
        }
    }

    async fn link(&self) -> Result<link::InUse, BrokerError> {
        self.commands.link(async |link| self.prepare(link).await).await.map_err(broker_error)
    }

    async fn query(&self, command: &Cmd) -> RedisResult<Value> {
        let mut in_use = self.commands.link(async |link| self.prepare(link).await).await?;
        let result = in_use.link.query(command).await.and_then(Value::extract_error);
        // The client library repairs the connections of a cluster one by one.
        if let Err(error) = &result
            && !self.is_cluster
            && !is_answer(error)
        {
            in_use.give_up();
        }
        result
    }

    /// Groups the indexes of `channels` so that one call may touch all channels of a group.
    fn groups(&self, channels: &[ChannelName]) -> Vec<Vec<usize>> {
        let mut groups = BTreeMap::<u32, Vec<usize>>::new();
        for (i, channel) in channels.iter().enumerate() {
            groups.entry(if self.is_cluster { bucket(channel) } else { 0 }).or_default().push(i);
        }
        groups.into_values().collect()
    }

    async fn read(&self, channel: &ChannelName, bounds: &Bounds, ask: Ask) -> Result<Read, BrokerError> {
        let keys = [self.keys.meta(channel), self.keys.log(channel)];
        let Ask { what, value, count, bytes, epoch } = ask;
        let answer = self
            .call("read", &keys, |command| {
                command.arg(seed()).arg(bounds.bytes_max).arg(bounds.age_max_ms.min(AGE_MS_MAX));
                command.arg(what).arg(value).arg(count).arg(bytes).arg(epoch.0);
            })
            .await?;
        Read::parse(answer).ok_or_else(not_understood)
    }
}

/// Maximum age in milliseconds. Numbers in the functions are doubles, and key lifetimes are added to them.
const AGE_MS_MAX: u64 = 1 << 50;

/// Arguments of a read of one channel, see `read` in `library.lua`.
struct Ask {
    what: &'static str,
    value: u64,
    count: usize,
    bytes: usize,
    epoch: Epoch,
}

struct Read {
    top: Position,
    now_ms: u64,
    after: u64,
    means: u64,
    publications: Vec<Publication>,
}

impl Read {
    fn parse(value: Value) -> Option<Self> {
        type Answer = (String, String, String, String, String, Vec<Option<Vec<u8>>>);
        let (epoch, top, now_ms, after, means, entries): Answer = redis::from_redis_value(value).ok()?;
        let entries = entries.into_iter().flatten().map(|entry| wire::entry(entry.into()));
        Some(Self {
            top: Position { epoch: Epoch(epoch.parse().ok()?), offset: top.parse().ok()? },
            now_ms: now_ms.parse().ok()?,
            after: after.parse().ok()?,
            means: means.parse().ok()?,
            publications: entries.collect::<Option<_>>()?,
        })
    }
}

impl Broker for Redis {
    const FORGETS: bool = true;

    async fn append(
        &self,
        channel: &ChannelName,
        batch: &[NewPublication],
        bounds: &Bounds,
        token: Token<'_>,
        may_create: bool,
    ) -> Result<Vec<Result<Position, Error>>, BrokerError> {
        let b = bucket(channel);
        let is_state = bounds.keys_max > 0;
        let mut keys = vec![self.keys.meta(channel), self.keys.log(channel), self.keys.index(b)];
        if is_state {
            keys.extend(self.keys.state(channel));
        }
        let mut places = Vec::with_capacity(batch.len());
        for new in batch {
            places.push(match &new.idempotency_key {
                Some(key) => {
                    keys.push(self.keys.idempotency(channel, key));
                    keys.len()
                }
                None => 0,
            });
        }
        let answer = self
            .call("append", &keys, |command| {
                command.arg(channel.as_str()).arg(seed());
                command.arg(bounds.count_max).arg(bounds.bytes_max).arg(bounds.age_max_ms.min(AGE_MS_MAX));
                command.arg(token.node).arg(token.number).arg(u8::from(may_create));
                command.arg(if self.is_cluster { "S" } else { "" });
                command.arg(self.keys.publications(channel)).arg(self.keys.all(b)).arg(bounds.keys_max);
                for (new, place) in batch.iter().zip(places) {
                    command.arg(new.ttl_ms.map_or(0, |ttl| ttl.clamp(1, AGE_MS_MAX))).arg(place).arg(wire::tail(new));
                    if is_state {
                        command.arg(state::condition(new));
                    }
                }
            })
            .await?;
        let answer: String = redis::from_redis_value(answer).map_err(|_| not_understood())?;
        let words: Vec<&str> = answer.split(' ').collect();
        let outcome = |(pair, new): (&[&str], _)| state::outcome(pair[0], pair[1], new, bounds.keys_max);
        words.chunks_exact(2).zip(batch).map(outcome).collect::<Option<_>>().ok_or_else(not_understood)
    }

    async fn expire_keys(&self, config: &Config) -> Result<(), BrokerError> {
        self.expire(config).await
    }

    async fn page(
        &self,
        channel: &ChannelName,
        since: Since,
        policy: Policy,
        limit: PageLimit,
        bounds: &Bounds,
    ) -> Result<Page, BrokerError> {
        let (count, bytes) = match policy {
            Policy::Every => (limit.count.clamp(1, CHUNK_COUNT), limit.bytes.clamp(1, CHUNK_BYTES)),
            Policy::Latest => (CHUNK_COUNT, CHUNK_BYTES),
        };
        let ask = |what, value, epoch| Ask { what, value, count, bytes, epoch };
        let none = Epoch(0);
        let first = match since {
            Since::Now => ask("now", 0, none),
            Since::Earliest => ask("earliest", 0, none),
            Since::Position(at) | Since::StateOr(at) => ask("at", at.offset, at.epoch),
            Since::State | Since::StateAfter { .. } => return self.state_page(channel, since, limit, bounds).await,
            Since::Time(ms) => ask("time", ms.min(AGE_MS_MAX), none),
        };
        let Read { top, now_ms, mut after, means, mut publications } = self.read(channel, bounds, first).await?;
        let since = match since {
            Since::Time(_) => Since::Position(Position { offset: means, ..top }),
            // The server was restarted and still has that position: its log continues in another epoch.
            Since::Position(at) | Since::StateOr(at) if means > 0 => {
                Since::Position(Position { epoch: top.epoch, ..at })
            }
            since => since,
        };
        for _ in 0..CHUNKS_MAX {
            let end = publications.last().map_or(after, |last| last.offset);
            let wants_more = match policy {
                Policy::Every => publications.iter().all(|publication| publication.is_expired(now_ms)),
                Policy::Latest => true,
            };
            if end >= top.offset || !wants_more {
                break;
            }
            let more = self.read(channel, bounds, ask("at", end, top.epoch)).await?;
            if more.top.epoch != top.epoch {
                return Err(BrokerError::Unavailable("the log was lost while it was read".into()));
            }
            if more.publications.is_empty() {
                break;
            }
            if more.after != end {
                // The publications read first have been trimmed meanwhile.
                (after, publications) = (more.after, Vec::new());
            }
            publications.extend(more.publications.into_iter().filter(|publication| publication.offset <= top.offset));
        }
        Ok(Past { top, after, publications }.page_of(bounds.keys_max, since, policy, limit, now_ms))
    }

    async fn newest(&self, channel: &ChannelName, bounds: &Bounds) -> Result<Newest, BrokerError> {
        let ask = Ask { what: "newest", value: 0, count: 1, bytes: 1, epoch: Epoch(0) };
        let Read { top, now_ms, publications, .. } = self.read(channel, bounds, ask).await?;
        Ok(Newest { top, publication: publications.into_iter().next().filter(|newest| !newest.is_expired(now_ms)) })
    }

    async fn tops(&self, channels: &[ChannelName]) -> Result<Vec<Position>, BrokerError> {
        let groups = self.groups(channels);
        let asked = groups.iter().map(async |group| {
            let keys: Vec<_> =
                group.iter().flat_map(|&i| [self.keys.meta(&channels[i]), self.keys.log(&channels[i])]).collect();
            let answer = self.call("tops", &keys, |command| _ = command.arg(seed())).await?;
            let numbers: Vec<String> = redis::from_redis_value(answer).map_err(|_| not_understood())?;
            let position =
                |pair: &[String]| Some(Position { epoch: Epoch(pair[0].parse().ok()?), offset: pair[1].parse().ok()? });
            let tops: Option<Vec<_>> = numbers.chunks_exact(2).map(position).collect();
            tops.filter(|tops| tops.len() == group.len()).ok_or_else(not_understood)
        });
        let answers = try_join_all(asked).await?;
        let mut tops = vec![None; channels.len()];
        for (i, top) in groups.iter().flatten().zip(answers.into_iter().flatten()) {
            tops[*i] = Some(top);
        }
        tops.into_iter().collect::<Option<_>>().ok_or_else(not_understood)
    }

    async fn channels(
        &self,
        pattern: &Pattern,
        after: Option<&ChannelName>,
        max: usize,
    ) -> Result<Vec<ChannelName>, BrokerError> {
        let now_ms = self.renew(Duration::ZERO, "").await?.now_ms;
        let asked = (0..BUCKETS).map(|bucket| async move {
            let mut command = redis::cmd("ZRANGEBYSCORE");
            command.arg(self.keys.index(bucket)).arg(now_ms).arg("+inf");
            let names = self.query(&command).await.map_err(broker_error)?;
            redis::from_redis_value::<Vec<String>>(names).map_err(|_| not_understood())
        });
        // The names of all buckets together may need much memory.
        let mut buckets = stream::iter(asked).buffer_unordered(BUCKETS_AT_ONCE);
        let mut found = Smallest::new(after, max);
        while let Some(names) = buckets.try_next().await? {
            for name in &names {
                if found.wants(name)
                    && pattern.matches(name)
                    && let Ok(name) = ChannelName::parse(name)
                {
                    found.offer(&name);
                }
            }
        }
        Ok(found.into_names())
    }

    async fn subscribe(&self, targets: &[Target]) -> Result<(), BrokerError> {
        self.subscriptions.subscribe(targets).await.map_err(broker_error)
    }

    async fn unsubscribe(&self, targets: &[Target]) -> Result<(), BrokerError> {
        self.subscriptions.unsubscribe(targets).await.map_err(broker_error)
    }

    async fn renew(&self, lease: Duration) -> Result<Lease, BrokerError> {
        self.renew(lease, &self.node).await
    }

    async fn send(&self, node: Option<&str>, message: &str) -> Result<(), BrokerError> {
        let mut command = redis::cmd("PUBLISH");
        command.arg(self.keys.node(node)).arg(message);
        self.query(&command).await.map(drop).map_err(broker_error)
    }

    async fn count(&self) -> Result<usize, BrokerError> {
        let indexes: Vec<_> = (0..BUCKETS).map(|bucket| self.keys.index(bucket)).collect();
        let at_once = if self.is_cluster { 1 } else { indexes.len() };
        let counted = indexes.chunks(at_once).map(async |indexes| {
            let count = self.call("count", indexes, |_| {}).await?;
            redis::from_redis_value::<usize>(count).map_err(|_| not_understood())
        });
        Ok(try_join_all(counted).await?.into_iter().sum())
    }
}

impl Redis {
    async fn renew(&self, lease: Duration, node: &str) -> Result<Lease, BrokerError> {
        let lease_ms = lease.as_millis() as u64;
        let renewed = self.call("renew", &[self.keys.nodes()], |command| _ = command.arg(node).arg(lease_ms)).await?;
        let (now_ms, nodes): (String, Vec<String>) = redis::from_redis_value(renewed).map_err(|_| not_understood())?;
        Ok(Lease { now_ms: now_ms.parse().map_err(|_| not_understood())?, nodes })
    }
}

/// Returns a random epoch for a channel that needs a new one.
fn seed() -> u32 {
    getrandom::u32().unwrap_or_default()
}

fn not_understood() -> BrokerError {
    BrokerError::Refused(Error::new(Code::Internal, "the response of Redis cannot be parsed"))
}

fn is_not_loaded(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("Function not found"))
        || error.to_string().contains("Function not found")
}

/// Converts an error of the client library. Its errors contain no part of the URL.
fn broker_error(error: RedisError) -> BrokerError {
    use redis::ErrorKind::{AuthenticationFailed, InvalidClientConfig, RESP3NotSupported};
    let refused = |code, detail: String| BrokerError::Refused(Error::new(code, detail));
    match (error.kind(), error.code()) {
        (_, Some("TOOMANY")) => refused(Code::TooMany, "there are as many channels as there may be".into()),
        (_, Some("OOM")) => {
            let detail = "Redis has no memory left for more publications (`maxmemory`): its operator has to raise that, or \
                          history has to be shorter (`history.age_max`); try again later";
            BrokerError::Refused(Error::new(Code::Unavailable, detail).retry_after(OOM_RETRY))
        }
        (AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => {
            refused(Code::Internal, "Redis refuses the user or password of `engine.url`, or what it may do".into())
        }
        (InvalidClientConfig, _) => refused(Code::Internal, format!("`engine.url` cannot be used: {error}")),
        (RESP3NotSupported, _) => refused(Code::Internal, "Redis is too old: 7.0 or later is needed".into()),
        (_, Some("ERR")) if error.to_string().contains("unknown command") => {
            refused(Code::Internal, "Redis is too old: 7.0 or later is needed".into())
        }
        _ => BrokerError::Unavailable(error.to_string()),
    }
}
