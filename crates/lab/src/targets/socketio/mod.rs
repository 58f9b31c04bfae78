//! Socket.IO: rooms and events, over WebSocket and long polling.

use crate::{
    load::Dialect,
    targets::{
        ClientOptions, Options, Server, Target, Transport,
        engineio::{Flavour, dialect},
        install,
    },
};

const PACKAGES: &[&str] = &["socket.io@4.8.4"];

pub struct SocketIo;

impl Target for SocketIo {
    fn name(&self) -> &'static str {
        "socketio"
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
        dialect(transport, "/socket.io/", Flavour::Socket, ask)
    }
}
