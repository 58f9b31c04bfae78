//! `ws` on Node.js, in its usual setup.

use crate::{
    load::{Dialect, websocket::Bare},
    targets::{ClientOptions, Options, Server, Target, Transport, install},
};

/// Versions are pinned, so that later results stay comparable.
const PACKAGES: &[&str] = &["ws@8.23.0", "bufferutil@4.1.0"];

pub struct Ws;

impl Target for Ws {
    fn name(&self) -> &'static str {
        "ws"
    }

    fn version(&self, _: &Options) -> anyhow::Result<String> {
        install::node_and(PACKAGES)
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::WebSocket]
    }

    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        install::start_node(self.name(), PACKAGES, include_str!("server.cjs"), options)
    }

    fn dialect(&self, _: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        Box::new(bare(ask))
    }
}

/// Creates a client for the small programs of `ws`, Bun and uWebSockets: the path is the topic.
pub fn bare(ask: &ClientOptions<'_>) -> Bare {
    Bare::new(format!("/{}{}", ask.channel, if ask.role.subscribes() { "" } else { "?subscribe=no" }))
}
