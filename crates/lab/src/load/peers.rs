//! NativePeer data channel peers in one thread, each with its own socket.

use std::{
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use millrace_rtc::{Event, Lane, Outputs, Peer};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::http::post_offer;

/// Timeout of one HTTP request to the gateway.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the IPv4 and UDP headers in each datagram.
const HEAD_BYTES: u64 = 28;
/// Maximum duration of [`PeerGroup::serve`], so that the caller can add new peers.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// One native peer.
pub struct NativePeer {
    socket: UdpSocket,
    local: SocketAddr,
    peer: Peer,
    outputs: Outputs,
    due: Instant,
    pub is_open: bool,
    /// Bytes at IP level.
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

impl NativePeer {
    fn new(socket: UdpSocket, local: SocketAddr, peer: Peer) -> NativePeer {
        let (outputs, due) = (Outputs::default(), Instant::now());
        NativePeer { socket, local, peer, outputs, due, is_open: false, sent_bytes: 0, received_bytes: 0 }
    }

    /// Creates two peers that connect to each other over these sockets, which [`bind`] has opened.
    pub fn pair(offering: UdpSocket, answering: UdpSocket) -> anyhow::Result<[NativePeer; 2]> {
        let (there, here) = (offering.local_addr()?, answering.local_addr()?);
        let now = Instant::now();
        let offer = Peer::offer(there, now);
        let (peer, answer) = Peer::answer(&offer.sdp, &here.into(), now)?;
        Ok([NativePeer::new(offering, there, offer.accept(&answer)?), NativePeer::new(answering, here, peer)])
    }

    /// Sends an offer to the gateway and applies its answer. No datagram is sent yet.
    ///
    /// Errors: the gateway refuses the offer or cannot be reached.
    pub fn join(gateway: SocketAddr, query: &str) -> anyhow::Result<NativePeer> {
        let mut http = TcpStream::connect_timeout(&gateway, PATIENCE)?;
        http.set_read_timeout(Some(PATIENCE))?;
        Self::join_over(&mut http, &format!("/v1/connect?{query}"))
    }

    /// Posts an offer to this path on an open connection and applies the answer. The peer has the address of that
    /// connection. No datagram is sent yet.
    ///
    /// Errors: the other end refuses the offer, or the connection fails.
    pub fn join_over(http: &mut TcpStream, path: &str) -> anyhow::Result<NativePeer> {
        let socket = bind(http.local_addr()?.ip())?;
        let local = socket.local_addr()?;
        let offer = Peer::offer(local, Instant::now());
        let answer = post_offer(http, path, &offer.sdp)?;
        Ok(NativePeer::new(socket, local, offer.accept(&answer)?))
    }

    fn flush(&mut self) {
        for (to, datagram) in self.outputs.datagrams.drain(..) {
            // A full socket buffer loses the datagram, like any network path.
            let _ = self.socket.send_to(&datagram, to);
            self.sent_bytes += datagram.len() as u64 + HEAD_BYTES;
        }
        self.due = self.peer.timeout();
    }
}

/// Opens the socket of a peer on a free port of this address.
pub fn bind(address: IpAddr) -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind((address, 0))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// All peers of one thread. Dropping the group ends them.
pub struct PeerGroup {
    pub peers: Vec<NativePeer>,
    epoll: std::os::fd::OwnedFd,
    /// Share of the received datagrams that is dropped, in percent.
    loss_percent: u32,
    random: Pcg64Mcg,
}

impl PeerGroup {
    pub fn new() -> anyhow::Result<PeerGroup> {
        Self::with_loss(0)
    }

    /// Creates a group that drops this share of the received datagrams, in percent: the same datagrams in each run.
    pub fn with_loss(loss_percent: u32) -> anyhow::Result<PeerGroup> {
        let (epoll, random) = (epoll::create(epoll::CreateFlags::CLOEXEC)?, Pcg64Mcg::seed_from_u64(1));
        Ok(PeerGroup { peers: Vec::new(), epoll, loss_percent, random })
    }

    /// Adds a peer, which starts to connect.
    pub fn add(&mut self, mut native: NativePeer) -> anyhow::Result<()> {
        epoll::add(&self.epoll, &native.socket, EventData::new_u64(self.peers.len() as u64), EventFlags::IN)?;
        native.peer.handle_timeout(Instant::now(), &mut native.outputs)?;
        native.flush();
        self.peers.push(native);
        Ok(())
    }

    /// Queues a message for peer `index`.
    ///
    /// Errors: the peer's queue is full.
    pub fn write(&mut self, index: usize, message: &[u8]) -> anyhow::Result<()> {
        let native = &mut self.peers[index];
        let is_taken = native.peer.write(Instant::now(), Lane::Session, true, message, &mut native.outputs)?;
        ensure!(is_taken, "a peer takes no more messages");
        native.flush();
        Ok(())
    }

    /// Handles received datagrams until the given time, or a little less. Calls `take` with the index of the receiving
    /// peer, the time, the channel and the message.
    ///
    /// Errors: a peer has lost its connection, or `take` returns an error.
    pub fn serve(
        &mut self,
        until: Instant,
        mut take: impl FnMut(usize, Instant, Lane, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut next = until.min(Instant::now() + LOOK_EVERY);
        for native in &mut self.peers {
            let now = Instant::now();
            if native.due <= now {
                native.peer.handle_timeout(now, &mut native.outputs)?;
                native.flush();
            }
            next = next.min(native.due);
        }
        let mut events = Vec::with_capacity(64);
        let wait = next.saturating_duration_since(Instant::now()).try_into().context("a short time")?;
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait))?;
        let mut buffer = [0; 2048];
        for event in &events {
            let index = event.data.u64() as usize;
            let native = &mut self.peers[index];
            while let Ok((length, from)) = native.socket.recv_from(&mut buffer) {
                if self.loss_percent > 0 && self.random.random_range(0..100) < self.loss_percent {
                    continue;
                }
                native.received_bytes += length as u64 + HEAD_BYTES;
                let now = Instant::now();
                native.peer.handle_datagram(now, from, native.local, &buffer[..length], &mut native.outputs)?;
                for event in native.outputs.events.drain(..) {
                    match event {
                        Event::Open(Lane::Session) => native.is_open = true,
                        Event::Data(lane, message) => take(index, now, lane, &message)?,
                        Event::Closed => bail!("the other end has closed a connection"),
                        Event::Open(_) | Event::Low(_) => {}
                    }
                }
            }
            native.flush();
        }
        Ok(())
    }
}
