//! A shard that serves on loopback, in the fuzzer's own thread. Its clock jumps to the next timer whenever nothing else is to be done: what
//! waits for a minute takes no time, and no connection can hold up the next input.

// Each target uses its part.
#![allow(dead_code)]

use std::{cell::RefCell, mem::ManuallyDrop, net::SocketAddr, rc::Rc, sync::Arc, time::Duration};

use http::{StatusCode, request::Parts};
use millrace_delivery::Hub;
use millrace_engine::{HistoryConfig, MemoryEngine};
use millrace_node::{Metrics, Router};
use millrace_protocol::{
    ChannelName, Code, Epoch, Error, Grant, Kind, NewPublication, Pattern, Right, ticket::TicketKey,
};
use millrace_transport::{
    Config, Limits, Listener, Shard, Sockets,
    access::{Access, Authority, Verdict},
    bind_udp,
    http::{Context, Pages, Response, text},
    serve,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::{Builder, Runtime},
    sync::watch,
    task::{LocalSet, spawn_local},
    time::{Instant, timeout},
};

/// Inputs that one shard serves before the next begins with empty histories.
const INPUTS: u32 = 500;
/// Nothing is heard for so long: nothing will be, but heartbeats.
const SILENCE: Duration = Duration::from_secs(40);
/// Longer than any long poll is held, and than a reader may stay silent.
const LONGEST: Duration = Duration::from_secs(90);
const HEARD_BYTES_MAX: usize = 4 << 20;
const START_MS: u64 = 1_795_000_000_000;
pub const MESSAGE_BYTES_MAX: usize = 1000;
pub const CHANNELS_MAX: usize = 400;

pub struct World {
    local: LocalSet,
    runtime: Runtime,
    pub context: Rc<Context>,
    address: SocketAddr,
    udp: std::net::UdpSocket,
    inputs: u32,
}

thread_local! {
    // Not dropped with the thread: it needs other thread-locals for that, which may be gone.
    static WORLD: ManuallyDrop<RefCell<Option<World>>> = const { ManuallyDrop::new(RefCell::new(None)) };
}

/// Runs `on` with the world as it is after the inputs before, and sees that it is well afterwards.
pub fn with(on: impl FnOnce(&World)) {
    WORLD.with(|slot| {
        let mut slot = slot.borrow_mut();
        let world = slot.get_or_insert_with(World::new);
        on(world);
        world.assert_well();
        world.inputs += 1;
        if world.inputs == INPUTS {
            *slot = None;
        }
    });
}

/// Everybody may do everything on these; Ann, whose token is her name, on those that begin with `ann/`, too.
const GRANTED: [&str; 4] = ["+", "a/#", "cars/#", "chat/+"];
/// Nobody may hear what is published there.
const SECRET_CHANNEL: &str = "secret/a";
const SECRET: &str = "nobody hears this";

struct Guard {
    anonymous: Arc<Grant>,
    ann: Arc<Grant>,
    never: watch::Sender<u64>,
}

impl Guard {
    fn new() -> Self {
        let grant = |patterns: &[&str], subject: Option<&str>| {
            let mut grant = Grant::nothing();
            grant.subject = subject.map(Into::into);
            for pattern in patterns {
                let pattern = Pattern::parse(pattern).expect("a good pattern");
                Right::ALL.into_iter().for_each(|right| grant.allow(right, pattern.clone()));
            }
            Arc::new(grant)
        };
        let ann = [&GRANTED[..], &["ann/#"]].concat();
        Self { anonymous: grant(&GRANTED, None), ann: grant(&ann, Some("ann")), never: watch::Sender::default() }
    }
}

impl Authority for Guard {
    fn verify<'a>(&'a self, credential: &'a str) -> Verdict<'a> {
        Box::pin(async move {
            if credential == "ann" { Ok(self.ann.clone()) } else { Err(Error::new(Code::Unauthorized, "no such key")) }
        })
    }

    fn anonymous(&self) -> Arc<Grant> {
        self.anonymous.clone()
    }

    fn revocations(&self) -> watch::Receiver<u64> {
        self.never.subscribe()
    }

    fn is_revoked(&self, _: &Grant) -> bool {
        false
    }
}

struct Health;

impl Pages for Health {
    fn answer(&self, request: &Parts) -> Option<Response> {
        (request.uri.path() == "/healthz").then(|| text(StatusCode::OK, "text/plain", "ok\n"))
    }
}

