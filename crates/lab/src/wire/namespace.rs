//! Two network namespaces connected by a [`Cable`], such as a veth pair. Packets have the size of a real network, and no
//! other traffic is present.
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

/// Connects two new namespaces by a cable. Runs `start` in the far one, then runs `measure` with its result in the near namespace. `start` typically
/// starts a server, whose processes stay in the far namespace.
///
/// Errors: no root privileges, no `ip`, or an error of `start` or `measure`.
pub fn across<S: Send, T: Send>(
    cable: &impl Cable,
    start: impl FnOnce() -> anyhow::Result<S> + Send,
    measure: impl FnOnce(&S) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    thread::scope(|scope| {
        let (tell_near, near) = mpsc::channel();
        let (tell_cabled, cabled) = mpsc::channel();
        let far = scope.spawn(move || -> anyhow::Result<S> {
            enter()?;
            tell_near.send(rustix::thread::gettid().as_raw_nonzero().get())?;
            cabled.recv_timeout(PATIENCE).context("the near end failed")?;
            cable.plug_far()?;
            start()
        });
        let near_end = scope.spawn(move || -> anyhow::Result<T> {
            enter()?;
            cable.plug_near(near.recv_timeout(PATIENCE).context("the far end failed")?)?;
            tell_cabled.send(())?;
            let server = far.join().map_err(|_| anyhow!("the far end died"))??;
            measure(&server)
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

/// Moves this thread into a new network namespace.
fn enter() -> anyhow::Result<()> {
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
