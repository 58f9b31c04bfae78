//! Creates what the shards and the admin API share.

use std::{
    io,
    sync::{Arc, atomic::AtomicBool},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use millrace_engine::Engine;
use millrace_hooks::Hooks;
use millrace_node::Router;
use millrace_protocol::ticket::TicketKey;
use millrace_race::{Opening, Race, Target};
use millrace_transport::{
    Limits, RtcPort,
    access::{Access, unix_s},
};
use tokio::sync::mpsc;

use super::bind::{Sockets, urls};
use crate::{Config, auth::Auth, metrics::ShardMetrics, pages::Site, secure, tls::Tls};

/// State that the threads of the server share.
pub struct Services {
    pub router: Arc<Router>,
    pub engine: Arc<dyn Engine>,
    /// One per shard.
    pub metrics: Vec<ShardMetrics>,
    pub ready: Arc<AtomicBool>,
    pub limits: Arc<Limits>,
    pub site: Arc<Site>,
    pub tickets: Arc<TicketKey>,
    pub auth: Arc<Auth>,
    pub access: Arc<Access>,
    pub hooks: Option<Arc<Hooks>>,
    /// The lanes of the race page, and the queue of those that open.
    pub race: Option<Arc<Race>>,
    pub race_openings: Option<mpsc::Receiver<Opening>>,
}

/// Opens the engine, reads the keys of tokens, starts the hooks, and creates the pages.
///
/// Errors: an engine that cannot be opened, or an unreadable file of keys or certificates.
pub fn build(config: &Config, sockets: &Sockets, tls: Option<&Tls>, limits: Arc<Limits>) -> anyhow::Result<Services> {
    let shards = sockets.listeners.len();
    let router = Arc::new(Router::new(shards));
    let engine = millrace_engine::open(&config.engine.url, config.engine(), router.clone(), unix_ms)
        .context("the engine (`engine.url`) cannot be opened")?;
    let metrics: Vec<ShardMetrics> = (0..shards).map(|_| ShardMetrics::default()).collect();
    let ready = Arc::new(AtomicBool::new(true));
    let name = millrace_engine::shown_url(&config.engine.url);
    let urls = urls(if tls.is_some() { "https" } else { "http" }, sockets.address);
    let udp = sockets.udp.as_ref().map(|socket| socket.local_addr()).transpose()?.map(|address| address.to_string());
    let mut site = Site::new(urls, udp, name, engine.clone(), metrics.clone(), limits.clone(), ready.clone());
    site.public_metrics = config.server.public_metrics || secure::is_open(config);
    site.ca = crate::tls::given_out(&config.tls)?;
    site.acme = tls.and_then(Tls::acme);
    let hooks = config.hooks.start(&config.namespaces)?;
    site.hooks.clone_from(&hooks);
    let (race, race_openings) = race(config, sockets)?.unzip();
    site.race.clone_from(&race);
    site.turn = sockets.turn.server.as_ref().map(|server| server.metrics.clone());
    let tickets = Arc::new(ticket_key(config)?);
    let auth = Arc::new(Auth::new(&config.auth, &config.anonymous(), unix_s).context("`[auth]`")?);
    let access = Arc::new(Access {
        authority: auth.clone(),
        cookie: config.auth.cookie.clone(),
        query: config.auth.query,
        hosts: secure::is_open(config).then(|| [&config.server.hosts[..], &config.tls.acme.domains].concat()),
        behind_proxy: config.server.behind_proxy,
        is_https: tls.is_some() && !config.server.behind_proxy,
    });
    Ok(Services {
        router,
        engine,
        metrics,
        ready,
        limits,
        site: Arc::new(site),
        tickets,
        auth,
        access,
        hooks,
        race,
        race_openings,
    })
}

/// Creates the lanes of the race page, if the configuration allows them.
fn race(config: &Config, sockets: &Sockets) -> io::Result<Option<(Arc<Race>, mpsc::Receiver<Opening>)>> {
    let Some(control) = config.race.control(secure::is_open(config)) else { return Ok(None) };
    let datagrams = sockets.rtc.iter().map(RtcPort::address).collect::<io::Result<_>>()?;
    let (race, openings) = Race::new(Target { address: sockets.address, datagrams }, control);
    Ok(Some((Arc::new(race), openings)))
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

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
