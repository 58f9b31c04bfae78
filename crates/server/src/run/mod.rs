//! The server from start to drain.
//!
//! [`start`] has three steps: [`bind`] opens every socket, [`build`] creates what the shards share, and [`spawn`]
//! starts the threads.

mod bind;
mod build;
mod spawn;

use std::{
    fmt,
    io::{self, Write as _},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context as _;
use millrace_engine::Engine;
use millrace_hooks::Hooks;
use millrace_presence::Presence;
use millrace_transport::{Drain, RECONNECT_GRACE, access::unix_s};
use millrace_webhooks::Webhooks;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    Config,
    auth::Auth,
    lab::Lab,
    memory,
    metrics::ShardMetrics,
    reload::{Reload, changes, in_effect},
    secure,
    tls::Tls,
    upgrade::{self, Attempt, ControlSocket, Handed, Seed, SocketSet, Takeover, UpgradeError},
};
use bind::{bind, check_free, taken, urls};
use build::{Services, build};
use spawn::{Threads, spawn};

/// Time for the last frames to leave after the drain's window.
const LAST_FRAMES: Duration = Duration::from_millis(300);

/// A running server.
pub struct Running {
    pub address: SocketAddr,
    /// Address of the admin listener.
    pub admin: Option<SocketAddr>,
    threads: Threads,
    ready: Arc<AtomicBool>,
    tls: Option<Tls>,
    engine: Arc<dyn Engine>,
    metrics: Vec<ShardMetrics>,
    auth: Arc<Auth>,
    hooks: Option<Arc<Hooks>>,
    webhooks: Option<Arc<Webhooks>>,
    lab: Option<Arc<Lab>>,
    presence: Option<Arc<Presence>>,
    /// Parts that the next process takes over; `None` once the server drains, so that the listening sockets are closed.
    handed: Option<Arc<Handed>>,
    /// The configuration in effect, before [`memory::apportion`].
    config: Config,
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
    let (address, admin) = (sockets.address, sockets.admin_address()?);
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
    tracing::info!(%address, shards, engine = millrace_engine::shown_url(&config.engine.url), "serving");
    let Services { ready, engine, metrics, auth, hooks, webhooks, lab, presence, .. } = services;
    let handed = Some(Arc::new(handed));
    Ok(Running {
        address,
        admin,
        threads,
        ready,
        tls,
        engine,
        metrics,
        auth,
        hooks,
        webhooks,
        lab,
        presence,
        handed,
        config,
    })
}

impl Running {
    /// Applies the settings that take effect at runtime, and warns about all other changes.
    fn reload(&mut self, reload: &Reload) {
        let loaded = (reload.load)().and_then(|config| {
            let auth = self.auth.prepare(&config.auth, &config.anonymous());
            let auth = auth.context("`[auth]`")?;
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
        if let Some(hooks) = &self.hooks {
            hooks.set_signer(config.hooks.signer());
        }
        if let Some(webhooks) = &self.webhooks {
            webhooks.set_signer(config.webhooks.signer(config.hook_settings()));
        }
        for (key, at_once) in changes(&self.config, &config) {
            match at_once {
                true => tracing::info!(key, "setting changed"),
                false => tracing::warn!(key, "setting changed, but takes effect only after a restart"),
            }
        }
        self.config = in_effect(&self.config, &config);
        let mut apportioned = self.config.clone();
        memory::apportion(&mut apportioned);
        self.threads.controls.shown.send_replace(apportioned.shown());
        self.threads.controls.limits.send_replace(apportioned.limits);
        tracing::info!("configuration reloaded");
    }

    /// Drains: reports not ready, asks readers to move, closes each a little later, then stops all threads. Bounded by
    /// [`config::Drain::longest`](crate::config::Drain::longest).
    pub async fn drain(self) {
        tracing::info!("draining");
        self.lab.iter().for_each(|lab| lab.close());
        self.ready.store(false, Relaxed);
        tokio::time::sleep(self.config.drain.announce).await;
        self.move_readers().await;
    }

    /// Drains after another process has taken over. Nothing is announced, because the clients reconnect to the same
    /// address.
    async fn drain_to_next(self) {
        self.lab.iter().for_each(|lab| lab.close());
        self.threads.controls.handed_over.send_replace(true);
        self.move_readers().await;
    }

    async fn move_readers(mut self) {
        let drain = &self.config.drain;
        // The last duplicates of the listening sockets.
        self.handed = None;
        let readers = self.metrics.iter().map(|shard| shard.sockets.open_readers()).sum();
        let window = drain.spread(readers);
        tracing::info!(readers, window_ms = window.as_millis() as u64, "asking readers to reconnect elsewhere");
        self.threads.controls.draining.send_replace(Some(Drain { window, ticket: drain.ticket }));
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
        self.engine.close();
        tracing::info!("stopped");
    }
}

/// Serves until SIGTERM or SIGINT, then drains; a second signal ends at once. SIGHUP reads the configuration again.
/// SIGUSR2, or an order at the control socket, starts the binary again, hands over to it, and drains.
///
/// Errors: see [`start`].
pub async fn run(config: Config, reload: Reload) -> anyhow::Result<()> {
    upgrade::remember_program();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (mut hangup, mut user2) = (signal(SignalKind::hangup())?, signal(SignalKind::user_defined2())?);
    let mut running = match upgrade::is_takeover() {
        true => take_over(config)?,
        false => start(config)?,
    };
    // Scripts wait for this line.
    let scheme = if running.tls.is_some() { "https" } else { "http" };
    announce(format_args!("listening on {scheme}://{}", running.address));
    for url in urls(scheme, running.address).iter().filter(|_| running.address.ip().is_unspecified()) {
        announce(format_args!("reachable at {url}"));
    }
    if let Some(address) = running.admin {
        announce(format_args!("admin on http://{address}"));
    }
    upgrade::notify_serving();
    let mut ended = running.threads.controls.ended.subscribe();
    let control = ControlSocket::bind().context("cannot open the control socket")?;
    let mut upgrade = Attempt::default();
    let is_handed_over = loop {
        tokio::select! {
            _ = terminate.recv() => break false,
            _ = interrupt.recv() => break false,
            _ = user2.recv() => upgrade.begin(running.handed.clone(), None),
            order = control.next() => upgrade.begin(running.handed.clone(), Some(order)),
            upgraded = upgrade.end() => match upgraded {
                Ok(pid) => {
                    tracing::info!(pid, "the new process serves; draining");
                    break true;
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
        match is_handed_over {
            true => running.drain_to_next().await,
            false => running.drain().await,
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
