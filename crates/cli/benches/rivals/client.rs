//! A connection of the generator: a bare WebSocket, implemented here, or a dialect of the lab.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::AsFd,
};

use anyhow::{bail, ensure};
use millrace_lab::load::{Dialect, Event};
use rustix::net::RecvFlags;

use crate::wire::{self, client_frame, frame};

pub struct Client {
    pub stream: TcpStream,
    /// Dialect of the lab; `None` for a WebSocket.
    dialect: Option<Box<dyn Dialect>>,
    partial: Vec<u8>,
    out: Vec<u8>,
}

/// Event on a connection.
pub enum News<'a> {
    Message(&'a [u8]),
    /// A publication was accepted.
    Accepted,
}

impl Client {
    /// Opens a WebSocket.
    pub fn websocket(address: SocketAddr, path: &str) -> anyhow::Result<Self> {
        Ok(Self::new(wire::connect(address, &wire::upgrade(path, ""))?, None))
    }

    /// Connects, sends the opening bytes of the dialect, and returns once the connection is ready.
    pub fn speaking(address: SocketAddr, mut dialect: Box<dyn Dialect>) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut out = Vec::new();
        let mut is_ready = dialect.open(&mut out);
        let mut client = Self::new(stream, Some(dialect));
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

    fn new(stream: TcpStream, dialect: Option<Box<dyn Dialect>>) -> Self {
        Self { stream, dialect, partial: Vec::new(), out: Vec::new() }
    }

    /// Returns a WebSocket that sends on the same connection.
    pub fn sender(&self) -> anyhow::Result<Self> {
        Ok(Self::new(self.stream.try_clone()?, None))
    }

    /// Returns true if publications are answered.
    pub fn is_answered(&self) -> bool {
        self.dialect.is_some()
    }

    /// Queues a publication for the next [`Client::flush`].
    pub fn publish(&mut self, payload: &[u8]) {
        match &mut self.dialect {
            Some(dialect) => dialect.publish(payload, &mut self.out),
            None => client_frame(&mut self.out, 1, payload),
        }
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
    /// Errors: the connection is closed, a publication was refused, or `hear` returned an error.
    pub fn receive(
        &mut self,
        scratch: &mut [u8],
        mut hear: impl FnMut(News<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let length = match rustix::net::recv(self.stream.as_fd(), &mut *scratch, RecvFlags::DONTWAIT) {
            Ok((_, length)) => length,
            Err(rustix::io::Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        ensure!(length > 0, "the server has closed a connection");
        self.take(&scratch[..length], &mut |event| match event {
            Event::Message(payload) => hear(News::Message(payload)),
            Event::Accepted => hear(News::Accepted),
            Event::Ready => Ok(()),
            other => bail!("{other:?}"),
        })
    }

    fn take(&mut self, bytes: &[u8], hear: &mut dyn FnMut(Event<'_>) -> anyhow::Result<()>) -> anyhow::Result<()> {
        if self.partial.is_empty() {
            let used = self.feed(bytes, hear)?;
            self.partial.extend_from_slice(&bytes[used..]);
        } else {
            let mut all = std::mem::take(&mut self.partial);
            all.extend_from_slice(bytes);
            let used = self.feed(&all, hear)?;
            all.drain(..used);
            self.partial = all;
        }
        self.flush()
    }

    /// Parses complete messages. Returns the number of bytes that they took.
    fn feed(&mut self, bytes: &[u8], hear: &mut dyn FnMut(Event<'_>) -> anyhow::Result<()>) -> anyhow::Result<usize> {
        if let Some(dialect) = &mut self.dialect {
            let mut outcome = Ok(());
            let used = dialect.feed(bytes, 0, &mut self.out, &mut |event| {
                if outcome.is_ok() {
                    outcome = hear(event);
                }
            })?;
            return outcome.map(|()| used);
        }
        let mut at = 0;
        while let Some((opcode, payload, end)) = frame(bytes, at) {
            at = end;
            if opcode == 1 {
                hear(Event::Message(&bytes[payload..end]))?;
            }
        }
        Ok(at)
    }
}
