//! ICE over TCP, for clients that cannot use UDP. The client opens a TCP stream to the same port number and sends each
//! datagram after its length. Other modules see datagrams from the stream's remote address, as if they had arrived by
//! UDP.
//!
//! Source: RFC 6544 (the server is passive), RFC 4571 (two bytes of length).

use std::{io, net::SocketAddr, rc::Rc, time::Instant};

use bytes::{Buf, BytesMut};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf},
    task::spawn_local,
    time::timeout_at,
};

use super::{
    Peers,
    datagrams::DATAGRAM_BYTES_MAX,
    peers::{OPEN_TIMEOUT, SILENCE_MAX},
};
use crate::{admission::limits::ConnectionSlot, framed, route::Context};

const READ_BYTES: usize = 16 << 10;
const LENGTH_BYTES: usize = 2;

pub async fn accept(context: Rc<Context>, listener: TcpListener) {
    let begin = |stream, from, permit| drop(spawn_local(connection(context.clone(), stream, from, permit)));
    framed::accept(listener, &context.admission.limits, begin).await;
}

async fn connection(context: Rc<Context>, stream: TcpStream, from: SocketAddr, _permit: ConnectionSlot) {
    let with_peers = |work: &mut dyn FnMut(&mut Peers)| context.shard.sockets().peers.as_deref_mut().map(work);
    let mut outgoing = None;
    with_peers(&mut |peers| outgoing = peers.connect_stream(from));
    let Some(outgoing) = outgoing else { return };
    let (reading, writing) = stream.into_split();
    let ended = tokio::select! {
        ended = read(&context, reading, from) => ended,
        ended = outgoing.write(writing, context.admission.config().write_timeout) => ended,
    };
    with_peers(&mut |peers| peers.disconnect_stream(from));
    if let Err(error) = ended {
        tracing::debug!(%error, "a stream of datagrams broke");
    }
}

/// Reads datagrams until the stream ends.
///
/// Errors: `TimedOut` if no valid datagram arrives in time; `InvalidData` if a length exceeds the maximum size.
async fn read(context: &Rc<Context>, mut stream: OwnedReadHalf, from: SocketAddr) -> io::Result<()> {
    let mut received = BytesMut::new();
    let mut ends = Instant::now() + OPEN_TIMEOUT;
    loop {
        received.reserve(READ_BYTES);
        if timeout_at(ends.into(), stream.read_buf(&mut received)).await?? == 0 {
            return Ok(());
        }
        while let Some(head) = received.first_chunk::<LENGTH_BYTES>() {
            let length = usize::from(u16::from_be_bytes(*head));
            if length > DATAGRAM_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let Some(datagram) = received.get(LENGTH_BYTES..LENGTH_BYTES + length) else { break };
            let mut sockets = context.shard.sockets();
            let peers = sockets.peers.as_mut().ok_or(io::ErrorKind::NotConnected)?;
            if peers.take(from, datagram, &context.admission.limits) {
                ends = Instant::now() + SILENCE_MAX;
            }
            drop(sockets);
            received.advance(LENGTH_BYTES + length);
        }
        if received.is_empty() {
            // Free the buffer of an idle stream.
            received = BytesMut::new();
        }
        tokio::task::yield_now().await;
    }
}
