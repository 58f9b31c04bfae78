//! Native peers of data channels in one thread, each with a socket of its own.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use millrace_rtc::{Event, Lane, Outputs, Peer};
use rustix::event::epoll::{self, EventData, EventFlags};

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Of IPv4 and UDP, in each datagram.
const HEAD_BYTES: u64 = 28;
/// The longest that nobody looks for newcomers.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// One peer.
pub struct Native {
    socket: UdpSocket,
    local: SocketAddr,
    peer: Peer,
    mouth: Outputs,
    due: Instant,
    pub is_open: bool,
    /// At the level of IP.
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

impl Native {
    fn new(socket: UdpSocket, local: SocketAddr, peer: Peer) -> Native {
        let (mouth, due) = (Outputs::default(), Instant::now());
        Native { socket, local, peer, mouth, due, is_open: false, sent_bytes: 0, received_bytes: 0 }
    }

    /// Two that connect with each other.
    ///
    /// Errors: there are no sockets for them.
    pub fn pair() -> anyhow::Result<[Native; 2]> {
        let (offering, there) = bind()?;
        let (answering, here) = bind()?;
        let now = Instant::now();
        let offer = Peer::offer(there, now);
        let (peer, answer) = Peer::answer(&offer.sdp, &here.into(), now)?;
        Ok([Native::new(offering, there, offer.accept(&answer)?), Native::new(answering, here, peer)])
    }

    /// Offers itself to the gateway, which answers; nothing is sent by UDP yet.
    ///
    /// Errors: the gateway refuses, or is not there.
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
        ensure!(answer.starts_with("HTTP/1.1 201"), "the gateway does not take {query}: {answer}");
        let (_, answer) = answer.split_once("\r\n\r\n").context("half an answer")?;
        Ok(Native::new(socket, local, offer.accept(answer)?))
    }

    fn flush(&mut self) {
        for (to, datagram) in self.mouth.datagrams.drain(..) {
            // A full socket loses it, as any path may.
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

/// All of them. They end with it.
pub struct Crowd {
    pub peers: Vec<Native>,
    epoll: std::os::fd::OwnedFd,
}

impl Crowd {
    pub fn new() -> anyhow::Result<Crowd> {
        Ok(Crowd { peers: Vec::new(), epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// It begins to connect.
    pub fn add(&mut self, mut native: Native) -> anyhow::Result<()> {
        epoll::add(&self.epoll, &native.socket, EventData::new_u64(self.peers.len() as u64), EventFlags::IN)?;
        native.peer.handle_timeout(Instant::now(), &mut native.mouth)?;
        native.flush();
        self.peers.push(native);
        Ok(())
    }

    /// Errors: there is no room for it.
    pub fn write(&mut self, index: usize, message: &[u8]) -> anyhow::Result<()> {
        let native = &mut self.peers[index];
        let is_taken = native.peer.write(Instant::now(), Lane::Session, true, message, &mut native.mouth)?;
        ensure!(is_taken, "a peer takes no more messages");
        native.flush();
        Ok(())
    }

    /// Takes what comes until then, or a little earlier: `hear` is told by whom.
    ///
    /// Errors: a peer has lost its connection, or `hear` says no.
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
