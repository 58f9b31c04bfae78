//! Publishers. No operation here blocks: bytes that the server does not accept stay in a queue, and then no further
//! message is offered.

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
    os::fd::AsFd,
};

use anyhow::{bail, ensure};
use millrace_lab::load::{
    http::{Answer, post},
    payload::Stamp,
    websocket::{RawFrame, TEXT, connect, frame_into},
};
use rustix::net::{RecvFlags, SendFlags};

use crate::{probe::SESSION, reader::Reader};

/// Bytes queued for a socket at which a publisher counts as held back.
const WAITING_BYTES_MAX: usize = 64 * 1024;
/// Bytes that the kernel may queue for a publisher. A larger queue would dominate the age of a message.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

pub enum Upstream {
    /// One WebSocket on the channel, for publishing only.
    Bare(Link),
    /// One session. Message `n` has the key `n mod keys`.
    Session { link: Link, channel: String, keys: u64 },
    /// Message `n` comes from reader `n mod readers`, over the WebSocket it reads from.
    Readers,
    /// Message `n` comes from client `n mod clients`, which posts it on its own connection.
    Posts { clients: Vec<Link>, channel: String },
}

/// A publishing connection, and the answers on it.
pub struct Link {
    stream: TcpStream,
    waiting: Vec<u8>,
    partial: Vec<u8>,
    unanswered: u64,
}

impl Upstream {
    pub fn bare(address: SocketAddr, channel: &str) -> anyhow::Result<Self> {
        let path = format!("/v1/channels/{channel}?subscribe=no");
        Ok(Upstream::Bare(Link::new(connect(address, &path, None)?)?))
    }

    pub fn session(address: SocketAddr, channel: &str, keys: u64) -> anyhow::Result<Self> {
        let stream = connect(address, "/v1/connect", Some(SESSION))?;
        Ok(Upstream::Session { link: Link::new(stream)?, channel: channel.into(), keys })
    }

    pub fn posts(address: SocketAddr, channel: &str, clients: usize) -> anyhow::Result<Self> {
        let link = |_| Link::new(TcpStream::connect(address)?);
        let clients = (0..clients).map(link).collect::<anyhow::Result<_>>()?;
        Ok(Upstream::Posts { clients, channel: channel.into() })
    }

    /// Returns false while the server accepts no more bytes.
    pub fn has_room(&self) -> bool {
        match self {
            Upstream::Bare(link) | Upstream::Session { link, .. } => link.waiting.len() < WAITING_BYTES_MAX,
            Upstream::Readers | Upstream::Posts { .. } => true,
        }
    }

    /// Queues message `n` of `bytes` bytes.
    pub fn send(&mut self, n: u64, at_us: u64, bytes: usize, readers: &mut [Reader]) -> anyhow::Result<()> {
        let data = payload(n, at_us, bytes);
        match self {
            Upstream::Bare(link) => frame_into(TEXT, &data, &mut link.waiting),
            Upstream::Session { link, channel, keys } => {
                let key = n % *keys;
                let mut command = Vec::with_capacity(bytes + 100);
                write!(command, r#"{{"id":{},"publish":{{"channel":"{channel}","key":"k{key}","data":"#, n + 1)?;
                command.extend_from_slice(&data);
                command.extend_from_slice(b"}}");
                frame_into(TEXT, &command, &mut link.waiting);
                link.unanswered += 1;
            }
            Upstream::Readers => {
                let mut out = Vec::with_capacity(bytes + 8);
                frame_into(TEXT, &data, &mut out);
                let reader = (n % readers.len() as u64) as usize;
                readers[reader].stream.write_all(&out)?;
            }
            Upstream::Posts { clients, channel } => {
                let client = (n % clients.len() as u64) as usize;
                let link = &mut clients[client];
                link.read_answers()?;
                let path = format!("/v1/channels/{channel}");
                post(&path, "Content-Type: application/json\r\n", &data, &mut link.waiting);
                link.unanswered += 1;
                link.flush()?;
            }
        }
        Ok(())
    }

    /// Sends queued bytes and reads the answers.
    ///
    /// Errors: the server refused a publication.
    pub fn turn(&mut self) -> anyhow::Result<()> {
        match self {
            Upstream::Bare(link) => link.flush(),
            Upstream::Session { link, .. } => {
                link.flush()?;
                link.read_replies()
            }
            Upstream::Readers => Ok(()),
            Upstream::Posts { clients, .. } => {
                clients.iter_mut().filter(|link| link.unanswered > 0).try_for_each(|link| {
                    link.flush()?;
                    link.read_answers()
                })
            }
        }
    }

    /// Returns true when everything was accepted and answered.
    pub fn is_done(&self) -> bool {
        let done = |link: &Link| link.waiting.is_empty() && link.unanswered == 0;
        match self {
            Upstream::Bare(link) | Upstream::Session { link, .. } => done(link),
            Upstream::Readers => true,
            Upstream::Posts { clients, .. } => clients.iter().all(done),
        }
    }
}

impl Link {
    fn new(stream: TcpStream) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES)?;
        Ok(Self { stream, waiting: Vec::new(), partial: Vec::new(), unanswered: 0 })
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        match rustix::net::send(self.stream.as_fd(), &self.waiting, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(taken) => drop(self.waiting.drain(..taken)),
            Err(rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Reads the bytes that have arrived, at most 64 KiB.
    fn receive(&self, buffer: &mut [u8]) -> anyhow::Result<usize> {
        match rustix::net::recv(self.stream.as_fd(), buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => bail!("the server has closed a publisher"),
            Ok((_, length)) => Ok(length),
            Err(rustix::io::Errno::AGAIN) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn read_replies(&mut self) -> anyhow::Result<()> {
        let mut buffer = [0; 64 * 1024];
        let length = self.receive(&mut buffer)?;
        self.partial.extend_from_slice(&buffer[..length]);
        let mut at = 0;
        while let Some(frame) = RawFrame::read(&self.partial, at)? {
            let reply = &self.partial[frame.start..frame.end];
            at = frame.end;
            if reply.starts_with(b"{\"id\"") {
                let is_ok = reply.windows(4).any(|bytes| bytes == b"\"ok\"");
                ensure!(is_ok, "refused: {}", String::from_utf8_lossy(reply));
                self.unanswered -= 1;
            }
        }
        self.partial.drain(..at);
        Ok(())
    }

    fn read_answers(&mut self) -> anyhow::Result<()> {
        let mut buffer = [0; 4096];
        let length = self.receive(&mut buffer)?;
        self.partial.extend_from_slice(&buffer[..length]);
        let mut at = 0;
        while let Some(answer) = Answer::read(&self.partial[at..])? {
            answer.check()?;
            at += answer.used;
            self.unanswered -= 1;
        }
        self.partial.drain(..at);
        Ok(())
    }
}

/// Returns message `n`, which is due at `at_us`, in the form of the lab.
pub fn payload(n: u64, at_us: u64, bytes: usize) -> Vec<u8> {
    let mut payload = Vec::with_capacity(bytes);
    Stamp { stream: 0, sequence: n, due_ns: at_us * 1000 }.write(bytes, &mut payload);
    payload
}
