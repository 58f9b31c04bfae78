//! The server from start to drain.
//!
//! [`start`] has three steps: [`bind`] opens every socket, [`build`] creates what the shards share, and [`spawn`]
//! starts the threads.

mod bind;
mod build;
mod spawn;

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Write as _},
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context as _;
use millrace_carcare::feedback::Feedback;
use millrace_engine::Engine;
use millrace_hooks::Hooks;
use millrace_presence::Presence;
use millrace_push::Push;
use millrace_transport::{Drain, RECONNECT_GRACE, access::unix_s};
use millrace_webhooks::Webhooks;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

use crate::{
    Config,
    admin::{DrainState, EventKind, Events},
    auth::Auth,
    config::{Shown, Sources},
    lab::Lab,
    memory,
    metrics::ShardMetrics,
    reload::{Reload, changes, in_effect, sources_in_effect},
    secure,
    tls::Tls,
    upgrade::{self, Attempt, ControlSocket, Handed, Seed, SocketSet, Takeover, UpgradeError},
};
use bind::{bind, check_free, taken, urls};
use build::{Services, build};
use spawn::{Threads, spawn};

/// Time for the last frames to leave after the drain's window.
const LAST_FRAMES: Duration = Duration::from_millis(300);

/// Reason why a server ends.
enum Ending {
    /// Another process has taken over.
    HandedOver,
    /// A signal asks for a drain.
    Signal,
    /// An operator's drain was announced long enough.
    Announced,
}

/// A running server.
pub struct Running {
    pub address: SocketAddr,
    /// Address of the admin listener.
    pub admin: Option<SocketAddr>,
    /// Address of the port for NMEA sentences.
    pub nmea: Option<SocketAddr>,
    /// Address of MQTT.
    pub mqtt: Option<SocketAddr>,
    threads: Threads,
    ready: Arc<AtomicBool>,
    events: Arc<Events>,
    tls: Option<Tls>,
    engine: Arc<dyn Engine>,
    metrics: Vec<ShardMetrics>,
    auth: Arc<Auth>,
    hooks: Option<Arc<Hooks>>,
    webhooks: Option<Arc<Webhooks>>,
    feedback: Option<Arc<Feedback>>,
    push: Option<Arc<Push>>,
    lab: Option<Arc<Lab>>,
    presence: Option<Arc<Presence>>,
    /// Parts that the next process takes over; `None` once the server drains, so that the listening sockets are closed.
    handed: Option<Arc<Handed>>,
    /// The configuration in effect, before [`memory::apportion`].
    config: Config,
    /// Source of each value of the configuration; see [`Sources::from`].
    from: BTreeMap<String, String>,
}

/// Checks whether a server may start with this configuration, and whether its address is free. Has no side effects.
///
/// Errors: see [`start`].
pub fn check(config: &Config) -> anyhow::Result<()> {
    secure::check(config)?;
    // Only a server that starts fetches a key set.
    let auth = crate::auth::Config { jwks: String::new(), ..config.auth.clone() };
    Auth::new(&auth, &config.anonymous(), unix_s).context("`[auth]`")?;
    match upgrade::is_takeover() {
        // The old process has the address.
        true => Ok(()),
        false => check_free(config.server.listen).with_context(|| taken(config.server.listen)),
    }
}

/// Starts all shards and returns once they listen: binds the sockets, builds what the shards share, spawns the threads.
///
/// Errors: an invalid setting, an address that is in use, or a thread or file descriptor that the system refuses.
pub fn start(config: Config) -> anyhow::Result<Running> {
    start_with(config, None)
}

/// Starts like [`start`]. With `takeover`, continues the work of an old process.
///
/// Errors: see [`start`].
fn start_with(config: Config, takeover: Option<&mut Takeover>) -> anyhow::Result<Running> {
    secure::check(&config)?;
    let mut apportioned = config.clone();
    memory::apportion(&mut apportioned);
    let mut takeover = takeover;
    let (inherited, seed) = match &mut takeover {
        Some(takeover) => {
            takeover.check(millrace_engine::engine_name(&config.engine.url), config.shards())?;
            (takeover.take_sockets(), takeover.seed().clone())
        }
        None => (SocketSet::default(), Seed::random()?),
    };
    let (mut sockets, tls, limits) = bind(&apportioned, inherited, &seed)?;
    let (address, admin, mqtt) = (sockets.address, sockets.admin_address()?, sockets.mqtt_address()?);
    let nmea = sockets.nmea.as_ref().map(UdpSocket::local_addr).transpose()?;
    let mut services = build(&apportioned, &sockets, tls.as_ref(), limits, &seed, takeover)?;
    let handed = Handed {
        engine: services.engine.clone(),
        engine_url: config.engine.url.clone(),
        router: services.router.clone(),
        shards: sockets.listeners.len(),
        sockets: Arc::new(std::mem::take(&mut sockets.kept)),
        seed,
        node: services.node.clone(),
        presence: services.presence.clone(),
    };
    let threads = spawn(&apportioned, sockets, &mut services, tls.as_ref())?;
    let server = &config.server;
    if server.behind_proxy && server.trusted_proxies.is_empty() && !address.ip().is_loopback() {
        tracing::warn!(
            "clients of a proxy on another machine share one address in all limits: add the proxy to server.trusted_proxies (docs/reference/limits.md)"
        );
    }
    let shards = services.metrics.len();
    let engine_name = millrace_engine::engine_name(&config.engine.url);
    tracing::info!(%address, shards, engine = millrace_engine::shown_url(&config.engine.url), "serving");
    if let Some(address) = mqtt {
        tracing::info!(%address, "serving MQTT");
    }
    let version = env!("CARGO_PKG_VERSION");
    let started = format!("Started: version {version}, {shards} shards, engine {engine_name}");
    services.events.add(EventKind::Started, started);
    let Services { ready, events, engine, metrics, auth, hooks, webhooks, feedback, push, lab, presence, .. } =
        services;
    let handed = Some(Arc::new(handed));
    Ok(Running {
        address,
        admin,
        nmea,
        mqtt,
        threads,
        ready,
        events,
        tls,
        engine,
        metrics,
        auth,
        hooks,
        webhooks,
        feedback,
        push,
        lab,
        presence,
        handed,
        config,
        from: BTreeMap::new(),
    })
}

