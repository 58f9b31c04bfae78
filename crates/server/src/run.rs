//! Threads from start to drain.

use std::{
    io,
    net::SocketAddr,
    rc::Rc,
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
use millrace_transport::{Listener, Sockets, bind_udp, http, serve};
use rustix::{
    net::{self, AddressFamily, SocketType},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::LocalSet,
};

use crate::{Config, pages::Site};

/// After the drain's window: time for the last frames to leave.
const LAST_FRAMES: Duration = Duration::from_millis(300);

/// A server whose shards run.
pub struct Running {
    pub address: SocketAddr,
    ready: Arc<AtomicBool>,
    draining: watch::Sender<bool>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    engine: Arc<dyn Engine>,
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

    let router = Arc::new(Router::new(shards));
    let engine = millrace_engine::open(&config.engine.url, config.engine(), router.clone(), unix_ms)
        .context("the engine (`engine.url`) cannot be opened")?;
    let metrics: Vec<Arc<Metrics>> = (0..shards).map(|_| Arc::default()).collect();
    let ready = Arc::new(AtomicBool::new(true));
    let name = millrace_engine::shown_url(&config.engine.url);
    let site = Arc::new(Site::new(urls(address), udp, name, engine.clone(), metrics.clone(), ready.clone()));
    let (draining, drains) = watch::channel(false);
    let (stop, stops) = watch::channel(false);

    let mut threads = Vec::with_capacity(shards);
    for (id, listener) in listeners.into_iter().enumerate() {
        let (router, engine, metrics, pages) = (router.clone(), engine.clone(), metrics[id].clone(), site.clone());
        let (draining, mut stopped) = (drains.clone(), stops.clone());
        let (limits, drain_window) = (config.limits.clone(), config.drain.window);
        let datagrams = if id == 0 { datagrams.take() } else { None };
        let thread = move || -> io::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let local = LocalSet::new();
            local.block_on(&runtime, async move {
                let (hub, sockets) = (Hub::new(limits.hub()), Sockets::new(metrics.clone())?);
                let shard = Shard::new(id, router, engine, hub, sockets, metrics);
                let context = http::Context { shard, config: limits, pages, draining, drain_window };
                let stop = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
                serve(Rc::new(context), listener, datagrams, stop).await
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
    Ok(Running { address, ready, draining, stop, threads, engine, config })
}

impl Running {
    /// Readiness off, readers told to move, then closed, then the threads end. Bounded by `announce` and `window`.
    pub async fn drain(self) {
        tracing::info!("draining");
        self.ready.store(false, Relaxed);
        tokio::time::sleep(self.config.drain.announce).await;
        self.draining.send_replace(true);
        tokio::time::sleep(self.config.drain.window + LAST_FRAMES).await;
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

/// Serves until SIGTERM or SIGINT, then drains; a second signal ends at once.
///
/// Errors: see [`start`].
pub async fn run(config: Config) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let running = start(config)?;
    // Scripts wait for this line.
    println!("listening on http://{}", running.address);
    for url in urls(running.address).iter().filter(|_| running.address.ip().is_unspecified()) {
        println!("reachable at {url}");
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tokio::select! {
        () = running.drain() => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
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
