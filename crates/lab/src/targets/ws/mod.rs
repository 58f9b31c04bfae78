//! `ws` on Node.js, as most people run it.

use std::{fs, process::Command};

use crate::{
    load::{Dialect, websocket::Bare},
    targets::{Ask, Options, Server, Target, Transport, install, process::Ready},
};

/// Pinned, so that a ratio means the same tomorrow.
const PACKAGES: &[&str] = &["ws@8.23.0", "bufferutil@4.1.0"];

pub struct Ws;

impl Target for Ws {
    fn name(&self) -> &'static str {
        "ws"
    }

    fn version(&self, _: &Options) -> anyhow::Result<String> {
        Ok(format!("{}, Node.js {}", PACKAGES.join(" "), install::node_version()?))
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::WebSocket]
    }

    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        let packages = install::npm(&options.cache, self.name(), PACKAGES)?;
        let folder = tempfile::tempdir()?;
        let script = folder.path().join("server.cjs");
        fs::write(&script, include_str!("server.cjs"))?;
        let mut node = Command::new("node");
        node.arg(script).env("NODE_PATH", packages.join("node_modules"));
        Server::start(node, Ready::Says("listening on http://"), folder, options)
    }

    fn dialect(&self, _: Transport, ask: &Ask<'_>) -> Box<dyn Dialect> {
        Box::new(bare(ask))
    }
}

/// What the small programs of `ws`, Bun and uWebSockets understand: the path is the topic.
pub fn bare(ask: &Ask<'_>) -> Bare {
    Bare::new(format!("/{}{}", ask.channel, if ask.role.subscribes() { "" } else { "?subscribe=no" }))
}
