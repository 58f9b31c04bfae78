//! The TLS handshake of an accepted connection.

use std::{io, net::IpAddr};

use millrace_node::Metrics;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::server::Server;
use crate::{connection::linger, tls};

/// Performs the server side of a TLS handshake. Returns `None` if the connection has ended.
pub(super) async fn handshake(
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
