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
        let far = far_thread.to_string();
        ip(&["link", "add", NEAR_DEVICE, "type", "veth", "peer", "name", FAR_DEVICE, "netns", &far])?;
        ip(&["addr", "add", &format!("{NEAR}/24"), "dev", NEAR_DEVICE])?;
        up(NEAR_DEVICE)
    }

    fn plug_far(&self) -> anyhow::Result<()> {
        ip(&["addr", "add", &format!("{FAR}/24"), "dev", FAR_DEVICE])?;
        up(FAR_DEVICE)
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
    let of = process.map_or_else(|| "thread-self".to_owned(), |id| id.to_string());
    let text = std::fs::read_to_string(format!("/proc/{of}/net/dev"))?;
    drops_of(&text, device).with_context(|| format!("no device {device} in /proc/{of}/net/dev"))
}

/// Source: kernel documentation, "networking/statistics.rst".
fn drops_of(text: &str, device: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    let counters: Vec<u64> = line.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    let (received, sent) = (counters.get(3)?, counters.get(11)?);
    Some(received + sent)
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
    fn drops_of_a_device_are_the_sum_of_both_directions() {
        let text = "Inter-| Receive | Transmit\n face |bytes packets errs drop\n\
                      lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  near: 0 0 0 5 0 0 0 0 0 0 0 7 0 0 0 0\n";
        assert_eq!((drops_of(text, "near"), drops_of(text, "lo"), drops_of(text, "ear")), (Some(12), Some(16), None));
    }
}
