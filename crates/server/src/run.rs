//! Threads from start to drain.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use millrace_delivery::Hub;
use millrace_engine::Engine;
use millrace_node::{Metrics, Router, Shard};
use millrace_protocol::ticket::TicketKey;
use millrace_transport::{
    Drain, Listener, MOVE, Sockets,
    access::{Access, Everyone},
    bind_udp, http, serve,
};
use rustix::{
    net::{self, AddressFamily, SocketType},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::{LocalSet, spawn_local},
};

use crate::{
    Config, agent,
    auth::Auth,
    pages::Site,
    reload::{Reload, changes},
};

/// After the drain's window: time for the last frames to leave.
const LAST_FRAMES: Duration = Duration::from_millis(300);

/// A server whose shards run.
pub struct Running {
    pub address: SocketAddr,
    ready: Arc<AtomicBool>,
    draining: watch::Sender<Option<Drain>>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    limits: watch::Sender<millrace_transport::Config>,
    engine: Arc<dyn Engine>,
    metrics: Vec<Arc<Metrics>>,
    auth: Arc<Auth>,
    config: Config,
}

/// Starts all shards and returns once they listen.
///
/// Errors: an address that is taken, or a thread or descriptor that the system refuses.
pub fn start(config: Config) -> anyhow::Result<Running> {
    raise_descriptor_limit();
    let shards = config.shards();
    let listeners = check_free(config.server.listen).and_then(|()| Listener::bind(config.server.listen, shards));
    let listeners =
        listeners.with_context(|| format!("cannot listen on {}: is another server there?", config.server.listen))?;
    let address = listeners[0].address()?;
    let mut datagrams = None;
    if !config.server.udp.is_empty() {
        let socket = bind_udp(config.server.udp.parse()?);
        datagrams = Some(socket.with_context(|| format!("cannot receive datagrams on {}", config.server.udp))?);
    }
    let udp = datagrams.as_ref().map(|socket| socket.local_addr()).transpose()?.map(|address| address.to_string());

    let mut agent = match config.server.agent.as_str() {
        "" => None,
        address => Some(bind_agent(address).with_context(|| format!("cannot answer agent checks on {address}"))?),
    };

    let router = Arc::new(Router::new(shards));
    let engine = millrace_engine::open(&config.engine.url, config.engine(), router.clone(), unix_ms)
        .context("the engine (`engine.url`) cannot be opened")?;
    let metrics: Vec<Arc<Metrics>> = (0..shards).map(|_| Arc::default()).collect();
    let ready = Arc::new(AtomicBool::new(true));
    let name = millrace_engine::shown_url(&config.engine.url);
    let site = Arc::new(Site::new(urls(address), udp, name, engine.clone(), metrics.clone(), ready.clone()));
    let tickets = Arc::new(ticket_key(&config)?);
    let auth = Auth::new(&config.auth, &config.anonymous(), unix_s).map_err(anyhow::Error::msg).context("`[auth]`")?;
    let auth = Arc::new(auth);
    let access = Arc::new(Access { authority: auth.clone(), ..Access::from(Everyone::default()) });
    let (draining, drains) = watch::channel(None);
    let (stop, stops) = watch::channel(false);
    let (limits, changing) = watch::channel(config.limits.clone());

    let mut threads = Vec::with_capacity(shards);
    for (id, listener) in listeners.into_iter().enumerate() {
        let (router, engine, metrics, pages) = (router.clone(), engine.clone(), metrics[id].clone(), site.clone());
        let (draining, mut stopped) = (drains.clone(), stops.clone());
        let (mut changing, tickets, ready) = (changing.clone(), tickets.clone(), ready.clone());
        let access = access.clone();
        let agent = if id == 0 { agent.take() } else { None };
        let datagrams = if id == 0 { datagrams.take() } else { None };
        let thread = move || -> io::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let local = LocalSet::new();
            local.block_on(&runtime, async move {
                let limits = changing.borrow_and_update().clone();
                let (hub, sockets) = (Hub::new(limits.hub()), Sockets::new(metrics.clone())?);
                if let Some(listener) = agent {
                    spawn_local(agent::serve(TcpListener::from_std(listener)?, ready, router.clone()));
                }
                let shard = Shard::new(id, router, engine, hub, sockets, metrics);
                let context = http::Context::new(shard, limits, pages, draining, tickets, access);
                let limited = context.clone();
                spawn_local(async move {
                    while changing.changed().await.is_ok() {
                        limited.set_config(changing.borrow_and_update().clone());
                    }
                });
                let stop = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
                serve(context, listener, datagrams, stop).await
            })
        };
        let named = std::thread::Builder::new().name(format!("shard-{id}"));
        threads.push(named.spawn(move || {
            if let Err(error) = thread() {
                tracing::error!(id, %error, "a shard has ended");
            }
        })?);
    }
    tracing::info!(%address, shards, engine = millrace_engine::shown_url(&config.engine.url), "serving");
    Ok(Running { address, ready, draining, stop, threads, limits, engine, metrics, auth, config })
}

