//! Runs a program behind an emulated link to this machine.

use std::{
    collections::HashSet,
    net::Ipv4Addr,
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus},
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use millrace_link::{Config, Traces};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::process::set_parent_process_death_signal;

use super::{
    cable::{open, reach_loopback},
    emulator::{Emulator, End, Ends, Records, Report},
};
use crate::wire::namespace::{NEAR_DEVICE, enter, ip};

/// Environment variable with the address of this machine, as the program sees it.
pub const HOST_VARIABLE: &str = "LINK_HOST";
const LOOK: Duration = Duration::from_millis(50);
/// Time that the program has to end after SIGTERM.
const END_MAX: Duration = Duration::from_secs(5);
/// Networks `10.213.N.0/24` that links can use. Nested and parallel runs take different ones.
const SUBNETS: std::ops::RangeInclusive<u8> = 100..=199;

/// Settings of a link to this machine.
pub struct Options {
    pub config: Config,
    pub traces: Traces,
    pub seed: u64,
    pub records: Records,
}

/// Returns all addresses that this machine can have at a link.
pub fn hosts() -> impl Iterator<Item = Ipv4Addr> {
    SUBNETS.map(|subnet| Ipv4Addr::new(10, 213, subnet, 2))
}

/// Runs `program` in a new network namespace. Its only network is an emulated link to the namespace of this thread. Its
/// environment contains this machine's address at the link as [`HOST_VARIABLE`]; servers on loopback are reached there.
/// If this process is killed, the devices disappear with their descriptors, and the program is killed, too.
///
/// `start` is called with this address before the program starts, `look` 20 times per second and after the end of the
/// program. `look` can read the state of the link and change its settings; it runs in the namespace of the program. If
/// `stop` is set, the program gets SIGTERM, and SIGKILL after five seconds.
///
/// Errors: no root, no `/dev/net/tun`, no `ip`; the program does not start.
pub fn run(
    options: Options,
    program: Command,
    stop: &AtomicBool,
    start: impl FnOnce(Ipv4Addr),
    look: impl FnMut(&Emulator) + Send,
) -> anyhow::Result<(ExitStatus, Report)> {
    let (subnet, far) = free_device()?;
    let (near_address, host) = (Ipv4Addr::new(10, 213, subnet, 1), Ipv4Addr::new(10, 213, subnet, 2));
    start(host);
    let (send_device, device) = mpsc::channel();
    let (send_ready, ready) = mpsc::channel::<anyhow::Result<Emulator>>();
    thread::scope(|scope| {
        let near = scope.spawn(move || -> anyhow::Result<(ExitStatus, Report)> {
            enter()?;
            let device = open(NEAR_DEVICE, &near_address.to_string())?;
            ip(&["route", "add", "default", "via", &host.to_string()])?;
            send_device.send(device)?;
            let emulator = ready.recv().context("the link did not start")??;
            let status = wait(program, host, stop, &emulator, look);
            let report = emulator.stop();
            Ok((status?, report?))
        });
        if let Ok(near) = device.recv() {
            let ends = Ends { near: End::Tun(near), far: End::Tun(far), far_address: Some(host), bypass: None };
            let Options { config, traces, seed, records } = options;
            // The thread waits for the result, also if it is an error.
            send_ready.send(Emulator::start(config, &traces, seed, ends, records)).ok();
        }
        near.join().map_err(|_| anyhow!("the thread of the program died"))?
    })
}

/// Opens a TUN device with a name and a network that nothing in this namespace uses.
fn free_device() -> anyhow::Result<(u8, tun_rs::SyncDevice)> {
    let taken: HashSet<u8> = if_addrs::get_if_addrs()?
        .into_iter()
        .filter_map(|device| match device.ip() {
            std::net::IpAddr::V4(address) if address.octets()[..2] == [10, 213] => Some(address.octets()[2]),
            _ => None,
        })
        .collect();
    let mut last = anyhow!("all networks from 10.213.100.0 to 10.213.199.0 are in use");
    // Another run may take a network at the same moment.
    for subnet in SUBNETS.filter(|subnet| !taken.contains(subnet)).take(10) {
        let name = format!("millrace{subnet}");
        match open(&name, &format!("10.213.{subnet}.2")) {
            Ok(device) => {
                reach_loopback(&name)?;
                return Ok((subnet, device));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Runs the program until it ends or must stop.
fn wait(
    mut program: Command,
    host: Ipv4Addr,
    stop: &AtomicBool,
    emulator: &Emulator,
    mut look: impl FnMut(&Emulator),
) -> anyhow::Result<ExitStatus> {
    let name = program.get_program().to_string_lossy().into_owned();
    program.env(HOST_VARIABLE, host.to_string());
    // Without the link, the program would run on without a network.
    let end_with_link = || Ok(set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?);
    // SAFETY: between fork and exec, this makes a single system call.
    unsafe { program.pre_exec(end_with_link) };
    let mut child = program.spawn().with_context(|| format!("cannot start {name}"))?;
    let mut stopped: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            look(emulator);
            return Ok(status);
        }
        match stopped {
            None if stop.load(Relaxed) => {
                stopped = Some(Instant::now());
                terminate(&child);
            }
            Some(since) if since.elapsed() > END_MAX => child.kill()?,
            _ => {}
        }
        look(emulator);
        thread::sleep(LOOK);
    }
}

fn terminate(child: &Child) {
    // The program may have ended meanwhile.
    let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
}
