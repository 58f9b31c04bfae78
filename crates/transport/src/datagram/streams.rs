//! ICE over TCP, for clients that cannot use UDP. The client opens a TCP stream to the same port number and sends each
//! datagram after its length. The protocols see datagrams from the stream's remote address, as if they had arrived by
//! UDP.
//!
//! Source: RFC 6544 (the server is passive), RFC 4571 (two bytes of length).

use std::{
    cell::Cell,
    io,
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::{
    net::{TcpListener, TcpStream},
    task::spawn_local,
};

use super::{Demultiplexer, OPEN_TIMEOUT, SILENCE_MAX, framed};
use crate::admission::limits::ConnectionSlot;

const LENGTH_BYTES: usize = 2;

/// Accepts streams until the task is dropped, or another process has taken over the port. `write_timeout` returns the
/// current timeout of a write.
pub async fn accept(port: Rc<Demultiplexer>, listener: TcpListener, write_timeout: impl Fn() -> Duration) {
    let begin = |stream, from, connection_slot| {
        drop(spawn_local(connection(port.clone(), stream, from, write_timeout(), connection_slot)))
    };
    tokio::select! {
        () = framed::accept(listener, port.limits(), begin) => {}
        () = port.handed_over() => {}
    }
}

async fn connection(
    port: Rc<Demultiplexer>,
    stream: TcpStream,
    from: SocketAddr,
    write_timeout: Duration,
    _connection_slot: ConnectionSlot,
) {
    let Some(outgoing) = port.connect_stream(from) else { return };
    let (reading, writing) = stream.into_split();
    let client = Client { port: port.clone(), from, ends: Cell::new(Instant::now() + OPEN_TIMEOUT) };
    let ended = tokio::select! {
        ended = framed::read(reading, &client) => ended,
        ended = outgoing.write(writing, write_timeout) => ended,
    };
    port.disconnect_stream(from);
    if let Err(error) = ended {
        tracing::debug!(%error, "a stream of datagrams failed");
    }
}

struct Client {
    port: Rc<Demultiplexer>,
    from: SocketAddr,
    /// Deadline of the next valid datagram.
    ends: Cell<Instant>,
}

impl framed::Reader for Client {
    fn message_bytes(&self, received: &[u8]) -> io::Result<Option<usize>> {
        let Some(head) = received.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes(*head));
        match length > self.port.datagram_bytes_max() {
            true => Err(io::ErrorKind::InvalidData.into()),
            false => Ok(Some(LENGTH_BYTES + length)),
        }
    }

    fn handle(&self, message: &[u8]) {
        if self.port.take(self.from, &message[LENGTH_BYTES..]) {
            self.ends.set(Instant::now() + SILENCE_MAX);
        }
    }

    fn deadline(&self) -> Instant {
        self.ends.get()
    }
}
