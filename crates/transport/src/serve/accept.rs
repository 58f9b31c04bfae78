//! Accepts connections, and detects whether a client speaks TLS, HTTP/1.1 or HTTP/2.

use std::{net::IpAddr, rc::Rc, time::Duration};

use millrace_protocol::Error;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::spawn_local,
};

use super::{drain, handshake::handshake, http1::serve_http1, http2::serve_http2, refusals::Refusals, server::Server};
use crate::{
    accept::{cannot_accept, set_options},
    admission::{
        Admission, Drain,
        limits::{ConnectionSlot, Limit},
    },
    connection::HttpClient,
    route::Arrival,
    tls,
    transports::mqtt,
};

/// First bytes of an HTTP/2 client. Source: RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Pause after a failed accept, for example if the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until the server drains, then moves the readers to other servers.
pub(super) async fn accept(server: Rc<Server>, listener: TcpListener, tls: Option<Rc<tls::Acceptor>>) {
    let refusals = Refusals::default();
    let admission = &server.context.admission;
    let serve = |stream, address, connection_slot| {
        let server = server.clone();
        match &tls {
            None => {
                let stream = tls::Stream::plain(stream);
                drop(spawn_local(connection(server, stream, address, None, connection_slot)));
            }
            Some(tls) => drop(spawn_local(secured(server, stream, address, tls.clone(), connection_slot))),
        }
    };
    let refuse = |stream, error: &Error| refusals.send(stream, error);
    let drain = accept_until_drain(admission, &listener, "a connection", serve, refuse).await;
    drop(listener);
    drain::drain(&server.context.shard, admission, drain).await;
    server.close_idle();
    std::future::pending().await
}

/// Accepts connections of MQTT clients until the server drains.
pub(super) async fn accept_mqtt(
    server: Rc<Server>,
    host: Rc<mqtt::Host>,
    listener: TcpListener,
    tls: Option<Rc<tls::Acceptor>>,
) {
    let serve = |stream, address, connection_slot| match &tls {
        None => adopt_mqtt(&host, tls::Stream::plain(stream), connection_slot),
        Some(tls) => {
            let (server, host, tls) = (server.clone(), host.clone(), tls.clone());
            spawn_local(async move {
                if let Some((stream, _)) = handshake(&server, stream, address, &tls).await {
                    adopt_mqtt(&host, stream, connection_slot);
                }
            });
        }
    };
    // A client has no packet that explains this before its CONNECT.
    let refuse = |_, error: &Error| tracing::debug!(%error, "refused a connection of an MQTT client");
    let admission = &server.context.admission;
    accept_until_drain(admission, &listener, "a connection of an MQTT client", serve, refuse).await;
}

/// Accepts connections until the server drains, and returns that drain. `what` names the connections in the log.
async fn accept_until_drain(
    admission: &Admission,
    listener: &TcpListener,
    what: &'static str,
    serve: impl Fn(TcpStream, IpAddr, ConnectionSlot),
    refuse: impl Fn(TcpStream, &Error),
) -> Drain {
    let drains = admission.drains();
    tokio::pin!(drains);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            drain = &mut drains => return drain,
        };
        match accepted {
            Ok((stream, peer)) => match admission.limits.connect(peer.ip()) {
                Ok(connection_slot) => {
                    set_options(&stream);
                    serve(stream, peer.ip(), connection_slot);
                }
                Err(error) => refuse(stream, &error),
            },
            Err(error) => {
                cannot_accept(&error, what);
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
pub(super) async fn receive_arrivals(server: Rc<Server>, mut arrivals: mpsc::Receiver<Arrival>) {
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

/// Serves a connection as HTTP/2 if it begins with the preface of HTTP/2, otherwise as HTTP/1.1.
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
    let client = Rc::new(HttpClient::new(address, subject, config.requests_per_connection_max, &limits));
    match first {
        Ok(true) => {
            if let Err(error) = serve_http2(server.context.clone(), stream, client).await {
                tracing::debug!(%error, "an HTTP/2 connection failed");
            }
        }
        Ok(false) => serve_http1(server, stream, client, connection_slot).await,
        Err(_) => {}
    }
}
