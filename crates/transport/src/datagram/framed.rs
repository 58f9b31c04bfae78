//! Datagrams over TCP, for networks that block UDP. TURN and ICE clients connect by TCP to the same port number as
//! by UDP.

use std::{
    cell::{Cell, RefCell},
    io,
    net::{SocketAddr, TcpListener as StdListener, UdpSocket},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::{timeout, timeout_at},
};

use crate::{
    accept::{cannot_accept, set_options},
    admission::limits::{ConnectionSlot, Limits},
};

/// Maximum bytes queued for one client. When the queue is full, further datagrams are dropped, as on any congested
/// path.
const WAITING_BYTES_MAX: usize = 256 << 10;
/// Maximum number of attempts to find a port that is free for both UDP and TCP.
const PORT_ATTEMPTS: usize = 32;
/// Pause after a failed accept, for example if the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Minimum room in the buffer of a read, in bytes.
const READ_BYTES: usize = 16 << 10;

/// Binds a UDP socket. `room` is the size of its receive buffer and of its send buffer, in bytes.
///
/// Errors: the address is in use, or does not belong to this machine.
pub fn bind_datagrams(address: SocketAddr, room: usize) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    let options = socket2::SockRef::from(&socket);
    // The kernel may grant smaller buffers; that is not an error.
    let _ = options.set_recv_buffer_size(room);
    let _ = options.set_send_buffer_size(room);
    Ok(socket)
}

/// Binds a UDP socket like [`bind_datagrams`], and a TCP listener on the same address. Port 0 takes a port that is
/// free for both.
///
/// Errors: the address is in use, or does not belong to this machine.
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

/// Accepts clients until the task is dropped. A client above the connection limit is disconnected without an error,
/// because the protocols have no error message before the first request.
pub async fn accept(
    listener: TcpListener,
    limits: &Arc<Limits>,
    begin: impl Fn(TcpStream, SocketAddr, ConnectionSlot),
) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                if let Ok(connection_slot) = limits.connect(from.ip()) {
                    set_options(&stream);
                    begin(stream, SocketAddr::new(from.ip().to_canonical(), from.port()), connection_slot);
                }
            }
            Err(error) => {
                cannot_accept(&error, "a stream of datagrams");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Receiver of the messages of one stream.
pub trait Reader {
    /// Returns the length of the first message, with its header; `None` if the header is incomplete.
    ///
    /// Errors: `InvalidData` if the message is malformed or longer than its maximum.
    fn message_bytes(&self, received: &[u8]) -> io::Result<Option<usize>>;

    fn handle(&self, message: &[u8]);

    /// Returns the time by which the next bytes must arrive.
    fn deadline(&self) -> Instant;

    /// Returns true if the stream stays open after its deadline. It then has a new deadline.
    fn outlives_deadline(&self) -> bool {
        false
    }
}

/// Reads messages until the stream ends.
///
/// Errors: `TimedOut` after the deadline; the errors of [`Reader::message_bytes`] and of the stream.
pub async fn read(mut stream: impl AsyncRead + Unpin, reader: &impl Reader) -> io::Result<()> {
    let mut received = BytesMut::new();
    loop {
        received.reserve(READ_BYTES);
        let read = match timeout_at(reader.deadline().into(), stream.read_buf(&mut received)).await {
            Ok(read) => read?,
            Err(_) if reader.outlives_deadline() => continue,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        };
        if read == 0 {
            return Ok(());
        }
        while let Some(length) = reader.message_bytes(&received)? {
            let Some(message) = received.get(..length) else { break };
            reader.handle(message);
            received.advance(length);
        }
        if received.is_empty() {
            // Free the buffer of an idle stream.
            received = BytesMut::new();
        }
        tokio::task::yield_now().await;
    }
}

/// Send queue of one stream.
#[derive(Default)]
pub struct Outgoing {
    waiting: RefCell<BytesMut>,
    changed: Notify,
    is_over: Cell<bool>,
}

/// Action on a message when the queue is full.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OverflowPolicy {
    /// The message is dropped.
    Loses,
    /// The stream is closed, because responses must not be dropped.
    Ends,
}

impl Outgoing {
    /// Queues one message, given in parts. Returns false if the queue is full.
    pub fn push(&self, parts: &[&[u8]], fullness: OverflowPolicy) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let has_room = waiting.len() + length <= WAITING_BYTES_MAX;
        if has_room {
            parts.iter().for_each(|part| waiting.extend_from_slice(part));
        } else if fullness == OverflowPolicy::Ends {
            self.is_over.set(true);
        }
        self.changed.notify_one();
        has_room
    }

    /// Ends the stream. Queued messages are dropped.
    pub fn end(&self) {
        self.is_over.set(true);
        self.changed.notify_one();
    }

    /// Writes queued messages until the stream fails or ends.
    ///
    /// Errors: the reason of the end; `TimedOut` if a write takes longer than `longest`.
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
    fn one_port_serves_udp_and_tcp() {
        let (datagrams, streams) = bind("127.0.0.1:0".parse().unwrap(), 1 << 16).unwrap();
        let address = datagrams.local_addr().unwrap();
        assert_ne!(address.port(), 0);
        assert_eq!(streams.local_addr().unwrap(), address);
        assert!(bind(address, 1 << 16).is_err(), "it is taken");
    }
}
