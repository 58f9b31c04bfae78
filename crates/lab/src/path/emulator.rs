//! The thread that lets packets pass a link in real time.

use std::{
    fs::File,
    io::{self, BufWriter},
    net::Ipv4Addr,
    num::NonZeroU64,
    os::fd::AsFd,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use millrace_link::{Cause, Config, Counters, Direction, Link, Time, Traces};
use rustix::{
    event::{Timespec, epoll},
    thread::set_current_timer_slack,
    time::{ClockId, clock_gettime},
};
use tun_rs::SyncDevice;

use super::{
    activity::{Activity, DevicePacket},
    ethernet,
    heads::{Heads, MediaHead},
    packet::IpPacket,
    pcapng::PcapNg,
    stamped::Stamped,
};
use crate::{
    histogram::Histogram,
    host::limits,
    recording::{Finding, LinkCounts, LinkRun},
};

/// Packets that are read from one device before packets are released.
const READS_MAX: usize = 64;
/// Largest packet that a device can deliver.
const BUFFER_BYTES: usize = 64 * 1024;
/// Time before a release from which the thread does not sleep any more, because the kernel wakes it late.
const SPIN: Duration = Duration::from_micros(100);
/// Smallest time between releases for which the thread spins. A busy link would take a whole CPU otherwise.
const SPIN_GAP_MIN: Duration = Duration::from_micros(500);
/// Time after which the thread looks whether it must stop.
const LOOK: Duration = Duration::from_millis(20);

/// Share of one core above which the emulator limits a run.
const CORES_MAX: f64 = 0.85;
/// Lateness (p99) above which the delay of a run is not that of its link.
const LATE_MAX_US: f64 = 2000.0;

/// A running link between two devices.
pub struct Emulator {
    thread: JoinHandle<anyhow::Result<Report>>,
    stop: Arc<AtomicBool>,
    commands: mpsc::Sender<(Config, Traces)>,
    live: Arc<Mutex<Live>>,
}

/// State of a running link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Time since the start of the link.
    pub at: Duration,
    pub up: LiveDirection,
    pub down: LiveDirection,
}

/// State of one direction of a running link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveDirection {
    pub counters: Counters,
    /// Packets and bytes in the queue, the packet that is being sent included.
    pub queue_packets: u64,
    pub queue_bytes: u64,
    /// Time that a packet which arrives now stays in the queue.
    pub queue_delay: Duration,
    /// Sum of the times that the delivered packets were on the link.
    pub delay_sum: Duration,
    /// Longest of these times since the last call of [`Emulator::live`].
    pub delay_max: Duration,
}

/// Counters of an emulated link, and the cost of the emulator itself.
#[derive(Clone, Debug)]
pub struct Report {
    pub up: Counters,
    pub down: Counters,
    /// Time from the exact release of a packet until the emulator wrote it.
    pub lateness: Histogram,
    pub cpu: Duration,
    pub wall: Duration,
    /// Packets that are no IPv4. They never enter the link.
    pub foreign: u64,
    /// Packets that a device refused.
    pub write_errors: u64,
    /// Packets that took the way around the link.
    pub bypassed: u64,
    /// Time at which the link started. [`Activity`] counts from it.
    pub started: Instant,
    /// Packets of the devices at the near end, if they were recorded.
    pub activity: Activity,
    /// Heads of the media packets at the near end, if they were recorded.
    pub heads: Heads,
}

impl Report {
    /// CPU time of the emulator per packet that was handed to it.
    pub fn cpu_per_packet(&self) -> Duration {
        let packets = self.up.received + self.down.received + self.bypassed;
        Duration::from_nanos(self.cpu.as_nanos() as u64 / packets.max(1))
    }

    /// Returns the report as recordings contain it. `kernel_drops`: packets that the devices dropped.
    pub fn link_run(&self, path: String, congestion: String, kernel_drops: u64) -> LinkRun {
        LinkRun {
            path,
            congestion,
            up: counts(&self.up),
            down: counts(&self.down),
            cpu_us_per_packet: self.cpu_per_packet().as_secs_f64() * 1e6,
            cpu_cores: self.cpu.as_secs_f64() / self.wall.as_secs_f64().max(f64::MIN_POSITIVE),
            late_p50_us: self.lateness.quantile_us(0.5).unwrap_or_default() as f64,
            late_p99_us: self.lateness.quantile_us(0.99).unwrap_or_default() as f64,
            kernel_drops: kernel_drops + self.write_errors,
            readers: None,
        }
    }
}

