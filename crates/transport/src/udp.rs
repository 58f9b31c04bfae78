//! Datagrams from devices: each is one CarCare record, or one line of a batch. Nothing is answered; what is malformed is counted.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
};

use bytes::Bytes;
use millrace_engine::Seldom;
use millrace_node::Metrics;
use serde::Deserialize;
use tokio::net::UdpSocket;

use crate::{access::Caller, carcare, http::Context, publish};

/// What fits into one packet of an ordinary network.
const DATAGRAM_BYTES_MAX: usize = 1472;

/// Tells the two kinds of datagram apart.
#[derive(Deserialize)]
struct Kind {
    channel: Option<serde::de::IgnoredAny>,
}

/// Receives until the task is dropped.
pub async fn receive(context: Rc<Context>, socket: UdpSocket) {
    // One byte more than allowed tells a datagram that is too large from one that just fits.
    let mut datagram = [0; DATAGRAM_BYTES_MAX + 1];
    loop {
        let (length, from) = match socket.recv_from(&mut datagram).await {
            Ok(received) => received,
            Err(error) => {
                static SAID: Seldom = Seldom::new();
                if SAID.is_due() {
                    tracing::warn!(%error, "cannot receive UDP datagrams");
                }
                tokio::task::yield_now().await;
                continue;
            }
        };
        let metrics = &context.shard.metrics;
        Metrics::add(&metrics.udp_received, 1);
        let limits = &context.limits;
        let is_good = length <= DATAGRAM_BYTES_MAX
            && limits.take_datagram(from.ip())
            && limits.check_publish(None, None, length).is_ok();
        if !is_good || publish(&context, from.ip(), &datagram[..length]).await.is_none() {
            Metrics::add(&metrics.udp_dropped, 1);
        }
    }
}

async fn publish(context: &Context, from: IpAddr, datagram: &[u8]) -> Option<()> {
    let kind: Kind = serde_json::from_slice(datagram).ok()?;
    // A datagram carries no token.
    let holder = context.limits.holder(None, Some(from));
    let caller = Caller { grant: context.access.authority.anonymous(), holder, anonymous: true };
    match kind.channel {
        Some(_) => publish::publish_line(context, &caller, datagram).await.ok()?,
        None => carcare::record(context, &caller, Bytes::copy_from_slice(datagram), None).await.ok()?,
    };
    Some(())
}

/// Errors: the address is taken, or not ours.
pub fn bind(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
