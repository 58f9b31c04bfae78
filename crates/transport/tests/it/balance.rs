//! Connections are distributed evenly over shards. Each shard listens on the same port, and the kernel selects a shard
//! by a hash of both addresses.

use std::{collections::HashSet, fs, io::Write, net::TcpStream};

use crate::server::Server;

const CONNECTIONS: usize = 1600;
/// Maximum load of the busiest shard over the mean. By chance alone, four shards exceed it once in 100,000 runs.
const IMBALANCE_MAX: f64 = 1.2;

#[tokio::test]
async fn shards_get_equal_shares_of_the_connections() {
    for shards in [2, 4] {
        let server = Server::with(|config| config.server.shards = shards);
        let readers: Vec<TcpStream> = (0..CONNECTIONS).map(|_| websocket(&server)).collect();
        server.await_presence("balance", CONNECTIONS as u64).await;
        let counts = per_epoll(&readers);
        assert_eq!((counts.len(), counts.iter().sum()), (shards, CONNECTIONS), "{counts:?}");
        let mean = CONNECTIONS as f64 / shards as f64;
        let imbalance = counts.iter().copied().max().unwrap_or_default() as f64 / mean;
        println!("{shards} shards: {counts:?}, imbalance {imbalance:.3}");
        assert!(imbalance < IMBALANCE_MAX, "{counts:?}: {imbalance}");
    }
}

fn websocket(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).expect("a connection");
    let request = "GET /v1/channels/balance HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("room for a request");
    stream
}

/// Returns how many of the server's ends of these connections each epoll instance watches, without instances that watch
/// none. Each shard watches all its WebSockets with one epoll instance, and no WebSocket of another shard.
///
/// Source: proc_pid_fdinfo(5) and proc_pid_net(5).
fn per_epoll(connections: &[TcpStream]) -> Vec<usize> {
    let accepted = other_ends(connections);
    let mut counts = Vec::new();
    for entry in fs::read_dir("/proc/self/fdinfo").expect("descriptors") {
        // Other tests of this process open and close descriptors all the time.
        let Ok(info) = fs::read_to_string(entry.expect("an entry").path()) else { continue };
        let watched = info.lines().filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next());
        let count = watched.filter(|fd| socket(fd).is_some_and(|inode| accepted.contains(&inode))).count();
        counts.extend((count > 0).then_some(count));
    }
    counts
}

/// Returns the inodes of the server's sockets for these connections.
fn other_ends(connections: &[TcpStream]) -> HashSet<u64> {
    let ends =
        |stream: &TcpStream| (stream.peer_addr().expect("a peer").port(), stream.local_addr().expect("bound").port());
    let wanted: HashSet<(u16, u16)> = connections.iter().map(ends).collect();
    let port = |address: &str| address.rsplit(':').next().and_then(|port| u16::from_str_radix(port, 16).ok());
    let table = fs::read_to_string("/proc/self/net/tcp").expect("sockets");
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|row| port(row[1]).zip(port(row[2])).is_some_and(|ends| wanted.contains(&ends)));
    ours.map(|row| row[9].parse().expect("an inode")).collect()
}

fn socket(fd: &str) -> Option<u64> {
    let target = fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}
