//! Serves the connections and datagrams of one shard. Each shard has its own listener on the same port, so that the
//! kernel distributes the connections and no connection changes its thread.
//!
//! - [`listener`]: the listening sockets
//! - [`accept`]: from an accepted connection to its protocol; [`handshake`]: TLS; [`refusals`]: errors instead
//! - [`http1`], [`http2`]: connections that hyper serves; [`write_timeout`] disconnects clients that do not read
//! - [`keep_alive`]: HTTP/1.1 connections on the event loop, without hyper
//! - [`server`]: what all of these share; [`topics`]: publications of MQTT clients as requests of routes
//! - [`udp`]: datagrams; [`drain`]: the end
//! - [`load_meter`], [`memory_meter`]: metrics that are measured once per second

mod accept;
mod drain;
mod handshake;
mod http1;
mod http2;
mod keep_alive;
mod listener;
mod load_meter;
mod memory_meter;
mod refusals;
mod server;
mod topics;
mod udp;
pub(crate) mod write_timeout;

use std::{cell::RefCell, io, rc::Rc};

use tokio::{
    net::TcpListener,
    task::{JoinHandle, spawn_local},
};

pub use drain::RECONNECT_GRACE;
pub use listener::Listener;
pub use udp::{DatagramFormat, bind as bind_udp, receive as receive_datagrams};

use crate::{
    admission::limits::{Limit, Pressure},
    connection::{self, EventLoop},
    data_channel::{self, Peers},
    datagram::{self, Bounds, Demultiplexer},
    route::{Context, Door, ShardPort},
    ticks::Ticks,
    tls,
    transports::mqtt,
};
use accept::{accept, accept_mqtt, receive_arrivals};
use memory_meter::MemoryMeter;
use server::{Protocols, Server};
use topics::RouteTopics;

/// While memory is short, a client is disconnected if it has sent and read nothing for one heartbeat interval, and more
/// than this many bytes are queued for it.
const STUCK_BYTES_MAX: usize = 16 * 1024;
/// Bounds of the datagram port of a shard.
const PORT_BOUNDS: Bounds = Bounds { datagram_bytes_max: 2048, turn_datagrams_max: 1024 };

/// Serves one shard until `stop` completes: connections, datagrams, turns of the shard and heartbeats. Must run
/// inside a `LocalRuntime` or a `LocalSet`.
///
/// Errors: the runtime cannot take over the listener, or cannot watch the shard's sockets.
pub async fn serve(
    context: Rc<Context>,
    listener: Listener,
    datagrams: Option<std::net::UdpSocket>,
    rtc: Option<datagram::Port>,
    stop: impl Future<Output = ()> + 'static,
) -> io::Result<()> {
    let tls = listener.tls.map(|settings| Rc::new(tls::Acceptor::new(settings)));
    let listener = TcpListener::from_std(listener.socket)?;
    let event_loop = EventLoop::new(context.shard.clone(), context.admission.clone());
    let mqtt = context
        .mqtt()
        .map(|node| mqtt::Host::new(event_loop.clone(), node.clone(), Rc::new(RouteTopics(context.clone()))));
    let server = Rc::new(Server { context: context.clone(), event_loop: event_loop.clone(), mqtt });
    let turns = context.shard.clone();
    let mut tasks = vec![spawn_local(async move { turns.run().await })];
    tasks.push(spawn_local(server.clone().answer_woken()));
    tasks.push(spawn_local(server.clone().keep_time()));
    if let (Some(mqtt), Some(listener)) = (&server.mqtt, context.take_mqtt_listener()) {
        let listener = TcpListener::from_std(listener)?;
        tasks.push(spawn_local(mqtt.clone().run()));
        tasks.push(spawn_local(accept_mqtt(server.clone(), mqtt.clone(), listener, tls.clone())));
    }
    tasks.push(spawn_local(accept(server.clone(), listener, tls)));
    if let Some(Door { context, arrivals }) = context.take_door() {
        let server = Rc::new(Server { context, event_loop: event_loop.clone(), mqtt: None });
        tasks.push(spawn_local(receive_arrivals(server, arrivals)));
    }
    if let Some(socket) = datagrams {
        let socket = tokio::net::UdpSocket::from_std(socket)?;
        tasks.push(spawn_local(udp::receive(context.clone(), socket, udp::Lines)));
    }
    if let Some(port) = rtc {
        tasks.extend(open_port(&context, &event_loop, port)?);
    }
    tasks.push(spawn_local(tick(context.clone(), Ticks::every(load_meter::INTERVAL)?, std::time::Instant::now())));
    tasks.push(spawn_local(connection::end_revoked(context.shard.clone(), context.admission.access.clone())));
    let protocols = Protocols(server);
    // The event loop is polled in this task and first, because it is woken more often than any other task.
    let ended = tokio::select! {
        biased;
        ended = event_loop.run(&protocols) => ended,
        _ = spawn_local(stop) => Ok(()),
    };
    tasks.iter().for_each(|task| task.abort());
    ended
}

