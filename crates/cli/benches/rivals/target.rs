//! The servers under test, each as a process pinned to CPU 0. The lab installs and starts them.
//! `crates/lab/src/targets/uws/mod.rs` describes how to build uWebSockets itself, which is in no registry.

use std::{process::Command, time::Duration};

use anyhow::ensure;
use millrace_lab::{
    load::{Dialect, Role},
    targets::{self, ClientOptions, Options, Server, Transport},
};
use tempfile::TempDir;

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

/// Configuration of a server.
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
pub struct Configured {
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

    /// Installs the target, once. `build`: also builds a target that comes as source.
    ///
    /// Errors: the registry or its client is missing; `MILLRACE_UWS` is not set; the target must be built first.
    pub fn install(&self, build: bool) -> anyhow::Result<()> {
        if *self == Target::DurableStreams && build {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/durable-streams.sh");
            ensure!(Command::new(script).status()?.success(), "durable-streams cannot be built");
        }
        // The lab installs a target when it starts for the first time.
        self.configured(Variant::Plain)?.start().map(drop)
    }

    /// Returns the target with its options.
    ///
    /// Errors: the target has no such variant.
    pub fn configured(&self, variant: Variant) -> anyhow::Result<Configured> {
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
        Ok(Configured { target: targets::find(&name)?, options, _folder: folder })
    }
}

impl Configured {
    /// Starts the server on a free port and waits until it listens.
    pub fn start(&self) -> anyhow::Result<Server> {
        self.target.start(&self.options)
    }

    /// Returns a client that is not connected yet.
    pub fn dialect(&self, transport: Transport, role: Role, channel: &str) -> Box<dyn Dialect> {
        self.target.dialect(transport, &ClientOptions { role, channel, poll_every: Duration::ZERO })
    }
}
