//! Starts the threads of the server: one per shard, and one each for the TURN server, the admin API, the race, the
//! renewal of certificates, and the limit of memory.

use std::{
    io,
    net::{TcpListener as BoundTcp, UdpSocket},
    rc::Rc,
    sync::{Arc, atomic::AtomicBool, mpsc as thread_mpsc},
    thread::JoinHandle,
    time::Duration,
};

use millrace_carcare::CarCare;
use millrace_conference::{Conference, ConferenceRoutes, Question as RoomQuestion, cluster, rooms, turn::Offer};
use millrace_delivery::Hub;
use millrace_engine::Engine;
use millrace_ingest::{Ingest, IngestRoutes, Nmea};
use millrace_node::{Router, Shard};
use millrace_protocol::ticket::TicketKey;
use millrace_push::{Push, PushRoutes};
use millrace_race::{Race, RaceRoutes};
use millrace_requests::{Metrics as RequestMetrics, RequestRoutes};
use millrace_transport::{
    Admission, Arrival, Context, Door, Drain, Limits, Listener, MqttNode, Question, RtcPort, Sockets as ShardSockets,
    access::{Access, unix_s},
    admission::{hooks::Hooks, webhooks::PublicationEvents},
    receive_datagrams, serve,
};
use tokio::{
    net::TcpListener,
    runtime::{Builder, LocalOptions},
    sync::{mpsc, watch},
    task::spawn_local,
};

use super::{bind::Sockets, build::Services};
use crate::{
    Config,
    admin::{self, Admin, AdminRoutes, AdminToken, DrainState, Jobs},
    agent,
    config::Shown,
    memory,
    metrics::ShardMetrics,
    pages::Site,
    secure,
    tls::Tls,
};

/// Maximum time that a start waits for the stored revocations.
const REVOCATIONS: Duration = Duration::from_secs(2);
/// Maximum number of queued connections of the admin listener that wait for their shard.
const ARRIVALS_MAX: usize = 64;
/// Maximum number of queued requests to a shard from operators and other shards.
const QUESTIONS_MAX: usize = 1024;

/// The threads of a running server.
pub struct Threads {
    pub controls: Controls,
    handles: Vec<JoinHandle<()>>,
    /// Dropping this sender ends the memory watcher.
    memory: thread_mpsc::Sender<()>,
}

/// Values that the threads watch.
pub struct Controls {
    pub stop: watch::Sender<bool>,
    /// Set by an operator who drains this node.
    pub drain: watch::Sender<DrainState>,
    pub draining: watch::Sender<Option<Drain>>,
    pub limits: watch::Sender<millrace_transport::Config>,
    /// The configuration for operators.
    pub shown: watch::Sender<Shown>,
    /// True once a shard or the TURN server has ended.
    pub ended: watch::Sender<bool>,
    /// True once another process serves the listening sockets.
    pub handed_over: watch::Sender<bool>,
}

impl Controls {
    /// Returns a future that completes when the server stops.
    fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stop = self.stop.subscribe();
        async move { drop(stop.wait_for(|stop| *stop).await) }
    }

    /// Returns a future that completes when another process serves the listening sockets.
    fn handed_over(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut handed_over = self.handed_over.subscribe();
        async move {
            if handed_over.wait_for(|handed_over| *handed_over).await.is_err() {
                std::future::pending().await
            }
        }
    }
}

impl Threads {
    /// Stops all threads and waits for their end.
    pub fn stop(self) {
        self.controls.stop.send_replace(true);
        drop(self.memory);
        for handle in self.handles {
            let _ = handle.join();
        }
    }
}

