//! Admin API: lists and closes the connections of a shard, and serves admin requests on a separate listener.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, request::Parts};
use http_body_util::{BodyExt, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use millrace_delivery::ConnId;
use millrace_protocol::{Code, Error, websocket};
use serde::Serialize;
use tokio::{net::TcpListener, sync::Semaphore, task::spawn_local};

use crate::{
    accept::cannot_accept,
    connection::{connection_id, end},
    http::{Response, problem},
    route::Context,
};

/// Maximum size of the body of an admin request, in bytes.
const BODY_BYTES_MAX: usize = 4096;
/// Maximum number of concurrent admin connections.
const CONNECTIONS_MAX: usize = 64;
/// Timeout for the head of a request, and for its body.
const PATIENCE: Duration = Duration::from_secs(10);

/// An open connection: a WebSocket, a data channel or a stream. Polls are not listed, because they are short-lived.
#[derive(Clone, Debug, Serialize)]
pub struct Connection {
    /// Connection id, `SHARD-SLOT-GENERATION`. It is never reused.
    pub id: String,
    pub transport: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Address of the peer. It is unknown for a stream over HTTP/2 and for a data channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// Address of the client, as reported by a trusted proxy.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub client: Option<IpAddr>,
    /// Expiry time of the token, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
}

/// Filter for connections. A connection matches if it matches all fields that are set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnectionFilter {
    pub id: Option<String>,
    pub subject: Option<String>,
    pub address: Option<IpAddr>,
}

/// Sort key of a connection in the list of all connections: `SHARD-SLOT-GENERATION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionKey {
    shard: usize,
    slot: u32,
    generation: u32,
}

impl FromStr for ConnectionKey {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('-');
        let mut next = || parts.next()?.parse::<u32>().ok();
        let key = Self { shard: next().ok_or(())? as usize, slot: next().ok_or(())?, generation: next().ok_or(())? };
        if parts.next().is_some() { Err(()) } else { Ok(key) }
    }
}

impl Context {
    /// Returns at most `limit` of the matching connections, those after the key `after`. Cost: O(connections of
    /// the shard).
    pub fn connections(&self, which: &ConnectionFilter, after: Option<ConnectionKey>, limit: usize) -> Vec<Connection> {
        let is_after = |id: ConnId| after.is_none_or(|after| self.key(id) > after);
        self.matching(which).filter(|(id, _)| is_after(*id)).take(limit).map(|(_, connection)| connection).collect()
    }

    fn key(&self, id: ConnId) -> ConnectionKey {
        ConnectionKey { shard: self.shard.id, slot: id.slot, generation: id.generation }
    }

    /// Closes the matching connections and returns their number. The clients are notified not to reconnect.
    pub fn disconnect(&self, which: &ConnectionFilter) -> usize {
        let error = Error::new(Code::Unauthorized, "an operator has closed this connection");
        let ids: Vec<ConnId> = self.matching(which).map(|(id, _)| id).collect();
        ids.iter().for_each(|id| end(&self.shard, *id, websocket::CLOSE_REVOKED, &error));
        ids.len()
    }

    fn matching(&self, which: &ConnectionFilter) -> impl Iterator<Item = (ConnId, Connection)> {
        let conns: Vec<ConnId> = self.shard.with(|hub, _| hub.conns().map(|(id, _)| id).collect());
        conns.into_iter().filter_map(|id| Some((id, self.connection(id)?))).filter(|(_, connection)| {
            which.id.as_ref().is_none_or(|id| *id == connection.id)
                && (which.subject.is_none() || which.subject == connection.subject)
                && which.address.is_none_or(|ip| {
                    connection.client == Some(ip) || connection.address.is_some_and(|address| address.ip() == ip)
                })
        })
    }

    fn connection(&self, id: ConnId) -> Option<Connection> {
        let mut sockets = self.shard.sockets();
        let grant = sockets.grants.get(id).map(|caller| caller.grant.clone())?;
        let (transport, address) = match sockets.socket(id) {
            Some(socket) => {
                let transport = socket.protocol.transport().map_or("http", |transport| transport.name());
                (transport, rustix::net::getpeername(&socket.fd).ok().flatten())
            }
            None => ("http2", None),
        };
        Some(Connection {
            id: connection_id(self.shard.id, id),
            transport,
            subject: grant.subject.as_deref().map(str::to_owned),
            address: address.and_then(|address| SocketAddr::try_from(address).ok()),
            client: sockets.member(id).and_then(|member| member.client()),
            expires_s: grant.expires_s,
        })
    }
}

/// Serves admin requests over HTTP/1.1 until the task is dropped. Must run inside a `LocalRuntime` or a `LocalSet`.
pub async fn serve<F: Future<Output = Response> + 'static>(
    listener: TcpListener,
    answer: impl Fn(Parts, Bytes) -> F + 'static,
) {
    let answer = Rc::new(answer);
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(connection_slot) = room.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                cannot_accept(&error, "an admin connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let answer = answer.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let answer = answer.clone();
            async move {
                let (parts, body) = request.into_parts();
                let read = tokio::time::timeout(PATIENCE, Limited::new(body, BODY_BYTES_MAX).collect());
                let body = read.await.ok().and_then(Result::ok);
                Ok::<_, Infallible>(match body {
                    Some(body) => answer(parts, body.to_bytes()).await,
                    None => problem(&Error::new(Code::TooLarge, "the body is too large, or arrived too slowly")),
                })
            }
        });
        spawn_local(async move {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
            if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!(%error, "an admin connection broke");
            }
            drop(connection_slot);
        });
    }
}