impl Running {
    /// Applies the settings that take effect at runtime, and warns about all other changes.
    fn reload(&mut self, reload: &Reload) {
        let loaded = (reload.load)().and_then(|Sources { config, from }| {
            let auth = self.auth.prepare(&config.auth, &config.anonymous());
            let auth = auth.context("`[auth]`")?;
            (reload.set_log_level)(&config.log.level)?;
            Ok((config, from, auth))
        });
        let (config, from, auth) = match loaded {
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
        if let Some(hooks) = &self.hooks {
            hooks.set_signer(config.hooks.signer());
        }
        if let Some(webhooks) = &self.webhooks {
            webhooks.set_signer(config.webhooks.signer(config.hook_settings()));
        }
        let changes = changes(&self.config, &config);
        self.from = sources_in_effect(&self.from, from, &changes);
        for (key, at_once) in changes {
            match at_once {
                true => tracing::info!(key, "setting changed"),
                false => tracing::warn!(key, "setting changed, but takes effect only after a restart"),
            }
        }
        self.config = in_effect(&self.config, &config);
        let mut apportioned = self.config.clone();
        memory::apportion(&mut apportioned);
        self.threads.controls.shown.send_replace(Shown::new(&apportioned, self.from.clone()));
        self.threads.controls.limits.send_replace(apportioned.limits);
        tracing::info!("configuration reloaded");
        self.events.add(EventKind::Reloaded, "The configuration was reloaded");
    }

    /// Sets the sources of the values of the configuration, which operators see.
    fn set_sources(&mut self, from: BTreeMap<String, String>) {
        self.from.clone_from(&from);
        let config = self.threads.controls.shown.borrow().config.clone();
        self.threads.controls.shown.send_replace(Shown::new(&config, from));
    }

    /// Drains: reports not ready, asks readers to move, closes each a little later, then stops all threads. Bounded by
    /// [`config::Drain::longest`](crate::config::Drain::longest).
    pub async fn drain(self) {
        self.threads.controls.drain.send_replace(DrainState::Moving);
        self.lab.iter().for_each(|lab| lab.close());
        self.begin_drain("a signal");
        tokio::time::sleep(self.config.drain.announce).await;
        self.move_readers().await;
    }

    /// Reports that this node is not ready for new readers.
    fn begin_drain(&self, cause: &str) {
        tracing::info!(cause, "draining");
        self.events.add(EventKind::DrainBegan, format!("The drain began, by {cause}"));
        self.ready.store(false, Relaxed);
    }

    /// Follows an operator who drains this node or cancels the drain. Returns the time at which the readers are asked
    /// to move.
    fn follow_drain(&self, state: DrainState) -> Option<Instant> {
        match state {
            DrainState::Serving => {
                tracing::info!("drain cancelled");
                self.events.add(EventKind::DrainCancelled, "An operator cancelled the drain");
                self.ready.store(true, Relaxed);
                None
            }
            DrainState::Announced => {
                self.begin_drain("an operator");
                Some(Instant::now() + self.config.drain.announce)
            }
            DrainState::Moving => None,
        }
    }

    /// Ends the time in which an operator can cancel the drain. Returns false if it was cancelled.
    fn end_announcement(&self) -> bool {
        self.threads.controls.drain.send_if_modified(|state| {
            let is_announced = *state == DrainState::Announced;
            if is_announced {
                *state = DrainState::Moving;
            }
            is_announced
        })
    }

    /// Drains after another process has taken over. Nothing is announced, because the clients reconnect to the same
    /// address.
    async fn drain_to_next(mut self) {
        self.threads.controls.drain.send_replace(DrainState::Moving);
        self.lab.iter().for_each(|lab| lab.close());
        self.threads.controls.handed_over.send_replace(true);
        // The new process follows the cars.
        drop(self.feedback.take());
        self.move_readers().await;
    }

    async fn move_readers(mut self) {
        let drain = &self.config.drain;
        // The last duplicates of the listening sockets.
        self.handed = None;
        let readers = self.metrics.iter().map(|shard| shard.sockets.open_readers()).sum();
        let window = drain.spread(readers);
        tracing::info!(readers, window_ms = window.as_millis() as u64, "asking readers to reconnect elsewhere");
        let (ticket, is_handed_over) = (drain.ticket, *self.threads.controls.handed_over.borrow());
        self.threads.controls.draining.send_replace(Some(Drain { window, ticket, is_handed_over }));
        tokio::time::sleep(window + RECONNECT_GRACE + LAST_FRAMES).await;
        self.stop();
    }

    /// Stops all threads without a drain.
    pub fn stop(self) {
        self.threads.stop();
        if let Some(lab) = &self.lab {
            lab.shut_down();
        }
        if let Some(presence) = &self.presence {
            presence.stop();
        }
        if let Some(webhooks) = &self.webhooks {
            webhooks.stop();
        }
        if let Some(feedback) = &self.feedback {
            feedback.stop();
        }
        if let Some(push) = &self.push {
            push.stop();
        }
        self.engine.close();
        tracing::info!("stopped");
    }
}

/// Completes at this time; never without one.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Serves until SIGTERM or SIGINT, or until an operator drains this node; then drains. A second signal ends at once.
/// SIGHUP reads the configuration again. SIGUSR2, or an order at the control socket, starts the binary again, hands
/// over to it, and drains.
///
/// Errors: see [`start`].
pub async fn run(Sources { config, from }: Sources, reload: Reload) -> anyhow::Result<()> {
    upgrade::remember_program();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (mut hangup, mut user2) = (signal(SignalKind::hangup())?, signal(SignalKind::user_defined2())?);
    let mut running = match upgrade::is_takeover() {
        true => take_over(config)?,
        false => start(config)?,
    };
    running.set_sources(from);
    // Scripts wait for this line.
    let scheme = if running.tls.is_some() { "https" } else { "http" };
    announce(format_args!("listening on {scheme}://{}", running.address));
    for url in urls(scheme, running.address).iter().filter(|_| running.address.ip().is_unspecified()) {
        announce(format_args!("reachable at {url}"));
    }
    if let Some(address) = running.nmea {
        announce(format_args!("NMEA sentences on udp://{address}"));
    }
    if let Some(address) = running.admin {
        announce(format_args!("admin on http://{address}"));
    }
    upgrade::notify_serving();
    let mut ended = running.threads.controls.ended.subscribe();
    let control = ControlSocket::open();
    let mut upgrade = Attempt::default();
    let (mut drain_asked, mut move_at) = (running.threads.controls.drain.subscribe(), None);
    let ending = loop {
        tokio::select! {
            _ = terminate.recv() => break Ending::Signal,
            _ = interrupt.recv() => break Ending::Signal,
            Ok(()) = drain_asked.changed() => move_at = running.follow_drain(*drain_asked.borrow_and_update()),
            () = until(move_at) => match running.end_announcement() {
                true => break Ending::Announced,
                false => move_at = None,
            },
            _ = user2.recv() => upgrade.begin(running.handed.clone(), None, running.config.upgrade),
            order = control.next() => upgrade.begin(running.handed.clone(), Some(order), running.config.upgrade),
            upgraded = upgrade.end() => match upgraded {
                Ok(pid) => {
                    tracing::info!(pid, "the new process serves; draining");
                    running.events.add(EventKind::Upgraded, format!("The new process {pid} serves; this one drains"));
                    break Ending::HandedOver;
                }
                Err(error @ UpgradeError::Lost(_)) => anyhow::bail!(error),
                Err(error) => tracing::error!(%error, "the upgrade failed; this process serves as before"),
            },
            // Without a shard only some clients would be served. Exit, so that the supervisor restarts the process.
            _ = ended.wait_for(|ended| *ended) => anyhow::bail!("a shard failed, which is a defect; see the log"),
            _ = hangup.recv() => running.reload(&reload),
        }
    };
    let drain = async {
        match ending {
            Ending::HandedOver => running.drain_to_next().await,
            Ending::Signal => running.drain().await,
            Ending::Announced => running.move_readers().await,
        }
    };
    tokio::select! {
        () = drain => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Starts the server as the successor of the process at standard input.
///
/// Errors: see [`start`]. The old process receives the reason, and serves as before.
fn take_over(config: Config) -> anyhow::Result<Running> {
    let mut takeover = Takeover::begin()?;
    let running = start_with(config, Some(&mut takeover)).inspect_err(|error| takeover.fail(error))?;
    if let Some(handed) = &running.handed {
        takeover.serve(handed)?;
    }
    Ok(running)
}

/// Prints a line to standard output. The server continues if standard output is closed, for example by `head`.
fn announce(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}
