use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use millrace_protocol::{ChannelName, Code, Epoch, Error, INTERNAL};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    link::{Link, RequestError, code, not_enabled},
    subject,
};
use crate::{
    Config, HistoryConfig,
    config::{Class, ROOMS},
    remote::BrokerError,
};

/// Period in which the server detects a repeated idempotency key.
const KEYS: Duration = Duration::from_secs(5 * 60);
/// Oldest supported server. It republishes only stored messages, and reads by subject without a consumer.
const SERVER_MIN: (i64, i64, i64) = (2, 9, 0);
/// Oldest server that can be configured to write messages to disk before it answers.
const SYNC_MIN: (i64, i64, i64) = (2, 10, 0);

/// Setting of a stream: the number of messages per channel.
const KEPT: &str = "max_msgs_per_subject";
/// Least number of messages per keyed state, and number of keys per message of a state with the maximum number of keys.
/// The fewer messages, the more of the state each new message has to carry.
const STATE_KEPT_MIN: usize = 256;
const KEYS_PER_MESSAGE: usize = 4;

/// The streams, one per class of channels, because the number of messages kept per channel is a setting of the stream.
pub struct Streams {
    prefix: String,
    /// The first stream serves all namespaces without limits of their own.
    all: Vec<Stream>,
    by_namespace: HashMap<String, usize>,
    /// Streams of the rosters, by namespace. The empty namespace stands for all without limits of their own.
    rosters: HashMap<String, usize>,
    /// Index of the stream of the states of rooms.
    room_states: usize,
    internal_states: Option<usize>,
}

pub struct Stream {
    pub name: String,
    class: String,
    history: HistoryConfig,
    /// Known state of the stream. `None` before the first look-up and after an unexpected answer.
    known: Mutex<Option<Known>>,
    /// Locked during a look-up, so that concurrent callers send one request.
    looking: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub epoch: Epoch,
    /// True if a replica may answer a direct read with stale data. Then reads go to the leader.
    pub is_replicated: bool,
    /// Number of messages that the server keeps per channel.
    pub kept: usize,
}

#[derive(Deserialize)]
pub struct Info {
    config: Value,
    pub state: InfoState,
    #[serde(default)]
    pub total: usize,
}

#[derive(Deserialize)]
pub struct InfoState {
    #[serde(default)]
    pub num_subjects: usize,
    #[serde(default)]
    pub subjects: Option<HashMap<String, u64>>,
}

impl Streams {
    pub fn new(config: &Config) -> Self {
        let prefix = config.prefix.clone();
        let mut all = vec![Stream::new(prefix.clone(), subject::DEFAULT_CLASS.into(), config.history)];
        let mut add = |class: String, history| {
            all.push(Stream::new(format!("{prefix}@{class}"), class, history));
            all.len() - 1
        };
        let mut by_namespace = HashMap::new();
        for (namespace, history) in config.namespaces.iter().chain([(&INTERNAL.to_owned(), &config.internal)]) {
            by_namespace.insert(namespace.clone(), add(subject::token(namespace), *history));
        }
        let mut rosters = HashMap::new();
        for (namespace, history) in config.namespaces.iter().chain([(&String::new(), &config.history)]) {
            if history.roster {
                let class = format!("{}@members", subject::token(namespace));
                let history = config.of_class(Class::Roster(namespace));
                rosters.insert(namespace.clone(), add(class, history));
            }
        }
        let internal_states = config.internal_states.map(|history| add(format!("{INTERNAL}@states"), history));
        let room_states = add(format!("{ROOMS}@states"), config.of_class(Class::RoomState));
        Self { prefix, all, by_namespace, rosters, internal_states, room_states }
    }

    pub fn all(&self) -> &[Stream] {
        &self.all
    }

    pub fn of(&self, channel: &ChannelName) -> &Stream {
        let special = match Class::of(channel) {
            Class::Roster(namespace) => self.roster_index(namespace),
            Class::InternalState => self.internal_states,
            Class::RoomState => Some(self.room_states),
            Class::Namespace(_) | Class::InternalLog => None,
        };
        match special {
            Some(index) => &self.all[index],
            None => self.of_namespace(channel.namespace()),
        }
    }

    /// Returns the streams of the channels, of the rosters and of the states of rooms of a namespace.
    pub fn of_first_level(&self, namespace: &str) -> impl Iterator<Item = &Stream> {
        let rosters = self.roster_index(namespace).map(|index| &self.all[index]);
        let room_states = (namespace == ROOMS).then(|| &self.all[self.room_states]);
        std::iter::once(self.of_namespace(namespace)).chain(rosters).chain(room_states)
    }

    fn roster_index(&self, namespace: &str) -> Option<usize> {
        let own = if self.by_namespace.contains_key(namespace) { namespace } else { "" };
        self.rosters.get(own).copied()
    }

