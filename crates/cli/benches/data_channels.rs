//! Cost of data channels on one core: joins, memory, and a delivery, with native peers on the other core. Figures of
//! different machines cannot be compared; docs/explanation/performance.md has the figures of one machine.
//!
//! The server is pinned to CPU 0. All peers run in one thread on CPU 1, each with its own socket.

#[path = "common/offer.rs"]
mod offer;
#[path = "common/server.rs"]
mod server;
#[path = "common/wire.rs"]
#[expect(dead_code, reason = "shared with others that use more of it")]
mod wire;

use std::{
    io::Write,
    net::{SocketAddr, TcpStream, UdpSocket},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use millrace_rtc::{Event, Lane, Outputs, Peer};
use rustix::event::epoll::{self, EventData, EventFlags};
use server::Server;

/// Maximum time for all handshakes, and for late messages.
const PATIENCE: Duration = Duration::from_secs(30);
const PAYLOAD_BYTES: usize = 100;

#[derive(Parser)]
struct Args {
    /// Peers x publications per second, such as 100x600
    #[arg(long, value_delimiter = ',', default_value = "100x600,500x180")]
    loads: Vec<String>,
    /// Seconds of each load
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Policies: every, or latest on its lossy channel
    #[arg(long, value_delimiter = ',', default_value = "every,latest")]
    policies: Vec<String>,
    /// Percentage of the datagrams to the peers that is lost
    #[arg(long, default_value_t = 0)]
    loss: u32,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

struct Client {
    socket: UdpSocket,
    local: SocketAddr,
    peer: Peer,
    mouth: Outputs,
    rest: Vec<u8>,
    is_open: bool,
    /// Time at which the peer's timer is due.
    due: Instant,
}

struct Crowd {
    clients: Vec<Client>,
    epoll: std::os::fd::OwnedFd,
    began: Instant,
    delays_us: Vec<u64>,
    open: usize,
    loss: u32,
    chance: u64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    println!(
        "peers x msg/s  policy  join: SDP, all  open p50/max   PSS     deliveries/s  us each  came     p50/p99 ms"
    );
    for load in &args.loads {
        let (peers, rate) = load.split_once('x').context("a load is PEERSxRATE, such as 100x600")?;
        for policy in &args.policies {
            run(peers.parse()?, rate.parse()?, policy, &args)?;
        }
    }
    Ok(())
}

fn run(peers: usize, rate: u64, policy: &str, args: &Args) -> anyhow::Result<()> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--shards", "1", "--set", "limits.connects_per_s=0"]);
    let server = Server::start(command, &[0])?;
    let idle_kb = server.pss_kb()?;

    let before = server.cpu_ns()?;
    let mut crowd = Crowd::join(&server, peers, args.loss)?;
    let sdp_ns = server.cpu_ns()? - before;
    let opened_ms = crowd.open()?;
    let join_ns = server.cpu_ns()? - before;
    let peer_kb = (server.pss_kb()?.saturating_sub(idle_kb)) as f64 / peers as f64;

    let command = format!("{{\"id\":1,\"subscribe\":{{\"channel\":\"bench\",\"policy\":\"{policy}\"}}}}\n");
    for client in &mut crowd.clients {
        client.peer.write(Instant::now(), Lane::Session, true, command.as_bytes(), &mut client.mouth)?;
        client.flush();
    }
    crowd.serve(Instant::now() + Duration::from_millis(500), |_| false)?;
    let mut publisher = wire::connect(server.address, &wire::upgrade("/v1/channels/bench?subscribe=no", ""))?;
    crowd.delays_us.clear();
    let (before, start) = (server.cpu_ns()?, Instant::now());
    let count = (rate as f64 * args.seconds) as u64;
    let mut frame = Vec::new();
    for n in 0..count {
        let at = start + Duration::from_nanos(n * 1_000_000_000 / rate);
        crowd.serve(at, |_| false)?;
        frame.clear();
        let at_us = crowd.began.elapsed().as_micros() as u64;
        wire::client_frame(&mut frame, 1, &wire::payload(n, at_us, PAYLOAD_BYTES));
        publisher.write_all(&frame)?;
    }
    let sending = start.elapsed();
    let expected = count as usize * peers;
    let late = if policy == "every" { PATIENCE } else { Duration::from_millis(500) };
    crowd.serve(Instant::now() + late, |crowd| crowd.delays_us.len() >= expected)?;
    let cpu_ns = server.cpu_ns()? - before;
    let came = crowd.delays_us.len();
    crowd.delays_us.sort_unstable();
    let at = |part: f64| crowd.delays_us.get((came as f64 * part) as usize).map_or(0.0, |us| *us as f64 / 1000.0);
    println!(
        "{:>13}  {policy:<6}  {:.3}, {:.3} ms   {:>3.0} / {:>3.0} ms  {:>3.0} kB  {:>10.0}    {:>5.2}  {:>6.2} %  {:.1} / {:.1} (max {:.0})",
        format!("{peers} x {rate}"),
        sdp_ns as f64 / 1e6 / peers as f64,
        join_ns as f64 / 1e6 / peers as f64,
        opened_ms[peers / 2],
        opened_ms[peers - 1],
        peer_kb,
        came as f64 / sending.as_secs_f64(),
        cpu_ns as f64 / 1000.0 / came.max(1) as f64,
        100.0 * came as f64 / expected as f64,
        at(0.5),
        at(0.99),
        at(0.999_999),
    );
    Ok(())
}

impl Crowd {
    /// Exchanges the offers and answers of all peers, one after the other. Sends nothing over UDP yet.
    fn join(server: &Server, peers: usize, loss: u32) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut http = TcpStream::connect(server.address)?;
        http.set_nodelay(true)?;
        let now = Instant::now();
        let mut clients = Vec::with_capacity(peers);
        for i in 0..peers {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            socket.set_nonblocking(true)?;
            let local = socket.local_addr()?;
            epoll::add(&epoll, &socket, EventData::new_u64(i as u64), EventFlags::IN)?;
            let offer = Peer::offer(local, now);
            let answer = offer::post(&mut http, "/v1/connect", &offer.sdp)?;
            let peer = offer.accept(&answer)?;
            let (mouth, rest) = Default::default();
            clients.push(Client { socket, local, peer, mouth, rest, is_open: false, due: now });
        }
        Ok(Self { clients, epoll, began: now, delays_us: Vec::new(), open: 0, loss, chance: 1 })
    }

    /// Opens all peers at once. Returns the time until each peer was open in milliseconds, in increasing order.
    fn open(&mut self) -> anyhow::Result<Vec<f64>> {
        let start = Instant::now();
        for client in &mut self.clients {
            client.peer.handle_timeout(start, &mut client.mouth)?;
            client.flush();
        }
        let mut opened = Vec::with_capacity(self.clients.len());
        while opened.len() < self.clients.len() {
            let before = self.open;
            self.serve(Instant::now() + Duration::from_millis(20), |crowd| crowd.open > before)?;
            opened.resize(self.open, start.elapsed().as_secs_f64() * 1000.0);
            ensure!(start.elapsed() < PATIENCE, "{} of {} have opened", self.open, self.clients.len());
        }
        Ok(opened)
    }

    /// Handles datagrams and timers until `until`, or until `enough` returns true.
    fn serve(&mut self, until: Instant, enough: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let mut events = Vec::with_capacity(256);
        let mut buffer = [0; 2048];
        while !enough(self) {
            let now = Instant::now();
            for client in self.clients.iter_mut().filter(|client| client.due <= now) {
                client.peer.handle_timeout(now, &mut client.mouth)?;
                client.flush();
            }
            let left = until.saturating_duration_since(now).min(Duration::from_millis(5));
            events.clear();
            let wait = left.try_into().context("a short time")?;
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait))?;
            for event in &events {
                let client = &mut self.clients[event.data.u64() as usize];
                while let Ok((length, from)) = client.socket.recv_from(&mut buffer) {
                    self.chance =
                        self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    if ((self.chance >> 33) % 100) < u64::from(self.loss) {
                        continue;
                    }
                    let now = Instant::now();
                    client.peer.handle_datagram(now, from, client.local, &buffer[..length], &mut client.mouth)?;
                }
                client.flush();
                self.open += usize::from(client.hear(self.began, &mut self.delays_us)?);
            }
            if Instant::now() >= until {
                break;
            }
        }
        Ok(())
    }
}

