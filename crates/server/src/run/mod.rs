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
use millrace_transport::{Drain, RECONNECT_GRACE, access::unix_s};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    Config,
    auth::Auth,
    memory,
    metrics::ShardMetrics,
    reload::{Reload, changes, in_effect},
    secure,
    tls::Tls,
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
    check_free(config.server.listen).with_context(|| taken(config.server.listen))
}

/// Starts all shards and returns once they listen: binds the sockets, builds what the shards share, spawns the threads.
///
/// Errors: an invalid setting, an address that is in use, or a thread or file descriptor that the system refuses.
pub fn start(config: Config) -> anyhow::Result<Running> {
    secure::check(&config)?;
    let mut apportioned = config.clone();
    memory::apportion(&mut apportioned);
    let (sockets, tls, limits) = bind(&apportioned)?;
    let (address, admin) = (sockets.address, sockets.admin_address()?);
    let mut services = build(&apportioned, &sockets, tls.as_ref(), limits)?;
    let threads = spawn(&apportioned, sockets, &mut services, tls.as_ref())?;
    let server = &config.server;
    if server.behind_proxy && server.trusted_proxies.is_empty() && !address.ip().is_loopback() {
        tracing::warn!(
            "clients of a proxy on another machine share one address in all limits: add the proxy to server.trusted_proxies (docs/reference/limits.md)"
        );
    }
    let shards = services.metrics.len();
    tracing::info!(%address, shards, engine = millrace_engine::shown_url(&config.engine.url), "serving");
    let Services { ready, engine, metrics, auth, hooks, .. } = services;
    Ok(Running { address, admin, threads, ready, tls, engine, metrics, auth, hooks, config })
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
        let drain = &self.config.drain;
        tracing::info!("draining");
        self.ready.store(false, Relaxed);
        tokio::time::sleep(drain.announce).await;
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
    announce(format_args!("listening on {scheme}://{}", running.address));
    for url in urls(scheme, running.address).iter().filter(|_| running.address.ip().is_unspecified()) {
        announce(format_args!("reachable at {url}"));
    }
    if let Some(address) = running.admin {
        announce(format_args!("admin on http://{address}"));
    }
    let mut ended = running.threads.controls.ended.subscribe();
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

/// Prints a line to standard output. The server continues if standard output is closed, for example by `head`.
fn announce(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}