/// Opens the datagram port of a shard, with data channels and the protocols of added routes on it. Returns its tasks.
///
/// Errors: the runtime cannot watch the sockets.
fn open_port(
    context: &Rc<Context>,
    event_loop: &Rc<EventLoop>,
    port: datagram::Port,
) -> io::Result<Vec<JoinHandle<()>>> {
    let datagram::Port { socket, streams, candidates, peers_max, relay } = port;
    let (limits, metrics) = (context.admission.limits.clone(), context.shard.socket_metrics.clone());
    let demultiplexer = Demultiplexer::new(socket, PORT_BOUNDS, limits, metrics.clone(), relay)?;
    let peers = Peers::new(demultiplexer.sender(), candidates.clone(), peers_max, metrics);
    let peers = Rc::new(RefCell::new(peers));
    let _ = context.data_channels.set(peers.clone());
    let shard_port = ShardPort { demultiplexer: demultiplexer.clone(), candidates, peers_max, peers: peers.clone() };
    context.routes().iter().for_each(|routes| routes.open_port(&shard_port));
    demultiplexer.add(Rc::new(data_channel::Driver::new(event_loop.clone(), peers)));
    let mut tasks = Vec::new();
    if let Some(streams) = streams {
        let (port, streams) = (demultiplexer.clone(), TcpListener::from_std(streams)?);
        let admission = context.admission.clone();
        let write_timeout = move || admission.config().write_timeout;
        tasks.push(spawn_local(datagram::accept_streams(port, streams, write_timeout)));
    }
    tasks.push(spawn_local(demultiplexer.run(Some(context.shard.clone()))));
    Ok(tasks)
}

/// Once per second: sends heartbeats, closes dead connections, and updates the metrics that are too expensive to
/// keep current. The first tick is due at `due`.
async fn tick(context: Rc<Context>, every_second: Ticks, mut due: std::time::Instant) {
    let started = tokio::time::Instant::now();
    let mut memory_meter = MemoryMeter::default();
    while let Ok(merged) = every_second.next().await {
        let shard = &context.shard;
        due = load_meter::measure(&shard.metrics, due, merged);
        shard.with(|hub, sockets| hub.tick(started.elapsed().as_secs() as u32, sockets));
        connection::end_expired(shard);
        context.routes().iter().for_each(|routes| routes.tick());
        if context.admission.limits.pressure() >= Pressure::Shrink {
            let cut_off = shard.with(|hub, _| hub.give_back(STUCK_BYTES_MAX));
            (0..cut_off).for_each(|_| context.admission.limits.count(Limit::WriteTimeout));
        }
        memory_meter.count_next(shard, || context.data_channels.get().map_or(0, |peers| peers.borrow().bytes()));
        if shard.id == 0 {
            context.admission.limits.sweep();
            shard.engine.sweep();
        }
    }
}
