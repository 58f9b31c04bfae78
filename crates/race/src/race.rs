use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as BoundTcp, UdpSocket as BoundUdp},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use millrace_protocol::{Code, Error, Transport};
use tokio::{
    net::{TcpListener, UdpSocket},
    runtime::{Builder, LocalOptions},
    sync::mpsc,
    task::spawn_local,
    time::sleep,
};

use crate::{
    Lane,
    connection::carry,
    datagrams::relay,
    pump::{EVENTS_MAX, Pump},
};

/// Connections of one lane at the same time; further ones are closed.
const CONNECTIONS_MAX: u64 = 64;
/// Pause after an error of `accept`, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Callers that may impair a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Every caller, because only this machine reaches the server.
    Everyone,
    /// Callers with a token that permits `admin`.
    Operators,
}

/// Sockets of the server to which the lanes lead.
#[derive(Clone, Debug)]
pub struct Target {
    /// Listen address of HTTP and WebSocket. The listeners of the lanes have the same IP address.
    pub address: SocketAddr,
    /// Listen addresses of data channels.
    pub datagrams: Vec<SocketAddr>,
}

/// The lanes of a server. They open at the first call of [`Race::lanes`].
pub struct Race {
    pub control: Control,
    target: Target,
    lanes: Mutex<Option<Arc<[Arc<Lane>]>>>,
    openings: mpsc::Sender<Opening>,
}

/// A lane that is bound and not served yet.
pub struct Opening {
    lane: Arc<Lane>,
    listener: BoundTcp,
    datagrams: Vec<(BoundUdp, SocketAddr)>,
    server: SocketAddr,
}

impl Race {
    /// Creates a race, and the receiver for [`run`].
    pub fn new(target: Target, control: Control) -> (Self, mpsc::Receiver<Opening>) {
        let (openings, receiver) = mpsc::channel(Transport::ALL.len());
        (Self { control, target, lanes: Mutex::new(None), openings }, receiver)
    }

    /// Returns the lanes; the first call opens them.
    ///
    /// Errors: [`Code::Unavailable`] if no port is free.
    pub fn lanes(&self) -> Result<Arc<[Arc<Lane>]>, Error> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lanes) = &*lanes {
            return Ok(lanes.clone());
        }
        let unavailable = |why: &dyn std::fmt::Display| {
            tracing::warn!(error = %why, "the lanes of the race cannot be opened");
            Error::new(Code::Unavailable, format!("the lanes of the race cannot be opened: {why}; try again"))
        };
        let openings: Vec<Opening> = Transport::ALL
            .map(|transport| self.bind(transport))
            .into_iter()
            .collect::<io::Result<_>>()
            .map_err(|e| unavailable(&e))?;
        let opened: Arc<[Arc<Lane>]> = openings.iter().map(|opening| opening.lane.clone()).collect();
        for opening in openings {
            self.openings.try_send(opening).map_err(|_| unavailable(&"the server is stopping"))?;
        }
        tracing::info!(lanes = opened.len(), "the lanes of the race are open");
        Ok(lanes.insert(opened).clone())
    }

    fn bind(&self, transport: Transport) -> io::Result<Opening> {
        let listener = BoundTcp::bind((self.target.address.ip(), 0))?;
        listener.set_nonblocking(true)?;
        let ports = if transport == Transport::DataChannel { &self.target.datagrams[..] } else { &[] };
        let datagrams = ports.iter().map(|server| {
            let front = BoundUdp::bind((server.ip(), 0))?;
            front.set_nonblocking(true)?;
            Ok((front, reachable(*server)))
        });
        let datagrams: Vec<_> = datagrams.collect::<io::Result<_>>()?;
        let pairs = datagrams.iter().map(|(front, server)| Ok((server.port(), front.local_addr()?.port())));
        let pairs = pairs.collect::<io::Result<_>>()?;
        let lane = Arc::new(Lane::new(transport, listener.local_addr()?, pairs));
        Ok(Opening { lane, listener, datagrams, server: reachable(self.target.address) })
    }
}

/// Returns the address at which this machine reaches a socket: loopback if the socket listens on all addresses.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match address {
        _ if !address.ip().is_unspecified() => address.ip(),
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, address.port())
}

/// Serves the lanes that open, until `stop` completes.
///
/// Errors: the runtime cannot be created.
pub fn run(mut openings: mpsc::Receiver<Opening>, stop: impl Future<Output = ()>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    runtime.block_on(async move {
        let open = async {
            while let Some(opening) = openings.recv().await {
                let transport = opening.lane.transport;
                spawn_local(async move {
                    if let Err(error) = serve(opening).await {
                        tracing::error!(%transport, %error, "a lane of the race failed");
                    }
                });
            }
        };
        tokio::select! {
            () = open => {}
            () = stop => {}
        }
        Ok(())
    })
}

async fn serve(Opening { lane, listener, datagrams, server }: Opening) -> io::Result<()> {
    let (events, received) = mpsc::channel(EVENTS_MAX);
    for (front, server) in datagrams {
        let relaying = relay(UdpSocket::from_std(front)?, server, events.clone());
        spawn_local(async move {
            if let Err(error) = relaying.await {
                tracing::error!(%error, "the datagrams of a lane of the race failed");
            }
        });
    }
    let pump = Pump::new(lane).map_err(io::Error::other)?;
    let accepting = async {
        let listener = TcpListener::from_std(listener)?;
        let open = Arc::new(AtomicU64::new(0));
        for id in 0.. {
            let Ok((client, _)) = listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            if open.load(Relaxed) >= CONNECTIONS_MAX {
                continue;
            }
            open.fetch_add(1, Relaxed);
            let (open, carrying) = (open.clone(), carry(id, client, server, events.clone()));
            spawn_local(async move {
                carrying.await;
                open.fetch_sub(1, Relaxed);
            });
        }
        Ok(())
    };
    tokio::select! {
        ended = accepting => ended,
        ended = pump.run(received) => ended.map_err(io::Error::other),
    }
}
