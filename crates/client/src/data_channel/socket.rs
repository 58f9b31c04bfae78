//! Peer with its own socket, which needs no demultiplexing of datagrams.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use millrace_rtc::{BadOffer, Event, Lane, Outputs, Peer};
use tokio::net::UdpSocket;

use super::OpenError;
use crate::http::{body, cause};
use crate::problem::Problem;

pub const SDP: &str = "application/sdp";
/// Maximum time from the answer until all channels are open.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(15);
const DATAGRAM_BYTES_MAX: usize = 2048;
/// Maximum time to wait for a datagram or timer.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// One end of a connection. Dropping it closes the connection.
pub struct PeerSocket {
    socket: UdpSocket,
    local: SocketAddr,
    peer: Peer,
    outputs: Outputs,
    last_received: Instant,
    is_over: bool,
}

/// Reason why an offer was not answered.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("{0}")]
    Offer(#[from] BadOffer),
    #[error("no socket: {0}")]
    Socket(#[from] std::io::Error),
}

impl PeerSocket {
    /// Opens a connection with both channels. `request` is a `POST` of the offer with its credentials.
    ///
    /// Errors: the other end refused the request, or does not answer.
    pub async fn open(request: reqwest::RequestBuilder) -> Result<Self, OpenError> {
        let lost = |error: &dyn std::error::Error| OpenError::Lost(cause(error));
        let (client, request) = request.build_split();
        let mut request = request.map_err(|error| lost(&error))?;
        let url = request.url().clone();
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = url.port_or_known_default().unwrap_or_default();
        let server = tokio::net::lookup_host((host, port)).await.map_err(|error| lost(&error))?.next();
        let server = server.ok_or_else(|| OpenError::Lost("the host name of the server has no address".into()))?;
        let socket = bind_towards(server).await.map_err(|error| lost(&error))?;
        let local = socket.local_addr().map_err(|error| lost(&error))?;
        let offer = Peer::offer(local, Instant::now());
        request.headers_mut().insert(reqwest::header::CONTENT_TYPE, reqwest::header::HeaderValue::from_static(SDP));
        *request.body_mut() = Some(offer.sdp.clone().into());
        let response = client.execute(request).await.map_err(|error| lost(&error))?;
        let status = response.status().as_u16();
        let answer = body(response).await.map_err(|error| OpenError::Lost(error.to_string()))?;
        if status != 201 {
            return Err(OpenError::Refused(Problem::of(status, &answer)));
        }
        let peer = offer.accept(&String::from_utf8_lossy(&answer)).map_err(|error| lost(&error))?;
        let mut opening = Self::new(socket, local, peer);
        opening.handle(|peer, outputs| peer.handle_timeout(Instant::now(), outputs));
        let opened = tokio::time::timeout(OPEN_TIMEOUT, async {
            let has = |socket: &Self, event: &Event| socket.outputs.events.contains(event);
            while !Lane::ALL.iter().all(|lane| has(&opening, &Event::Open(*lane))) && !opening.is_over {
                opening.is_over |= has(&opening, &Event::Closed);
                opening.wait().await;
            }
        });
        match opened.await.is_err() || opening.is_over {
            true => Err(OpenError::Lost(
                "no UDP datagrams pass between this machine and the server; a firewall may block them".into(),
            )),
            false => Ok(opening),
        }
    }

    /// Answers an offer and returns the new end of the connection with the answer. Binds to `ip`; `public` is the
    /// address under which peers reach it, which equals `ip` unless there is a NAT.
    ///
    /// Errors: the offer is invalid, or the socket cannot be opened.
    pub async fn answer(offer: &str, ip: IpAddr, public: IpAddr) -> Result<(Self, String), AnswerError> {
        let socket = UdpSocket::bind(SocketAddr::new(ip, 0)).await?;
        let local = SocketAddr::new(public, socket.local_addr()?.port());
        let (peer, answer) = Peer::answer(offer, &local.into(), Instant::now())?;
        let mut socket = Self::new(socket, local, peer);
        socket.handle(|peer, outputs| peer.handle_timeout(Instant::now(), outputs));
        Ok((socket, answer))
    }

    fn new(socket: UdpSocket, local: SocketAddr, peer: Peer) -> Self {
        Self { socket, local, peer, outputs: Outputs::default(), last_received: Instant::now(), is_over: false }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.outputs.events.pop_front()
    }

    /// Returns true if the connection is over.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the time of the last datagram from the peer, including ICE.
    pub fn last_received(&self) -> Instant {
        self.last_received
    }

    /// Returns the bytes written but not yet acknowledged.
    pub fn buffered(&mut self, lane: Lane) -> usize {
        self.peer.buffered(lane)
    }

    /// Queues one message; [`PeerSocket::flush`] sends it. Returns false if there is no room or no such channel.
    pub fn write(&mut self, lane: Lane, is_text: bool, message: &[u8]) -> bool {
        let mut has_room = false;
        self.handle(|peer, outputs| {
            has_room = peer.write(Instant::now(), lane, is_text, message, outputs)?;
            Ok(())
        });
        has_room
    }

    /// Waits for a datagram or a timer, and handles it. Cancel-safe: dropping this future loses nothing.
    pub async fn wait(&mut self) {
        self.flush().await;
        let mut buffer = [0; DATAGRAM_BYTES_MAX];
        let timeout = self.peer.timeout().min(Instant::now() + WAIT_MAX);
        tokio::select! {
            received = self.socket.recv_from(&mut buffer) => {
                // Ignore socket errors: silence shows that the peer is unreachable.
                let Ok((length, from)) = received else { return };
                let (local, now) = (self.local, Instant::now());
                let mut is_from_peer = false;
                self.handle(|peer, outputs| {
                    is_from_peer = peer.handle_datagram(now, from, local, &buffer[..length], outputs)?;
                    Ok(())
                });
                if is_from_peer {
                    self.last_received = now;
                }
            }
            () = tokio::time::sleep_until(timeout.into()) => {
                self.handle(|peer, outputs| peer.handle_timeout(Instant::now(), outputs));
            }
        }
        self.flush().await;
    }

    pub async fn flush(&mut self) {
        while let Some((to, datagram)) = self.outputs.datagrams.front() {
            let _ = self.socket.send_to(datagram, to).await;
            self.outputs.datagrams.pop_front();
        }
    }

    fn handle(&mut self, work: impl FnOnce(&mut Peer, &mut Outputs) -> Result<(), millrace_rtc::ConnectionError>) {
        self.is_over |= work(&mut self.peer, &mut self.outputs).is_err();
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        self.peer.close(&mut self.outputs);
        for (to, datagram) in &self.outputs.datagrams {
            let _ = self.socket.try_send_to(datagram, *to);
        }
    }
}

/// Opens a socket bound to the local address that the server sees.
async fn bind_towards(server: SocketAddr) -> std::io::Result<UdpSocket> {
    let any = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let probe = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
    // `connect` sends no datagram; it only selects the route.
    probe.connect(server).await?;
    UdpSocket::bind(SocketAddr::new(probe.local_addr()?.ip(), 0)).await
}
