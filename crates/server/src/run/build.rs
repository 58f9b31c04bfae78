//! Creates what the shards and the admin API share.

use std::{
    io,
    sync::{Arc, atomic::AtomicBool},
};

use anyhow::Context as _;
use millrace_carcare::feedback::{Feedback, Notify};
use millrace_engine::{Engine, WithLocal};
use millrace_hooks::Hooks;
use millrace_ingest::Ingest;
use millrace_node::Router;
use millrace_presence::{Consumer, Presence};
use millrace_protocol::{Epoch, ticket::TicketKey};
use millrace_push::Push;
use millrace_race::{Opening, Race, Target};
use millrace_transport::{
    Limits, RtcPort,
    access::{Access, unix_s},
};
use millrace_webhooks::Webhooks;
use tokio::sync::mpsc;

use super::bind::{Sockets, urls};
use crate::{
    Config,
    admin::Events,
    auth::Auth,
    lab::Lab,
    metrics::{NodeMetrics, ShardMetrics},
    pages::Site,
    push::NotifyCars,
    secure,
    tls::Tls,
    traces,
    upgrade::{self, Seed, Takeover},
    webhooks::ListEvents,
};

/// State that the threads of the server share.
pub struct Services {
    pub router: Arc<Router>,
    pub engine: Arc<dyn Engine>,
    /// The same engine, for publications to the channels of this node.
    pub local: Arc<WithLocal<Router>>,
    /// One per shard.
    pub metrics: Vec<ShardMetrics>,
    pub ready: Arc<AtomicBool>,
    pub events: Arc<Events>,
    pub limits: Arc<Limits>,
    pub site: Arc<Site>,
    pub tickets: Arc<TicketKey>,
    pub auth: Arc<Auth>,
    pub access: Arc<Access>,
    pub hooks: Option<Arc<Hooks>>,
    pub webhooks: Option<Arc<Webhooks>>,
    /// The driving feedback of CarCare, if it is switched on.
    pub feedback: Option<Arc<Feedback>>,
    /// Publisher of what devices report.
    pub ingest: Arc<Ingest>,
    /// The lab, if the configuration allows it.
    pub lab: Option<Arc<Lab>>,
    /// Name of this node, new at every start.
    pub node: String,
    /// The lists that the nodes keep, if any.
    pub presence: Option<Arc<Presence>>,
    /// The lanes of the race page, and the queue of those that open.
    pub race: Option<Arc<Race>>,
    pub push: Option<Arc<Push>>,
    pub race_openings: Option<mpsc::Receiver<Opening>>,
}

