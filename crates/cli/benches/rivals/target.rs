//! The servers that are measured, each as a process pinned to CPU 0.
//!
//! uWebSockets itself comes from no registry: build `crates/lab/src/targets/uws/server.cpp` beside a checkout of uSockets and uWebSockets and name it in `MILLRACE_UWS`:
//!
//! ```sh
//! gcc -O3 -march=native -flto -DLIBUS_NO_SSL -IuSockets/src -c uSockets/src/*.c uSockets/src/eventing/*.c
//! g++ -std=c++20 -O3 -march=native -flto -DLIBUS_NO_SSL -DUWS_NO_ZLIB -IuSockets/src -IuWebSockets/src server.cpp *.o -o uws
//! ```

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
    /// uWebSockets itself: the binary that MILLRACE_UWS names.
    Uws,
    Ws,
}

impl Target {
    pub fn name(&self) -> &'static str {
        match self {
            Target::Millrace => "millrace",
            Target::Bun => "bun",
            Target::Uws => "uws",
            Target::Ws => "ws",
        }
    }

    /// Brings what the target needs from the package registry into the target folder, once.
    ///
    /// Errors: `npm` is missing or cannot reach its registry; `MILLRACE_UWS` is not set.
    pub fn install(&self) -> anyhow::Result<()> {
        let packages: &[&str] = match self {
            Target::Millrace => return Ok(()),
            Target::Uws => return uws().map(drop),
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
        let script = |name: &str| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../lab/src/targets").join(name);
        let mut command = match self {
            Target::Millrace => Command::new(env!("CARGO_BIN_EXE_millrace")),
            Target::Bun => Command::new(folder.join("node_modules/@oven/bun-linux-x64-baseline/bin/bun")),
            Target::Uws => Command::new(uws()?),
            Target::Ws => Command::new("node"),
        };
        match self {
            Target::Millrace => command.args(["serve", "--listen", "127.0.0.1:0", "--shards", "1"]),
            Target::Bun => command.arg(script("bun/server.js")),
            Target::Uws => &mut command,
            Target::Ws => command.arg(script("ws/server.cjs")).env("NODE_PATH", folder.join("node_modules")),
        };
        Server::start(command, &[0])
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("rivals").join(self.name())
    }
}

fn uws() -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("MILLRACE_UWS")
        .context("set MILLRACE_UWS to a binary built from crates/lab/src/targets/uws/server.cpp")?;
    Ok(path.into())
}