    fn of_namespace(&self, namespace: &str) -> &Stream {
        &self.all[self.by_namespace.get(namespace).copied().unwrap_or(0)]
    }

    /// Returns the subject of a channel, or of the channels that match, inside a stream.
    pub fn subject(&self, stream: &Stream, epoch: Epoch, tokens: &str) -> String {
        format!("{}.log.{}.{}.{tokens}", self.prefix, stream.class, subject::epoch(epoch))
    }

    /// Returns the stream's epoch and read mode. Creates the stream if it does not exist.
    pub async fn known(&self, link: &Link, stream: &Stream) -> Result<Known, BrokerError> {
        if let Some(known) = stream.known() {
            return Ok(known);
        }
        let _alone = stream.looking.lock().await;
        if let Some(known) = stream.known() {
            return Ok(known);
        }
        let known = self.look(link, stream).await?;
        *stream.lock() = Some(known);
        Ok(known)
    }

    async fn look(&self, link: &Link, stream: &Stream) -> Result<Known, BrokerError> {
        let (major, minor, patch) = SERVER_MIN;
        let server = link.server();
        if let Some(server) = server.as_ref().filter(|server| is_older(&server.version, SERVER_MIN)) {
            return refuse(format!(
                "nats-server is {}, and has to be {major}.{minor}.{patch} or later",
                server.version
            ));
        }
        if let Some(server) = server.as_ref().filter(|server| is_older(&server.version, SYNC_MIN))
            && stream.history.durable
        {
            return refuse(format!(
                "`durable = true` needs nats-server 2.10 or later, with `sync_interval: always` in its settings of JetStream; this \
                 one is {} and writes to disk every two minutes",
                server.version
            ));
        }
        let info = match self.info(link, stream, Value::Null).await {
            Err(trouble) if trouble.is_api(code::STREAM_NOT_FOUND) => self.create(link, stream).await?,
            // A server without JetStream may reach it through other servers. It is missing only if none of them
            // answers.
            Err(RequestError::NoResponders) if server.is_some_and(|server| !server.jetstream) => {
                return Err(not_enabled());
            }
            info => info?,
        };
        let Some(epoch) = self.epoch(stream, &info.config) else {
            return refuse(format!("the stream {} of NATS is not ours: choose another engine.prefix", stream.name));
        };
        let mut wanted = self.wanted(stream, epoch);
        let (is, kept) = (info.config[KEPT].as_u64().unwrap_or(0), wanted[KEPT].as_u64().unwrap_or(0));
        if stream.history.state && is > kept {
            // Fewer messages would drop a part of the states.
            wanted[KEPT] = is.into();
        }
        let kept = wanted[KEPT].as_u64().unwrap_or(1) as usize;
        self.update(link, stream, &info.config, &wanted).await?;
        Ok(Known { epoch, is_replicated: info.config["num_replicas"].as_u64() > Some(1), kept })
    }

    pub async fn info(&self, link: &Link, stream: &Stream, body: Value) -> Result<Info, RequestError> {
        link.api(format!("$JS.API.STREAM.INFO.{}", stream.name), &body).await
    }

    async fn create(&self, link: &Link, stream: &Stream) -> Result<Info, BrokerError> {
        let random = getrandom::u32().map_err(|error| BrokerError::Unavailable(error.to_string()))?;
        let config = self.wanted(stream, Epoch(random));
        match link.api(format!("$JS.API.STREAM.CREATE.{}", stream.name), &config).await {
            // Another node created the stream first.
            Err(trouble) if trouble.is_api(code::STREAM_EXISTS) => Ok(self.info(link, stream, Value::Null).await?),
            info => {
                let info = info?;
                tracing::info!(stream = stream.name, epoch = subject::epoch(Epoch(random)), "created a NATS stream");
                Ok(info)
            }
        }
    }

    /// Updates the limits that this server owns. Settings of the operator (replicas, placement, sizes) stay.
    async fn update(&self, link: &Link, stream: &Stream, is: &Value, wanted: &Value) -> Result<(), BrokerError> {
        const OURS: &[&str] = &[KEPT, "duplicate_window", "republish", "discard", "allow_direct", "max_age"];
        let mut config = is.clone();
        OURS.iter().for_each(|key| config[*key] = wanted[*key].clone());
        if config == *is {
            return Ok(());
        }
        let _: Info = link.api(format!("$JS.API.STREAM.UPDATE.{}", stream.name), &config).await?;
        Ok(())
    }