fn counts(counters: &Counters) -> LinkCounts {
    let of = |causes: &[Cause]| causes.iter().map(|cause| counters.dropped(*cause)).sum();
    LinkCounts {
        received: counters.received,
        received_bytes: counters.received_bytes,
        delivered: counters.delivered,
        delivered_bytes: counters.delivered_bytes,
        lost: of(&[Cause::Channel, Cause::Outage, Cause::Nat]),
        dropped: of(&[Cause::QueueFull, Cause::QueueDelay]),
        queue_packets_max: counters.queue_packets_max,
        queue_delay_max_ms: counters.queue_delay_max.as_secs_f64() * 1000.0,
    }
}

impl LinkRun {
    /// Describes what passed the link, and what the emulator cost, for the notes of a table.
    pub fn cost(&self) -> String {
        format!(
            "over {}, {} packets, {} lost, {} dropped by its queues; the emulator took {:.1} us of CPU per packet and added {:.0} us of delay (p99)",
            self.path,
            self.up.received + self.down.received,
            self.up.lost + self.down.lost,
            self.up.dropped + self.down.dropped,
            self.cpu_us_per_packet,
            self.late_p99_us
        )
    }

    /// Returns what speaks against a run over this link: the emulator, not the network that it emulates, was the limit.
    pub fn findings(&self) -> Vec<Finding> {
        let finding = |code: &str, detail: String| Finding { code: code.into(), detail, invalidates: true };
        let mut findings = Vec::new();
        if self.cpu_cores > CORES_MAX {
            findings.push(finding("link_bound", format!("the emulated link used {:.2} of a core", self.cpu_cores)));
        }
        if self.late_p99_us > LATE_MAX_US {
            findings
                .push(finding("link_late", format!("packets left the link late by {:.0} us (p99)", self.late_p99_us)));
        }
        if self.kernel_drops > 0 {
            let detail = format!("the devices of the link dropped {} packets", self.kernel_drops);
            findings.push(finding("link_drops", detail));
        }
        findings
    }
}

/// The two ends of a link. The client is at the near end.
pub struct Ends {
    pub near: End,
    pub far: End,
    /// If set: address of the far end, which the link translates to 127.0.0.1, so that servers are reached that listen
    /// on loopback only. The far device must have `route_localnet`.
    pub far_address: Option<Ipv4Addr>,
    /// Addresses at the near and the far end between which packets take the way around the link, without delay or
    /// losses. The link translates the one of the far end, too.
    pub bypass: Option<(Ipv4Addr, Ipv4Addr)>,
}

/// A device at one end of a link, and what it carries.
pub enum End {
    /// TUN: IP packets.
    Tun(SyncDevice),
    /// TAP: Ethernet frames, for a bridge. The link carries only their IPv4 packets, so it answers no ARP: the MAC
    /// addresses follow from the IP addresses.
    Tap(SyncDevice),
}

impl End {
    fn device(&self) -> &SyncDevice {
        let (End::Tun(device) | End::Tap(device)) = self;
        device
    }

    /// Returns the packet in what was read from the device.
    fn packet(&self, bytes: &[u8]) -> Option<IpPacket> {
        match self {
            End::Tun(_) => IpPacket::parse(bytes),
            End::Tap(_) => ethernet::packet(bytes),
        }
    }

    fn send(&self, packet: &IpPacket) -> io::Result<usize> {
        match self {
            End::Tun(device) => device.send(packet.as_bytes()),
            End::Tap(device) => device.send(&ethernet::frame(packet)),
        }
    }
}

/// Records of single packets, in addition to the counters of a link.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// File for all packets that leave the link (pcapng).
    pub log: Option<PathBuf>,
    /// Whether the report has the activity of the devices.
    pub activity: bool,
    /// Whether the report has the heads of media packets.
    pub heads: bool,
}