/// Small bounds, so that an input can reach them.
fn limits() -> Config {
    Config {
        message_bytes_max: MESSAGE_BYTES_MAX,
        batch_bytes_max: 3 * MESSAGE_BYTES_MAX,
        batch_lines_max: 8,
        subscriptions_max: 8,
        compression: true,
        allowed_origins: vec!["https://app.example".into()],
        ..Config::default()
    }
}

impl World {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        let local = LocalSet::new();
        let (context, address, udp) = local.block_on(&runtime, async {
            let started = Instant::now();
            let clock = move || START_MS + started.elapsed().as_millis() as u64;
            let (router, metrics) = (Arc::new(Router::new(1)), Arc::new(Metrics::default()));
            let history = HistoryConfig { count_max: 50, ..HistoryConfig::default() };
            let config = millrace_engine::Config { history, channels_max: CHANNELS_MAX, ..Default::default() };
            let engine = Arc::new(MemoryEngine::new(config, Epoch(0x5f0c_12ab), router.clone(), clock));
            let (hub, sockets) = (Hub::new(limits().hub()), Sockets::new(metrics.clone()).expect("an epoll"));
            let shard = Shard::new(0, router, engine, hub, sockets, metrics);
            let (drain, draining) = watch::channel(None);
            let tickets = Arc::new(TicketKey::new(b"secret"));
            let access = Access { authority: Arc::new(Guard::new()), cookie: "token".into(), query: true, hosts: None };
            let context = Context::new(
                shard,
                limits(),
                Arc::new(Health),
                draining,
                tickets,
                Arc::new(access),
                Limits::new(&limits(), 1024),
            );
            let secret = NewPublication::new(Kind::Text, SECRET.into());
            let channel = ChannelName::parse(SECRET_CHANNEL).expect("a good name");
            context.shard.engine.append(&channel, secret).await.expect("the memory takes it");
            let any: SocketAddr = ([127, 0, 0, 1], 0).into();
            let listener = Listener::bind(any, 1).expect("a free port").remove(0);
            let address = listener.address().expect("an address");
            let datagrams = bind_udp(any).expect("a free port");
            let udp = std::net::UdpSocket::bind(any).expect("a free port");
            udp.connect(datagrams.local_addr().expect("an address")).expect("loopback");
            let serving = context.clone();
            spawn_local(async move {
                let ended = serve(serving, listener, Some(datagrams), std::future::pending()).await;
                panic!("the shard has ended: {ended:?} {drain:?}");
            });
            (context, address, udp)
        });
        World { runtime, local, context, address, udp, inputs: 0 }
    }

    /// Says it all on a connection of its own, and hears what is said back: until the server closes, nothing more will come, or `enough`.
    pub fn talk(&self, said: &[u8], enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        self.local.block_on(&self.runtime, async {
            let stream = TcpStream::connect(self.address).await.expect("a connection");
            let (mut from, mut to) = stream.into_split();
            let writing = spawn_local({
                let said = said.to_vec();
                async move {
                    // The server may have heard enough before.
                    let _ = to.write_all(&said).await;
                    to
                }
            });
            let (mut heard, started) = (Vec::with_capacity(4096), Instant::now());
            while started.elapsed() < LONGEST && heard.len() < HEARD_BYTES_MAX && !enough(&heard) {
                match timeout(SILENCE, from.read_buf(&mut heard)).await {
                    Ok(Ok(1..)) => {}
                    _ => break,
                }
            }
            writing.abort();
            let knows = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
            assert!(knows(said) || !knows(&heard), "a secret is told: {}", String::from_utf8_lossy(&heard));
            heard
        })
    }

    /// Sends a datagram, and waits until it was received. True: it was taken.
    pub fn send(&self, datagram: &[u8]) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        let metrics = &self.context.shard.metrics;
        let counts = || (metrics.udp_received.load(Relaxed), metrics.udp_dropped.load(Relaxed));
        let (received, dropped) = counts();
        self.udp.send(datagram).expect("loopback");
        self.until("the datagram is received", || counts().0 > received);
        // What it leads to is done in the same turn of its task, unless the engine waits, and this one never does.
        assert_eq!(counts().0, received + 1);
        counts().1 == dropped
    }

    fn assert_well(&self) {
        let metrics = self.context.shard.metrics.clone();
        self.until("nobody is left", || metrics.open_readers() == 0);
        let asked = b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let heard = self.talk(asked, |_| false);
        assert!(heard.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", String::from_utf8_lossy(&heard));
    }

    fn until(&self, what: &str, condition: impl Fn() -> bool) {
        self.local.block_on(&self.runtime, async {
            let started = Instant::now();
            while !condition() {
                assert!(started.elapsed() < 2 * LONGEST, "not within {:?}: {what}", 2 * LONGEST);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
}