/// Reads the keys of tokens, starts the hooks, opens the engine, and creates the pages. With `takeover`, the engine
/// continues that of the old process. What can fail comes before, so that the old process can go on.
///
/// Errors: an engine that cannot be opened, or an unreadable file of keys or certificates.
pub fn build(
    config: &Config,
    sockets: &Sockets,
    tls: Option<&Tls>,
    limits: Arc<Limits>,
    seed: &Seed,
    takeover: Option<&mut Takeover>,
) -> anyhow::Result<Services> {
    let shards = sockets.listeners.len();
    let ca = crate::tls::given_out(&config.tls)?;
    let hooks = config.hooks.start(&config.namespaces)?;
    let auth = Arc::new(Auth::new(&config.auth, &config.anonymous(), unix_s).context("`[auth]`")?);
    let router = Router::with_namespaces(shards, config.namespaces.keys().map(String::as_str));
    let router = if config.carcare.feedback { router.with_service() } else { router };
    let router = Arc::new(if takeover.is_some() { router.with_tap() } else { router });
    let old_node = takeover.as_ref().map(|takeover| takeover.old_node().to_owned());
    let inherited = takeover.map(Takeover::receive_engine).transpose()?;
    let engine = millrace_engine::open_with(
        &config.engine.url,
        config.engine(),
        router.clone(),
        millrace_engine::unix_ms,
        inherited,
    )
    .context("the engine (`engine.url`) cannot be opened")?;
    let local = Arc::new(WithLocal::new(engine, Epoch(getrandom::u32()?), router.clone()));
    let engine: Arc<dyn Engine> = local.clone();
    let node = node_name(&engine)?;
    let recorder = traces::start(&config.traces)?;
    recorder.iter().for_each(|recorder| router.record_spans(recorder.spans.clone()));
    let webhooks = config.webhooks.start(config.hook_settings(), &config.webhook_namespaces(), engine.clone())?;
    let push = config.push.start(engine.clone())?;
    let consumer = webhooks.as_ref().map(|webhooks| Arc::new(ListEvents(webhooks.clone())) as Arc<dyn Consumer>);
    let start = |wanted| Presence::start(&node, engine.clone(), wanted, consumer.clone()).map(Arc::new);
    let presence = config.lists().map(start).transpose()?;
    presence.iter().for_each(|presence| presence.share_with(old_node.as_deref()));
    router.set_node(&node, presence.as_ref().map(|presence| presence.observer()));
    let notify = push.clone().map(|push| Arc::new(NotifyCars(push)) as Arc<dyn Notify>);
    let start_feedback =
        || Feedback::start_with(&config.carcare, engine.clone(), router.clone(), notify.clone()).map(Arc::new);
    let feedback = config.carcare.feedback.then(start_feedback).transpose()?;
    let metrics: Vec<ShardMetrics> = (0..shards).map(|_| ShardMetrics::default()).collect();
    let ready = Arc::new(AtomicBool::new(true));
    let name = millrace_engine::shown_url(&config.engine.url);
    let urls = urls(if tls.is_some() { "https" } else { "http" }, sockets.address);
    let udp = sockets.udp.as_ref().map(|socket| socket.local_addr()).transpose()?.map(|address| address.to_string());
    let shown = NodeMetrics { shards: metrics.clone(), router: router.clone() };
    let mut site = Site::new(urls, udp, name, engine.clone(), shown, limits.clone(), ready.clone());
    site.public_metrics = config.server.public_metrics || secure::is_open(config);
    site.ca = ca;
    site.acme = tls.and_then(Tls::acme);
    site.spans = recorder.map(|recorder| recorder.counts);
    site.hooks.clone_from(&hooks);
    site.webhooks.clone_from(&webhooks);
    let (race, race_openings) = race(config, sockets)?.unzip();
    site.race.clone_from(&race);
    site.turn = sockets.turn.server.as_ref().map(|server| server.metrics.clone());
    let tickets = Arc::new(ticket_key(config, seed));
    let access = Arc::new(Access {
        authority: auth.clone(),
        cookie: config.auth.cookie.clone(),
        query: config.auth.query,
        hosts: secure::is_open(config).then(|| [&config.server.hosts[..], &config.tls.acme.domains].concat()),
        trusts_own_pages: secure::is_open(config),
        behind_proxy: config.server.behind_proxy,
        is_https: tls.is_some() && !config.server.behind_proxy,
        own_keys: config.own_keys(),
    });
    site.presence.clone_from(&presence);
    let ingest = Arc::new(Ingest::new(&config.ingest));
    site.devices.ingest = Some(ingest.clone());
    site.devices.feedback.clone_from(&feedback);
    site.devices.push.clone_from(&push);
    let lab = lab(config, &engine);
    let site = Arc::new(site);
    Ok(Services {
        router,
        engine,
        local,
        metrics,
        ready,
        events: Arc::default(),
        limits,
        site,
        tickets,
        auth,
        access,
        hooks,
        webhooks,
        feedback,
        ingest,
        lab,
        node,
        presence,
        push,
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

/// Creates the lab, if the configuration allows it, and the path of this program is known.
fn lab(config: &Config, engine: &Arc<dyn Engine>) -> Option<Arc<Lab>> {
    let program = upgrade::program().filter(|_| config.lab.is_on(secure::is_open(config)))?;
    Some(Lab::new(&config.lab, program, engine.clone(), config.limits.memory_bytes_max as u64))
}

/// Returns the name of this node: the engine's, or a random one.
fn node_name(engine: &Arc<dyn Engine>) -> io::Result<String> {
    match engine.node() {
        Some(node) => Ok(node.to_owned()),
        None => Ok(format!("{:016x}", getrandom::u64().map_err(io::Error::other)?)),
    }
}

/// Returns the key of resume tickets: derived from the configured secret, or else from a random one.
fn ticket_key(config: &Config, seed: &Seed) -> TicketKey {
    let secret = config.server.secret.as_bytes();
    TicketKey::new(if secret.is_empty() { seed.as_bytes() } else { secret })
}
