//! One TCP connection of a lane: the client's, and the one to the server.

use std::{io, net::SocketAddr, rc::Rc, sync::Arc, time::Duration};

use bytes::Bytes;
use millrace_link::Direction;
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpSocket, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{Semaphore, mpsc, oneshot},
};

use crate::{
    pump::Event,
    unit::{ConnectionId, Destination, Unit},
};

/// Payload of a full segment for an MTU of 1500.
const SEGMENT_BYTES: usize = 1460;
/// Segments of a direction that are on the link. A small window keeps the queue of a throttled lane short, so that the
/// server notices how slow the lane is.
const WINDOW: usize = 12;
/// Receive buffer of the proxy's sockets, for the same reason. Linux doubles the value.
const RECEIVE_BYTES: u32 = 8 * 1024;

/// Both writers of a connection, and the sender of its reset.
pub struct Connection {
    pub to_server: mpsc::UnboundedSender<Unit>,
    pub to_client: mpsc::UnboundedSender<Unit>,
    /// Sending or dropping this resets the connection.
    pub reset: oneshot::Sender<()>,
}

/// Connects to the server, and passes bytes between both ends and the pump until the connection ends.
pub async fn carry(id: ConnectionId, client: TcpStream, server: SocketAddr, events: mpsc::Sender<Event>) {
    let ended = carry_until_end(id, client, server, &events).await;
    if let Err(error) = ended {
        tracing::debug!(id, %error, "a connection of a lane failed");
    }
    // The pump has ended if this fails.
    let _ = events.send(Event::Closed(id)).await;
}

async fn carry_until_end(
    id: ConnectionId,
    mut client: TcpStream,
    server: SocketAddr,
    events: &mpsc::Sender<Event>,
) -> io::Result<()> {
    let socket = if server.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_recv_buffer_size(RECEIVE_BYTES)?;
    let mut server = socket.connect(server).await?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let ((to_server, up), (to_client, down), (reset, is_reset)) =
        (mpsc::unbounded_channel(), mpsc::unbounded_channel(), oneshot::channel());
    if events.send(Event::Opened(id, Connection { to_server, to_client, reset })).await.is_err() {
        return Ok(());
    }
    let ended = {
        let ((client_read, client_write), (server_read, server_write)) = (client.split(), server.split());
        let flows = async {
            tokio::try_join!(
                read(id, client_read, Direction::Up, events),
                read(id, server_read, Direction::Down, events),
                write(up, server_write),
                write(down, client_write),
            )
        };
        tokio::select! {
            ended = flows => Some(ended.map(drop)),
            _ = is_reset => None,
        }
    };
    ended.unwrap_or_else(|| {
        for end in [&client, &server] {
            SockRef::from(end).set_linger(Some(Duration::ZERO))?;
        }
        Ok(())
    })
}

async fn read(
    id: ConnectionId,
    mut from: ReadHalf<'_>,
    direction: Direction,
    events: &mpsc::Sender<Event>,
) -> io::Result<()> {
    let window = Arc::new(Semaphore::new(WINDOW));
    let mut bytes = [0; SEGMENT_BYTES];
    loop {
        let permit = window.clone().acquire_owned().await.map_err(io::Error::other)?;
        let length = from.read(&mut bytes).await?;
        let data = Bytes::copy_from_slice(&bytes[..length]);
        let unit = Unit { destination: Destination::Stream(id), data, permit: Some(Rc::new(permit)) };
        if events.send(Event::Unit(direction, unit)).await.is_err() || length == 0 {
            return Ok(());
        }
    }
}

async fn write(mut units: mpsc::UnboundedReceiver<Unit>, mut to: WriteHalf<'_>) -> io::Result<()> {
    while let Some(unit) = units.recv().await {
        if unit.data.is_empty() {
            return to.shutdown().await;
        }
        to.write_all(&unit.data).await?;
        drop(unit.permit);
    }
    Ok(())
}
