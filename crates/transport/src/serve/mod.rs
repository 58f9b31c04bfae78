//! Accepts connections. Each shard has its own listener on the same port, so that the kernel distributes the
//! connections and no connection changes its thread.

use std::{
    cell::RefCell,
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr, TcpListener as StdListener},
    rc::Rc,
    task::Poll,
    time::Duration,
};

use bytes::BytesMut;
use http::{HeaderMap, HeaderValue, Request, header};
use hyper::{
    body::Incoming,
    rt::Executor,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use millrace_delivery::ConnId;
use millrace_node::Metrics;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::{JoinHandle, spawn_local},
};

mod drain;
mod keep_alive;
mod load_meter;
mod memory_meter;
mod refusals;
mod topics;
mod udp;
mod write_timeout;

pub use drain::RECONNECT_GRACE;
pub use udp::{DatagramFormat, bind as bind_udp, receive as receive_datagrams};

use crate::{
    accept::{cannot_accept, set_options},
    admission::limits::{ConnectionSlot, Limit, Pressure},
    connection::{self, EventLoop, Handler, Http1Connection, HttpClient, linger},
    data_channel::{self, Peers},
    datagram::{self, Bounds, Demultiplexer},
    http::{Response, encode_head},
    route::{Arrival, Context, Door, Handover, ShardPort, route},
    session,
    ticks::Ticks,
    tls,
    transports::{mqtt, stream, websocket},
};
use memory_meter::MemoryMeter;
use refusals::Refusals;
use topics::RouteTopics;
use write_timeout::WriteTimeoutStream;

/// First bytes of an HTTP/2 client. Source: RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum number of streams per HTTP/2 connection. It is enough for the tabs of one browser, and low enough that
/// one client cannot take all capacity.
const HTTP2_STREAMS_MAX: u32 = 256;
/// Flow-control window of an HTTP/2 connection and of each of its streams, in bytes. It limits how far the client
/// can send ahead of the server's reads.
const HTTP2_WINDOW_BYTES: u32 = 256 * 1024;
/// Maximum bytes buffered per HTTP/2 response before the server produces more of it.
const HTTP2_SEND_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of streams that a client may open and reset before the server has accepted them ("rapid reset").
/// Above it, the connection is closed. Source: CVE-2023-44487; RFC 9113, section 10.5.
const HTTP2_RESETS_MAX: usize = 64;
/// Maximum size of a request head in bytes. The names of a hundred channels with their positions fit, twice, even if
/// the names have the maximum length.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// While memory is short, a client is disconnected if it has sent and read nothing for one heartbeat interval, and more
/// than this many bytes are queued for it.
const STUCK_BYTES_MAX: usize = 16 * 1024;
/// Pause after a failed accept, for example if the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Bounds of the datagram port of a shard.
const PORT_BOUNDS: Bounds = Bounds { datagram_bytes_max: 2048, turn_datagrams_max: 1024 };

/// A bound listening socket of one shard.
pub struct Listener {
    socket: StdListener,
    tls: Option<watch::Receiver<tls::Settings>>,
}

impl Listener {
    /// Binds one listener per shard on the same port. Port 0 takes a free port.
    ///
    /// Errors: the address is in use, or does not belong to this machine.
    pub fn bind(address: SocketAddr, shards: usize) -> io::Result<Vec<Listener>> {
        let mut address = address;
        let mut listeners = Vec::with_capacity(shards);
        for _ in 0..shards {
            let socket = Self::bind_socket(address, shards)?;
            address = socket.local_addr()?;
            listeners.push(Self::new(socket));
        }
        Ok(listeners)
    }

    /// Binds the socket of one of several shards.
    ///
    /// Errors: see [`Listener::bind`].
    pub fn bind_socket(address: SocketAddr, shards: usize) -> io::Result<StdListener> {
        let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        // A single shard does not share its port, so that starting a second server on the same port fails.
        socket.set_reuse_port(shards > 1)?;
        socket.bind(&address.into())?;
        socket.listen(4096)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    }

