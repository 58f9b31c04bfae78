use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use millrace_protocol::Transport;
use millrace_race::{Control, Impairment, Lane, Race, Target, run};
use tokio::sync::oneshot;

/// Time limit of a read.
const BOUND: Duration = Duration::from_secs(10);
/// Time in which nothing may arrive.
const SILENCE: Duration = Duration::from_millis(200);

/// Lanes in front of a TCP and a UDP socket of the test.
struct World {
    /// The lanes end with the race.
    _race: Race,
    lanes: Arc<[Arc<Lane>]>,
    server: TcpListener,
    datagrams: UdpSocket,
    stop: Option<oneshot::Sender<()>>,
    running: Option<thread::JoinHandle<()>>,
}

impl World {
    fn start() -> Self {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        datagrams.set_read_timeout(Some(BOUND)).unwrap();
        let target = Target { address: server.local_addr().unwrap(), datagrams: vec![datagrams.local_addr().unwrap()] };
        let (race, openings) = Race::new(target, Control::Everyone);
        let (stop, stopped) = oneshot::channel::<()>();
        let running = thread::spawn(move || run(openings, async { drop(stopped.await) }).unwrap());
        let lanes = race.lanes().unwrap();
        Self { _race: race, lanes, server, datagrams, stop: Some(stop), running: Some(running) }
    }

    fn lane(&self, transport: Transport) -> &Lane {
        self.lanes.iter().find(|lane| lane.transport == transport).unwrap()
    }

    /// Opens a connection through a lane, and returns both ends.
    fn connect(&self, lane: &Lane) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(("127.0.0.1", lane.port)).unwrap();
        let (server, _) = self.server.accept().unwrap();
        for end in [&client, &server] {
            end.set_read_timeout(Some(BOUND)).unwrap();
            end.set_nodelay(true).unwrap();
        }
        (client, server)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(running) = self.running.take() {
            let _ = running.join();
        }
    }
}

fn pass(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) -> Duration {
    let start = Instant::now();
    from.write_all(bytes).unwrap();
    let mut received = vec![0; bytes.len()];
    to.read_exact(&mut received).unwrap();
    assert!(received == bytes, "the bytes are unchanged");
    start.elapsed()
}

fn is_silent(end: &mut TcpStream) -> bool {
    end.set_read_timeout(Some(SILENCE)).unwrap();
    let is_silent = matches!(end.read(&mut [0; 1]), Err(error) if error.kind() == ErrorKind::WouldBlock);
    end.set_read_timeout(Some(BOUND)).unwrap();
    is_silent
}

#[test]
fn lane_passes_both_directions_and_their_ends() {
    let world = World::start();
    let (mut client, mut server) = world.connect(world.lane(Transport::Session));
    pass(&mut client, &mut server, b"up");
    // More than the window and all buffers of the sockets.
    let large: Vec<u8> = (0..2_000_000u32).map(|number| (number % 251) as u8).collect();
    let (mut writer, bytes) = (server.try_clone().unwrap(), large.clone());
    let writing = thread::spawn(move || writer.write_all(&bytes).unwrap());
    let mut received = vec![0; large.len()];
    client.read_exact(&mut received).unwrap();
    assert!(received == large);
    writing.join().unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 0, "the end of the stream");
    pass(&mut server, &mut client, b"down");
    drop(server);
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn delay_applies_to_one_lane_and_each_direction() {
    const DELAY: Duration = Duration::from_millis(120);
    let world = World::start();
    let delayed = world.lane(Transport::Polling);
    delayed.impair(Impairment { delay_ms: DELAY.as_millis() as u64, ..Impairment::default() }, false);
    let (mut client, mut server) = world.connect(delayed);
    assert!(pass(&mut client, &mut server, b"up") >= DELAY);
    assert!(pass(&mut server, &mut client, b"down") >= DELAY);
    let (mut client, mut server) = world.connect(world.lane(Transport::LongPolling));
    let others = (0..5).map(|_| pass(&mut client, &mut server, b"up")).min();
    assert!(others < Some(DELAY), "{others:?}");
    delayed.impair(Impairment::default(), false);
    let (mut client, mut server) = world.connect(delayed);
    let later = (0..5).map(|_| pass(&mut client, &mut server, b"up")).min();
    assert!(later < Some(DELAY), "{later:?}");
}

