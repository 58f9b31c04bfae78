//! The listening sockets of the shards.

use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener},
};

use tokio::sync::watch;

use crate::tls;

/// A bound listening socket of one shard.
pub struct Listener {
    pub(super) socket: StdListener,
    pub(super) tls: Option<watch::Receiver<tls::Settings>>,
}

impl Listener {
    /// Binds one listener per shard on the same port. Port 0 takes a free port.
    ///
    /// Errors: the address is in use, or does not belong to this machine.
    pub fn bind(address: SocketAddr, shards: usize) -> io::Result<Vec<Listener>> {
        let mut address = address;
        let mut listeners = Vec::with_capacity(shards);
        for _ in 0..shards {
            let socket = Self::bind_socket(address, shards)?;
            address = socket.local_addr()?;
            listeners.push(Self::new(socket));
        }
        Ok(listeners)
    }

    /// Binds the socket of one of several shards.
    ///
    /// Errors: see [`Listener::bind`].
    pub fn bind_socket(address: SocketAddr, shards: usize) -> io::Result<StdListener> {
        let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        // A single shard does not share its port, so that starting a second server on the same port fails.
        socket.set_reuse_port(shards > 1)?;
        socket.bind(&address.into())?;
        socket.listen(4096)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    }

    /// Creates a listener from a bound socket, which does not block.
    pub fn new(socket: StdListener) -> Self {
        Self { socket, tls: None }
    }

    /// Enables TLS. Each connection uses the settings that are current when it arrives.
    pub fn with_tls(self, settings: watch::Receiver<tls::Settings>) -> Self {
        Self { tls: Some(settings), ..self }
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}
