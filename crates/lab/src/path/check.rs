//! `millrace lab link check`: proves on the machine at hand that the emulated link does what its settings say.
//!
//! Each check sends UDP datagrams over a link between two namespaces, and compares what arrives with the settings.

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, ensure};
use serde::Serialize;

use millrace_link::{Config, PipeConfig, Probability, QueueLimit, Rate, Traces, loss::GilbertElliott};

use super::{Report, TunCable};
use crate::{
    histogram::Histogram,
    wire::namespace::{self, Cable, NEAR_DEVICE, Veth},
};

/// IP and UDP headers.
const HEADER_BYTES: usize = 28;
/// Datagrams of the checks of loss.
pub const LOSS_PACKETS: u32 = 100_000;
/// Datagrams per second of the checks of loss: slow enough that no queue of the kernel fills.
const LOSS_PER_S: f64 = 20_000.0;
/// Payload of the checks of a rate, and the size of its IP packets.
const PAYLOAD_BYTES: usize = 1200;
const PACKET_BYTES: f64 = (PAYLOAD_BYTES + HEADER_BYTES) as f64;
/// Bytes of an Ethernet header, which the kernel's shaper counts.
const ETHERNET_BYTES: f64 = 14.0;
/// Load of the checks of a rate.
const OVERLOAD: f64 = 1.3;
/// Rate that is also measured over a link of the kernel, in bits per second.
const SHAPED: u64 = 10_000_000;
const PINGS: u32 = 300;
const PING_EVERY: Duration = Duration::from_millis(10);
/// Silence after which no more datagrams are expected.
const SILENCE: Duration = Duration::from_millis(500);
/// Port of the echo at the far end.
const PORT: u16 = 7;

/// One figure that was checked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    pub name: String,
    pub unit: &'static str,
    pub expected: f64,
    pub measured: f64,
    /// Largest allowed difference.
    pub tolerance: f64,
}

impl Check {
    pub fn is_good(&self) -> bool {
        (self.measured - self.expected).abs() <= self.tolerance
    }
}

/// All checks, and what the emulator cost.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub checks: Vec<Check>,
    /// Time from the exact release of a packet until it was written, over all checks.
    pub lateness: Histogram,
    /// CPU time of the emulator per packet at 100 Mbit/s, in microseconds.
    pub cpu_us_per_packet: f64,
    /// Checks that this machine cannot run, with the reason.
    pub skipped: Vec<String>,
    /// Delay that the emulator adds at 100 Mbit/s.
    pub added_delay: Histogram,
}

/// Datagrams received at one end.
struct Arrivals {
    /// Number and time of each datagram.
    datagrams: Vec<(u32, Instant)>,
}

impl Arrivals {
    /// Returns the rate at which packets of [`PACKET_BYTES`] arrived.
    fn mbit_per_s(&self) -> anyhow::Result<f64> {
        let (first, last) = self.datagrams.first().zip(self.datagrams.last()).context("nothing arrived")?;
        let bits = (self.datagrams.len() - 1) as f64 * PACKET_BYTES * 8.0;
        Ok(bits / (last.1 - first.1).as_secs_f64() / 1e6)
    }

    fn lost_share(&self, sent: u32) -> f64 {
        1.0 - self.datagrams.len() as f64 / f64::from(sent)
    }

    /// Returns the mean length of a run of lost datagrams.
    fn mean_burst(&self) -> f64 {
        let gaps = self.datagrams.windows(2).map(|pair| pair[1].0 - pair[0].0 - 1).filter(|gap| *gap > 0);
        let (count, sum) = gaps.fold((0, 0), |(count, sum), gap| (count + 1, sum + gap));
        f64::from(sum) / f64::from(count.max(1))
    }
}

