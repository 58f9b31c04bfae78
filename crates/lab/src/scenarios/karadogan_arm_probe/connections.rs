//! Connections of the wearers: with each other, with a gateway, or with a server.

use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use millrace_gateway::forward::{Bundle, parts};

use super::movements::{Connections, Take};
use crate::{
    load::{
        ClientGroup,
        peers::{NativePeer, PeerGroup},
    },
    scenarios::karadogan_gateway::traffic::{Joining, Side},
};

/// Maximum time for all handshakes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Name of the application at the gateway that distributes the movements.
const DISTRIBUTOR: &str = "distributor";
/// Prefix of a wearer's name at the gateway, before its number.
const NAME: &str = "wearer-";
/// Query parameter that makes each movement urgent: all of them begin with `[`.
const URGENT: &str = "&urgent=%5B";

/// Data channels of native peers, all in one thread.
pub struct PeerConnections {
    group: PeerGroup,
    /// Owner of each end of a connection.
    owners: Vec<Owner>,
    /// Connection ends of each wearer.
    ends: Vec<Vec<usize>>,
    hub: Option<Hub>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Wearer(usize),
    Distributor,
}

/// End that forwards movements to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hub {
    /// The first wearer, which forwards each movement over its other connections.
    Wearer,
    /// An application beside a gateway, which sends a bundle with a copy for each other wearer.
    Distributor,
}

impl PeerConnections {
    /// Connects each wearer to every other one. `sockets`: one at each end of the path for each connection.
    ///
    /// Errors: not all connections open in time. The same holds for the functions below.
    pub fn mesh(
        wearers: usize,
        sockets: [Vec<UdpSocket>; 2],
        go_on: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        Self::pairs(wearers, mesh(wearers), sockets, None, go_on)
    }

    /// Connects each wearer to the first one, which forwards movements.
    pub fn star(
        wearers: usize,
        sockets: [Vec<UdpSocket>; 2],
        go_on: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        Self::pairs(wearers, star(wearers), sockets, Some(Hub::Wearer), go_on)
    }

    fn pairs(
        wearers: usize,
        pairs: Vec<[usize; 2]>,
        [near, far]: [Vec<UdpSocket>; 2],
        hub: Option<Hub>,
        go_on: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let mut made = Self::new(wearers, hub)?;
        for (pair, sockets) in pairs.into_iter().zip(near.into_iter().zip(far)) {
            for (wearer, peer) in pair.into_iter().zip(NativePeer::pair(sockets.0, sockets.1)?) {
                made.add(Owner::Wearer(wearer), peer)?;
            }
        }
        made.open(go_on)
    }

    /// Connects each wearer to a gateway, which bundles the movements for the distributor and splits the bundles of the
    /// distributor.
    pub fn relay(
        wearers: usize,
        is_urgent: bool,
        joining: &Joining,
        go_on: &dyn Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let mut made = Self::new(wearers, Some(Hub::Distributor))?;
        made.add(Owner::Distributor, joining(Side::Servers, &format!("name={DISTRIBUTOR}"))?)?;
        let urgent = if is_urgent { URGENT } else { "" };
        for wearer in 0..wearers {
            let query = format!("name={NAME}{wearer}&to={DISTRIBUTOR}{urgent}");
            made.add(Owner::Wearer(wearer), joining(Side::Devices, &query)?)?;
            // The peers that joined before must answer within the gateway's time limit.
            made.turn()?;
        }
        made.open(go_on)
    }

    fn new(wearers: usize, hub: Option<Hub>) -> anyhow::Result<Self> {
        Ok(Self { group: PeerGroup::new()?, owners: Vec::new(), ends: vec![Vec::new(); wearers], hub })
    }

    fn add(&mut self, owner: Owner, peer: NativePeer) -> anyhow::Result<()> {
        if let Owner::Wearer(wearer) = owner {
            self.ends[wearer].push(self.owners.len());
        }
        self.owners.push(owner);
        self.group.add(peer)
    }

    /// Waits until all connections are open.
    fn open(mut self, go_on: &dyn Fn() -> anyhow::Result<()>) -> anyhow::Result<Self> {
        let began = Instant::now();
        while self.group.peers.iter().any(|peer| !peer.is_open) {
            go_on()?;
            ensure!(began.elapsed() < PATIENCE, "not all connections have opened within {PATIENCE:?}");
            self.turn()?;
        }
        Ok(self)
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        self.serve(Instant::now() + Duration::from_millis(5), &mut |_, _, _| Ok(()))
    }
}

