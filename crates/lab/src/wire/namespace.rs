//! Two network namespaces connected by a veth pair. Packets have the size of a real network, and no other traffic is
//! present.
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
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `start` in the far namespace, then runs `measure` with its result in the near namespace. `start` typically
/// starts a server, whose processes stay in the far namespace.
///
/// Errors: no root privileges, no `ip`, or an error of `start` or `measure`.
pub fn across<S: Send, T: Send>(
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
            ip(&["addr", "add", &format!("{FAR}/24"), "dev", "far"])?;
            up("far")?;
            start()
        });
        let near_end = scope.spawn(move || -> anyhow::Result<T> {
            enter()?;
            let far_id = near.recv_timeout(PATIENCE).context("the far end failed")?.to_string();
            ip(&["link", "add", "near", "type", "veth", "peer", "name", "far", "netns", &far_id])?;
            ip(&["addr", "add", &format!("{NEAR}/24"), "dev", "near"])?;
            up("near")?;
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
    across(|| Ok(()), |()| Ok(()))
}

/// Moves this thread into a new network namespace.
fn enter() -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).context("a network namespace needs root")?;
    ip(&["link", "set", "lo", "up"])
}

fn up(device: &str) -> anyhow::Result<()> {
    ip(&["link", "set", device, "mtu", &MTU.to_string(), "gso_max_segs", "1", "up"])
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(arguments).output().context("`ip` is needed (Debian: iproute2)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}", arguments.join(" "), said.trim());
    Ok(())
}
