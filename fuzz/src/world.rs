//! A shard that serves on loopback, in the fuzzer's own thread. Its clock jumps to the next timer whenever all tasks
//! are idle. A timeout of a minute therefore takes no time, and no connection can delay the next input.

use std::{
    cell::RefCell,
    mem::ManuallyDrop,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{StatusCode, request::Parts};
use millrace_carcare::CarCare;
use millrace_delivery::Hub;
use millrace_engine::{HistoryConfig, MemoryEngine};
use millrace_node::{Metrics, Router};
use millrace_protocol::{
    ChannelName, Code, Epoch, Error, Grant, Kind, NewPublication, Pattern, Permission, ticket::TicketKey,
};
use millrace_transport::{
    Admission, Config, Context, Limits, Listener, Pages, Shard, Sockets,
    access::{Access, Authority, Verdict},
    bind_udp,
    http::{Response, text},
    limits::{ForwardedHeader, Proxies},
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

/// Number of inputs that one shard serves; the next shard starts with empty histories. The shard's health is checked
/// every `INPUTS_PER_LOOK` inputs.
const INPUTS: u32 = 500;
const INPUTS_PER_LOOK: u32 = 50;
/// After this silence only heartbeats can arrive. It is longer than the hold time of a long poll. CarCare holds a
/// long poll for 30 s; there the client disconnects first.
const SILENCE: Duration = Duration::from_secs(5);
/// Maximum time of a conversation, longer than a WebSocket may stay silent.
const LONGEST: Duration = Duration::from_secs(8);
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
    // Not dropped with the thread: the drop needs other thread-locals, which may already be destroyed.
    static WORLD: ManuallyDrop<RefCell<Option<World>>> = const { ManuallyDrop::new(RefCell::new(None)) };
}

/// Runs `on` with the world in its current state, and checks afterwards that no client state is left and that the
/// server is healthy.
pub fn with(on: &mut dyn FnMut(&World)) {
    WORLD.with(|slot| {
        let mut slot = slot.borrow_mut();
        let world = slot.get_or_insert_with(World::new);
        on(world);
        world.assert_left();
        world.inputs += 1;
        if world.inputs.is_multiple_of(INPUTS_PER_LOOK) {
            world.assert_well();
        }
        if world.inputs == INPUTS {
            *slot = None;
        }
    });
}

/// Patterns on which every client has all permissions. Ann, whose token is her name, also has them on `ann/#`. The
/// token `soon` has Ann's grant but expires at once.
const GRANTED: [&str; 4] = ["+", "a/#", "cars/#", "chat/+"];
/// Channel that no client may read.
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
                Permission::ALL.into_iter().for_each(|permission| grant.allow(permission, pattern.clone()));
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
            match credential {
                "ann" => Ok(self.ann.clone()),
                "soon" => Ok(Arc::new(Grant { expires_s: Some(unix_s()), ..(*self.ann).clone() })),
                _ => Err(Error::new(Code::Unauthorized, "no such key")),
            }
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

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns small limits, so that an input can reach them, and short timeouts: each second takes a turn of the shard.
fn limits() -> Config {
    let seconds = Duration::from_secs;
    Config {
        message_bytes_max: MESSAGE_BYTES_MAX,
        batch_bytes_max: 3 * MESSAGE_BYTES_MAX,
        batch_lines_max: 8,
        subscriptions_max: 8,
        patterns_max: 6,
        connections_per_address_max: 2,
        connections_per_subject_max: 2,
        requests_per_connection_max: 10,
        publishes_per_s: 20,
        fragments_max: 20,
        header_timeout: seconds(2),
        body_timeout: seconds(2),
        write_timeout: seconds(3),
        hold_max: seconds(4),
        heartbeat: seconds(3),
        grace: seconds(2),
        compression: true,
        allowed_origins: vec!["https://app.example".into()],
        ..Config::default()
    }
}

/// Returns true if `bytes` contain the secret. Fuzzers learn the secret from comparisons; an input that publishes it
/// to a readable channel is no leak.
pub fn knows(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
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
            let (hub, sockets) = (Hub::new(limits().hub()), Sockets::new(Arc::default()).expect("an epoll"));
            let shard = Shard::new(0, router, engine, hub, sockets, metrics);
            let (drain, draining) = watch::channel(None);
            let tickets = Arc::new(TicketKey::new(b"secret"));
            // The proxy header of every client is trusted.
            let proxies = Proxies { trusted: Config::default().exempt, header: ForwardedHeader::XForwardedFor };
            let (authority, cookie) = (Arc::new(Guard::new()), "token".into());
            let access = Access {
                authority,
                cookie,
                query: true,
                hosts: None,
                trusts_own_pages: false,
                own_keys: Vec::new(),
                is_https: false,
                behind_proxy: false,
            };
            let counted = Limits::behind(proxies, &limits(), 1024);
            let admission = Admission::new(limits(), draining, tickets, Arc::new(access), counted, None, None);
            let context = Context::new(shard, admission, Arc::new(Health));
            context.add_routes(Rc::new(CarCare));
            let secret = NewPublication::new(Kind::Text, SECRET);
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
                let ended = serve(serving, listener, Some(datagrams), None, std::future::pending()).await;
                panic!("the shard has ended: {ended:?} {drain:?}");
            });
            (context, address, udp)
        });
        World { runtime, local, context, address, udp, inputs: 0 }
    }

    /// Sends `said` on a new connection and returns the received bytes. Reads until the server closes, a limit or
    /// silence is reached, or `enough` returns true.
    pub fn talk(&self, said: &[u8], enough: &dyn Fn(&[u8]) -> bool) -> Vec<u8> {
        self.local.block_on(&self.runtime, async {
            let stream = TcpStream::connect(self.address).await.expect("a connection");
            let (mut from, mut to) = stream.into_split();
            let writing = spawn_local({
                let said = said.to_vec();
                async move {
                    // The server may close the connection before it has read all bytes.
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
            assert!(!knows(&heard), "a secret is told: {}", String::from_utf8_lossy(&heard));
            heard
        })
    }

    /// Sends a datagram and waits until the server has received it. Returns true if the server accepted the datagram.
    pub fn send(&self, datagram: &[u8]) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        let metrics = &self.context.shard.socket_metrics;
        let counts = || (metrics.udp_received.load(Relaxed), metrics.udp_dropped.load(Relaxed));
        let (received, dropped) = counts();
        self.udp.send(datagram).expect("loopback");
        self.until("the datagram is received", || counts().0 > received);
        // The server processes a datagram in one turn of its task, because this engine never waits.
        assert_eq!(counts().0, received + 1);
        counts().1 == dropped
    }

    /// Checks that no state of a disconnected client is left.
    fn assert_left(&self) {
        let (metrics, limits) = (&self.context.shard.socket_metrics, &self.context.admission.limits);
        let left = || (metrics.open_readers(), limits.connections(), limits.pending_bytes());
        self.until("nobody is left", || left() == (0, 0, 0));
    }

    /// Checks that the server responds and that no client has written to the secret channel.
    fn assert_well(&self) {
        let channel = ChannelName::parse(SECRET_CHANNEL).expect("a good name");
        let engine = &self.context.shard.engine;
        let newest = self.local.block_on(&self.runtime, engine.newest(&channel)).expect("the memory answers");
        assert_eq!(newest.top.offset, 1, "somebody has written to {channel}");
        let asked = b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let heard = self.talk(asked, &|_| false);
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
