//! Routes and a datagram protocol that another crate adds. `Context::add_routes` is the only list that this takes.
#![allow(clippy::unwrap_used, reason = "a test may stop where it is wrong")]

use std::{
    net::SocketAddr,
    rc::Rc,
    sync::{Arc, mpsc},
    time::Instant,
};

use http::{StatusCode, request::Parts};
use hyper::body::Incoming;
use millrace_delivery::Hub;
use millrace_engine::MemoryEngine;
use millrace_node::{Metrics, Router, Shard};
use millrace_protocol::{Epoch, ticket::TicketKey};
use millrace_transport::{
    Admission, Config, Context, Limits, Listener, Pages, Routes, RtcConfig, RtcPort, ShardPort, SocketMetrics, Sockets,
    access::{Access, AllowAll},
    datagram::{DatagramProtocol, Verdict},
    http::{Response, text},
    route::{Answering, plain},
    serve,
};
use tokio::{
    sync::{oneshot, watch},
    task::LocalSet,
};

use crate::server::{BOUND, Server};

/// Answers the path `/dummy`, and reports the address of the datagram port and the datagrams that start with `dummy`.
struct Dummy {
    port: mpsc::Sender<SocketAddr>,
    datagrams: mpsc::Sender<Vec<u8>>,
}

impl Routes for Dummy {
    fn answer<'a>(&'a self, _: &'a Rc<Context>, parts: &'a Parts, _: &'a mut Incoming) -> Option<Answering<'a>> {
        let is_ours = parts.uri.path() == "/dummy";
        is_ours.then(|| -> Answering<'a> { Box::pin(async { Ok(plain(text(StatusCode::OK, "text/plain", "dummy"))) }) })
    }

    fn open_port(&self, port: &ShardPort) {
        port.demultiplexer.add(Rc::new(DummyProtocol(self.datagrams.clone())));
        self.port.send(port.candidates.addresses[0]).unwrap();
    }
}

struct DummyProtocol(mpsc::Sender<Vec<u8>>);

impl DatagramProtocol for DummyProtocol {
    fn knows(&self, _: &SocketAddr) -> bool {
        false
    }

    fn handle_datagram(&self, _: Instant, _: SocketAddr, datagram: &[u8]) -> Verdict {
        if !datagram.starts_with(b"dummy") {
            return Verdict::Unclaimed;
        }
        self.0.send(datagram.to_vec()).unwrap();
        Verdict::Valid
    }

    fn timeout(&self) -> Option<Instant> {
        None
    }

    fn handle_timeouts(&self, _: Instant) {}
}

pub struct NoPages;

impl Pages for NoPages {
    fn answer(&self, _: &Parts) -> Option<Response> {
        None
    }
}

/// Serves one shard with added routes until `stop` is dropped.
pub fn serve_shard(
    listener: Listener,
    port: Option<RtcPort>,
    routes: impl Routes + 'static,
    (delivery, sockets): (Arc<Metrics>, Arc<SocketMetrics>),
    stop: oneshot::Receiver<()>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async move {
        let (config, router) = (Config::default(), Arc::new(Router::new(1)));
        let engine = Arc::new(MemoryEngine::new(Default::default(), Epoch(1), router.clone(), || 1));
        let sockets = Sockets::new(sockets).unwrap();
        let shard = Shard::new(0, router, engine, Hub::new(config.hub()), sockets, delivery);
        let (_never, draining) = watch::channel(None);
        let tickets = Arc::new(TicketKey::new(b"secret"));
        let access = Arc::new(Access::from(AllowAll::default()));
        let limits = Limits::new(&config, 1024);
        let context = Context::new(
            shard,
            Admission::new(config, draining, tickets, access, limits, None, None),
            Arc::new(NoPages),
        );
        context.add_routes(Rc::new(routes));
        serve(context, listener, None, port, async move { drop(stop.await) }).await.unwrap();
    });
}

#[tokio::test]
async fn added_routes_get_requests_and_datagrams() {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind(loopback, 1).unwrap().remove(0);
    let server = Server::at(listener.address().unwrap());
    let rtc = RtcPort::bind(&RtcConfig::default(), loopback, 1, &[]).unwrap().remove(0);
    let ((port, address), (datagrams, received)) = (mpsc::channel(), mpsc::channel());
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        serve_shard(listener, Some(rtc), Dummy { port, datagrams }, Default::default(), stopped)
    });
    let address = address.recv_timeout(BOUND).unwrap();
    assert_eq!(server.get("/dummy").await.text(), "dummy");
    assert_eq!(server.get("/other").await.status, 404);
    let socket = std::net::UdpSocket::bind(loopback).unwrap();
    socket.send_to(b"dummy datagram", address).unwrap();
    assert_eq!(received.recv_timeout(BOUND).unwrap(), b"dummy datagram");
    drop(stop);
    thread.join().unwrap();
}