impl Client {
    fn flush(&mut self) {
        for (to, datagram) in self.mouth.datagrams.drain(..) {
            // A full socket drops the datagram, as any path may.
            let _ = self.socket.send_to(&datagram, to);
        }
        self.due = self.peer.timeout();
    }

    /// Handles the events of the peer. Returns true if the peer has just opened.
    fn hear(&mut self, began: Instant, delays_us: &mut Vec<u64>) -> anyhow::Result<bool> {
        let was_open = self.is_open;
        let now_us = began.elapsed().as_micros() as u64;
        for event in self.mouth.events.drain(..) {
            match event {
                Event::Open(Lane::Session) => self.is_open = true,
                Event::Data(Lane::Session, data) => {
                    self.rest.extend_from_slice(&data);
                    let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                    count(&self.rest[..end], now_us, delays_us)?;
                    self.rest.drain(..end);
                }
                Event::Data(Lane::Latest, data) => count(&data, now_us, delays_us)?,
                Event::Closed => bail!("the server has closed a peer"),
                Event::Open(_) | Event::Low(_) => {}
            }
        }
        Ok(self.is_open && !was_open)
    }
}

fn count(lines: &[u8], now_us: u64, delays_us: &mut Vec<u64>) -> anyhow::Result<()> {
    for line in lines.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{\"push\":\"message\"")) {
        let at = line.windows(8).position(|part| part == b"\"data\":[").context("no data")?;
        let (_, at_us) = wire::read_payload(&line[at + 7..])?;
        delays_us.push(now_us.saturating_sub(at_us));
    }
    Ok(())
}
