//! One connection of the generator.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
};

use nix::sys::socket::{setsockopt, sockopt::IpBindAddressNoPort};
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, Protocol, Socket, Type};

use super::{dialect::Dialect, thread_stats::Receiver};

/// Size of the kernel's send buffer of a publisher. In a larger buffer, publications counted as "sent" would wait
/// for long.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// ```text
///   Closed ──connect──► Connecting ──writable──► Opening ──Ready──► Live
///      ▲                    └──────────────────────┴─────────────────┘ broken, or closed by the server
///      └── reconnects later: by a timer, or from the queue of a storm
/// ```
///
/// An opening link may replace its socket with a UDP socket ([`Link::turn`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Closed,
    Connecting,
    Opening,
    Live,
}

pub struct Link {
    pub dialect: Box<dyn Dialect>,
    pub state: State,
    pub socket: Option<Socket>,
    /// Address from which the socket connects.
    source: Option<IpAddr>,
    pub is_datagram: bool,
    /// Counter of connection attempts. Events of an earlier connection are ignored.
    pub generation: u32,
    /// Time at which this connection should be opened.
    pub due_ns: u64,
    pub failures: u32,
    /// Time of the next timer of this link.
    pub armed_ns: u64,
    /// Received bytes that were not consumed yet.
    pub partial: Vec<u8>,
    /// Bytes queued for the socket.
    pub out: Vec<u8>,
    pub awaits_room: bool,
    pub receiver: Option<Receiver>,
    pub publisher: Option<Publisher>,
}

/// Progress of a publisher; each number is that of the next publication.
#[derive(Clone, Copy, Debug)]
pub struct Publisher {
    pub stream: u32,
    pub scheduled: u32,
    /// Next publication for the dialect to encode.
    pub spoken: u32,
    /// Next publication to pass to the kernel.
    pub sent: u32,
}

impl Publisher {
    pub fn new(stream: u32) -> Self {
        Self { stream, scheduled: 0, spoken: 0, sent: 0 }
    }
}

impl Link {
    pub fn new(dialect: Box<dyn Dialect>, receiver: Option<Receiver>, stream: Option<u32>) -> Self {
        Self {
            dialect,
            state: State::Closed,
            socket: None,
            source: None,
            is_datagram: false,
            generation: 0,
            due_ns: 0,
            failures: 0,
            armed_ns: u64::MAX,
            partial: Vec::new(),
            out: Vec::new(),
            awaits_room: false,
            receiver,
            publisher: stream.map(Publisher::new),
        }
    }

    /// Starts to connect. `source`: the address from which to connect, if the kernel is not to choose it.
    pub fn connect(&mut self, address: SocketAddr, source: Option<IpAddr>) -> io::Result<()> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        // Close with a reset. Otherwise thousands of ports would stay in TIME_WAIT for a minute and slow down the
        // connections of the next run.
        socket.set_linger(Some(std::time::Duration::ZERO))?;
        if self.publisher.is_some() {
            socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
        }
        if let Some(source) = source {
            // The port is chosen by `connect`, which knows both ends of the connection. Otherwise `bind` would search
            // for a port that no other connection uses.
            setsockopt(&socket, IpBindAddressNoPort, &true)?;
            socket.bind(&SocketAddr::from((source, 0)).into())?;
        }
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        self.socket = Some(socket);
        self.source = source;
        self.is_datagram = false;
        self.state = State::Connecting;
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }

    /// Replaces the socket with a UDP socket that is connected to this address, from the same source address.
    pub fn turn(&mut self, to: SocketAddr) -> io::Result<()> {
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        if let Some(source) = self.source {
            socket.bind(&SocketAddr::from((source, 0)).into())?;
        }
        socket.connect(&to.into())?;
        self.socket = Some(socket);
        self.is_datagram = true;
        Ok(())
    }

    /// Closes the connection. Publications that were encoded but not sent are encoded again on the next connection.
    pub fn close(&mut self) {
        self.socket = None;
        self.state = State::Closed;
        self.partial = Vec::new();
        self.out = Vec::new();
        self.awaits_room = false;
        if let Some(publisher) = &mut self.publisher {
            publisher.spoken = publisher.sent;
        }
    }

    /// Reads once. Returns `None` if no data is available, and zero if the server has closed the connection.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(socket) = &self.socket else { return Ok(None) };
        match rustix::net::recv(socket.as_fd(), buffer, RecvFlags::DONTWAIT) {
            Ok((_, length)) => Ok(Some(length)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the queued bytes. Returns true if the queue is empty afterwards.
    pub fn flush(&mut self) -> io::Result<bool> {
        let Some(socket) = &self.socket else { return Ok(self.out.is_empty()) };
        let mut sent = 0;
        let is_done = loop {
            let rest = &self.out[sent..];
            let (head, next) = match rest {
                [] => break true,
                [first, second, datagrams @ ..] if self.is_datagram => {
                    (2, &datagrams[..usize::from(u16::from_be_bytes([*first, *second]))])
                }
                _ => (0, rest),
            };
            match rustix::net::send(socket.as_fd(), next, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(taken) => sent += head + taken,
                Err(rustix::io::Errno::AGAIN) => break false,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        self.out.drain(..sent);
        Ok(is_done)
    }
}
