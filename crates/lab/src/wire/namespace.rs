//! Two network namespaces connected by a [`Cable`], such as a veth pair. Packets have the size of a real network, and
//! no other traffic is present.
//!
//! Loopback has an MTU of 65,536, so each message would be one segment. Offloading is off, because the kernel would
//! otherwise pass several segments with one header. Needs root and `ip` (iproute2). The namespaces disappear when
//! their last thread and process has ended.

use std::{net::Ipv4Addr, process::Command, sync::mpsc, thread, time::Duration};

use anyhow::{Context, anyhow, ensure};
use nix::sched::{CloneFlags, unshare};

/// Addresses of the near end (the client) and the far end (the server).
pub const NEAR: Ipv4Addr = Ipv4Addr::new(10, 213, 0, 1);
pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 213, 0, 2);
/// A second address at the far end, for peers that bind it. An emulated link translates [`FAR`] to 127.0.0.1, so that
/// sockets that are bound to [`FAR`] receive nothing.
pub const FAR_PEERS: Ipv4Addr = Ipv4Addr::new(10, 213, 0, 3);
/// Addresses of a way around an emulated link, for a client that is near the server.
pub const BYPASS_NEAR: Ipv4Addr = Ipv4Addr::new(10, 213, 1, 1);
pub const BYPASS_FAR: Ipv4Addr = Ipv4Addr::new(10, 213, 1, 2);
/// Network of the devices at the near end of an emulated link: each client is a device with an address of its own.
pub const DEVICES: &str = "10.214.0.0/16";
/// Number of addresses that [`device`] returns.
const DEVICES_MAX: usize = 65_000;
pub const MTU: u32 = 1500;
/// Names of the devices at both ends.
pub const NEAR_DEVICE: &str = "near";
pub const FAR_DEVICE: &str = "far";
const PATIENCE: Duration = Duration::from_secs(10);

/// Connection of the two namespaces. The near end is plugged first.
pub trait Cable: Sync {
    /// Creates the device of the near end, in its namespace. `far_thread` is the id of a thread in the far namespace.
    fn plug_near(&self, far_thread: i32) -> anyhow::Result<()>;

    /// Creates or configures the device of the far end, in its namespace.
    fn plug_far(&self) -> anyhow::Result<()>;
}

/// A pair of virtual Ethernet devices.
pub struct Veth;

impl Cable for Veth {
    fn plug_near(&self, far_thread: i32) -> anyhow::Result<()> {
        plug(NEAR, FAR_DEVICE, far_thread)
    }

    fn plug_far(&self) -> anyhow::Result<()> {
        configure(FAR_DEVICE, FAR)
    }
}

/// Connects two new namespaces by a cable. Runs `start` in the far one, then runs `measure` with its result in the near
/// namespace. `start` typically starts a server, whose processes stay in the far namespace.
///
/// Errors: no root privileges, no `ip`, or an error of `start` or `measure`.
pub fn across<S: Send, T: Send>(
    cable: &impl Cable,
    start: impl FnOnce() -> anyhow::Result<S> + Send,
    measure: impl FnOnce(S) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    thread::scope(|scope| {
        let (send_thread, near) = mpsc::channel();
        let (send_plugged, plugged) = mpsc::channel();
        let far = scope.spawn(move || -> anyhow::Result<S> {
            enter()?;
            send_thread.send(rustix::thread::gettid().as_raw_nonzero().get())?;
            plugged.recv_timeout(PATIENCE).context("the near end failed")?;
            cable.plug_far()?;
            start()
        });
        let near_end = scope.spawn(move || -> anyhow::Result<T> {
            enter()?;
            cable.plug_near(near.recv_timeout(PATIENCE).context("the far end failed")?)?;
            send_plugged.send(())?;
            let server = far.join().map_err(|_| anyhow!("the far end died"))??;
            measure(server)
        });
        near_end.join().map_err(|_| anyhow!("the near end died"))?
    })
}

/// A network namespace with a thread inside it.
///
/// It disappears when all copies of this value are dropped and all processes that were started inside it have ended.
#[derive(Clone)]
pub struct Namespace {
    work: mpsc::Sender<Box<dyn FnOnce() + Send>>,
}

impl Namespace {
    /// Errors: no root privileges, or no `ip`.
    pub fn new() -> anyhow::Result<Self> {
        let (work, jobs) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (send_entered, entered) = mpsc::channel();
        thread::Builder::new().name("namespace".into()).spawn(move || {
            // The other end waits for the result, also if it is an error.
            if send_entered.send(enter()).is_ok() {
                jobs.into_iter().for_each(|job| job());
            }
        })?;
        entered.recv().context("the thread of the namespace died")??;
        Ok(Self { work })
    }

    /// Runs a function inside the namespace, and waits for its result. Sockets and processes that it creates stay in
    /// the namespace.
    ///
    /// Errors: an earlier function has panicked.
    pub fn run<T: Send + 'static>(
        &self,
        act: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let (send_result, result) = mpsc::channel();
        // If the thread has ended, there is no result.
        let _ = self.work.send(Box::new(move || drop(send_result.send(act()))));
        result.recv().context("the thread of the namespace died")?
    }
}