/// Runs all checks. `progress` is called with the name of each before it starts. `seed`: of the links.
///
/// Errors: no root, no `/dev/net/tun`, or no `ip`.
pub fn run(seed: u64, mut progress: impl FnMut(&str)) -> anyhow::Result<Outcome> {
    let (lateness, added_delay) = Default::default();
    let mut outcome =
        Outcome { checks: Vec::new(), lateness, cpu_us_per_packet: 0.0, skipped: Vec::new(), added_delay };
    for delay_ms in [5, 41] {
        progress(&format!("round trip over 2 x {delay_ms} ms"));
        let pipe = PipeConfig { delay: Duration::from_millis(delay_ms), ..PipeConfig::default() };
        let config = Config { up: pipe.clone(), down: pipe, ..Config::default() };
        let expected = Duration::from_millis(2 * delay_ms);
        let (errors, report) = over(config, seed, |near, far| ping(near, far, expected))?;
        for (name, share, tolerance) in [("median", 0.5, 0.5), ("p90", 0.9, 0.5)] {
            let measured = quantile(&errors, share);
            outcome.add(
                format!("error of the round trip over 2 x {delay_ms} ms, {name}"),
                "ms",
                (0.0, measured),
                tolerance,
            );
        }
        outcome.count(&report);
    }
    for rate in ["1Mbit/s", "10Mbit/s", "100Mbit/s"] {
        progress(&format!("rate of {rate}"));
        let rate: Rate = rate.parse()?;
        let config = up(PipeConfig { rate: Some(rate), queue: Some(QueueLimit::Packets(50)), ..PipeConfig::default() });
        let seconds = 3.0;
        let per_s = OVERLOAD * rate.bits_per_s() as f64 / (8.0 * PACKET_BYTES);
        let (arrivals, report) = one_way(config, seed, (per_s * seconds) as u32, PAYLOAD_BYTES, per_s)?;
        let measured = arrivals.mbit_per_s()?;
        let expected = rate.bits_per_s() as f64 / 1e6;
        outcome.add(format!("rate of {rate} at 130 % load"), "Mbit/s", (expected, measured), 0.01 * expected);
        outcome.count(&report);
        if rate.bits_per_s() == SHAPED {
            outcome.second_opinion(measured, seconds);
        }
        // The last rate is 100 Mbit/s.
        outcome.cpu_us_per_packet = report.cpu_per_packet().as_secs_f64() * 1e6;
        outcome.added_delay = report.lateness;
    }
    progress("queue of 1 s at 1 Mbit/s");
    let queue = Some(QueueLimit::Time(Duration::from_secs(1)));
    let config = up(PipeConfig { rate: Some("1Mbit/s".parse()?), queue, ..PipeConfig::default() });
    let (arrivals, report) = one_way(config, seed, 200, 1500 - HEADER_BYTES, f64::INFINITY)?;
    outcome.add("queue of 1 s at 1 Mbit/s".into(), "packets", (83.0, arrivals.datagrams.len() as f64), 0.0);
    outcome.count(&report);
    for percent in [1.0, 5.0, 10.0, 20.0] {
        progress(&format!("loss of {percent} %"));
        let pipe = PipeConfig { loss: Probability::new(percent / 100.0)?, ..PipeConfig::default() };
        let config = Config { up: pipe.clone(), down: pipe, ..Config::default() };
        let ((arrived, relayed), report) = there_and_back(config, seed)?;
        let once = percent / 100.0;
        let twice = 1.0 - (1.0 - once).powi(2);
        for (name, expected, measured) in [("", once, arrived), ("relayed ", twice, relayed)] {
            let sigma = (expected * (1.0 - expected) / f64::from(LOSS_PACKETS)).sqrt();
            let name = format!("{name}loss of {percent} % each way, {LOSS_PACKETS} packets");
            outcome.add(name, "%", (expected * 100.0, measured * 100.0), 3.0 * sigma * 100.0);
        }
        outcome.count(&report);
    }
    progress("losses in bursts");
    let model = GilbertElliott {
        a: Probability::new(1.0 / 90.0)?,
        r: Probability::new(1.0 / 3.0)?,
        e_g: Probability::ZERO,
        e_b: Probability::ONE,
        step: None,
    };
    let config = up(PipeConfig { gilbert_elliott: Some(model), ..PipeConfig::default() });
    let (arrivals, report) = one_way(config, seed, LOSS_PACKETS, 100, LOSS_PER_S)?;
    let (mean, rho) = (model.mean_loss(), 1.0 - model.a.get() - model.r.get());
    // The losses of a burst depend on each other, so sigma is larger than the binomial one.
    let sigma = (mean * (1.0 - mean) / f64::from(LOSS_PACKETS)).sqrt() * ((1.0 + rho) / (1.0 - rho)).sqrt();
    let measured = arrivals.lost_share(LOSS_PACKETS);
    outcome.add("loss in bursts".into(), "%", (mean * 100.0, measured * 100.0), 3.0 * sigma * 100.0);
    outcome.add("mean burst".into(), "packets", (3.0, arrivals.mean_burst()), 0.2);
    outcome.count(&report);
    Ok(outcome)
}