    fn wanted(&self, stream: &Stream, epoch: Epoch) -> Value {
        let Stream { name, class, .. } = stream;
        let prefix = &self.prefix;
        json!({
            "name": name,
            "subjects": [self.subject(stream, epoch, ">")],
            "retention": "limits",
            // Up to version 2.9 at least, a memory stream scans all its messages for each appended message.
            "storage": "file",
            // A message holds at least one publication. So this many messages hold at least the configured number of
            // publications.
            KEPT: stream.kept(),
            // Messages above a limit of the whole stream are refused. The last message of a channel marks the end of
            // its log and must not be dropped.
            "discard": "new",
            "max_age": 0,
            "max_bytes": -1,
            "max_msgs": -1,
            "max_consumers": -1,
            "num_replicas": 1,
            "duplicate_window": KEYS.as_nanos() as u64,
            "allow_direct": true,
            "republish": { "src": format!("{prefix}.log.{class}.>"), "dest": format!("{prefix}.live.{class}.>") },
        })
    }

    fn epoch(&self, stream: &Stream, config: &Value) -> Option<Epoch> {
        let subject = config["subjects"].as_array()?.first()?.as_str()?;
        let start = format!("{}.log.{}.", self.prefix, stream.class);
        subject::parse_epoch(subject.strip_prefix(&start)?.strip_suffix(".>")?)
    }
}

impl Stream {
    fn new(name: String, class: String, history: HistoryConfig) -> Self {
        Self { name, class, history, known: Mutex::default(), looking: tokio::sync::Mutex::default() }
    }

    /// Returns the number of messages per channel that the server has to keep.
    fn kept(&self) -> usize {
        let HistoryConfig { count_max, keys_max, state, .. } = self.history;
        let for_state = if state { STATE_KEPT_MIN.max(keys_max / KEYS_PER_MESSAGE) } else { 1 };
        count_max.max(for_state)
    }

    /// Clears the known state after an unexpected answer, so that the next use looks it up again.
    pub fn forget(&self) {
        *self.lock() = None;
    }

    pub fn known(&self) -> Option<Known> {
        *self.lock()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refuse<T>(detail: String) -> Result<T, BrokerError> {
    Err(BrokerError::Refused(Error::new(Code::Unavailable, detail)))
}

fn is_older(version: &str, (major, minor, patch): (i64, i64, i64)) -> bool {
    let mut numbers = version.trim_start_matches('v').split(['.', '-']).map_while(|part| part.parse::<i64>().ok());
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next()) < (major, minor, patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_numerically() {
        for old in ["2.8.4", "1.10.0", "2.8.99-beta.1"] {
            assert!(is_older(old, SERVER_MIN), "{old}");
        }
        for new in ["2.9.0", "2.9.10", "v2.10.1", "2.12.0-preview.1", "3.0.0"] {
            assert!(!is_older(new, SERVER_MIN), "{new}");
        }
    }

    #[test]
    fn namespace_with_bounds_has_its_own_stream() {
        let namespaces = [("a.b".to_owned(), HistoryConfig::default())].into();
        let streams = Streams::new(&Config { namespaces, ..Config::default() });
        let of = |name: &str| streams.of(&ChannelName::parse(name).unwrap()).name.clone();
        assert_eq!(
            (of("a.b/c"), of("a/b"), of("@x".trim_start_matches('@'))),
            ("millrace@a=b".into(), "millrace".into(), "millrace".into())
        );
        let stream = &streams.all()[1];
        let config = streams.wanted(stream, Epoch(0x5f0c_12ab));
        assert_eq!(config["subjects"], json!(["millrace.log.a=b.5f0c12ab.>"]));
        assert_eq!(streams.epoch(stream, &config), Some(Epoch(0x5f0c_12ab)));
        assert_eq!(streams.epoch(&streams.all()[0], &config), None);
    }

    #[test]
    fn rosters_and_states_of_the_server_have_streams_of_their_own() {
        let rostered = HistoryConfig { roster: true, ..HistoryConfig::default() };
        let namespaces = [("chat".to_owned(), rostered), ("cars".to_owned(), HistoryConfig::default())].into();
        let internal_states = Some(HistoryConfig { state: true, ..HistoryConfig::default() });
        let streams = Streams::new(&Config { namespaces, internal_states, ..Config::default() });
        for (channel, stream) in [
            ("chat/1", "millrace@chat"),
            ("chat/1/:members", "millrace@chat@members"),
            ("cars/1/:members", "millrace@cars"),
            ("x/1/:members", "millrace"),
            (":millrace/revocations", "millrace@:millrace"),
            (":millrace/nodes", "millrace@:millrace@states"),
            ("rooms/a/chat", "millrace"),
            ("rooms/a/state", "millrace@rooms@states"),
        ] {
            assert_eq!(streams.of(&ChannelName::parse(channel).unwrap()).name, stream, "{channel}");
        }
        let names: Vec<_> = streams.of_first_level("chat").map(|stream| stream.name.as_str()).collect();
        assert_eq!(names, ["millrace@chat", "millrace@chat@members"]);
        let names: Vec<_> = streams.of_first_level("rooms").map(|stream| stream.name.as_str()).collect();
        assert_eq!(names, ["millrace", "millrace@rooms@states"]);
    }
}