/// Returns the address of client `i` at an emulated link. Clients share addresses from the 65,001st on.
pub fn device(i: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 214, 0, 1).to_bits() + (i % DEVICES_MAX) as u32)
}

/// Creates a pair of virtual Ethernet devices. The near end is in the namespace of this thread, the far end, with
/// another name, in that of `far_thread`. Only the near end gets an address and is up.
///
/// Errors: no root, or no `ip`.
pub fn plug(near: Ipv4Addr, far_device: &str, far_thread: i32) -> anyhow::Result<()> {
    let far = far_thread.to_string();
    ip(&["link", "add", NEAR_DEVICE, "type", "veth", "peer", "name", far_device, "netns", &far])?;
    configure(NEAR_DEVICE, near)
}

/// Gives a device an address in a network of 256, and starts it.
///
/// Errors: no root, or no such device.
pub fn configure(device: &str, address: Ipv4Addr) -> anyhow::Result<()> {
    add_address(device, address)?;
    up(device)
}

/// Gives a device one more address in a network of 256.
///
/// Errors: no root, or no such device.
pub fn add_address(device: &str, address: Ipv4Addr) -> anyhow::Result<()> {
    ip(&["addr", "add", &format!("{address}/24"), "dev", device])
}

/// Checks whether [`across`] works on this machine.
///
/// Errors: no root privileges, missing capabilities (in a container), or no `ip`.
pub fn check() -> anyhow::Result<()> {
    across(&Veth, || Ok(()), |()| Ok(()))
}

/// Returns the packets that a device has dropped, in the namespace of a process, or of this thread.
///
/// Errors: no such process or device.
pub fn drops(process: Option<u32>, device: &str) -> anyhow::Result<u64> {
    Ok(counters(process, device)?.drops)
}

/// Returns the bytes that a device has received and sent at IP level, in the namespace of this thread. The device must
/// carry IP packets, not frames.
///
/// Errors: no such device.
pub fn carried_bytes(device: &str) -> anyhow::Result<u64> {
    Ok(counters(None, device)?.bytes)
}

/// Returns the bytes that a device has received and sent, with Ethernet headers, in the namespace of a process,
/// or of this thread.
///
/// Errors: no such process or device.
pub fn frame_bytes(process: Option<u32>, device: &str) -> anyhow::Result<(u64, u64)> {
    let counters = counters(process, device)?;
    Ok((counters.received_bytes, counters.bytes - counters.received_bytes))
}

/// Counters of a device, as sums of both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DeviceCounters {
    bytes: u64,
    received_bytes: u64,
    drops: u64,
}

fn counters(process: Option<u32>, device: &str) -> anyhow::Result<DeviceCounters> {
    let of = process.map_or_else(|| "thread-self".to_owned(), |id| id.to_string());
    let text = std::fs::read_to_string(format!("/proc/{of}/net/dev"))?;
    counters_of(&text, device).with_context(|| format!("no device {device} in /proc/{of}/net/dev"))
}

/// Source: kernel documentation, "networking/statistics.rst".
fn counters_of(text: &str, device: &str) -> Option<DeviceCounters> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    let counters: Vec<u64> = line.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    let sum = |received: usize, sent: usize| Some(counters.get(received)? + counters.get(sent)?);
    Some(DeviceCounters { bytes: sum(0, 8)?, received_bytes: *counters.first()?, drops: sum(3, 11)? })
}

/// Moves this thread into a new network namespace, in which only loopback works. Programs that this thread starts are
/// in the same namespace.
///
/// Errors: no root, or no `ip`.
pub fn enter() -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).context("a network namespace needs root")?;
    ip(&["link", "set", "lo", "up"])
}

pub(crate) fn up(device: &str) -> anyhow::Result<()> {
    ip(&["link", "set", device, "mtu", &MTU.to_string(), "gso_max_segs", "1", "up"])
}

pub(crate) fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(arguments).output().context("`ip` is needed (Debian: iproute2)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}", arguments.join(" "), said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_is_a_device_of_the_network() {
        assert_eq!((device(0), device(299)), (Ipv4Addr::new(10, 214, 0, 1), Ipv4Addr::new(10, 214, 1, 44)));
        assert_eq!((device(64_999), device(65_000)), (Ipv4Addr::new(10, 214, 253, 232), device(0)));
    }

    #[test]
    fn counters_of_a_device_are_sums_of_both_directions() {
        let text = "Inter-| Receive | Transmit\n face |bytes packets errs drop\n\
                      lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  near: 0 0 0 5 0 0 0 0 0 0 0 7 0 0 0 0\n";
        let of = |device: &str| counters_of(text, device).map(|DeviceCounters { bytes, drops, .. }| (bytes, drops));
        assert_eq!((of("near"), of("lo"), of("ear")), (Some((0, 12)), Some((10, 16)), None));
    }
}
