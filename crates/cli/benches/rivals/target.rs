//! The servers that are measured, each as a process pinned to CPU 0.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, ensure};

use crate::server::Server;

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
        Server::start(command, &[0])
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("rivals").join(self.name())
    }
}
