//! Datagrams from devices. Each contains one line of a batch, or a record in the format of an added route. The server
//! sends no reply. Malformed datagrams are counted and dropped.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
};

use bytes::Bytes;
use millrace_engine::LogRateLimit;
use millrace_node::Metrics;
use millrace_protocol::Error;
use serde::Deserialize;
use tokio::net::UdpSocket;

use crate::{
    admission::{Congestion, Publisher, access::Caller, limits::Limits},
    route::{Context, publish},
};

/// Maximum datagram size in bytes: the payload of one UDP packet on a network with an MTU of 1500.
const DATAGRAM_BYTES_MAX: usize = 1472;

/// Distinguishes the two kinds of datagram: only a line of a batch has a `channel`.
#[derive(Deserialize)]
struct Kind {
    channel: Option<serde::de::IgnoredAny>,
}

/// Receives datagrams until the task is dropped.
pub async fn receive(context: Rc<Context>, socket: UdpSocket) {
    // The buffer has one byte more than the limit, so that a datagram above the limit is detected.
    let mut datagram = [0; DATAGRAM_BYTES_MAX + 1];
    loop {
        let (length, from) = match socket.recv_from(&mut datagram).await {
            Ok(received) => received,
            Err(error) => {
                static SAID: LogRateLimit = LogRateLimit::new();
                if SAID.is_due() {
                    tracing::warn!(%error, "cannot receive UDP datagrams");
                }
                tokio::task::yield_now().await;
                continue;
            }
        };
        let metrics = &context.shard.socket_metrics;
        Metrics::add(&metrics.udp_received, 1);
        let is_good = length <= DATAGRAM_BYTES_MAX && context.admission.limits.take_datagram(from.ip());
        if !is_good || publish(&context, from.ip(), &datagram[..length]).await.is_none() {
            Metrics::add(&metrics.udp_dropped, 1);
        }
    }
}

async fn publish(context: &Context, from: IpAddr, datagram: &[u8]) -> Option<()> {
    let kind: Kind = serde_json::from_slice(datagram).ok()?;
    // A datagram has no token.
    let holder = context.admission.limits.holder(None, Some(from));
    let caller = Caller { grant: context.admission.access.authority.anonymous(), holder, anonymous: true };
    let publisher = DatagramPublisher(&context.admission.limits);
    let published = match kind.channel {
        Some(_) => publish::publish_line(context, &publisher, &caller, datagram).await,
        None => {
            let datagram = Bytes::copy_from_slice(datagram);
            let routes: Vec<_> = context.routes().to_vec();
            let mut offered =
                routes.iter().map(|routes| routes.publish_datagram(context, &publisher, &caller, datagram.clone()));
            offered.find_map(|publishing| publishing)?.await
        }
    };
    publish::counted(context, published).ok().map(drop)
}

/// Publisher of one datagram. The rate of its address is limited by `datagrams_per_s`, before the datagram is parsed.
struct DatagramPublisher<'a>(&'a Limits);

impl Publisher for DatagramPublisher<'_> {
    fn take_quota(&self, bytes: usize) -> Result<(), Error> {
        self.0.check_publish(None, None, bytes)
    }

    fn meet_congestion(&self) -> Congestion {
        Congestion::Refuse
    }
}

/// Binds a UDP socket. Errors: the address is in use, or does not belong to this machine.
pub fn bind(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
