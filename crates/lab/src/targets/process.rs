//! A server process: starts it on its own CPUs, waits until it listens, and ends it.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use tempfile::TempDir;

use super::Options;
use crate::host::{
    limits, process,
    scheduling::{self, SchedulingTime},
};

/// Maximum time from the start of a server until it listens.
const START_MAX: Duration = Duration::from_secs(30);
/// Maximum time for a server with child processes to end.
const END_MAX: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Timeout of one readiness check.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// Number of log lines that errors show.
const TAIL_LINES: usize = 25;

/// Sign that a server is ready.
pub enum Ready {
    /// The server prints this text, followed by its address.
    Says(&'static str),
    /// The server accepts connections at this address.
    Accepts(SocketAddr),
    /// The server answers a `GET` at the first address with 200, and accepts connections of publishers at the second.
    Answers(SocketAddr, SocketAddr),
}

/// A running server. Dropping this value ends the server.
pub struct Server {
    pub address: SocketAddr,
    /// Address for publishers, if different.
    pub(super) publish_address: Option<SocketAddr>,
    process: Child,
    log: PathBuf,
    has_children: bool,
    /// Back end that the server queries.
    back_end: Option<Box<dyn Send + Sync>>,
    /// Other programs of this server, with their names, such as the nodes behind a balancer.
    parts: Vec<(&'static str, Server)>,
    /// Folder of this run with configuration and log.
    _folder: TempDir,
}

impl Server {
    /// Starts the server and waits until it is ready. `folder`: folder of this run; it is deleted with the server.
    ///
    /// Errors: the program does not start, or is not ready in time; the error contains the end of its log.
    pub fn start(mut command: Command, ready: Ready, folder: TempDir, options: &Options) -> anyhow::Result<Server> {
        let log = folder.path().join("log");
        let file = File::create(&log)?;
        command.args(&options.arguments).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let program = command.get_program().to_string_lossy().into_owned();
        limits::raise_descriptors(options.descriptors)?;
        // The server gets the same raised priority as the generator, above other processes of the machine.
        let before = limits::raise_priority();
        let spawned = on_cpus(&options.cpus, || command.spawn());
        limits::restore_priority(before);
        let process = spawned?.with_context(|| format!("cannot start {program}"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut server = Server {
            address,
            publish_address: None,
            process,
            log,
            has_children: false,
            back_end: None,
            parts: Vec::new(),
            _folder: folder,
        };
        let started = Instant::now();
        loop {
            if let Some(address) = server.says_ready(&ready)? {
                server.address = address;
                if let Ready::Answers(_, publish) = ready {
                    server.publish_address = Some(publish);
                }
                return Ok(server);
            }
            if let Some(status) = server.process.try_wait()? {
                bail!("{program} ended ({status}) before it listened; its log:\n{}", server.log_tail());
            }
            if started.elapsed() > START_MAX {
                bail!("{program} did not listen within {START_MAX:?}; its log:\n{}", server.log_tail());
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Replaces the addresses at which clients and publishers reach the server, because they are at the other end of
    /// an emulated link.
    pub fn move_to(&mut self, clients: Ipv4Addr, publishers: Ipv4Addr) {
        let port = self.publish_address.unwrap_or(self.address).port();
        self.address.set_ip(clients.into());
        self.publish_address = Some((publishers, port).into());
    }

    /// Marks the server as having child processes, so that it gets time to end them.
    pub(super) fn with_children(mut self) -> Server {
        self.has_children = true;
        self
    }

    /// Attaches a back end that the server queries. It lives as long as the server.
    pub(super) fn with_back_end(mut self, back_end: impl Send + Sync + 'static) -> Server {
        self.back_end = Some(Box::new(back_end));
        self
    }

    /// Adds other programs of this server. They end with the server.
    pub(super) fn with_parts(mut self, parts: Vec<(&'static str, Server)>) -> Server {
        self.parts.extend(parts);
        self
    }

    /// Kills the first part with this name, with SIGKILL.
    ///
    /// Errors: there is no such part.
    pub fn kill_part(&mut self, name: &str) -> anyhow::Result<()> {
        let index = self.parts.iter().position(|(part, _)| *part == name);
        drop(self.parts.remove(index.with_context(|| format!("the target has no {name} that could be killed"))?));
        Ok(())
    }

    fn says_ready(&self, ready: &Ready) -> anyhow::Result<Option<SocketAddr>> {
        match ready {
            Ready::Accepts(address) => Ok(accepts(address).then_some(*address)),
            Ready::Answers(address, publish) => Ok((accepts(publish) && answers(*address)).then_some(*address)),
            Ready::Says(what) => {
                let log = fs::read_to_string(&self.log)?;
                let said = log.split_once(what).and_then(|(_, rest)| rest.split_once('\n'));
                said.map(|(address, _)| address.trim().parse().context("not an address")).transpose()
            }
        }
    }

    /// Returns the root processes of the server; its child processes belong to it as well.
    pub fn root_pids(&self) -> Vec<u32> {
        let parts = self.parts.iter().flat_map(|(_, part)| part.root_pids());
        std::iter::once(self.process.id()).chain(parts).collect()
    }

    /// Returns the folder of each thread of the server and of its child processes: `/proc/PID/task/TID`.
    ///
    /// Errors: the server has ended.
    pub fn threads(&self) -> anyhow::Result<Vec<PathBuf>> {
        scheduling::threads(&self.root_pids())
    }

    /// Returns the CPU time of all threads, and the time for which they waited for a CPU.
    ///
    /// Errors: the server has ended.
    pub fn scheduling_time(&self) -> anyhow::Result<SchedulingTime> {
        Ok(SchedulingTime::of_threads(&self.threads()?))
    }

    /// Returns the proportional set size of all processes of the server, in bytes.
    ///
    /// Errors: the server has ended.
    pub fn pss_bytes(&self) -> anyhow::Result<u64> {
        let pids = scheduling::with_descendants(&self.root_pids());
        pids.into_iter().map(|pid| process::read_pss(pid).context("a process of the server has ended")).sum()
    }

    /// Returns false once the server has ended by itself.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Returns the last lines of the server's output.
    pub fn log_tail(&self) -> String {
        let mut text = Vec::new();
        let _ = File::open(&self.log).and_then(|mut file| file.read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.process.id() as i32).filter(|_| self.has_children && self.is_alive()) {
            let _ = kill_process(pid, Signal::TERM);
            let asked_to_end = Instant::now();
            while self.is_alive() && asked_to_end.elapsed() < END_MAX {
                thread::sleep(LOOK_EVERY);
            }
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns true if a `GET` of `/ready` is answered with 200. Only the status is read, because the body of a stream
/// does not end.
fn answers(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, LOOK_MAX)?;
        stream.set_read_timeout(Some(LOOK_MAX))?;
        stream.write_all(format!("GET /ready HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())?;
        let mut status = [0; b"HTTP/1.1 200".len()];
        stream.read_exact(&mut status)?;
        Ok(status == *b"HTTP/1.1 200")
    };
    ask().unwrap_or(false)
}

fn accepts(address: &SocketAddr) -> bool {
    TcpStream::connect(address).is_ok()
}

/// Returns a loopback address with a port that is free now, for servers that cannot choose a port themselves.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Runs a function on these CPUs. A process that it starts stays on them.
fn on_cpus<T>(cpus: &[usize], act: impl FnOnce() -> T) -> anyhow::Result<T> {
    if cpus.is_empty() {
        return Ok(act());
    }
    let before = sched_getaffinity(None)?;
    scheduling::pin(cpus)?;
    let done = act();
    sched_setaffinity(None, &before)?;
    Ok(done)
}
