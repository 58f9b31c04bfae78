//! The servers that are measured, each as a process pinned to CPU 0.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, ensure};

use crate::load::pin;

/// Pinned, so that a ratio means the same tomorrow.
const BUN: &str = "@oven/bun-linux-x64-baseline@1.4.5";
const WS: &[&str] = &["ws@8.23.0", "bufferutil@4.1.0"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    Millrace,
    /// uWebSockets, as it is inside Bun.
    Bun,
    Ws,
}

/// A running server.
pub struct Server {
    process: Child,
    pub address: SocketAddr,
}

impl Target {
    pub fn name(&self) -> &'static str {
        match self {
            Target::Millrace => "millrace",
            Target::Bun => "bun",
            Target::Ws => "ws",
        }
    }

    /// Brings what the target needs from the package registry into the target folder, once.
    ///
    /// Errors: `npm` is missing or cannot reach its registry.
    pub fn install(&self) -> anyhow::Result<()> {
        let packages: &[&str] = match self {
            Target::Millrace => return Ok(()),
            Target::Bun => &[BUN],
            Target::Ws => WS,
        };
        let folder = self.folder();
        if folder.join("node_modules").exists() {
            return Ok(());
        }
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("package.json"), "{\"private\":true}")?;
        eprintln!("installing {}", packages.join(" "));
        let npm = Command::new("npm")
            .args(["install", "--no-audit", "--no-fund", "--silent"])
            .args(packages)
            .current_dir(&folder)
            .status();
        ensure!(
            npm.context("npm is needed to install a rival")?.success(),
            "npm could not install {}",
            packages.join(" ")
        );
        Ok(())
    }

    /// Starts the server on a free port and waits until it says where it listens.
    pub fn start(&self) -> anyhow::Result<Server> {
        let folder = self.folder();
        let script = |name: &str| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/rivals").join(name);
        let mut command = match self {
            Target::Millrace => Command::new(env!("CARGO_BIN_EXE_millrace")),
            Target::Bun => Command::new(folder.join("node_modules/@oven/bun-linux-x64-baseline/bin/bun")),
            Target::Ws => Command::new("node"),
        };
        match self {
            Target::Millrace => command.args(["serve", "--listen", "127.0.0.1:0", "--shards", "1"]),
            Target::Bun => command.arg(script("bun.js")),
            Target::Ws => command.arg(script("ws.cjs")).env("NODE_PATH", folder.join("node_modules")),
        };
        pin(0)?;
        let started = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        pin(1)?;
        let mut process = started.with_context(|| format!("cannot start {}", self.name()))?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("no output")?).read_line(&mut line)?;
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .with_context(|| format!("{} did not start", self.name()))?;
        Ok(Server { address: address.parse()?, process })
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("rivals").join(self.name())
    }
}

impl Server {
    /// CPU time of all its threads, in nanoseconds.
    pub fn cpu_ns(&self) -> anyhow::Result<u64> {
        let mut sum = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            // A thread that has just ended has no figures any more.
            let Ok(stat) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
            sum += stat.split(' ').next().context("no schedstat")?.parse::<u64>()?;
        }
        Ok(sum)
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
