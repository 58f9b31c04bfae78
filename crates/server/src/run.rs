//! Threads of the server, from start to drain.

use std::{
    io,
    net::SocketAddr,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc as thread_mpsc,
    },
    thread::JoinHandle,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use millrace_carcare::CarCare;
use millrace_conference::{Conference, ConferenceRoutes, rooms};
use millrace_delivery::Hub;
use millrace_engine::Engine;
use millrace_node::{Router, Shard};
use millrace_protocol::ticket::TicketKey;
use millrace_transport::{
    Admission, Context, Drain, Limits, Listener, Question, RECONNECT_GRACE, RtcPort, Sockets, access::Access, bind_udp,
    serve,
};
use rustix::{
    net::{self, AddressFamily, SocketType},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use serde_json::Value;
use tokio::{
    net::TcpListener,
    runtime::{Builder, LocalOptions},
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::spawn_local,
};

use crate::{
    Config,
    admin::Admin,
    agent,
    auth::Auth,
    memory,
    metrics::ShardMetrics,
    pages::Site,
    reload::{Reload, changes},
    secure,
    tls::Tls,
    turn::Turn,
};

/// Time for the last frames to leave after the drain's window.
const LAST_FRAMES: Duration = Duration::from_millis(300);

/// Maximum number of queued requests to a shard from operators and other shards.
const QUESTIONS_MAX: usize = 1024;

/// A running server.
pub struct Running {
    pub address: SocketAddr,
    /// Address of the admin listener.
    pub admin: Option<SocketAddr>,
    shown: watch::Sender<Value>,
    ready: Arc<AtomicBool>,
    draining: watch::Sender<Option<Drain>>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    /// Dropping this sender ends the memory watcher.
    watch: thread_mpsc::Sender<()>,
    limits: watch::Sender<millrace_transport::Config>,
    tls: Option<Tls>,
    engine: Arc<dyn Engine>,
    metrics: Vec<ShardMetrics>,
    auth: Arc<Auth>,
    config: Config,
    /// True once a shard or the TURN server has ended.
    ended: watch::Receiver<bool>,
}

/// Drop guard of a thread that reports the thread's end, also after a panic.
struct Ends(watch::Sender<bool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

/// Checks whether a server may start with this configuration, and whether its address is free. Has no side effects.
///
/// Errors: see [`start`].
pub fn check(config: &Config) -> anyhow::Result<()> {
    secure::check(config)?;
    // Only a server that starts fetches a key set.
    let auth = crate::auth::Config { jwks: String::new(), ..config.auth.clone() };
    Auth::new(&auth, &config.anonymous(), unix_s).map_err(anyhow::Error::msg).context("`[auth]`")?;
    check_free(config.server.listen).with_context(|| taken(config.server.listen))
}

fn taken(address: SocketAddr) -> String {
    format!("cannot listen on {address}: is another server there?")
}

/// Starts all shards and returns once they listen.
///
/// Errors: an invalid setting, an address that is in use, or a thread or file descriptor that the system refuses.
pub fn start(mut config: Config) -> anyhow::Result<Running> {
    secure::check(&config)?;
    let configured = config.clone();
    memory::apportion(&mut config);
    let descriptors = raise_descriptor_limit();
    let shards = config.shards();
    let listeners = check_free(config.server.listen).and_then(|()| Listener::bind(config.server.listen, shards));
    let listeners = listeners.with_context(|| taken(config.server.listen))?;
    let address = listeners[0].address()?;
    let tls = Tls::load(&config.tls, shards).context("TLS cannot be spoken")?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut datagrams = None;
    if !config.server.udp.is_empty() {
        let socket = bind_udp(config.server.udp.parse()?);
        datagrams = Some(socket.with_context(|| format!("cannot receive datagrams on {}", config.server.udp))?);
    }
    let udp = datagrams.as_ref().map(|socket| socket.local_addr()).transpose()?.map(|address| address.to_string());

    let own: Vec<_> = if_addrs::get_if_addrs().unwrap_or_default().iter().map(|interface| interface.ip()).collect();
    let own: Vec<_> = own.into_iter().filter(|ip| !ip.is_loopback()).collect();
    let rtc = config.rtc.address(config.server.listen).map_err(|what| anyhow::anyhow!("`rtc.listen` {what}"))?;
    let mut rtc: Vec<Option<RtcPort>> = match rtc {
        Some(address) => RtcPort::bind(&config.rtc, address, shards, &own)
            .with_context(|| format!("cannot receive data channels on {address}"))?
            .into_iter()
            .map(Some)
            .collect(),
        None => Vec::new(),
    };

    let mut agent = match config.server.agent.as_str() {
        "" => None,
        address => Some(bind_agent(address).with_context(|| format!("cannot answer agent checks on {address}"))?),
    };

    let admin = match config.admin.listen.as_str() {
        "" => None,
        address => Some(bind_agent(address).with_context(|| format!("cannot answer operators on {address}"))?),
    };

    let router = Arc::new(Router::new(shards));
    let engine = millrace_engine::open(&config.engine.url, config.engine(), router.clone(), unix_ms)
        .context("the engine (`engine.url`) cannot be opened")?;
    let metrics: Vec<ShardMetrics> = (0..shards).map(|_| ShardMetrics::default()).collect();
    let ready = Arc::new(AtomicBool::new(true));
    let name = millrace_engine::shown_url(&config.engine.url);
    let counts = Limits::behind(config.server.proxies(), &config.limits, descriptors);
    let turn = Turn::open(&config, &own, tls.as_ref(), counts.clone())?;
    let urls = urls(scheme, address);
    let mut site = Site::new(urls, udp, name, engine.clone(), metrics.clone(), counts.clone(), ready.clone());
    site.public_metrics = config.server.public_metrics || secure::is_open(&config);
    site.ca = crate::tls::given_out(&config.tls)?;
    site.acme = tls.as_ref().and_then(Tls::acme);
    site.turn = turn.server.as_ref().map(|server| server.figures.clone());
    let site = Arc::new(site);
    let tickets = Arc::new(ticket_key(&config)?);
    let auth = Auth::new(&config.auth, &config.anonymous(), unix_s).map_err(anyhow::Error::msg).context("`[auth]`")?;
    let auth = Arc::new(auth);
    let access = Arc::new(Access {
        authority: auth.clone(),
        cookie: config.auth.cookie.clone(),
        query: config.auth.query,
        hosts: secure::is_open(&config).then(|| [&config.server.hosts[..], &config.tls.acme.domains].concat()),
        behind_proxy: config.server.behind_proxy,
        is_https: tls.is_some() && !config.server.behind_proxy,
    });
    let (shown, settings) = watch::channel(shown(&config));
    let (questions, asked): (Vec<_>, Vec<_>) = (0..shards).map(|_| mpsc::channel::<Question>(QUESTIONS_MAX)).unzip();
    let (room_questions, rooms_asked): (Vec<_>, Vec<_>) = (0..shards).map(|_| mpsc::channel(QUESTIONS_MAX)).unzip();
    let rooms = rooms::Shared::new(config.rooms.clone(), room_questions);
    let (draining, drains) = watch::channel(None);
    let (stop, stops) = watch::channel(false);
    let (ending, ended) = watch::channel(false);
    let (limits, changing) = watch::channel(config.limits.clone());

    let mut threads = Vec::with_capacity(shards);
    for (((id, listener), mut asked), rooms_asked) in listeners.into_iter().enumerate().zip(asked).zip(rooms_asked) {
        let listener = match &tls {
            Some(tls) => listener.with_tls(tls.subscribe()),
            None => listener,
        };
        let (router, engine, metrics, pages) = (router.clone(), engine.clone(), metrics[id].clone(), site.clone());
        let (draining, mut stopped) = (drains.clone(), stops.clone());
        let (mut changing, tickets, ready) = (changing.clone(), tickets.clone(), ready.clone());
        let (access, counts, rooms) = (access.clone(), counts.clone(), rooms.clone());
        let agent = if id == 0 { agent.take() } else { None };
        let datagrams = if id == 0 { datagrams.take() } else { None };
        let rtc = rtc.get_mut(id).and_then(Option::take);
        let relays = turn.offer.clone();
        let ends = Ends(ending.clone());
        let thread = move || -> io::Result<()> {
            let _ends = ends;
            let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
            runtime.block_on(async move {
                let limits = changing.borrow_and_update().clone();
                let (hub, sockets) = (Hub::new(limits.hub()), Sockets::new(metrics.sockets)?);
                if let Some(listener) = agent {
                    spawn_local(agent::serve(TcpListener::from_std(listener)?, ready, router.clone()));
                }
                let shard = Shard::new(id, router, engine, hub, sockets, metrics.delivery);
                let admission = Admission::new(limits, draining, tickets, access, counts);
                let conference = Conference::new(shard.clone(), admission.clone(), rooms, relays);
                spawn_local(conference.clone().answer_questions(rooms_asked));
                let context = Context::new(shard, admission, pages);
                context.add_routes(Rc::new(ConferenceRoutes(conference)));
                context.add_routes(Rc::new(CarCare));
                let limited = context.clone();
                spawn_local(async move {
                    while changing.changed().await.is_ok() {
                        limited.set_config(changing.borrow_and_update().clone());
                    }
                });
                let answering = context.clone();
                spawn_local(async move {
                    while let Some(question) = asked.recv().await {
                        question(&answering);
                    }
                });
                let stop = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
                serve(context, listener, datagrams, rtc, stop).await
            })
        };
        let named = std::thread::Builder::new().name(format!("shard-{id}"));
        threads.push(named.spawn(move || {
            if let Err(error) = thread() {
                tracing::error!(id, %error, "shard failed");
            }
        })?);
    }
    if let Some(server) = turn.server {
        let (ends, mut stopped) = (Ends(ending.clone()), stops.clone());
        tracing::info!(address = %server.address, "TURN server listening");
        threads.push(std::thread::Builder::new().name("turn".into()).spawn(move || {
            let _ends = ends;
            if let Err(error) = server.run(async move { drop(stopped.wait_for(|stopped| *stopped).await) }) {
                tracing::error!(%error, "TURN server failed");
            }
        })?);
    }
    let admin_address = admin.as_ref().map(|listener| listener.local_addr()).transpose()?;
    if let Some(listener) = admin {
        let (auth, token, mut stopped) = (auth.clone(), config.admin.token.clone(), stops.clone());
        let admin = Admin { token, site, auth, config: settings, shards: questions, now_s: unix_s };
        threads.push(std::thread::Builder::new().name("admin".into()).spawn(move || {
            let served = serve_admin(admin, listener, async move { drop(stopped.wait_for(|stopped| *stopped).await) });
            if let Err(error) = served {
                tracing::error!(%error, "admin listener failed");
            }
        })?);
    }
    if let Some(tls) = &tls {
        let mut stopped = stops.clone();
        threads.extend(tls.keep_certified(async move { drop(stopped.wait_for(|stopped| *stopped).await) })?);
    }
    let (watch, watched) = thread_mpsc::channel();
    let (bytes_max, of_node, of_engine) = (config.limits.memory_bytes_max, counts.clone(), engine.clone());
    let watching = move || memory::watch(bytes_max, &of_node, &of_engine, &watched);
    threads.push(std::thread::Builder::new().name("memory".into()).spawn(watching)?);
    if config.server.behind_proxy && config.server.trusted_proxies.is_empty() && !address.ip().is_loopback() {
        tracing::warn!(
            "clients of a proxy on another machine share one address in all limits: add the proxy to server.trusted_proxies (docs/reference/limits.md)"
        );
    }
    tracing::info!(%address, shards, engine = millrace_engine::shown_url(&config.engine.url), "serving");
    Ok(Running {
        address,
        admin: admin_address,
        shown,
        ready,
        draining,
        stop,
        threads,
        watch,
        limits,
        tls,
        engine,
        metrics,
        auth,
        config: configured,
        ended,
    })
}

impl Running {
    /// Applies the settings that take effect at runtime, and warns about all other changes.
    fn reload(&mut self, reload: &Reload) {
        let loaded = (reload.load)().and_then(|config| {
            let auth = self.auth.prepare(&config.auth, &config.anonymous());
            let auth = auth.map_err(anyhow::Error::msg).context("`[auth]`")?;
            (reload.set_log_level)(&config.log.level)?;
            Ok((config, auth))
        });
        let (config, auth) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                let error = format!("{error:#}");
                return tracing::error!(error, "the new configuration is invalid; the old one stays in use");
            }
        };
        // The files may have changed although the configuration has not.
        let is_same_source = config.tls.source() == self.config.tls.source();
        if let Some(tls) = &mut self.tls
            && is_same_source
            && let Err(error) = tls.reload(&config.tls)
        {
            // Nothing else has been applied yet.
            let _ = (reload.set_log_level)(&self.config.log.level);
            let error = format!("{error:#}");
            return tracing::error!(error, "the new certificate is invalid; the old configuration stays in use");
        }
        self.auth.apply(auth);
        for (key, at_once) in changes(&self.config, &config) {
            match at_once && (is_same_source || !key.starts_with("tls.")) {
                true => tracing::info!(key, "setting changed"),
                false => tracing::warn!(key, "setting changed, but takes effect only after a restart"),
            }
        }
        let mut apportioned = config.clone();
        memory::apportion(&mut apportioned);
        self.limits.send_replace(apportioned.limits);
        // A change that needs a restart is reported again at the next reload.
        self.config.auth = config.auth;
        for (name, namespace) in config.namespaces {
            self.config.namespaces.entry(name).or_default().anonymous = namespace.anonymous;
        }
        self.config.limits = config.limits;
        if is_same_source {
            let acme = std::mem::take(&mut self.config.tls.acme);
            self.config.tls = crate::tls::Config { acme, ..config.tls };
        }
        self.config.drain = config.drain;
        self.config.log.level = config.log.level;
        self.shown.send_replace(shown(&self.config));
        tracing::info!("configuration reloaded");
    }

    /// Drains: reports not ready, asks readers to move, closes each a little later, then stops all threads. Bounded by
    /// [`config::Drain::longest`](crate::config::Drain::longest).
    pub async fn drain(self) {
        let drain = &self.config.drain;
        tracing::info!("draining");
        self.ready.store(false, Relaxed);
        tokio::time::sleep(drain.announce).await;
        let readers = self.metrics.iter().map(|shard| shard.sockets.open_readers()).sum();
        let window = drain.spread(readers);
        tracing::info!(readers, window_ms = window.as_millis() as u64, "asking readers to reconnect elsewhere");
        self.draining.send_replace(Some(Drain { window, ticket: drain.ticket }));
        tokio::time::sleep(window + RECONNECT_GRACE + LAST_FRAMES).await;
        self.stop();
    }

    /// Stops all threads without a drain.
    pub fn stop(self) {
        self.stop.send_replace(true);
        drop(self.watch);
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
    let scheme = if running.tls.is_some() { "https" } else { "http" };
    println!("listening on {scheme}://{}", running.address);
    for url in urls(scheme, running.address).iter().filter(|_| running.address.ip().is_unspecified()) {
        println!("reachable at {url}");
    }
    if let Some(address) = running.admin {
        println!("admin on http://{address}");
    }
    let mut ended = running.ended.clone();
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            // Without a shard only some clients would be served. Exit, so that the supervisor restarts the process.
            _ = ended.wait_for(|ended| *ended) => anyhow::bail!("a shard failed, which is a defect; see the log"),
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

/// Serves the admin API on a thread of its own, so that it responds while the shards are busy.
fn serve_admin(admin: Admin, listener: std::net::TcpListener, stop: impl Future<Output = ()>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    let admin = Arc::new(admin);
    runtime.block_on(async move {
        let listener = TcpListener::from_std(listener)?;
        let answer = move |parts, body| {
            let admin = admin.clone();
            async move { admin.answer(parts, body).await }
        };
        tokio::select! {
            () = millrace_transport::admin::serve(listener, answer) => {}
            () = stop => {}
        }
        Ok(())
    })
}

/// Returns the key of resume tickets: derived from the configured secret, or else random.
fn ticket_key(config: &Config) -> anyhow::Result<TicketKey> {
    let secret = config.server.secret.as_bytes();
    if !secret.is_empty() {
        return Ok(TicketKey::new(secret));
    }
    let mut chance = [0; 32];
    getrandom::fill(&mut chance).map_err(io::Error::other)?;
    Ok(TicketKey::new(&chance))
}

/// Returns the configuration for operators, without secrets.
fn shown(config: &Config) -> Value {
    serde_json::to_value(config.without_secrets()).unwrap_or_default()
}

/// Checks that the address is free. The shards share one port, and the kernel would let a second server of the same
/// user share it, too. Half of the connections would then silently go to that server, so this check binds the port
/// exclusively first.
///
/// Errors: the address is in use, or not an address of this machine.
fn check_free(address: SocketAddr) -> io::Result<()> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket(family, SocketType::STREAM, None)?;
    // Lingering connections of an earlier run do not count as a server.
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &address)?;
    Ok(())
}

/// Returns the URLs at which the server can be reached: all own addresses if it listens on all of them.
fn urls(scheme: &str, address: SocketAddr) -> Vec<String> {
    if !address.ip().is_unspecified() {
        return vec![format!("{scheme}://{address}")];
    }
    let mut urls = vec![format!("{scheme}://localhost:{}", address.port())];
    let own = if_addrs::get_if_addrs().unwrap_or_default();
    let reachable = own.iter().map(|interface| interface.ip()).filter(|ip| ip.is_ipv4() && !ip.is_loopback());
    urls.extend(reachable.map(|ip| format!("{scheme}://{}", SocketAddr::new(ip, address.port()))));
    urls
}

fn unix_s() -> u64 {
    unix_ms() / 1000
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Raises the limit of file descriptors to its maximum and returns it. Each connection needs a descriptor.
fn raise_descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_panics_is_noticed() {
        let (ending, ended) = watch::channel(false);
        let thread = std::thread::spawn(move || {
            let _ends = Ends(ending);
            panic!("a defect")
        });
        assert!(thread.join().is_err() && *ended.borrow());
    }
}