#[test]
fn throttled_lane_keeps_its_rate() {
    let world = World::start();
    let lane = world.lane(Transport::Sse);
    lane.impair(Impairment { rate_kbit_s: 400, ..Impairment::default() }, false);
    let (mut client, mut server) = world.connect(lane);
    // 20,000 bytes and the headers of 14 segments at 400 kbit/s: 411 ms, of which the last segment does not wait.
    let took = pass(&mut server, &mut client, &[7; 20_000]);
    assert!(took > Duration::from_millis(360), "{took:?}");
}

#[test]
fn cut_lane_holds_bytes_until_it_is_restored() {
    let world = World::start();
    let lane = world.lane(Transport::WebSocket);
    let (mut client, mut server) = world.connect(lane);
    pass(&mut client, &mut server, b"before");
    lane.impair(Impairment { cut: true, ..Impairment::default() }, false);
    client.write_all(b"held").unwrap();
    server.write_all(b"back").unwrap();
    assert!(is_silent(&mut server) && is_silent(&mut client));
    lane.impair(Impairment::default(), false);
    let mut received = [0; 4];
    server.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"held");
    client.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"back");
}

#[test]
fn reset_closes_both_ends_of_every_connection() {
    let world = World::start();
    let lane = world.lane(Transport::Stream);
    let (mut client, mut server) = world.connect(lane);
    pass(&mut client, &mut server, b"before");
    lane.impair(Impairment::default(), true);
    for end in [&mut client, &mut server] {
        assert_eq!(end.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    let (mut client, mut server) = world.connect(lane);
    pass(&mut client, &mut server, b"a new connection");
}

#[test]
fn datagrams_pass_the_link_and_are_lost_while_it_is_cut() {
    let world = World::start();
    let lane = world.lane(Transport::DataChannel);
    let [(server_port, lane_port)] = lane.datagram_ports[..] else { panic!("one port per datagram port") };
    assert_eq!(server_port, world.datagrams.local_addr().unwrap().port());
    let client = || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", lane_port)).unwrap();
        socket.set_read_timeout(Some(BOUND)).unwrap();
        socket
    };
    let receive = || {
        let mut bytes = [0; 100];
        let (length, from): (usize, SocketAddr) = world.datagrams.recv_from(&mut bytes).unwrap();
        (bytes[..length].to_vec(), from)
    };
    let (one, other) = (client(), client());
    one.send(b"one").unwrap();
    let (bytes, of_one) = receive();
    assert_eq!(bytes, b"one");
    other.send(b"other").unwrap();
    let (_, of_other) = receive();
    assert_ne!(of_one, of_other, "each client has an address of its own");
    world.datagrams.send_to(b"back", of_one).unwrap();
    let mut bytes = [0; 100];
    assert_eq!(one.recv(&mut bytes).unwrap(), 4);

    lane.impair(Impairment { cut: true, ..Impairment::default() }, false);
    one.send(b"lost").unwrap();
    world.datagrams.set_read_timeout(Some(SILENCE)).unwrap();
    assert_eq!(world.datagrams.recv(&mut bytes).unwrap_err().kind(), ErrorKind::WouldBlock);
    world.datagrams.set_read_timeout(Some(BOUND)).unwrap();
    lane.impair(Impairment { delay_ms: 100, ..Impairment::default() }, false);
    let start = Instant::now();
    one.send(b"late").unwrap();
    assert_eq!(receive().0, b"late");
    assert!(start.elapsed() >= Duration::from_millis(100));
}
