//! Datagrams of a lane: one socket in front of each datagram port of the server, and one socket per client behind it,
//! so that the server sees each client at an address of its own.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    rc::Rc,
    time::Instant,
};

use bytes::Bytes;
use millrace_link::Direction;
use tokio::{
    net::UdpSocket,
    sync::mpsc,
    task::{AbortHandle, spawn_local},
};

use crate::{
    pump::Event,
    unit::{Destination, Unit},
};

/// Clients of one port. One more client takes the place of the one that was silent for longest.
const CLIENTS_MAX: usize = 64;
const DATAGRAM_BYTES_MAX: usize = 2048;

struct Client {
    to_server: Rc<UdpSocket>,
    last: Instant,
    receiving: AbortHandle,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.receiving.abort();
    }
}

/// Passes datagrams between the clients of `front`, the pump and the server until the lane ends.
///
/// Errors: those of the socket, except that a client cannot be reached.
pub async fn relay(front: UdpSocket, server: SocketAddr, events: mpsc::Sender<Event>) -> io::Result<()> {
    let front = Rc::new(front);
    let mut clients: HashMap<SocketAddr, Client> = HashMap::new();
    let mut bytes = [0; DATAGRAM_BYTES_MAX];
    loop {
        let (length, address) = match front.recv_from(&mut bytes).await {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return Err(error),
        };
        if !clients.contains_key(&address) {
            if clients.len() >= CLIENTS_MAX
                && let Some(oldest) = clients.iter().min_by_key(|(_, client)| client.last).map(|(address, _)| *address)
            {
                clients.remove(&oldest);
            }
            clients.insert(address, open(front.clone(), address, server, events.clone()).await?);
        }
        let Some(client) = clients.get_mut(&address) else { continue };
        client.last = Instant::now();
        let destination = Destination::Datagram(client.to_server.clone(), None);
        let unit = Unit { destination, data: Bytes::copy_from_slice(&bytes[..length]), permit: None };
        // Datagrams that do not fit are lost, as on every network.
        let _ = events.try_send(Event::Unit(Direction::Up, unit));
    }
}

/// Opens the socket of one client, and passes what the server sends to it.
async fn open(
    front: Rc<UdpSocket>,
    address: SocketAddr,
    server: SocketAddr,
    events: mpsc::Sender<Event>,
) -> io::Result<Client> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let back = Rc::new(UdpSocket::bind((any, 0)).await?);
    back.connect(server).await?;
    let to_server = back.clone();
    let receiving = spawn_local(async move {
        let mut bytes = [0; DATAGRAM_BYTES_MAX];
        loop {
            match back.recv(&mut bytes).await {
                Ok(length) => {
                    let destination = Destination::Datagram(front.clone(), Some(address));
                    let unit = Unit { destination, data: Bytes::copy_from_slice(&bytes[..length]), permit: None };
                    let _ = events.try_send(Event::Unit(Direction::Down, unit));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => return,
            }
        }
    });
    Ok(Client { to_server, last: Instant::now(), receiving: receiving.abort_handle() })
}
