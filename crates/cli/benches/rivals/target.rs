//! The servers under test, each as a process pinned to CPU 0.
//!
//! uWebSockets itself is in no registry. Build `crates/lab/src/targets/uws/server.cpp` beside a checkout of uSockets
//! and uWebSockets, and name the binary in `MILLRACE_UWS`:
//!
//! ```sh
//! gcc -O3 -march=native -flto -DLIBUS_NO_SSL -IuSockets/src -c uSockets/src/*.c uSockets/src/eventing/*.c
//! g++ -std=c++20 -O3 -march=native -flto -DLIBUS_NO_SSL -DUWS_NO_ZLIB -IuSockets/src -IuWebSockets/src \
//!   server.cpp *.o -o uws
//! ```

use std::{fs, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, bail, ensure};
use millrace_lab::{
    load::{Dialect, Role},
    targets::{self, Ask, Options, Transport},
};
use tempfile::TempDir;

use crate::server::Server;

/// Pinned version, so that ratios stay comparable.
const BUN: &str = "@oven/bun-linux-x64-baseline@1.4.5";
const WS: &[&str] = &["ws@8.23.0", "bufferutil@4.1.0"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    Millrace,
    /// uWebSockets, as included in Bun.
    Bun,
    /// uWebSockets itself: the binary that MILLRACE_UWS names.
    Uws,
    Ws,
    /// nginx with Nchan, from Debian's packages.
    Nchan,
    /// The `durable-streams` server, which `scripts/durable-streams.sh` builds.
    DurableStreams,
}

/// Configuration of a server for readers and publishers over HTTP.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// Publications are kept in memory.
    Plain,
    Tls,
    /// Publications are on disk before they are answered. Millrace: SQLite with a write-ahead log and
    /// `synchronous=full`, an `fdatasync` per batch. durable-streams: its log, an `fdatasync` per batch.
    Durable,
}

/// A target with the options of the lab.
pub struct ByHttp {
    target: &'static dyn targets::Target,
    options: Options,
    /// Folder of the file that Millrace writes.
    _folder: TempDir,
}

impl Target {
    pub fn name(&self) -> &'static str {
        match self {
            Target::Millrace => "millrace",
            Target::Bun => "bun",
            Target::Uws => "uws",
            Target::Ws => "ws",
            Target::Nchan => "nchan",
            Target::DurableStreams => "durable-streams",
        }
    }

    pub fn is_websocket(&self) -> bool {
        !matches!(self, Target::Nchan | Target::DurableStreams)
    }

    pub fn is_http(&self) -> bool {
        matches!(self, Target::Millrace | Target::Nchan | Target::DurableStreams)
    }

    /// Installs the packages of the target from its registry, once. `build`: also builds a target that comes as source.
    ///
    /// Errors: the registry or its client is missing; `MILLRACE_UWS` is not set; the target must be built first.
    pub fn install(&self, build: bool) -> anyhow::Result<()> {
        let packages: &[&str] = match self {
            Target::Millrace => return Ok(()),
            Target::DurableStreams if build => {
                let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/durable-streams.sh");
                ensure!(Command::new(script).status()?.success(), "durable-streams cannot be built");
                return Ok(());
            }
            Target::Nchan | Target::DurableStreams => {
                return targets::find(self.name())?.version(&Options::default()).map(drop);
            }
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

    /// Starts the server on a free port and waits until it reports its address.
    pub fn start(&self) -> anyhow::Result<Server> {
        let folder = self.folder();
        let script = |name: &str| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../lab/src/targets").join(name);
        let mut command = match self {
            Target::Millrace => Command::new(env!("CARGO_BIN_EXE_millrace")),
            Target::Bun => Command::new(folder.join("node_modules/@oven/bun-linux-x64-baseline/bin/bun")),
            Target::Uws => Command::new(uws()?),
            Target::Ws => Command::new("node"),
            Target::Nchan | Target::DurableStreams => bail!("{} has no WebSocket here", self.name()),
        };
        match self {
            Target::Millrace => command.args(["serve", "--listen", "127.0.0.1:0", "--shards", "1"]),
            Target::Bun => command.arg(script("bun/server.js")),
            Target::Uws => &mut command,
            Target::Ws => command.arg(script("ws/server.cjs")).env("NODE_PATH", folder.join("node_modules")),
            Target::Nchan | Target::DurableStreams => &mut command,
        };
        Server::start(command, &[0])
    }

    /// Returns the target as a server for readers and publishers over HTTP.
    ///
    /// Errors: the target has no such variant.
    pub fn by_http(&self, variant: Variant) -> anyhow::Result<ByHttp> {
        let folder = tempfile::tempdir()?;
        let name = if variant == Variant::Tls { format!("{}-tls", self.name()) } else { self.name().into() };
        let binary = (*self == Target::Millrace).then(|| env!("CARGO_BIN_EXE_millrace").into());
        let arguments = match (self, variant) {
            (Target::Millrace, Variant::Durable) => {
                let engine = format!("sqlite:{}", folder.path().join("bench.db").display());
                vec!["--engine".into(), engine, "--set".into(), "history.durable=true".into()]
            }
            (Target::DurableStreams, Variant::Plain) => vec!["--durability".into(), "memory".into()],
            _ => Vec::new(),
        };
        let options = Options { cpus: vec![0], binary, arguments, ..Options::default() };
        Ok(ByHttp { target: targets::find(&name)?, options, _folder: folder })
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("rivals").join(self.name())
    }
}

impl ByHttp {
    /// Starts the server on a free port and waits until it listens.
    pub fn start(&self) -> anyhow::Result<Server> {
        Ok(Server::of_lab(self.target.start(&self.options)?))
    }

    /// Returns a client that is not connected yet.
    pub fn dialect(&self, transport: Transport, role: Role, channel: &str) -> Box<dyn Dialect> {
        self.target.dialect(transport, &Ask { role, channel, poll_every: Duration::ZERO })
    }
}

fn uws() -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("MILLRACE_UWS")
        .context("set MILLRACE_UWS to a binary built from crates/lab/src/targets/uws/server.cpp")?;
    Ok(path.into())
}
