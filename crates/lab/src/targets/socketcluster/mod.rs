//! SocketCluster, the engine of Muller's thesis: events with call ids on one WebSocket.

use std::io::Write;

use anyhow::bail;

use crate::{
    load::{
        Dialect, Event, Role,
        websocket::{OverWebSocket, Subprotocol, TEXT, WebSocket, frame_into, frame_of},
    },
    targets::{ClientOptions, Options, Server, Target, Transport, install},
};

const PACKAGES: &[&str] = &["socketcluster-server@20.0.1"];
const PUBLISH: &[u8] = b"{\"event\":\"#publish\",\"data\":{\"channel\":\"";

pub struct SocketCluster;

impl Target for SocketCluster {
    fn name(&self) -> &'static str {
        "socketcluster"
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
        let socket = WebSocket::new("/socketcluster/", None);
        let client = Client { role: ask.role, channel: ask.channel.into(), id: 0, command: Vec::new() };
        Box::new(OverWebSocket::new(socket, client))
    }
}

struct Client {
    role: Role,
    channel: String,
    /// Id of the last call. 1 is the handshake, 2 is the subscription.
    id: u64,
    command: Vec<u8>,
}

impl Subprotocol for Client {
    fn opened(&mut self, out: &mut Vec<u8>, _: &mut dyn FnMut(Event<'_>)) {
        self.id = 2;
        frame_into(TEXT, br##"{"event":"#handshake","data":{"authToken":null},"cid":1}"##, out);
    }

    fn message(&mut self, message: &[u8], out: &mut Vec<u8>, emit: &mut dyn FnMut(Event<'_>)) -> anyhow::Result<()> {
        let Client { role, channel, .. } = self;
        if let Some(rest) = message.strip_prefix(PUBLISH) {
            // A payload is an array of one string, and the last value in the object.
            let data = memchr::memmem::find(rest, b"\"data\":").map(|at| &rest[at + 7..]);
            let payload = data.and_then(|data| data.strip_suffix(b"}}"));
            payload.into_iter().for_each(|payload| emit(Event::Message(payload)));
        } else if message.is_empty() || message == b"#1" {
            // A ping of the newer or of the older protocol.
            frame_into(TEXT, if message.is_empty() { b"" } else { b"#2" }, out);
        } else if [b"{\"rid\":1,", b"{\"rid\":2,", b"{\"rid\":2}"].iter().any(|reply| message.starts_with(*reply)) {
            if memchr::memmem::find(message, b"\"error\":").is_some() {
                bail!("refused: {}", String::from_utf8_lossy(message));
            }
            if message.starts_with(b"{\"rid\":1,") && role.subscribes() {
                let subscribe = format!(r##"{{"event":"#subscribe","data":{{"channel":"{channel}"}},"cid":2}}"##);
                frame_into(TEXT, subscribe.as_bytes(), out);
            } else {
                emit(Event::Ready);
            }
        } else if message.starts_with(b"{\"rid\":") {
            let is_error = memchr::memmem::find(message, b"\"error\":").is_some();
            emit(if is_error { Event::Refused } else { Event::Accepted });
        }
        Ok(())
    }

    /// Publishes with a call id, so that the server replies, as its own client expects.
    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        self.id += 1;
        self.command.clear();
        self.command.extend_from_slice(PUBLISH);
        write!(self.command, "{}\",\"data\":", self.channel).expect("memory takes it");
        let end = format!("}},\"cid\":{}}}", self.id);
        frame_of(TEXT, &[&self.command, payload, end.as_bytes()], out);
    }
}
