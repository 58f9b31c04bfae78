//! Datagrams from devices. On the port `server.udp` each contains one line of a batch, or a record in the format of an
//! added route; other ports have a [`DatagramFormat`] of their own. The server sends no reply. Malformed datagrams are
//! counted and dropped.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::Arc,
    task::{Context as TaskContext, Waker},
};

use bytes::Bytes;
use millrace_engine::LogRateLimit;
use millrace_node::Metrics;
use millrace_protocol::Error;
use serde::Deserialize;
use tokio::{net::UdpSocket, sync::Semaphore, task::spawn_local};

use crate::{
    admission::{Admission, Congestion, Publisher, access::Caller, hooks::HookClient},
    route::{Context, publish},
};

/// Maximum datagram size in bytes: the payload of one UDP packet on a network with an MTU of 1500.
const DATAGRAM_BYTES_MAX: usize = 1472;

/// Maximum number of datagrams of a shard that wait for the app's back end. Further datagrams are dropped.
const ASKING_MAX: usize = 1024;

/// Distinguishes the two kinds of datagram: only a line of a batch has a `channel`.
#[derive(Deserialize)]
struct Kind {
    channel: Option<serde::de::IgnoredAny>,
}

/// Format of the datagrams of one port.
pub trait DatagramFormat: 'static {
    /// Publishes a datagram; returns `None` if the datagram is malformed or refused.
    fn publish(
        &self,
        context: &Context,
        publisher: &impl Publisher,
        caller: &Caller,
        datagram: &[u8],
    ) -> impl Future<Output = Option<()>>;
}

/// Format of the port `server.udp`.
pub(crate) struct Lines;

impl DatagramFormat for Lines {
    async fn publish(
        &self,
        context: &Context,
        publisher: &impl Publisher,
        caller: &Caller,
        datagram: &[u8],
    ) -> Option<()> {
        let kind: Kind = serde_json::from_slice(datagram).ok()?;
        let published = match kind.channel {
            Some(_) => publish::publish_line(context, publisher, caller, datagram).await,
            None => {
                let datagram = Bytes::copy_from_slice(datagram);
                let routes: Vec<_> = context.routes().to_vec();
                let mut offered =
                    routes.iter().map(|routes| routes.publish_datagram(context, publisher, caller, datagram.clone()));
                offered.find_map(|publishing| publishing)?.await
            }
        };
        publish::counted(context, published).ok().map(drop)
    }
}

/// Receives datagrams until the task is dropped, or until another process receives from the socket. A datagram that was
/// received before is published.
pub async fn receive<F: DatagramFormat>(context: Rc<Context>, socket: UdpSocket, format: F) {
    let format = Rc::new(format);
    // The buffer has one byte more than the limit, so that a datagram above the limit is detected.
    let mut datagram = [0; DATAGRAM_BYTES_MAX + 1];
    let asking = Arc::new(Semaphore::new(ASKING_MAX));
    let handed_over = async {
        if !context.admission.drains().await.is_handed_over {
            std::future::pending().await
        }
    };
    tokio::pin!(handed_over);
    loop {
        let received = tokio::select! {
            biased;
            () = &mut handed_over => return,
            received = socket.recv_from(&mut datagram) => received,
        };
        let (length, from) = match received {
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
        if !is_good {
            Metrics::add(&metrics.udp_dropped, 1);
        } else if context.admission.has_hooks() {
            publish_beside(&context, &format, from.ip(), datagram[..length].to_vec(), &asking);
        } else {
            publish_or_drop(&context, &*format, from.ip(), &datagram[..length]).await;
        }
    }
}

/// Publishes while further datagrams are received, because the app's back end may answer late. A datagram is dropped
/// while too many wait. Datagrams that wait may overtake each other; the network gives them no order either.
fn publish_beside<F: DatagramFormat>(
    context: &Rc<Context>,
    format: &Rc<F>,
    from: IpAddr,
    datagram: Vec<u8>,
    asking: &Arc<Semaphore>,
) {
    let Ok(slot) = asking.clone().try_acquire_owned() else {
        return Metrics::add(&context.shard.socket_metrics.udp_dropped, 1);
    };
    let (context, format) = (context.clone(), format.clone());
    let mut publishing = Box::pin(async move {
        publish_or_drop(&context, &*format, from, &datagram).await;
        drop(slot);
    });
    // A datagram for which the back end is not asked is published at once.
    if publishing.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())).is_pending() {
        spawn_local(publishing);
    }
}

async fn publish_or_drop(context: &Context, format: &impl DatagramFormat, from: IpAddr, datagram: &[u8]) {
    // A datagram has no token.
    let holder = context.admission.limits.holder(None, Some(from));
    let caller = Caller { grant: context.admission.access.authority.anonymous(), holder, anonymous: true };
    let publisher = DatagramPublisher { admission: &context.admission, address: from };
    if format.publish(context, &publisher, &caller, datagram).await.is_none() {
        Metrics::add(&context.shard.socket_metrics.udp_dropped, 1);
    }
}

/// Publisher of one datagram. The rate of its address is limited by `datagrams_per_s`, before the datagram is parsed.
struct DatagramPublisher<'a> {
    admission: &'a Admission,
    address: IpAddr,
}

impl Publisher for DatagramPublisher<'_> {
    fn take_quota(&self, bytes: usize) -> Result<(), Error> {
        self.admission.limits.check_publish(None, None, bytes)
    }

    fn meet_congestion(&self) -> Congestion {
        Congestion::Refuse
    }

    fn admission(&self) -> Option<&Admission> {
        Some(self.admission)
    }

    fn client(&self) -> HookClient {
        HookClient { transport: "udp", address: Some(self.address), ..HookClient::default() }
    }
}

/// Binds a UDP socket. Errors: the address is in use, or does not belong to this machine.
pub fn bind(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
