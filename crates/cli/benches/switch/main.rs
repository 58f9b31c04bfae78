//! Cost of the SFU on one core: forwarded packets and their delay, with native publishers and viewers on the other
//! core. Figures of different machines cannot be compared; docs/explanation/performance.md has the figures of one
//! machine.
//!
//! The server is pinned to CPU 0. All clients run in one thread on CPU 1, each with its own socket. One publisher in
//! each room sends VP8 packets of 1,100 bytes (115 a second are 1 Mbit/s). Every packet that a viewer receives is
//! counted and timed. Only a viewer's first packet is decrypted; of the others only the headers are read, because
//! decrypting 150,000 packets a second takes more than a core. The arrival times of all packets are reported to the
//! server every 50 ms, as a browser does, so that the server estimates the bandwidth of every path.
//!
//! `--janus` runs [`janus`] under the same loads, alternating with Millrace.

mod janus;
#[path = "../common/server.rs"]
mod server;

use std::{
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Parser;
use janus::Janus;
use millrace_lab::{host::scheduling::pin, load::http::post_offer, targets::Server};
use millrace_sfu::{MediaClient, MediaEvent, MediaKind, MediaOutput, Sink, egress::is_media};
use rustix::event::epoll::{self, EventData, EventFlags};

/// Maximum time for all handshakes, and for late packets.
const PATIENCE: Duration = Duration::from_secs(30);
const PACKET_BYTES: usize = 1100;
/// Packets per video frame. The RTP timestamp of the benchmark advances with each packet.
const PICTURE_PACKETS: u64 = 4;
/// Interval between two reports of a viewer.
const REPORT: Duration = Duration::from_millis(50);
/// Interval between two checks of the timers.
const LOOK: Duration = Duration::from_millis(1);
/// VP8 payload descriptor and first byte of the frame, packet number, and send time in microseconds.
const HEAD_BYTES: usize = 2 + 4 + 8;

#[derive(Parser)]
struct Args {
    /// Rooms x viewers per room x packets per second per publisher, such as 1x100x1000
    #[arg(long, value_delimiter = ',', default_value = "1x100x115,1x100x1000,13x100x115")]
    loads: Vec<String>,
    /// Seconds of each load
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Also measure Janus, if it is installed
    #[arg(long)]
    janus: bool,
    /// Threads of Janus for connections; 0: one per connection
    #[arg(long, default_value_t = 1)]
    janus_loops: usize,
    /// Address of the clients
    #[arg(long, default_value = "127.0.0.1")]
    from: IpAddr,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

struct Client {
    socket: UdpSocket,
    local: SocketAddr,
    end: MediaClient,
    out: Out,
    is_connected: bool,
    due: Instant,
    sink: Option<Sink>,
    report_due: Instant,
    /// Difference between the RTP timestamps that the viewer receives and those that the publisher wrote.
    shift: u32,
}

#[derive(Default)]
struct Out {
    datagrams: Vec<(SocketAddr, Vec<u8>)>,
    events: Vec<MediaEvent>,
}

impl MediaOutput for Out {
    fn send(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        self.datagrams.push((to, datagram));
    }
    fn event(&mut self, event: MediaEvent) {
        self.events.push(event);
    }
}

struct ViewerGroup {
    from: IpAddr,
    /// All clients, publishers first.
    clients: Vec<Client>,
    epoll: std::os::fd::OwnedFd,
    began: Instant,
    connected: usize,
    look: Instant,
    delays_us: Vec<u64>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    pin(&[1])?;
    println!("            rooms x viewers x packets/s   forwards/s  us each  core   came      delay p50 / p99 ms");
    for load in &args.loads {
        let numbers: Vec<u64> = load.split('x').map(str::parse).collect::<Result<_, _>>()?;
        let [rooms, viewers, rate] = numbers[..] else {
            anyhow::bail!("a load is ROOMSxVIEWERSxRATE, such as 1x100x115")
        };
        let (rooms, viewers) = (rooms as usize, viewers as usize);
        run(Unit::millrace()?, (rooms, viewers, rate), &args)?;
        if args.janus {
            run(Unit::Janus(Janus::start(rooms, args.janus_loops)?), (rooms, viewers, rate), &args)?;
        }
    }
    Ok(())
}

/// The SFU under test.
enum Unit {
    Millrace(Server, TcpStream),
    Janus(Janus),
}

impl Unit {
    fn millrace() -> anyhow::Result<Self> {
        let server = server::start(1, &[0], &["--set", "limits.connects_per_s=0"])?;
        let http = TcpStream::connect(server.address)?;
        http.set_nodelay(true)?;
        Ok(Self::Millrace(server, http))
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Millrace(..) => "Millrace",
            Self::Janus(_) => "Janus",
        }
    }

    fn server(&self) -> &Server {
        match self {
            Self::Millrace(server, _) | Self::Janus(Janus { server, .. }) => server,
        }
    }

    fn publish(&mut self, room: usize, local: SocketAddr) -> anyhow::Result<MediaClient> {
        let (mut end, sdp) = MediaClient::offer(local, &[MediaKind::Video], &[], Instant::now());
        let answer = match self {
            Self::Millrace(_, http) => post_offer(http, &format!("/v1/rooms/r{room}/whip"), &sdp)?,
            Self::Janus(janus) => janus.publish(room, &sdp)?,
        };
        end.accept(&answer)?;
        Ok(end)
    }

    fn view(&mut self, room: usize, local: SocketAddr) -> anyhow::Result<MediaClient> {
        match self {
            Self::Millrace(_, http) => {
                let (mut end, sdp) = MediaClient::offer(local, &[], &[MediaKind::Video], Instant::now());
                end.accept(&post_offer(http, &format!("/v1/rooms/r{room}/whep"), &sdp)?)?;
                Ok(end)
            }
            Self::Janus(janus) => {
                let (viewer, sdp) = janus.view(room)?;
                let mut end = MediaClient::new(local, Instant::now());
                janus.answer(&viewer, &end.answer(&sdp)?)?;
                Ok(end)
            }
        }
    }
}

fn run(mut unit: Unit, (rooms, viewers, rate): (usize, usize, u64), args: &Args) -> anyhow::Result<()> {
    let mut group = ViewerGroup::join(&mut unit, rooms, viewers, args.from)?;
    group.connect()?;
    // One video frame per publisher, so that every viewer has started.
    let start = Instant::now();
    while group.delays_us.len() < rooms * viewers {
        (0..rooms).try_for_each(|room| group.publish(room, 0))?;
        group.serve(Instant::now() + Duration::from_millis(100))?;
        ensure!(start.elapsed() < PATIENCE, "{} viewers have seen something", group.delays_us.len());
    }
    group.serve(Instant::now() + Duration::from_millis(500))?;
    group.open_no_more(rooms)?;
    group.delays_us.clear();

    let cpu_ns = || anyhow::Ok(unit.server().scheduling_time()?.cpu_ns);
    let (before, start) = (cpu_ns()?, Instant::now());
    let count = (rate as f64 * args.seconds) as u64 * rooms as u64;
    for n in 0..count {
        // The rooms in turn.
        let at = start + Duration::from_nanos(n * 1_000_000_000 / (rate * rooms as u64));
        group.serve(at)?;
        group.publish(n as usize % rooms, 1 + n / rooms as u64)?;
    }
    let sending = start.elapsed();
    let expected = count as usize * viewers;
    let late = Instant::now() + PATIENCE;
    while group.delays_us.len() < expected && Instant::now() < late {
        let before = group.delays_us.len();
        group.serve(Instant::now() + Duration::from_secs(1))?;
        if group.delays_us.len() == before {
            break;
        }
    }
    let used_ns = (cpu_ns()? - before) as f64;
    let came = group.delays_us.len();
    group.delays_us.sort_unstable();
    let at = |part: f64| group.delays_us.get((came as f64 * part) as usize).map_or(0.0, |us| *us as f64 / 1000.0);
    println!(
        "{:<10}  {:>27}   {:>10.0}  {:>7.2}  {:>3.0} %  {:>6.2} %  {:.2} / {:.2}",
        unit.name(),
        format!("{rooms} x {viewers} x {rate}"),
        came as f64 / sending.as_secs_f64(),
        used_ns / 1000.0 / came.max(1) as f64,
        used_ns / 1e7 / sending.as_secs_f64(),
        100.0 * came as f64 / expected as f64,
        at(0.5),
        at(0.99),
    );
    Ok(())
}

impl ViewerGroup {
    fn join(unit: &mut Unit, rooms: usize, viewers: usize, from: IpAddr) -> anyhow::Result<Self> {
        let mut group = Self {
            from,
            clients: Vec::with_capacity(rooms * (viewers + 1)),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            began: Instant::now(),
            connected: 0,
            look: Instant::now(),
            delays_us: Vec::new(),
        };
        for room in 0..rooms {
            group.add(|local| unit.publish(room, local))?;
        }
        // A publisher must exist before viewers can request it.
        group.connect()?;
        for viewer in 0..rooms * viewers {
            group.add(|local| unit.view(viewer % rooms, local))?;
        }
        Ok(group)
    }

    fn add(&mut self, join: impl FnOnce(SocketAddr) -> anyhow::Result<MediaClient>) -> anyhow::Result<()> {
        let socket = UdpSocket::bind((self.from, 0))?;
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        epoll::add(&self.epoll, &socket, EventData::new_u64(self.clients.len() as u64), EventFlags::IN)?;
        let end = join(local)?;
        let (out, now) = (Out::default(), Instant::now());
        let (is_connected, sink, shift) = (false, None, 0);
        self.clients.push(Client { socket, local, end, out, is_connected, due: now, sink, report_due: now, shift });
        Ok(())
    }

    fn open_no_more(&mut self, rooms: usize) -> anyhow::Result<()> {
        let now = Instant::now();
        for (at, viewer) in self.clients.iter_mut().enumerate().skip(rooms) {
            viewer.sink = Some(viewer.end.sink(0, now).context("the server does not number its packets")?);
            // Spread the reports over time.
            viewer.report_due = now + REPORT * (at % 64) as u32 / 64;
        }
        Ok(())
    }

    fn connect(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        while self.connected < self.clients.len() {
            self.serve(Instant::now() + Duration::from_millis(20))?;
            ensure!(start.elapsed() < PATIENCE, "{} of {} are connected", self.connected, self.clients.len());
        }
        Ok(())
    }

    fn publish(&mut self, room: usize, n: u64) -> anyhow::Result<()> {
        let mut payload = vec![7; PACKET_BYTES];
        // A video frame begins with its first packet, and a viewer may start with any frame.
        let is_first = n.is_multiple_of(PICTURE_PACKETS);
        payload[..2].copy_from_slice(&[if is_first { 0x10 } else { 0 }, 0]);
        payload[2..6].copy_from_slice(&(n as u32).to_be_bytes());
        let since = self.began.elapsed();
        payload[6..HEAD_BYTES].copy_from_slice(&(since.as_micros() as u64).to_be_bytes());
        // The timestamp is the packet's time, not the frame's: it is in the header, so the packet need not be
        // decrypted.
        let (time, is_last) = (ticks(since), n % PICTURE_PACKETS == PICTURE_PACKETS - 1);
        let client = &mut self.clients[room];
        client.end.send(0, (time, is_last, Arc::from(payload)), Instant::now(), &mut client.out)?;
        client.flush();
        Ok(())
    }

    /// Handles datagrams and timers until `until`.
    fn serve(&mut self, until: Instant) -> anyhow::Result<()> {
        let mut events = Vec::with_capacity(256);
        let mut buffer = [0; 2048];
        loop {
            let now = Instant::now();
            if now >= self.look {
                self.look = now + LOOK;
                for client in &mut self.clients {
                    client.look(now)?;
                }
            }
            let left = until.saturating_duration_since(now).min(LOOK);
            events.clear();
            let wait = left.try_into().context("a short time")?;
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait))?;
            for event in &events {
                let client = &mut self.clients[event.data.u64() as usize];
                let Ok((length, from)) = client.socket.recv_from(&mut buffer) else { continue };
                let now = Instant::now();
                if let Some(sink) = client.sink.as_mut().filter(|_| is_media(&buffer[..length])) {
                    let Some(time) = sink.receive(&buffer[..length], now) else { continue };
                    let since = ticks(now - self.began).wrapping_sub(time.wrapping_sub(client.shift));
                    self.delays_us.push(u64::from(since) * 100 / 9);
                    continue;
                }
                client.end.handle_datagram(now, (from, client.local), &buffer[..length], &mut client.out)?;
                client.flush();
                client.hear(self.began, &mut self.delays_us, &mut self.connected)?;
            }
            if Instant::now() >= until {
                return Ok(());
            }
        }
    }
}