impl Outcome {
    pub fn is_good(&self) -> bool {
        self.checks.iter().all(Check::is_good)
    }

    fn add(&mut self, name: String, unit: &'static str, (expected, measured): (f64, f64), tolerance: f64) {
        self.checks.push(Check { name, unit, expected, measured, tolerance });
    }

    /// Compares a rate with that of the kernel's own shaper, on a pair of virtual Ethernet devices.
    fn second_opinion(&mut self, measured: f64, seconds: f64) {
        let per_s = OVERLOAD * SHAPED as f64 / (8.0 * PACKET_BYTES);
        let shaped =
            across(&ShapedVeth, |near, far| send_one_way(near, far, (per_s * seconds) as u32, PAYLOAD_BYTES, per_s));
        match shaped.and_then(|arrivals| arrivals.mbit_per_s()) {
            Ok(of_kernel) => {
                let expected = of_kernel * (PACKET_BYTES + ETHERNET_BYTES) / PACKET_BYTES;
                let name = "rate of 10Mbit/s beside the kernel's shaper (TBF)".into();
                self.add(name, "Mbit/s", (expected, measured), 0.01 * expected);
            }
            Err(error) => self.skipped.push(format!("rate beside the kernel's shaper (TBF): {error:#}")),
        }
    }

    fn count(&mut self, report: &Report) {
        self.lateness.add(&report.lateness);
    }
}

fn up(up: PipeConfig) -> Config {
    Config { up, ..Config::default() }
}

/// Runs `measure` at the near end of a link, with a socket and the address of the far end. The far end sends every
/// datagram back.
fn over<T: Send>(
    config: Config,
    seed: u64,
    measure: impl FnOnce(&UdpSocket, &UdpSocket) -> anyhow::Result<T> + Send,
) -> anyhow::Result<(T, Report)> {
    let cable = TunCable::new(config, Traces::default(), seed, None);
    let result = across(&cable, measure)?;
    Ok((result, cable.finish()?))
}

fn across<T: Send>(
    cable: &impl Cable,
    measure: impl FnOnce(&UdpSocket, &UdpSocket) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    // The emulated link translates the address of the far end to that of loopback, and a pair of devices does not.
    let far = || -> anyhow::Result<UdpSocket> { socket(SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT))) };
    namespace::across(cable, far, |far| {
        let near = socket(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        near.connect((namespace::FAR, PORT))?;
        measure(&near, &far)
    })
}

/// A pair of virtual Ethernet devices with the kernel's token bucket filter at the near end.
struct ShapedVeth;

