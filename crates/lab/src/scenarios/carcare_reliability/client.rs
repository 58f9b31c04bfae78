//! A client like that of an application: it receives messages, drops a connection, and resumes at its position from
//! another address.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use rustix::net::sockopt::set_tcp_quickack;
use socket2::{Domain, Socket, Type};

use crate::{
    load::{
        Dialect, Event, Role,
        http::{exchange, get, post},
        payload::Stamp,
        websocket::{Bare, PING, frame_into},
    },
    targets::{ClientOptions, Transport, find},
};

const BYTES: usize = 134;
/// Longest wait for data before the client looks at its conditions.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(5);

pub struct Client {
    dialect: Box<dyn Dialect>,
    socket: Option<TcpStream>,
    began: Instant,
    partial: Vec<u8>,
    out: Vec<u8>,
    is_ready: bool,
    /// Numbers of the received messages, in order of arrival.
    pub heard: Vec<u64>,
    /// Time of the last received bytes, whether messages or heartbeats.
    pub last: Instant,
}

impl Client {
    /// Returns a subscriber of Millrace.
    pub fn of(transport: Transport, channel: &str) -> anyhow::Result<Client> {
        if transport == Transport::WebSocket {
            return Ok(Self::new(Box::new(Bare::counting(format!("/v1/channels/{channel}")))));
        }
        let poll_every = Duration::from_millis(100);
        let ask = ClientOptions { role: Role::Subscriber, channel, poll_every };
        Ok(Self::new(find("millrace")?.dialect(transport, &ask)))
    }

    /// Returns a subscriber over a WebSocket to which the server sends as few heartbeats as it allows.
    pub fn without_heartbeats(channel: &str) -> Client {
        Self::new(Box::new(Bare::new(format!("/v1/channels/{channel}"))))
    }

    fn new(dialect: Box<dyn Dialect>) -> Client {
        let (now, empty) = (Instant::now(), Vec::new);
        Client {
            dialect,
            socket: None,
            began: now,
            partial: empty(),
            out: empty(),
            is_ready: false,
            heard: Vec::new(),
            last: now,
        }
    }

    /// Connects from this source address, replacing an earlier connection. Waits until the client receives new
    /// publications.
    pub fn connect(&mut self, address: SocketAddr, source: Ipv4Addr) -> anyhow::Result<()> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((source, 0)).into())?;
        socket.connect(&address.into())?;
        let socket = TcpStream::from(socket);
        socket.set_nodelay(true)?;
        self.socket = Some(socket);
        (self.partial, self.out, self.last) = (Vec::new(), Vec::new(), Instant::now());
        self.is_ready = self.dialect.open(&mut self.out);
        self.run(PATIENCE, |client| client.is_ready)?;
        ensure!(self.is_ready, "the server did not answer");
        Ok(())
    }

    pub fn is_connected(&self) -> bool {
        self.socket.is_some()
    }

    /// Receives messages for the given duration, until `done`, or until the connection ends.
    pub fn run(&mut self, lasts: Duration, done: impl Fn(&Client) -> bool) -> anyhow::Result<()> {
        let start = Instant::now();
        let mut bytes = [0; 16 * 1024];
        while start.elapsed() < lasts && !done(self) {
            let Some(socket) = &mut self.socket else { break };
            let now_ns = self.began.elapsed().as_nanos() as u64;
            if self.dialect.wake_at_ns().is_some_and(|at| at <= now_ns) {
                self.dialect.wake(now_ns, &mut self.out);
            }
            let said = std::mem::take(&mut self.out);
            let timer = self.dialect.wake_at_ns().map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)));
            let wait = lasts.saturating_sub(start.elapsed()).min(LOOK_EVERY).min(timer.unwrap_or(LOOK_EVERY));
            socket.set_read_timeout(Some(wait.max(Duration::from_millis(1))))?;
            // A delayed acknowledgement would be the last packet before a silence. The kernel ends this mode by itself,
            // for example when data is sent; without it, silences are only known less precisely.
            let _ = set_tcp_quickack(&*socket, true);
            let length = match socket.write_all(&said).and_then(|()| socket.read(&mut bytes)) {
                Ok(length) => length,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                Err(_) => 0,
            };
            self.last = Instant::now();
            self.partial.extend_from_slice(&bytes[..length]);
            let (heard, is_ready, mut is_over) = (&mut self.heard, &mut self.is_ready, length == 0);
            let used = self.dialect.feed(&self.partial, now_ns, &mut self.out, &mut |event| match event {
                Event::Message(payload) => heard.extend(Stamp::read(payload, BYTES).map(|stamp| stamp.sequence)),
                Event::Ready => *is_ready = true,
                Event::Closed => is_over = true,
                _ => {}
            })?;
            self.partial.drain(..used);
            if is_over {
                self.socket = None;
            }
        }
        Ok(())
    }

    /// Appends a ping of a WebSocket, which the next [`Client::run`] sends.
    pub fn ping(&mut self) {
        frame_into(PING, b"", &mut self.out);
    }

    /// Returns how many of the first `published` messages are missing, and how many messages arrived more than once.
    pub fn lost_and_again(&self, published: u64) -> (u64, u64) {
        let mut once = self.heard.clone();
        once.sort_unstable();
        once.dedup();
        (published - once.iter().filter(|n| **n < published).count() as u64, (self.heard.len() - once.len()) as u64)
    }
}

/// Publishes message `n` directly to the server, without a middlebox.
///
/// Errors: the server refuses the message.
pub fn publish(server: SocketAddr, channel: &str, n: u64) -> anyhow::Result<()> {
    let (mut payload, mut out) = (Vec::new(), Vec::new());
    Stamp { stream: 0, sequence: n, due_ns: 0 }.write(BYTES, &mut payload);
    post(&format!("/v1/channels/{channel}"), "Content-Type: application/json\r\n", &payload, &mut out);
    ask(&mut TcpStream::connect(server)?, &out).map(drop)
}

/// Returns the number of open subscriptions of a channel, as the server counts them.
pub fn presence(server: &mut TcpStream, channel: &str) -> anyhow::Result<u64> {
    let mut out = Vec::new();
    get(&format!("/v1/presence/{channel}"), "", &mut out);
    let (_, body) = ask(server, &out)?;
    let answer: serde_json::Value = serde_json::from_slice(&body)?;
    answer["count"].as_u64().context("no count")
}

/// Sends a request and returns the position and the body of its response.
///
/// Errors: the connection fails, or the status is not a success.
pub fn ask(stream: &mut TcpStream, request: &[u8]) -> anyhow::Result<(String, Vec<u8>)> {
    stream.set_read_timeout(Some(PATIENCE))?;
    exchange(stream, request, |answer| {
        let position = answer.head.header("millrace-position").unwrap_or_default().to_owned();
        Ok((position, answer.body.to_vec()))
    })
}