impl Emulator {
    /// Starts the thread.
    ///
    /// Errors: an invalid configuration, or the log cannot be created.
    pub fn start(config: Config, traces: &Traces, seed: u64, ends: Ends, records: Records) -> anyhow::Result<Self> {
        let link = Link::new(config, traces, seed)?;
        let Records { log, activity, heads } = records;
        let log = log.map(|path| -> anyhow::Result<_> {
            let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
            Ok(PcapNg::new(BufWriter::new(file), &["up", "down"])?)
        });
        let log = log.transpose()?;
        let (stop, live) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Live::default())));
        let (commands, inbox) = mpsc::channel();
        let delays = [Delays::default(); 2];
        let worker = Worker {
            link,
            ends,
            log,
            has_activity: activity,
            has_heads: heads,
            stop: stop.clone(),
            inbox,
            live: live.clone(),
            delays,
        };
        let thread = std::thread::Builder::new().name("link".into()).spawn(move || worker.run())?;
        Ok(Self { thread, stop, commands, live })
    }

    /// Changes the settings while the link runs; the counters go on. Settings that are not valid change nothing.
    pub fn configure(&self, config: Config, traces: Traces) {
        // The thread may have ended by an error, which `stop` returns.
        let _ = self.commands.send((config, traces));
    }

    /// Returns the state of at most 20 ms ago.
    pub fn live(&self) -> Live {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let state = *live;
        (live.up.delay_max, live.down.delay_max) = (Duration::ZERO, Duration::ZERO);
        state
    }

    /// Stops the link. Packets on it are lost.
    ///
    /// Errors: a device failed.
    pub fn stop(self) -> anyhow::Result<Report> {
        self.stop.store(true, Relaxed);
        self.thread.join().map_err(|_| anyhow!("the thread of the link died"))?
    }
}

/// Times that packets of one direction were on the link.
#[derive(Clone, Copy, Default)]
struct Delays {
    sum: Duration,
    /// Longest time since the last publication of the state.
    max: Duration,
}

struct Worker {
    link: Link<Stamped>,
    ends: Ends,
    log: Option<PcapNg<BufWriter<File>>>,
    has_activity: bool,
    has_heads: bool,
    stop: Arc<AtomicBool>,
    inbox: mpsc::Receiver<(Config, Traces)>,
    live: Arc<Mutex<Live>>,
    /// Up and down.
    delays: [Delays; 2],
}