/// Converts a time to units of the RTP clock, 90,000 per second.
fn ticks(since: Duration) -> u32 {
    (since.as_micros() * 9 / 100) as u32
}

impl Client {
    fn look(&mut self, now: Instant) -> anyhow::Result<()> {
        if self.due <= now {
            self.end.handle_timeout(now, &mut self.out)?;
            self.flush();
        }
        if self.report_due <= now
            && let Some(sink) = &mut self.sink
        {
            self.report_due = now + REPORT;
            if let Some((to, report)) = sink.report() {
                let _ = self.socket.send_to(&report, to);
            }
        }
        Ok(())
    }

    fn flush(&mut self) {
        for (to, datagram) in self.out.datagrams.drain(..) {
            // A full socket drops the datagram, as any path may.
            let _ = self.socket.send_to(&datagram, to);
        }
        self.due = self.end.timeout();
    }

    fn hear(&mut self, began: Instant, delays_us: &mut Vec<u64>, connected: &mut usize) -> anyhow::Result<()> {
        let now_us = began.elapsed().as_micros() as u64;
        for event in self.out.events.drain(..) {
            match event {
                MediaEvent::Connected => *connected += usize::from(!std::mem::replace(&mut self.is_connected, true)),
                MediaEvent::Packet { payload, time, .. } => {
                    let at_us = u64::from_be_bytes(payload.get(6..HEAD_BYTES).context("a packet of ours")?.try_into()?);
                    self.shift = time.wrapping_sub(ticks(Duration::from_micros(at_us)));
                    delays_us.push(now_us.saturating_sub(at_us));
                }
                MediaEvent::Closed => anyhow::bail!("the server has closed a client"),
                // Every video frame is a keyframe, and the rate is fixed.
                MediaEvent::KeyframeWanted { .. } | MediaEvent::Estimate { .. } => {}
            }
        }
        Ok(())
    }
}