/// Drop guard of a thread that reports the thread's end, also after a panic.
struct Ends(watch::Sender<bool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

/// Starts the threads. Each serves its sockets until [`Threads::stop`].
///
/// Errors: a thread that the system refuses.
pub fn spawn(config: &Config, sockets: Sockets, services: &mut Services, tls: Option<&Tls>) -> anyhow::Result<Threads> {
    let Sockets {
        listeners, mut udp, mut nmea, rtc, turn, mqtt, mut agent, admin: admin_listener, handed_over, ..
    } = sockets;
    let controls = Controls {
        stop: watch::Sender::new(false),
        drain: watch::Sender::new(DrainState::Serving),
        draining: watch::Sender::new(None),
        limits: watch::Sender::new(config.limits.clone()),
        shown: watch::Sender::new(Shown::new(config, Default::default())),
        ended: watch::Sender::new(false),
        handed_over,
    };
    let (questions, asked): (Vec<_>, Vec<_>) =
        listeners.iter().map(|_| mpsc::channel::<Question>(QUESTIONS_MAX)).unzip();
    let (room_questions, rooms_asked): (Vec<_>, Vec<_>) =
        listeners.iter().map(|_| mpsc::channel(QUESTIONS_MAX)).unzip();
    let rooms = rooms::Shared::new(config.rooms.clone());
    let mut rtc = rtc.into_iter();
    let (mqtt_node, mut mqtt) = (MqttNode::new(config.mqtt.clone(), listeners.len()), mqtt.into_iter());
    let mut handles = Vec::with_capacity(listeners.len());
    let (jobs, receiver) = Jobs::new();
    let (arrivals, arriving) = mpsc::channel(ARRIVALS_MAX);
    let mut arriving = admin_listener.is_some().then(|| (AdminToken::new(config.admin.token.clone()), arriving));
    let operators = Admin {
        token: AdminToken::new(config.admin.token.clone()),
        arrivals,
        site: services.site.clone(),
        auth: services.auth.clone(),
        engine: services.engine.clone(),
        local: services.local.clone(),
        follows: Default::default(),
        recorder: Default::default(),
        cpu_times: Default::default(),
        events: services.events.clone(),
        drain: controls.drain.clone(),
        webhooks: services.webhooks.clone(),
        lab: services.lab.clone(),
        router: services.router.clone(),
        config: controls.shown.subscribe(),
        shards: questions,
        rooms: room_questions.clone(),
        hooks: services.hooks.clone(),
        tails: Default::default(),
        node: services.node.clone(),
        now_s: unix_s,
    };
    let (read, revocations_read) = thread_mpsc::channel();
    let (queue, stopped, handed_over) = ((jobs.clone(), receiver), controls.stopped(), controls.handed_over());
    handles.push(thread("admin", move || {
        if let Err(error) = admin::run(operators, queue, (admin_listener, handed_over), read, stopped) {
            tracing::error!(%error, "the thread for operator requests failed");
        }
    })?);
    // A revoked token must not be accepted while the node starts.
    if revocations_read.recv_timeout(REVOCATIONS).is_err() {
        tracing::warn!(
            "the stored revocations cannot be read yet; revoked tokens are accepted until the engine answers"
        );
    }
    let is_reached = secure::is_reached(config.server.listen) || config.server.behind_proxy;
    for (((id, listener), asked), rooms_asked) in listeners.into_iter().enumerate().zip(asked).zip(rooms_asked) {
        let shard = ShardThread {
            id,
            listener: match tls {
                Some(tls) => listener.with_tls(tls.subscribe()),
                None => listener,
            },
            // The first shard serves the sockets of which the node has one.
            agent: agent.take(),
            udp: udp.take(),
            nmea: nmea.take(),
            ingest: services.ingest.clone(),
            answers_devices: config.ingest.is_on(config.authenticates()),
            operators: arriving.take(),
            rtc: rtc.next(),
            mqtt: mqtt.next().map(|listener| (mqtt_node.clone(), listener)),
            relays: turn.offer.clone(),
            rooms: rooms.clone(),
            room_questions: room_questions.clone(),
            jobs: jobs.clone(),
            asked,
            rooms_asked,
            router: services.router.clone(),
            engine: services.engine.clone(),
            metrics: services.metrics[id].clone(),
            site: services.site.clone(),
            tickets: services.tickets.clone(),
            access: services.access.clone(),
            limits: services.limits.clone(),
            hooks: services.hooks.clone().map(|hooks| hooks as Arc<dyn Hooks>),
            publication_events: services.webhooks.as_ref().and_then(|webhooks| webhooks.publications()),
            race: services.race.clone(),
            push: services.push.clone(),
            requests: services.site.devices.requests.clone(),
            ready: services.ready.clone(),
            forwards_traces: config.traces.forward.applies(is_reached),
            draining: controls.draining.subscribe(),
            config: controls.limits.subscribe(),
        };
        let (ends, stopped) = (Ends(controls.ended.clone()), controls.stopped());
        handles.push(thread(format!("shard-{id}"), move || {
            let _ends = ends;
            if let Err(error) = shard.run(stopped) {
                tracing::error!(id, %error, "shard failed");
            }
        })?);
    }
    if let Some(server) = turn.server {
        let (ends, stopped) = (Ends(controls.ended.clone()), controls.stopped());
        tracing::info!(address = %server.address, "TURN server listening");
        handles.push(thread("turn", move || {
            let _ends = ends;
            if let Err(error) = server.run(stopped) {
                tracing::error!(%error, "TURN server failed");
            }
        })?);
    }
    if let Some(openings) = services.race_openings.take() {
        let stopped = controls.stopped();
        handles.push(thread("race", move || {
            if let Err(error) = millrace_race::run(openings, stopped) {
                tracing::error!(%error, "the thread of the race failed");
            }
        })?);
    }
    if let Some(tls) = tls {
        handles.extend(tls.keep_certified(controls.stopped())?);
    }
    let (memory, watched) = thread_mpsc::channel();
    let (bytes_max, limits, engine) =
        (config.limits.memory_bytes_max, services.limits.clone(), services.engine.clone());
    handles.push(thread("memory", move || memory::watch(bytes_max, &limits, &engine, &watched))?);
    Ok(Threads { controls, handles, memory })
}

fn thread(name: impl Into<String>, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(run)
}

/// Arguments of the thread of one shard.
struct ShardThread {
    id: usize,
    listener: Listener,
    agent: Option<BoundTcp>,
    udp: Option<UdpSocket>,
    /// Socket for NMEA sentences.
    nmea: Option<UdpSocket>,
    /// Publisher of what devices report.
    ingest: Arc<Ingest>,
    /// True if requests of phones and trackers are answered.
    answers_devices: bool,
    /// Connections of the admin listener, and its token.
    operators: Option<(AdminToken, mpsc::Receiver<Arrival>)>,
    rtc: Option<RtcPort>,
    /// State that the MQTT connections of all shards share, and the listener of this one.
    mqtt: Option<(Arc<MqttNode>, BoundTcp)>,
    /// TURN offer for the shard's clients.
    relays: Option<Arc<Offer>>,
    rooms: Arc<rooms::Shared>,
    /// Queues of the rooms of all shards.
    room_questions: Vec<mpsc::Sender<RoomQuestion>>,
    /// Queue of operator requests.
    jobs: Jobs,
    asked: mpsc::Receiver<Question>,
    rooms_asked: mpsc::Receiver<RoomQuestion>,
    router: Arc<Router>,
    engine: Arc<dyn Engine>,
    metrics: ShardMetrics,
    site: Arc<Site>,
    tickets: Arc<TicketKey>,
    access: Arc<Access>,
    limits: Arc<Limits>,
    hooks: Option<Arc<dyn Hooks>>,
    publication_events: Option<Arc<dyn PublicationEvents>>,
    race: Option<Arc<Race>>,
    push: Option<Arc<Push>>,
    /// Counters of the requests to devices.
    requests: Arc<RequestMetrics>,
    ready: Arc<AtomicBool>,
    forwards_traces: bool,
    draining: watch::Receiver<Option<Drain>>,
    config: watch::Receiver<millrace_transport::Config>,
}

impl ShardThread {
    /// Serves the shard's connections until `stop` completes.
    ///
    /// Errors: the runtime cannot be created, or cannot watch the sockets.
    fn run(self, stop: impl Future<Output = ()> + 'static) -> io::Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
        runtime.block_on(self.serve(stop))
    }

    async fn serve(mut self, stop: impl Future<Output = ()> + 'static) -> io::Result<()> {
        let config = self.config.borrow_and_update().clone();
        let ShardMetrics { delivery, sockets } = self.metrics;
        let (hub, sockets) = (Hub::new(config.hub()), ShardSockets::new(sockets)?);
        if let Some(listener) = self.agent {
            let (listener, mut draining) = (TcpListener::from_std(listener)?, self.draining.clone());
            let handed_over = async move {
                if draining.wait_for(|drain| drain.is_some_and(|drain| drain.is_handed_over)).await.is_err() {
                    std::future::pending().await
                }
            };
            spawn_local(agent::serve(listener, self.ready, self.router.clone(), handed_over));
        }
        let shard = Shard::new(self.id, self.router, self.engine, hub, sockets, delivery);
        let door = self.operators.map(|(token, arrivals)| {
            let (config, draining, tickets) = (config.clone(), self.draining.clone(), self.tickets.clone());
            let access = Arc::new(token.access());
            let admission = Admission::new(config, draining, tickets, access, self.limits.clone(), None, None);
            let context = Context::new(shard.clone(), admission, self.site.clone());
            context.add_routes(Rc::new(AdminRoutes(self.jobs.clone())));
            Door { context, arrivals }
        });
        let (hooks, events) = (self.hooks, self.publication_events);
        let admission = Admission::new(config, self.draining, self.tickets, self.access, self.limits, hooks, events);
        admission.forward_traces(self.forwards_traces);
        let conference =
            Conference::new(shard.clone(), admission.clone(), self.rooms, self.relays, self.room_questions);
        spawn_local(conference.clone().answer_questions(self.rooms_asked));
        spawn_local(cluster::run(conference.clone()));
        let context = Context::new(shard, admission, self.site);
        context.add_routes(Rc::new(ConferenceRoutes(conference)));
        context.add_routes(Rc::new(CarCare));
        let ingest = Some(self.ingest.clone()).filter(|_| self.answers_devices);
        context.add_routes(Rc::new(IngestRoutes(ingest)));
        if let Some(socket) = self.nmea {
            let socket = tokio::net::UdpSocket::from_std(socket)?;
            spawn_local(receive_datagrams(context.clone(), socket, Nmea(self.ingest)));
        }
        context.add_routes(Rc::new(RequestRoutes(self.requests)));
        context.add_routes(Rc::new(RaceRoutes(self.race)));
        context.add_routes(Rc::new(PushRoutes(self.push)));
        context.add_routes(Rc::new(AdminRoutes(self.jobs)));
        if let Some((node, listener)) = self.mqtt {
            context.enable_mqtt(node, listener);
        }
        let mut configured = vec![context.clone()];
        if let Some(door) = door {
            configured.push(door.context.clone());
            context.open_door(door);
        }
        let mut changing = self.config;
        spawn_local(async move {
            while changing.changed().await.is_ok() {
                let config = changing.borrow_and_update().clone();
                configured.iter().for_each(|context| context.set_config(config.clone()));
            }
        });
        let (answering, mut asked) = (context.clone(), self.asked);
        spawn_local(async move {
            while let Some(question) = asked.recv().await {
                question(&answering);
            }
        });
        serve(context, self.listener, self.udp, self.rtc, stop).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_panic_is_reported() {
        let (ending, ended) = watch::channel(false);
        let thread = std::thread::spawn(move || {
            let _ends = Ends(ending);
            panic!("a defect")
        });
        assert!(thread.join().is_err() && *ended.borrow());
    }
}
