//! A connection of the generator: a blocking socket with a dialect of the lab.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::AsFd,
};

use anyhow::{bail, ensure};
use millrace_lab::load::{Dialect, Event, http::join};
use rustix::net::RecvFlags;

pub struct Client {
    pub stream: TcpStream,
    dialect: Box<dyn Dialect>,
    partial: Vec<u8>,
    out: Vec<u8>,
}

/// Event on a connection.
pub enum ClientEvent<'a> {
    Message(&'a [u8]),
    /// A publication was accepted.
    Accepted,
}

impl Client {
    /// Connects, sends the opening bytes of the dialect, and returns once the connection is ready.
    pub fn connect(address: SocketAddr, mut dialect: Box<dyn Dialect>) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut out = Vec::new();
        let mut is_ready = dialect.open(&mut out);
        let mut client = Self::new(stream, dialect);
        client.stream.write_all(&out)?;
        let mut scratch = [0; 16 * 1024];
        while !is_ready {
            let length = client.stream.read(&mut scratch)?;
            ensure!(length > 0, "the server has closed a connection before it was ready");
            client.take(&scratch[..length], &mut |event| {
                is_ready |= event == Event::Ready;
                Ok(())
            })?;
        }
        Ok(client)
    }

    fn new(stream: TcpStream, dialect: Box<dyn Dialect>) -> Self {
        Self { stream, dialect, partial: Vec::new(), out: Vec::new() }
    }

    #[allow(dead_code, reason = "only some benches publish on a connection that reads")]
    /// Returns a client that publishes on the same connection with this dialect, and never reads.
    pub fn publisher(&self, dialect: Box<dyn Dialect>) -> anyhow::Result<Self> {
        Ok(Self::new(self.stream.try_clone()?, dialect))
    }

    /// Queues a publication for the next [`Client::flush`].
    pub fn publish(&mut self, payload: &[u8]) {
        self.dialect.publish(payload, &mut self.out);
    }

    pub fn flush(&mut self) -> anyhow::Result<()> {
        if !self.out.is_empty() {
            self.stream.write_all(&self.out)?;
            self.out.clear();
        }
        Ok(())
    }

    /// Reads received bytes once, and sends the replies that they require.
    ///
    /// Errors: the connection is closed, a publication was refused, or `take` returned an error.
    pub fn receive(
        &mut self,
        scratch: &mut [u8],
        mut take: impl FnMut(ClientEvent<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let length = match rustix::net::recv(self.stream.as_fd(), &mut *scratch, RecvFlags::DONTWAIT) {
            Ok((_, length)) => length,
            Err(rustix::io::Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        ensure!(length > 0, "the server has closed a connection");
        self.take(&scratch[..length], &mut |event| match event {
            Event::Message(payload) => take(ClientEvent::Message(payload)),
            Event::Accepted => take(ClientEvent::Accepted),
            Event::Ready => Ok(()),
            other => bail!("{other:?}"),
        })
    }

    fn take(&mut self, bytes: &[u8], emit: &mut dyn FnMut(Event<'_>) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let Self { dialect, partial, out, .. } = self;
        let mut outcome = Ok(());
        join(partial, bytes, |bytes| {
            dialect.feed(bytes, 0, out, &mut |event| {
                if outcome.is_ok() {
                    outcome = emit(event);
                }
            })
        })?;
        outcome?;
        self.flush()
    }
}