    /// Creates a listener from a bound socket, which does not block.
    pub fn new(socket: StdListener) -> Self {
        Self { socket, tls: None }
    }

    /// Enables TLS. Each connection uses the settings that are current when it arrives.
    pub fn with_tls(self, settings: watch::Receiver<tls::Settings>) -> Self {
        Self { tls: Some(settings), ..self }
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

/// A shard's server: its routes, and the event loop of its connections.
pub(crate) struct Server {
    context: Rc<Context>,
    event_loop: Rc<EventLoop>,
    /// MQTT, if it is enabled.
    mqtt: Option<Rc<mqtt::Host>>,
}

/// Passes what arrives on a connection to its protocol.
struct Protocols(Rc<Server>);

impl Handler for Protocols {
    fn received(&self, id: ConnId, bytes: &mut [u8]) {
        let is_mqtt = |bytes: &mut [u8]| self.0.mqtt.as_ref().is_some_and(|mqtt| mqtt.received(id, bytes));
        if !websocket::received(&self.0.event_loop, id, bytes) && !is_mqtt(bytes) {
            self.0.http_received(id, bytes);
        }
    }

    fn writable(&self, id: ConnId) {
        if let Some(mqtt) = &self.0.mqtt
            && mqtt.writable(id)
        {
            return;
        }
        session::resume_commands(&self.0.event_loop, id);
        self.0.http_sent(id);
    }
}

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

/// Accepts connections until the server drains, then moves the readers to other servers.
async fn accept(server: Rc<Server>, listener: TcpListener, tls: Option<Rc<tls::Acceptor>>) {
    let refusals = Refusals::default();
    let context = &server.context;
    let drains = context.admission.drains();
    tokio::pin!(drains);
    let drain = loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            drain = &mut drains => break drain,
        };
        match accepted {
            Ok((stream, peer)) => match context.admission.limits.connect(peer.ip()) {
                Ok(connection_slot) => {
                    set_options(&stream);
                    let (server, address) = (server.clone(), peer.ip());
                    match &tls {
                        None => {
                            let stream = tls::Stream::plain(stream);
                            drop(spawn_local(connection(server, stream, address, None, connection_slot)));
                        }
                        Some(tls) => drop(spawn_local(secured(server, stream, address, tls.clone(), connection_slot))),
                    }
                }
                Err(error) => refusals.send(stream, &error),
            },
            Err(error) => {
                cannot_accept(&error, "a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    };
    drop(listener);
    drain::drain(&context.shard, &context.admission, drain).await;
    server.close_idle();
    std::future::pending().await
}

/// Accepts connections of MQTT clients until the server drains.
async fn accept_mqtt(server: Rc<Server>, host: Rc<mqtt::Host>, listener: TcpListener, tls: Option<Rc<tls::Acceptor>>) {
    let admission = &server.context.admission;
    let drains = admission.drains();
    tokio::pin!(drains);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut drains => return,
        };
        match accepted {
            Ok((stream, peer)) => match admission.limits.connect(peer.ip()) {
                Ok(connection_slot) => {
                    set_options(&stream);
                    match &tls {
                        None => adopt_mqtt(&host, tls::Stream::plain(stream), connection_slot),
                        Some(tls) => {
                            let (server, host, tls) = (server.clone(), host.clone(), tls.clone());
                            spawn_local(async move {
                                if let Some((stream, _)) = handshake(&server, stream, peer.ip(), &tls).await {
                                    adopt_mqtt(&host, stream, connection_slot);
                                }
                            });
                        }
                    }
                }
                // A client has no packet that explains this before its CONNECT.
                Err(error) => tracing::debug!(%error, "refused a connection of an MQTT client"),
            },
            Err(error) => {
                cannot_accept(&error, "a connection of an MQTT client");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn adopt_mqtt(host: &Rc<mqtt::Host>, stream: tls::Stream, connection_slot: ConnectionSlot) {
    let tls::Parts { tcp, tls, head } = stream.into_parts();
    if let Ok(stream) = tcp.into_std() {
        host.adopt(stream.into(), tls, &[], &mut head.to_vec(), false, connection_slot);
    }
}

/// Serves connections that another thread has accepted.
async fn receive_arrivals(server: Rc<Server>, mut arrivals: mpsc::Receiver<Arrival>) {
    let refusals = Refusals::default();
    while let Some(Arrival { stream, head, address }) = arrivals.recv().await {
        let Ok(tcp) = TcpStream::from_std(stream) else { continue };
        match server.context.admission.limits.connect(address) {
            Ok(connection_slot) => {
                set_options(&tcp);
                let stream = tls::Stream::from_parts(tls::Parts { tcp, tls: None, head });
                drop(spawn_local(connection(server.clone(), stream, address, None, connection_slot)));
            }
            Err(error) => refusals.send(tcp, &error),
        }
    }
}

/// Once per second: sends heartbeats, closes dead connections, and updates the metrics that are too expensive to
/// keep current. The first tick is due at `due`.
async fn tick(context: Rc<Context>, every_second: Ticks, mut due: std::time::Instant) {
    let started = tokio::time::Instant::now();
    let mut census = MemoryMeter::default();
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
        census.go_on(shard, || context.data_channels.get().map_or(0, |peers| peers.borrow().bytes()));
        if shard.id == 0 {
            context.admission.limits.sweep();
            shard.engine.sweep();
        }
    }
}

/// Serves a connection of a TLS listener, after its handshake.
async fn secured(
    server: Rc<Server>,
    stream: TcpStream,
    address: IpAddr,
    acceptor: Rc<tls::Acceptor>,
    connection_slot: ConnectionSlot,
) {
    if let Some((stream, subject)) = handshake(&server, stream, address, &acceptor).await {
        connection(server, stream, address, subject, connection_slot).await;
    }
}

/// Performs the server side of a TLS handshake. Returns `None` if the connection has ended.
async fn handshake(
    server: &Server,
    stream: TcpStream,
    address: IpAddr,
    acceptor: &tls::Acceptor,
) -> Option<(tls::Stream, Option<tls::PeerSubject>)> {
    let metrics = server.context.shard.socket_metrics.clone();
    let settings = acceptor.settings();
    let Some(handshaking) = acceptor.handshake_slot() else {
        Metrics::add(&metrics.tls_refused, 1);
        return None;
    };
    let handshake = async {
        if !tls::is_tls(&stream).await? {
            return Ok::<_, io::Error>(Err(stream));
        }
        tls::accept(stream, &settings).await.map(Ok)
    };
    let outcome = tokio::time::timeout(settings.handshake_timeout, handshake).await;
    drop(handshaking);
    match outcome.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(Ok(tls::Accepted::Client(stream, subject))) => {
            Metrics::add(if stream.is_resumed() { &metrics.tls_resumed } else { &metrics.tls_handshakes }, 1);
            return Some((stream, subject));
        }
        Ok(Ok(tls::Accepted::Challenge)) => tracing::info!(%address, "answered a TLS-ALPN-01 challenge"),
        Ok(Err(stream)) => send_to_https(stream).await,
        Err(error) => {
            Metrics::add(&metrics.tls_failed, 1);
            tracing::debug!(%error, "a handshake has failed");
        }
    }
    None
}

/// Answers a client that uses `http://` on a TLS port with an explanation.
async fn send_to_https(mut stream: TcpStream) {
    const BODY: &str = "This port speaks TLS: use https:// (or wss://) in front of the same address.\n";
    let length = BODY.len();
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{BODY}"
    );
    // The response fits into the send buffer of a new socket.
    if stream.write_all(answer.as_bytes()).await.is_ok()
        && let Ok(stream) = stream.into_std()
    {
        linger(stream.into(), None);
    }
}

async fn connection(
    server: Rc<Server>,
    mut stream: tls::Stream,
    address: IpAddr,
    subject: Option<tls::PeerSubject>,
    connection_slot: ConnectionSlot,
) {
    let (config, limits) = (server.context.admission.config(), server.context.admission.limits.clone());
    let Ok(first) = tokio::time::timeout(config.header_timeout, stream.starts_with(PREFACE)).await else {
        return limits.count(Limit::HeaderTimeout);
    };
    let served = Rc::new(HttpClient::new(address, subject, config.requests_per_connection_max, &limits));
    match first {
        Ok(true) => {
            if let Err(error) = http2(server.context.clone(), stream, served).await {
                tracing::debug!(%error, "an HTTP/2 connection failed");
            }
        }
        Ok(false) => serve_http1(server, stream, served, connection_slot).await,
        Err(_) => {}
    }
}

/// Serves an HTTP/1.1 connection until it ends or the event loop takes it over.
async fn serve_http1(server: Rc<Server>, stream: tls::Stream, served: Rc<HttpClient>, connection_slot: ConnectionSlot) {
    let admission = &server.context.admission;
    let (limits, header_timeout) = (admission.limits.clone(), admission.config().header_timeout);
    if let Err(error) = http1(server, stream, header_timeout, served.clone(), connection_slot).await {
        // Count only a client that has sent no request at all. After a request a client may be idle for this long.
        if error.is_timeout() && served.requests.get() == 0 {
            limits.count(Limit::HeaderTimeout);
        }
        tracing::debug!(%error, "an HTTP/1.1 connection failed");
    }
}

async fn http1(
    server: Rc<Server>,
    stream: tls::Stream,
    header_timeout: Duration,
    served: Rc<HttpClient>,
    connection_slot: ConnectionSlot,
) -> hyper::Result<()> {
    let next = Rc::new(RefCell::new(None::<Next>));
    let (unsent, is_tls) = (stream.unsent(), stream.is_tls());
    let service = {
        let (context, next, served) = (server.context.clone(), next.clone(), served.clone());
        service_fn(move |mut request: Request<Incoming>| {
            let (context, next) = (context.clone(), next.clone());
            let is_last = served.take(&mut request, &context.admission.limits) || context.admission.is_draining();
            let closes = is_last || asks_to_close(request.headers());
            // Boxed, so that the memory for a request is held only while the request is answered, not for the whole
            // connection.
            Box::pin(async move {
                let (mut response, handover) = route(context, request).await;
                if is_last && handover.is_none() {
                    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                if let Some(handover) = handover {
                    *next.borrow_mut() = Some(Next { handover, head: response, closes });
                    // Keep hyper from sending this response. The event loop sends the head, and only after the
                    // connection is a reader.
                    return std::future::pending().await;
                }
                Ok::<Response, Infallible>(response)
            })
        })
    };
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        // A client may close its sending side after its last request and still gets the response. Streams and
        // WebSockets have left hyper by then; they end when the client closes its side.
        .half_close(true)
        .serve_connection(
            TokioIo::new(WriteTimeoutStream::new(
                stream,
                server.context.admission.limits.clone(),
                server.context.admission.config().write_timeout,
            )),
            service,
        );
    let context = server.context.clone();
    // During a drain the client gets a response to its next request, and connects again after it. A connection that is
    // closed at once may lose a request that is on its way.
    let drained = async {
        let drain = context.admission.drains().await;
        tokio::time::sleep(drain.window).await;
    };
    tokio::pin!(drained);
    let mut is_shutting_down = false;
    loop {
        tokio::select! {
            served = std::future::poll_fn(|cx| match connection.poll_without_shutdown(cx) {
                // All earlier responses have been sent, so the socket can leave hyper.
                Poll::Pending if next.borrow().is_some() && !unsent.get() => Poll::Ready(Ok(())),
                served => served,
            }) => {
                served?;
                break;
            }
            () = &mut drained, if !is_shutting_down => {
                is_shutting_down = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
        }
    }
    let next = next.borrow_mut().take();
    if next.is_none() && is_tls {
        // End the TLS session explicitly (`close_notify`). Otherwise the client cannot tell a regular end from a
        // truncation by an attacker.
        let mut stream = connection.into_parts().io.into_inner();
        let _ = tokio::time::timeout(header_timeout, stream.shutdown()).await;
        return Ok(());
    }
    if let Some(Next { handover, head, closes }) = next {
        // Free all state of hyper: its buffers need more memory than the rest of the connection.
        let parts = connection.into_parts();
        let tls::Parts { tcp, tls, head: unread } = parts.io.into_inner().into_inner().into_parts();
        let mut rest = BytesMut::with_capacity(parts.read_buf.len() + unread.len());
        rest.extend_from_slice(&parts.read_buf);
        rest.extend_from_slice(&unread);
        drop((parts.read_buf, unread, parts.service));
        if let Ok(stream) = tcp.into_std() {
            spawn_local(async move {
                let fd = stream.into();
                match handover {
                    Handover::WebSocket(upgrade) => {
                        websocket::adopt(&server.event_loop, fd, tls, rest.into(), upgrade, &head, connection_slot)
                            .await;
                    }
                    Handover::Mqtt => {
                        if let Some(mqtt) = &server.mqtt {
                            mqtt.adopt(fd, tls, &encode_head(&head), &mut rest.to_vec(), true, connection_slot);
                        }
                    }
                    Handover::Stream(wanted) => {
                        stream::adopt(&server.event_loop, fd, tls, wanted, head, connection_slot).await
                    }
                    Handover::LongPoll(poll) => {
                        let http = Http1Connection::new(served, head, &rest, closes);
                        server.adopt_poll(fd, tls, http, poll, connection_slot).await;
                    }
                }
            });
        }
    }
    Ok(())
}

/// How a connection continues after it has left hyper.
struct Next {
    handover: Handover,
    /// Head of the response, as far as it is known.
    head: Response,
    /// True if the connection closes after the response, if the response has an end.
    closes: bool,
}

/// Returns true if the request has `Connection: close`. Source: RFC 9112, section 9.6.
fn asks_to_close(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|option| option.trim().eq_ignore_ascii_case("close"))
}

async fn http2(context: Rc<Context>, stream: tls::Stream, served: Rc<HttpClient>) -> hyper::Result<()> {
    let service = {
        let (context, served) = (context.clone(), served.clone());
        service_fn(move |mut request: Request<Incoming>| {
            let context = context.clone();
            served.take(&mut request, &context.admission.limits);
            async move {
                let (response, handover) = route(context.clone(), request).await;
                let response = match handover {
                    Some(Handover::Stream(stream)) => {
                        stream.respond(&context.shard, &context.admission, response).await
                    }
                    Some(Handover::WebSocket(_) | Handover::Mqtt | Handover::LongPoll(_)) | None => response,
                };
                Ok::<Response, Infallible>(response)
            }
        })
    };
    let mut connection = http2::Builder::new(LocalExecutor)
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .max_send_buf_size(HTTP2_SEND_BYTES_MAX)
        .initial_connection_window_size(HTTP2_WINDOW_BYTES)
        .initial_stream_window_size(HTTP2_WINDOW_BYTES)
        .max_pending_accept_reset_streams(HTTP2_RESETS_MAX)
        .max_local_error_reset_streams(HTTP2_RESETS_MAX)
        .keep_alive_interval(context.admission.config().heartbeat)
        .keep_alive_timeout(context.admission.config().grace)
        .serve_connection(
            TokioIo::new(WriteTimeoutStream::new(
                stream,
                context.admission.limits.clone(),
                context.admission.config().write_timeout,
            )),
            service,
        );
    let drains = context.admission.drains();
    tokio::pin!(drains);
    let mut is_shutting_down = false;
    loop {
        tokio::select! {
            ended = std::future::poll_fn(|cx| {
                let ended = Pin::new(&mut connection).poll(cx);
                if served.is_spent() && !is_shutting_down {
                    is_shutting_down = true;
                    Pin::new(&mut connection).graceful_shutdown();
                    return Pin::new(&mut connection).poll(cx);
                }
                ended
            }) => return ended,
            _ = &mut drains, if !is_shutting_down => {
                is_shutting_down = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
        }
    }
}

/// Executor that spawns tasks on the current thread.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F: Future<Output: 'static> + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        spawn_local(future);
    }
}