impl Worker {
    fn run(mut self) -> anyhow::Result<Report> {
        limits::raise_priority_of_link();
        // Without this, the kernel may wake the thread 50 us late.
        set_current_timer_slack(NonZeroU64::new(1))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for device in [&self.ends.near, &self.ends.far].map(End::device) {
            device.set_nonblocking(true)?;
            epoll::add(&epoll, device, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        let (start, started) = (monotonic_ns(), Instant::now());
        let now = || Time::from_ns(monotonic_ns() - start);
        let cpu_start = cpu();
        let mut report = Report {
            up: Counters::default(),
            down: Counters::default(),
            lateness: Histogram::default(),
            cpu: Duration::ZERO,
            wall: Duration::ZERO,
            foreign: 0,
            write_errors: 0,
            bypassed: 0,
            started,
            activity: Activity::default(),
            heads: Heads::default(),
        };
        let mut buffer = vec![0; BUFFER_BYTES];
        let (mut last_release, mut looked) = (Time::ZERO, Time::ZERO);
        let mut events = Vec::with_capacity(4);
        loop {
            let mut is_more = false;
            for direction in Direction::BOTH {
                is_more |= self.read(direction, &mut buffer, now(), &mut report)?;
            }
            let current = now();
            while let Some((direction, release, Stamped { packet, arrival })) = self.link.poll_output(current) {
                let (delays, delay) = (&mut self.delays[direction as usize], release.since(arrival));
                (delays.sum, delays.max) = (delays.sum + delay, delays.max.max(delay));
                self.write(direction, (release, current), packet, &mut report)?;
                report.lateness.record_ns(now().since(release).as_nanos() as u64);
                last_release = current;
            }
            if current.since(looked) >= LOOK {
                looked = current;
                self.publish(current);
                if self.stop.load(Relaxed) {
                    break;
                }
                while let Ok((config, traces)) = self.inbox.try_recv() {
                    let _ = self.link.configure(config, &traces, current);
                }
            }
            if is_more {
                continue;
            }
            let wait = self.link.poll_timeout().map_or(LOOK, |next| next.since(now())).min(LOOK);
            let spins = wait < LOOK && current.since(last_release) + wait >= SPIN_GAP_MIN;
            match spins {
                true if wait <= SPIN => {
                    std::hint::spin_loop();
                    continue;
                }
                true => sleep(&epoll, &mut events, wait - SPIN)?,
                false => sleep(&epoll, &mut events, wait)?,
            }
        }
        if let Some(log) = self.log {
            log.finish()?;
        }
        (report.up, report.down) =
            (*self.link.pipe(Direction::Up).counters(), *self.link.pipe(Direction::Down).counters());
        (report.cpu, report.wall) = (cpu() - cpu_start, now().since(Time::ZERO));
        Ok(report)
    }

    /// Reads packets that go in a direction. Returns true if there may be more.
    fn read(&mut self, direction: Direction, buffer: &mut [u8], now: Time, report: &mut Report) -> io::Result<bool> {
        for _ in 0..READS_MAX {
            let end = match direction {
                Direction::Up => &self.ends.near,
                Direction::Down => &self.ends.far,
            };
            match end.device().recv(buffer) {
                Ok(length) => match end.packet(&buffer[..length]) {
                    Some(packet) => self.accept(direction, packet, now, report),
                    None => report.foreign += 1,
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Hands a packet to the link, or lets it take the way around the link.
    fn accept(&mut self, direction: Direction, mut packet: IpPacket, now: Time, report: &mut Report) {
        let is_local = direction == Direction::Down && packet.source() == Ipv4Addr::LOCALHOST;
        if let Some((near, far)) = self.ends.bypass {
            let is_bypassed = match direction {
                Direction::Up => packet.destination() == far,
                Direction::Down => packet.destination() == near,
            };
            if is_bypassed {
                match direction {
                    Direction::Up => packet.set_destination(Ipv4Addr::LOCALHOST),
                    Direction::Down if is_local => packet.set_source(far),
                    Direction::Down => {}
                }
                report.bypassed += 1;
                return self.send(direction, &packet, report);
            }
        }
        if let Some(address) = self.ends.far_address.filter(|_| is_local) {
            packet.set_source(address);
        }
        if direction == Direction::Up {
            self.record(direction, packet.source(), &packet, now, report);
        }
        self.link.handle_input(direction, Stamped { packet, arrival: now }, now);
    }

    fn record(&self, direction: Direction, device: Ipv4Addr, packet: &IpPacket, at: Time, report: &mut Report) {
        if self.has_activity {
            let bytes = packet.as_bytes().len() as u16;
            report.activity.record(DevicePacket { at, device, direction, bytes });
        }
        if let Some(head) = self.has_heads.then(|| MediaHead::read(packet, direction, at)).flatten() {
            report.heads.record(head);
        }
    }

    /// Writes a packet that the link has released, at the time `now`.
    fn write(
        &mut self,
        direction: Direction,
        (release, now): (Time, Time),
        mut packet: IpPacket,
        report: &mut Report,
    ) -> io::Result<()> {
        if let Some(log) = &mut self.log {
            log.packet(direction as u32, release.ns(), packet.as_bytes(), "")?;
        }
        match direction {
            Direction::Up if Some(packet.destination()) == self.ends.far_address => {
                packet.set_destination(Ipv4Addr::LOCALHOST);
            }
            Direction::Up => {}
            Direction::Down => self.record(direction, packet.destination(), &packet, now, report),
        }
        self.send(direction, &packet, report);
        Ok(())
    }

    fn send(&self, direction: Direction, packet: &IpPacket, report: &mut Report) {
        let end = match direction {
            Direction::Up => &self.ends.far,
            Direction::Down => &self.ends.near,
        };
        // A device refuses packets when its namespace has ended or its queue is full; the kernel counts neither.
        report.write_errors += u64::from(end.send(packet).is_err());
    }

    fn publish(&mut self, now: Time) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.at = now.since(Time::ZERO);
        for direction in Direction::BOTH {
            let (pipe, delays) = (self.link.pipe(direction), &mut self.delays[direction as usize]);
            let state = match direction {
                Direction::Up => &mut live.up,
                Direction::Down => &mut live.down,
            };
            let (queue_packets, queue_bytes) = pipe.queue(now);
            *state = LiveDirection {
                counters: *pipe.counters(),
                queue_packets,
                queue_bytes,
                queue_delay: pipe.queue_delay(now),
                delay_sum: delays.sum,
                delay_max: state.delay_max.max(delays.max),
            };
            delays.max = Duration::ZERO;
        }
    }
}

fn sleep(epoll: impl AsFd, events: &mut Vec<epoll::Event>, wait: Duration) -> io::Result<()> {
    events.clear();
    let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
    match epoll::wait(epoll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the CPU time of this thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
