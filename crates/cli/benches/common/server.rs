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
    process: Child,
    pub address: SocketAddr,
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
        Ok(Server { address: address.parse()?, process })
    }

    /// Starts one that does not say where it listens: it was told to, there.
    #[allow(dead_code, reason = "only rivals do not say where they listen")]
    pub fn start_at(mut command: Command, cpus: &[usize], address: SocketAddr) -> anyhow::Result<Server> {
        const PATIENCE: Duration = Duration::from_secs(20);
        pin(cpus)?;
        let started = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        pin(&[1])?;
        let process = started.with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let server = Server { process, address };
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            ensure!(began.elapsed() < PATIENCE, "{:?} does not listen on {address}", command.get_program());
            sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Where the kernel tells of each of its threads: `/proc/PID/task/TID`.
    pub fn threads(&self) -> anyhow::Result<Vec<PathBuf>> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.id()))?;
        Ok(tasks.map(|task| task.map(|task| task.path())).collect::<Result<_, _>>()?)
    }

    /// Of each of its threads, in nanoseconds: CPU time, and how long it was ready to run and had to wait for a CPU that others used.
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

    /// Proportional memory, in KiB.
    pub fn pss_kb(&self) -> anyhow::Result<u64> {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.process.id()))?;
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
