//! A server that is measured: a process with CPUs of its own.

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

/// A running server. It ends with this value.
pub struct Server {
    process: Process,
    pub address: SocketAddr,
}

enum Process {
    Own(Child),
    /// One that the lab has started, with its process number.
    #[allow(dead_code, reason = "only rivals are started by the lab")]
    OfLab(millrace_lab::targets::Server),
}

impl Server {
    /// Starts it on these CPUs and waits until it says where it listens. This thread goes on on CPU 1.
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

    /// Starts one that does not say where it listens: it was told to, there.
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

    /// Measures a server that the lab has started.
    #[allow(dead_code, reason = "only rivals are started by the lab")]
    pub fn of_lab(server: millrace_lab::targets::Server) -> Server {
        Server { address: server.address, process: Process::OfLab(server) }
    }

    /// Returns its processes: the one that was started, its children and theirs.
    fn pids(&self) -> Vec<u32> {
        let mut pids = match &self.process {
            Process::Own(process) => vec![process.id()],
            Process::OfLab(server) => server.root_pids(),
        };
        let mut at = 0;
        while let Some(pid) = pids.get(at) {
            // Of a process without threads beside the first one; the rivals with children (nginx) have none.
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            pids.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            at += 1;
        }
        pids
    }

    /// Returns the folder of each of its threads: `/proc/PID/task/TID`.
    pub fn threads(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut threads = Vec::new();
        for pid in self.pids() {
            for task in fs::read_dir(format!("/proc/{pid}/task"))? {
                threads.push(task?.path());
            }
        }
        Ok(threads)
    }

    /// Of each of its threads, in nanoseconds: CPU time, and how long it was ready to run and had to wait for a CPU
    /// that others used.
    pub fn threads_ns(&self) -> anyhow::Result<Vec<(u64, u64)>> {
        let mut all = Vec::new();
        for thread in self.threads()? {
            // A thread that has just ended has no figures any more.
            let Ok(stat) = fs::read_to_string(thread.join("schedstat")) else { continue };
            let (cpu, rest) = stat.split_once(' ').context("no schedstat")?;
            let (waited, _) = rest.split_once(' ').context("no schedstat")?;
            all.push((cpu.parse()?, waited.parse()?));
        }
        Ok(all)
    }

    /// CPU time of all its threads, in nanoseconds.
    pub fn cpu_ns(&self) -> anyhow::Result<u64> {
        Ok(self.threads_ns()?.iter().map(|(cpu, _)| cpu).sum())
    }

    /// Proportional memory of all its processes, in KiB.
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
