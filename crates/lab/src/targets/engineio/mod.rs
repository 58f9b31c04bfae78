//! Engine.IO, the base of Socket.IO: packets over WebSocket or long polling.

mod packets;

use crate::{
    load::Dialect,
    targets::{ClientOptions, Options, Server, Target, Transport, install},
};

pub use packets::{Flavour, dialect};

const PACKAGES: &[&str] = &["engine.io@6.6.12"];

pub struct EngineIo;

impl Target for EngineIo {
    fn name(&self) -> &'static str {
        "engineio"
    }

    fn version(&self, _: &Options) -> anyhow::Result<String> {
        install::node_and(PACKAGES)
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::WebSocket, Transport::LongPolling]
    }

    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        install::start_node(self.name(), PACKAGES, include_str!("server.cjs"), options)
    }

    fn dialect(&self, transport: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        dialect(transport, "/engine.io/", Flavour::Engine, ask)
    }
}