impl Cable for ShapedVeth {
    fn plug_near(&self, far_thread: i32) -> anyhow::Result<()> {
        Veth.plug_near(far_thread)?;
        let rate = format!("{SHAPED}bit");
        // The smallest burst that holds a packet: a larger one would exceed the rate at first.
        let shaper =
            ["qdisc", "add", "dev", NEAR_DEVICE, "root", "tbf", "rate", &rate, "burst", "1600", "limit", "60000"];
        let output = Command::new("tc").args(shaper).output().context("`tc` is needed (Debian: iproute2)")?;
        ensure!(output.status.success(), "tc: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }

    fn plug_far(&self) -> anyhow::Result<()> {
        Veth.plug_far()
    }
}

fn socket(address: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_read_timeout(Some(SILENCE))?;
    socket2::SockRef::from(&socket).set_recv_buffer_size(8 << 20)?;
    Ok(socket)
}

/// Returns the errors of round trips in milliseconds.
fn ping(near: &UdpSocket, far: &UdpSocket, expected: Duration) -> anyhow::Result<Vec<f64>> {
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| receive(far, Some(far)));
        let mut errors = Vec::new();
        let mut answer = [0; 16];
        for number in 0..PINGS {
            let sent = Instant::now();
            near.send(&number.to_le_bytes())?;
            let length = near.recv(&mut answer).context("a round trip took too long")?;
            let round_trip = sent.elapsed();
            ensure!(answer[..length] == number.to_le_bytes(), "an answer came twice");
            errors.push((round_trip.as_secs_f64() - expected.as_secs_f64()) * 1000.0);
            std::thread::sleep(PING_EVERY);
        }
        echo.join().map_err(|_| anyhow!("the echo died"))??;
        Ok(errors)
    })
}

/// Sends numbered datagrams with `bytes` of payload from the near end, and returns what arrives at the far end.
fn one_way(config: Config, seed: u64, count: u32, bytes: usize, per_s: f64) -> anyhow::Result<(Arrivals, Report)> {
    over(config, seed, |near, far| send_one_way(near, far, count, bytes, per_s))
}

fn send_one_way(near: &UdpSocket, far: &UdpSocket, count: u32, bytes: usize, per_s: f64) -> anyhow::Result<Arrivals> {
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(far, None));
        send(near, count, bytes, per_s)?;
        receiver.join().map_err(|_| anyhow!("the receiver died"))?
    })
}

/// Sends datagrams to the far end, which relays them back. Returns the shares that were lost upstream, and in
/// all.
fn there_and_back(config: Config, seed: u64) -> anyhow::Result<((f64, f64), Report)> {
    over(config, seed, |near, far| {
        std::thread::scope(|scope| {
            let relay = scope.spawn(|| receive(far, Some(far)));
            let returned = scope.spawn(|| receive(near, None));
            send(near, LOSS_PACKETS, 100, LOSS_PER_S)?;
            let died = |_| anyhow!("a receiver died");
            let (arrived, returned) = (relay.join().map_err(died)??, returned.join().map_err(died)??);
            Ok((arrived.lost_share(LOSS_PACKETS), returned.lost_share(LOSS_PACKETS)))
        })
    })
}

fn send(socket: &UdpSocket, count: u32, bytes: usize, per_s: f64) -> anyhow::Result<()> {
    let mut datagram = vec![0; bytes.max(4)];
    let start = Instant::now();
    for number in 0..count {
        let due = Duration::from_secs_f64(f64::from(number) / per_s);
        // Sleep in steps of at least a millisecond: datagrams that became due meanwhile are sent together.
        if due > start.elapsed() + Duration::from_millis(1) {
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
        datagram[..4].copy_from_slice(&number.to_le_bytes());
        socket.send(&datagram)?;
    }
    Ok(())
}

/// Receives datagrams until nothing has arrived for [`SILENCE`]; sends each back through `relay`.
fn receive(socket: &UdpSocket, relay: Option<&UdpSocket>) -> anyhow::Result<Arrivals> {
    let mut datagrams = Vec::new();
    let mut buffer = [0; 2048];
    let start = Instant::now();
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => {
                datagrams.push((u32::from_le_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]), Instant::now()));
                if let Some(relay) = relay {
                    relay.send_to(&buffer[..length], from)?;
                }
            }
            // The first datagram may need longer than the others.
            Err(_) if datagrams.is_empty() && start.elapsed() < 10 * SILENCE => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(Arrivals { datagrams }),
            Err(error) => return Err(error.into()),
        }
    }
}

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get((values.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN)
}
