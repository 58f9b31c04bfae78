//! The server under test: a process on its own CPUs.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};

use crate::wire::pin;

/// A running server. It stops when this value is dropped.
pub struct Server {
    process: Process,
    pub address: SocketAddr,
}

enum Process {
    Own(Child),
    /// Server that the lab started.
    #[allow(dead_code, reason = "only rivals are started by the lab")]
    OfLab(millrace_lab::targets::Server),
}

impl Server {
    /// Starts the server on these CPUs and waits until it reports its address. The calling thread moves to CPU 1.
    pub fn start(mut command: Command, cpus: &[usize]) -> anyhow::Result<Server> {
        pin(cpus)?;
        let started = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        pin(&[1])?;
        let mut process = started.with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("no output")?).read_line(&mut line)?;
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .with_context(|| format!("{:?} did not start", command.get_program()))?;
        Ok(Server { address: address.parse()?, process: Process::Own(process) })
    }

    /// Starts a server that does not report its address, which was set to `address`.
    #[allow(dead_code, reason = "only rivals do not say where they listen")]
    pub fn start_at(mut command: Command, cpus: &[usize], address: SocketAddr) -> anyhow::Result<Server> {
        const PATIENCE: Duration = Duration::from_secs(20);
        pin(cpus)?;
        let started = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        pin(&[1])?;
        let process = started.with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let server = Server { process: Process::Own(process), address };
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            ensure!(began.elapsed() < PATIENCE, "{:?} does not listen on {address}", command.get_program());
            sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Wraps a server that the lab has started.
    #[allow(dead_code, reason = "only rivals are started by the lab")]
    pub fn of_lab(server: millrace_lab::targets::Server) -> Server {
        Server { address: server.address, process: Process::OfLab(server) }
    }

    /// Returns the ids of the server's processes: the one that was started, and all its descendants.
    fn pids(&self) -> Vec<u32> {
        let mut pids = match &self.process {
            Process::Own(process) => vec![process.id()],
            Process::OfLab(server) => server.root_pids(),
        };
        let mut at = 0;
        while let Some(pid) = pids.get(at) {
            // This file lists only the children of the first thread. The rivals with children (nginx) have no other
            // threads.
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            pids.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            at += 1;
        }
        pids
    }

    /// Returns the folder of each thread of the server: `/proc/PID/task/TID`.
    pub fn threads(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut threads = Vec::new();
        for pid in self.pids() {
            for task in fs::read_dir(format!("/proc/{pid}/task"))? {
                threads.push(task?.path());
            }
        }
        Ok(threads)
    }

    /// Returns two values per thread, in nanoseconds: the CPU time, and the time during which the thread was ready to
    /// run and waited for a CPU that others used.
    pub fn threads_ns(&self) -> anyhow::Result<Vec<(u64, u64)>> {
        let mut all = Vec::new();
        for thread in self.threads()? {
            // A thread that has just ended has no figures.
            let Ok(stat) = fs::read_to_string(thread.join("schedstat")) else { continue };
            let (cpu, rest) = stat.split_once(' ').context("no schedstat")?;
            let (waited, _) = rest.split_once(' ').context("no schedstat")?;
            all.push((cpu.parse()?, waited.parse()?));
        }
        Ok(all)
    }

    /// Returns the CPU time of all threads, in nanoseconds.
    pub fn cpu_ns(&self) -> anyhow::Result<u64> {
        Ok(self.threads_ns()?.iter().map(|(cpu, _)| cpu).sum())
    }

    /// Returns the proportional memory of all processes, in KiB.
    pub fn pss_kb(&self) -> anyhow::Result<u64> {
        let pss_kb = |pid: u32| -> anyhow::Result<u64> {
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
            let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss")?;
            Ok(line.trim().trim_end_matches(" kB").parse()?)
        };
        self.pids().into_iter().map(pss_kb).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Process::Own(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
