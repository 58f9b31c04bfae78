//! uWebSockets inside Bun.

use std::{fs, process::Command};

use crate::{
    load::Dialect,
    targets::{ClientOptions, Options, Server, Target, Transport, install, process::Ready, ws::bare},
};

/// The baseline build, which also runs on processors without AVX2. The server is the same.
const PACKAGE: &str = "@oven/bun-linux-x64-baseline@1.4.5";

pub struct Bun;

impl Target for Bun {
    fn name(&self) -> &'static str {
        "bun"
    }

    fn version(&self, _: &Options) -> anyhow::Result<String> {
        Ok(PACKAGE.into())
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::WebSocket]
    }

    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        let packages = install::npm(&options.cache, self.name(), &[PACKAGE])?;
        let folder = tempfile::tempdir()?;
        let script = folder.path().join("server.js");
        fs::write(&script, include_str!("server.js"))?;
        let mut bun = Command::new(packages.join("node_modules/@oven/bun-linux-x64-baseline/bin/bun"));
        bun.arg(script);
        Server::start(bun, Ready::Says("listening on http://"), folder, options)
    }

    fn dialect(&self, _: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        Box::new(bare(ask))
    }
}
