//! A push service with answers that a test sets, and a node without sockets that sends to it.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use millrace_delivery::PageLimit;
use millrace_engine::{Engine, HistoryConfig, open, unix_ms};
use millrace_node::Router;
use millrace_protocol::{ChannelName, Kind, NewPublication, Since, session::Policy};
use millrace_push::{Config, Hosts, Message, NAMESPACE, Push, QUEUE, Vapid};
use tokio::time::sleep;

pub const WAIT: Duration = Duration::from_secs(30);
/// Time limit of a request.
const TIMEOUT: Duration = Duration::from_millis(500);

/// A request that the service has received.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub ttl: u64,
    pub at: Instant,
}

/// Answers of the service to one path, the first one first. The last one is repeated.
type Answers = Arc<Mutex<BTreeMap<String, Vec<&'static str>>>>;

/// A push service. An answer is a status and optional headers, such as `503 Busy\r\nretry-after: 1`; an empty one is
/// never sent.
#[derive(Clone)]
pub struct Service {
    pub origin: String,
    answers: Answers,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Service {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let origin = format!("http://{}", listener.local_addr().expect("an address"));
        let service = Self { origin, answers: Arc::default(), seen: Arc::default() };
        let serving = service.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                std::thread::spawn(move || drop(serving.serve(stream)));
            }
        });
        service
    }

    pub fn set_answers(&self, path: &str, answers: &[&'static str]) {
        self.answers.lock().expect("no panic").insert(path.into(), answers.to_vec());
    }

    /// Returns the requests for a path.
    pub fn seen(&self, path: &str) -> Vec<Seen> {
        self.seen.lock().expect("no panic").iter().filter(|seen| seen.path == path).cloned().collect()
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let (mut line, mut head) = (String::new(), String::new());
            while reader.read_line(&mut line)? > 0 && line != "\r\n" {
                head.push_str(&line);
                line.clear();
            }
            if head.is_empty() {
                return Ok(());
            }
            let value = |name: &str| {
                let values = head.lines().filter_map(|line| line.split_once(": "));
                values.filter(|(found, _)| found.eq_ignore_ascii_case(name)).find_map(|(_, value)| value.parse().ok())
            };
            let mut body = vec![0; value("content-length").unwrap_or(0) as usize];
            reader.read_exact(&mut body)?;
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let ttl = value("ttl").expect("RFC 8030, section 5.2, requires a TTL");
            let answer = {
                let mut answers = self.answers.lock().expect("no panic");
                let list = answers.entry(path.clone()).or_default();
                match list.len() {
                    0 => "201 Created",
                    1 => list[0],
                    _ => list.remove(0),
                }
            };
            self.seen.lock().expect("no panic").push(Seen { path, ttl, at: Instant::now() });
            if !answer.is_empty() {
                write!(stream, "HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n")?;
            }
        }
    }
}

/// Opens an engine with the states that Web Push uses.
pub fn open_engine(url: &str) -> Arc<dyn Engine> {
    let state = HistoryConfig { state: true, keys_max: 10_000, ..HistoryConfig::default() };
    let config = millrace_engine::Config {
        namespaces: BTreeMap::from([(NAMESPACE.into(), state)]),
        internal_states: Some(state),
        ..millrace_engine::Config::default()
    };
    open(url, config, Arc::new(Router::new(1)), unix_ms).expect("an engine")
}

pub fn start(service: &Service, engine: &Arc<dyn Engine>) -> Push {
    let random = ring::rand::SystemRandom::new();
    let algorithm = &ring::signature::ECDSA_P256_SHA256_FIXED_SIGNING;
    let key = ring::signature::EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
    let body = BASE64_STANDARD.encode(key.as_ref());
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n");
    let vapid = Vapid::parse(&pem, "mailto:ops@example.org".into()).expect("a key");
    let hosts = Hosts::new(vec![service.origin.clone()]);
    let config = Config { vapid, hosts, timeout: TIMEOUT, authorities: Vec::new() };
    Push::start(config, engine.clone()).expect("a thread")
}

/// Stores a subscription, and returns a message for it.
pub async fn message(service: &Service, engine: &Arc<dyn Engine>, path: &str, ttl: Duration) -> Message {
    let channel = channel(&format!("{NAMESPACE}/alice"));
    let mut subscription = NewPublication::new(Kind::Json, "{}");
    subscription.key = Some(path.into());
    engine.append(&channel, subscription).await.expect("stored");
    Message {
        endpoint: format!("{}{path}", service.origin),
        p256dh: "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4".into(),
        auth: "BTBZMqHH6r4Tts7J_aSIgg".into(),
        subscriptions: channel.as_str().into(),
        subscription: path.into(),
        body: "SGVsbG8=".into(),
        urgency: "normal".into(),
        expires_ms: unix_ms() + ttl.as_millis() as u64,
        attempt: 0,
        due_ms: 0,
    }
}

/// Returns the keys of a state.
async fn keys(engine: &Arc<dyn Engine>, state: &str) -> Vec<String> {
    let limit = PageLimit { count: 1000, bytes: 1 << 20 };
    let page = engine.page(&channel(state), Since::State, Policy::Every, limit).await.expect("a page");
    let entries = page.publications.iter().filter(|entry| !entry.is_deletion);
    entries.filter_map(|entry| entry.key.as_deref().map(str::to_owned)).collect()
}

/// Returns the ids of the messages that wait.
pub async fn queued(engine: &Arc<dyn Engine>) -> Vec<String> {
    keys(engine, QUEUE).await
}

pub async fn subscriptions(engine: &Arc<dyn Engine>) -> Vec<String> {
    keys(engine, &format!("{NAMESPACE}/alice")).await
}

pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !condition().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

fn channel(name: &str) -> ChannelName {
    ChannelName::parse(name).expect("a channel name")
}