impl Connections for PeerConnections {
    fn send(&mut self, wearer: usize, movement: &[u8]) -> anyhow::Result<()> {
        self.ends[wearer].iter().try_for_each(|end| self.group.write(*end, movement))
    }

    fn serve(&mut self, until: Instant, take: &mut Take<'_>) -> anyhow::Result<()> {
        let Self { group, owners, ends, hub } = self;
        let mut forwarded: Vec<(usize, Vec<u8>)> = Vec::new();
        group.serve(until, |end, now, _, message| match owners[end] {
            Owner::Wearer(wearer) => {
                if *hub == Some(Hub::Wearer) && wearer == 0 {
                    let others = ends[0].iter().filter(|other| **other != end);
                    forwarded.extend(others.map(|other| (*other, message.to_vec())));
                }
                take(wearer, now, message)
            }
            Owner::Distributor => {
                forwarded.push((end, copies(message, ends.len())?));
                Ok(())
            }
        })?;
        forwarded.into_iter().try_for_each(|(end, message)| group.write(end, &message))
    }
}

impl Connections for ClientGroup {
    fn send(&mut self, wearer: usize, movement: &[u8]) -> anyhow::Result<()> {
        self.publish(wearer, movement)
    }

    fn serve(&mut self, until: Instant, take: &mut Take<'_>) -> anyhow::Result<()> {
        ClientGroup::serve(self, until, take)
    }
}

/// Waits until all clients of a server are subscribed.
///
/// Errors: a connection broke, or not all clients are subscribed in time.
pub fn open(mut clients: ClientGroup, go_on: &dyn Fn() -> anyhow::Result<()>) -> anyhow::Result<ClientGroup> {
    let began = Instant::now();
    while !clients.is_ready() {
        go_on()?;
        ensure!(began.elapsed() < PATIENCE, "not all clients have subscribed within {PATIENCE:?}");
        clients.serve(Instant::now() + Duration::from_millis(5), |_, _, _| Ok(()))?;
    }
    Ok(clients)
}

/// Returns the two wearers of each connection of a mesh.
pub fn mesh(wearers: usize) -> Vec<[usize; 2]> {
    (0..wearers).flat_map(|first| (first + 1..wearers).map(move |second| [first, second])).collect()
}

/// Returns the two wearers of each connection of a star.
pub fn star(wearers: usize) -> Vec<[usize; 2]> {
    (1..wearers).map(|other| [0, other]).collect()
}

/// Returns a bundle with a copy of each gathered movement for all wearers but its own.
///
/// Errors: the message is not a bundle of wearers.
fn copies(gathered: &[u8], wearers: usize) -> anyhow::Result<Vec<u8>> {
    let mut bundle = Bundle::default();
    for part in parts(gathered).context("the distributor received no bundle")? {
        let mover = part.peer.strip_prefix(NAME).and_then(|number| number.parse().ok());
        let mover: usize = mover.with_context(|| format!("no wearer has the name {}", part.peer))?;
        let others = (0..wearers).filter(|wearer| *wearer != mover);
        others.for_each(|wearer| bundle.push(&format!("{NAME}{wearer}"), &part.message));
    }
    ensure!(bundle.count() > 0, "the distributor received no movement: {}", String::from_utf8_lossy(gathered));
    Ok(bundle.take())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mesh_connects_all_and_star_connects_the_hub() {
        assert_eq!(mesh(3), [[0, 1], [0, 2], [1, 2]]);
        assert_eq!(star(3), [[0, 1], [0, 2]]);
    }

    #[test]
    fn distributor_copies_each_movement_to_all_other_wearers() {
        let mut gathered = Bundle::default();
        gathered.push("wearer-0", b"[\"a\"]");
        gathered.push("wearer-2", b"b");
        let copied = parts(&copies(&gathered.take(), 3).expect("a bundle")).expect("a bundle");
        let copied: Vec<_> = copied.iter().map(|part| (part.peer.as_str(), part.message.as_slice())).collect();
        let (a, b): (&[u8], &[u8]) = (b"[\"a\"]", b"b");
        assert_eq!(copied, [("wearer-1", a), ("wearer-2", a), ("wearer-0", b), ("wearer-1", b)]);
        let mut foreign = Bundle::default();
        foreign.push("sensor", b"a");
        assert!(copies(&foreign.take(), 3).is_err() && copies(b"a", 3).is_err());
        assert!(copies(br#"[{"lost":1}]"#, 3).is_err());
    }
}
