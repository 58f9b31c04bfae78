//! Native data channel peers in one thread, each with its own socket.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use millrace_rtc::{Event, Lane, Outputs, Peer};
use rustix::event::epoll::{self, EventData, EventFlags};

/// Timeout of one HTTP request to the gateway.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the IPv4 and UDP headers in each datagram.
const HEAD_BYTES: u64 = 28;
/// Maximum duration of [`Crowd::serve`], so that the caller can add new peers.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// One native peer.
pub struct Native {
    socket: UdpSocket,
    local: SocketAddr,
    peer: Peer,
    mouth: Outputs,
    due: Instant,
    pub is_open: bool,
    /// Bytes at IP level.
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

impl Native {
    fn new(socket: UdpSocket, local: SocketAddr, peer: Peer) -> Native {
        let (mouth, due) = (Outputs::default(), Instant::now());
        Native { socket, local, peer, mouth, due, is_open: false, sent_bytes: 0, received_bytes: 0 }
    }

    /// Creates two peers that connect to each other.
    ///
    /// Errors: no socket can be opened.
    pub fn pair() -> anyhow::Result<[Native; 2]> {
        let (offering, there) = bind()?;
        let (answering, here) = bind()?;
        let now = Instant::now();
        let offer = Peer::offer(there, now);
        let (peer, answer) = Peer::answer(&offer.sdp, &here.into(), now)?;
        Ok([Native::new(offering, there, offer.accept(&answer)?), Native::new(answering, here, peer)])
    }

    /// Sends an offer to the gateway and applies its answer. No datagram is sent yet.
    ///
    /// Errors: the gateway refuses the offer or cannot be reached.
    pub fn join(gateway: SocketAddr, query: &str) -> anyhow::Result<Native> {
        let (socket, local) = bind()?;
        let offer = Peer::offer(local, Instant::now());
        let mut http = TcpStream::connect_timeout(&gateway, PATIENCE)?;
        http.set_read_timeout(Some(PATIENCE))?;
        let (sdp, length) = (&offer.sdp, offer.sdp.len());
        let head = "Content-Type: application/sdp\r\nConnection: close";
        let request = format!(
            "POST /v1/connect?{query} HTTP/1.1\r\nHost: {gateway}\r\n{head}\r\nContent-Length: {length}\r\n\r\n{sdp}"
        );
        http.write_all(request.as_bytes())?;
        let mut answer = String::new();
        http.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.1 201"), "the gateway refuses {query}: {answer}");
        let (_, answer) = answer.split_once("\r\n\r\n").context("half an answer")?;
        Ok(Native::new(socket, local, offer.accept(answer)?))
    }

    fn flush(&mut self) {
        for (to, datagram) in self.mouth.datagrams.drain(..) {
            // A full socket buffer loses the datagram, like any network path.
            let _ = self.socket.send_to(&datagram, to);
            self.sent_bytes += datagram.len() as u64 + HEAD_BYTES;
        }
        self.due = self.peer.timeout();
    }
}

fn bind() -> anyhow::Result<(UdpSocket, SocketAddr)> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    let local = socket.local_addr()?;
    Ok((socket, local))
}

/// All peers of one thread. Dropping the crowd ends them.
pub struct Crowd {
    pub peers: Vec<Native>,
    epoll: std::os::fd::OwnedFd,
}

impl Crowd {
    pub fn new() -> anyhow::Result<Crowd> {
        Ok(Crowd { peers: Vec::new(), epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Adds a peer, which starts to connect.
    pub fn add(&mut self, mut native: Native) -> anyhow::Result<()> {
        epoll::add(&self.epoll, &native.socket, EventData::new_u64(self.peers.len() as u64), EventFlags::IN)?;
        native.peer.handle_timeout(Instant::now(), &mut native.mouth)?;
        native.flush();
        self.peers.push(native);
        Ok(())
    }

    /// Queues a message for peer `index`.
    ///
    /// Errors: the peer's queue is full.
    pub fn write(&mut self, index: usize, message: &[u8]) -> anyhow::Result<()> {
        let native = &mut self.peers[index];
        let is_taken = native.peer.write(Instant::now(), Lane::Session, true, message, &mut native.mouth)?;
        ensure!(is_taken, "a peer takes no more messages");
        native.flush();
        Ok(())
    }

    /// Handles received datagrams until the given time, or a little less. Calls `hear` with the index of the
    /// receiving peer.
    ///
    /// Errors: a peer has lost its connection, or `hear` returns an error.
    pub fn serve(
        &mut self,
        until: Instant,
        mut hear: impl FnMut(usize, Instant, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut next = until.min(Instant::now() + LOOK_EVERY);
        for native in &mut self.peers {
            let now = Instant::now();
            if native.due <= now {
                native.peer.handle_timeout(now, &mut native.mouth)?;
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
                native.received_bytes += length as u64 + HEAD_BYTES;
                let now = Instant::now();
                native.peer.handle_datagram(now, from, native.local, &buffer[..length], &mut native.mouth)?;
                for event in native.mouth.events.drain(..) {
                    match event {
                        Event::Open(Lane::Session) => native.is_open = true,
                        Event::Data(_, message) => hear(index, now, &message)?,
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
