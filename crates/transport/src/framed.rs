//! What carries datagrams where none get through: TCP streams on the number of a port of UDP, for the clients of TURN and of ICE.

use std::{
    cell::{Cell, RefCell},
    io,
    net::{SocketAddr, TcpListener as StdListener, UdpSocket},
    sync::Arc,
    time::Duration,
};

use bytes::BytesMut;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::timeout,
};

use crate::{
    admin::cannot_accept,
    limits::{Limits, Permit},
    listener::set_options,
};

/// What waits for one client; beyond, datagrams are lost, as on any full link.
const WAITING_BYTES_MAX: usize = 256 << 10;
/// Attempts to find one number that is free for datagrams and for streams.
const PORT_ATTEMPTS: usize = 32;
/// Pause after the kernel has refused a connection (out of descriptors, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A socket for datagrams, with so much room for what has come and for what is to go, in bytes.
///
/// Errors: the address is taken, or not ours.
pub fn bind_datagrams(address: SocketAddr, room: usize) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    let options = socket2::SockRef::from(&socket);
    // As much as the system allows is enough.
    let _ = options.set_recv_buffer_size(room);
    let _ = options.set_send_buffer_size(room);
    Ok(socket)
}

/// The same, and a socket for streams at the same address; port 0 takes a number that is free for both.
///
/// Errors: the address is taken, or not ours.
pub fn bind(address: SocketAddr, room: usize) -> io::Result<(UdpSocket, StdListener)> {
    let mut attempts = 0;
    loop {
        let datagrams = bind_datagrams(address, room)?;
        attempts += 1;
        let streams = match StdListener::bind(datagrams.local_addr()?) {
            Err(_) if address.port() == 0 && attempts < PORT_ATTEMPTS => continue,
            bound => bound?,
        };
        streams.set_nonblocking(true)?;
        return Ok((datagrams, streams));
    }
}

/// Accepts clients until it is dropped. Who is one too many is not told: there is no message for it before a request.
pub async fn accept(listener: TcpListener, limits: &Arc<Limits>, begin: impl Fn(TcpStream, SocketAddr, Permit)) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                if let Ok(permit) = limits.connect(from.ip()) {
                    set_options(&stream);
                    begin(stream, SocketAddr::new(from.ip().to_canonical(), from.port()), permit);
                }
            }
            Err(error) => {
                cannot_accept(&error, "a stream of datagrams");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What is to be sent on one stream.
#[derive(Default)]
pub struct Outgoing {
    waiting: RefCell<BytesMut>,
    changed: Notify,
    is_over: Cell<bool>,
}

/// What becomes of a message that finds no room.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fullness {
    /// It is lost.
    Loses,
    /// The stream is over: an answer is not lost on it.
    Ends,
}

impl Outgoing {
    /// One message, in parts. False if there is no room.
    pub fn push(&self, parts: &[&[u8]], fullness: Fullness) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let has_room = waiting.len() + length <= WAITING_BYTES_MAX;
        if has_room {
            parts.iter().for_each(|part| waiting.extend_from_slice(part));
        } else if fullness == Fullness::Ends {
            self.is_over.set(true);
        }
        self.changed.notify_one();
        has_room
    }

    pub fn end(&self) {
        self.is_over.set(true);
        self.changed.notify_one();
    }

    /// Writes what there is until the stream breaks or is over.
    ///
    /// Errors: why it has ended; `TimedOut` if it takes nothing for `longest`.
    pub async fn write(&self, mut stream: impl AsyncWrite + Unpin, longest: Duration) -> io::Result<()> {
        loop {
            let waiting = self.waiting.take();
            if self.is_over.get() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if waiting.is_empty() {
                self.changed.notified().await;
                continue;
            }
            let written = async {
                stream.write_all(&waiting).await?;
                stream.flush().await
            };
            timeout(longest, written).await??;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_serves_datagrams_and_streams() {
        let (datagrams, streams) = bind("127.0.0.1:0".parse().unwrap(), 1 << 16).unwrap();
        let address = datagrams.local_addr().unwrap();
        assert_ne!(address.port(), 0);
        assert_eq!(streams.local_addr().unwrap(), address);
        assert!(bind(address, 1 << 16).is_err(), "it is taken");
    }
}