impl Running {
    /// Takes what holds at once of a new configuration, and names the rest.
    fn reload(&mut self, reload: &Reload) {
        let loaded = (reload.load)().and_then(|config| {
            (reload.set_log_level)(&config.log.level)?;
            self.auth.reload(&config.auth, &config.anonymous()).map_err(anyhow::Error::msg).context("`[auth]`")?;
            Ok(config)
        });
        let config = match loaded {
            Ok(config) => config,
            Err(error) => {
                let error = format!("{error:#}");
                return tracing::error!(
                    error,
                    "the new configuration is bad: nothing of it is taken, the old one stays"
                );
            }
        };
        for (key, at_once) in changes(&self.config, &config) {
            match at_once {
                true => tracing::info!(key, "changed"),
                false => tracing::warn!(key, "changed in the configuration, but holds only after a restart"),
            }
        }
        self.limits.send_replace(config.limits.clone());
        // What waits for a restart is named again next time.
        self.config.auth = config.auth;
        for (name, namespace) in config.namespaces {
            self.config.namespaces.entry(name).or_default().anonymous = namespace.anonymous;
        }
        self.config.limits = config.limits;
        self.config.drain = config.drain;
        self.config.log.level = config.log.level;
        tracing::info!("the configuration was read again");
    }

    /// Readiness off, readers told to move, each closed a little after its moment, then the threads end. Bounded by
    /// [`config::Drain::longest`](crate::config::Drain::longest).
    pub async fn drain(self) {
        let drain = &self.config.drain;
        tracing::info!("draining");
        self.ready.store(false, Relaxed);
        tokio::time::sleep(drain.announce).await;
        let readers = self.metrics.iter().map(|shard| shard.open_readers()).sum();
        let window = drain.spread(readers);
        tracing::info!(readers, window_ms = window.as_millis() as u64, "readers are told to move");
        self.draining.send_replace(Some(Drain { window, ticket: drain.ticket }));
        tokio::time::sleep(window + MOVE + LAST_FRAMES).await;
        self.stop();
    }

    /// Ends at once.
    pub fn stop(self) {
        self.stop.send_replace(true);
        for thread in self.threads {
            let _ = thread.join();
        }
        self.engine.close();
        tracing::info!("stopped");
    }
}

/// Serves until SIGTERM or SIGINT, then drains; a second signal ends at once. SIGHUP reads the configuration again.
///
/// Errors: see [`start`].
pub async fn run(config: Config, reload: Reload) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hangup = signal(SignalKind::hangup())?;
    let mut running = start(config)?;
    // Scripts wait for this line.
    println!("listening on http://{}", running.address);
    for url in urls(running.address).iter().filter(|_| running.address.ip().is_unspecified()) {
        println!("reachable at {url}");
    }
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => running.reload(&reload),
        }
    }
    tokio::select! {
        () = running.drain() => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

fn bind_agent(address: &str) -> anyhow::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Of the configured secret, or of one that nobody else knows.
fn ticket_key(config: &Config) -> anyhow::Result<TicketKey> {
    let secret = config.server.secret.as_bytes();
    if !secret.is_empty() {
        return Ok(TicketKey::new(secret));
    }
    let mut chance = [0; 32];
    getrandom::fill(&mut chance).map_err(io::Error::other)?;
    Ok(TicketKey::new(&chance))
}

/// The shards share one port, and the kernel would let a second server of the same user share it, too: half of its connections would
/// silently go there. So the port is first asked for alone.
///
/// Errors: the address is taken, or not ours.
fn check_free(address: SocketAddr) -> io::Result<()> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket(family, SocketType::STREAM, None)?;
    // Connections of an earlier run that linger are no server.
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &address)?;
    Ok(())
}

/// Where a person can reach the server: all own addresses if it listens on all of them.
fn urls(address: SocketAddr) -> Vec<String> {
    if !address.ip().is_unspecified() {
        return vec![format!("http://{address}")];
    }
    let mut urls = vec![format!("http://localhost:{}", address.port())];
    let own = if_addrs::get_if_addrs().unwrap_or_default();
    let reachable = own.iter().map(|interface| interface.ip()).filter(|ip| ip.is_ipv4() && !ip.is_loopback());
    urls.extend(reachable.map(|ip| format!("http://{}", SocketAddr::new(ip, address.port()))));
    urls
}

fn unix_s() -> u64 {
    unix_ms() / 1000
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Each connection is a descriptor: take as many as the system lets us have.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}
