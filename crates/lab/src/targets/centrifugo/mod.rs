//! Centrifugo: its own JSON protocol over WebSocket, and its one-way event stream.

use std::{fs, io::Write, process::Command};

use anyhow::bail;
use memchr::memmem;

use crate::{
    load::{
        Dialect, Event, Role,
        http::EventSource,
        payload::payloads,
        websocket::{OverWebSocket, Subprotocol, TEXT, WebSocket, frame_into, frame_of},
    },
    targets::{
        ClientOptions, Options, Server, Target, Transport, install,
        process::{Ready, free_address},
    },
};

pub struct Centrifugo;

impl Target for Centrifugo {
    fn name(&self) -> &'static str {
        "centrifugo"
    }

    fn version(&self, options: &Options) -> anyhow::Result<String> {
        let output = install::run(Command::new(install::named(options, self.name(), self.name())?).arg("version"))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::WebSocket, Transport::Sse]
    }

    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        let (folder, address) = (tempfile::tempdir()?, free_address()?);
        let config = folder.path().join("config.json");
        let text = serde_json::json!({
            "http_server": {"address": address.ip().to_string(), "port": address.port().to_string()},
            // No tokens, and every client may publish, as with the other targets.
            "client": {"insecure": true, "allowed_origins": ["*"]},
            "uni_sse": {"enabled": true},
            "log": {"level": "error"},
        });
        fs::write(&config, text.to_string())?;
        let mut centrifugo = Command::new(install::named(options, self.name(), self.name())?);
        centrifugo.arg("-c").arg(config);
        install::one_go_thread_per_cpu(&mut centrifugo, options);
        Server::start(centrifugo, Ready::Accepts(address), folder, options)
    }

    /// Creates a client. A publisher always uses WebSocket.
    fn dialect(&self, transport: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        if transport == Transport::Sse && ask.role.subscribes() {
            let connect = format!(r#"{{"subs":{{"{}":{{}}}}}}"#, ask.channel);
            let connect = connect.replace('{', "%7B").replace('}', "%7D").replace('"', "%22");
            let path = format!("/connection/uni_sse?cf_connect={connect}");
            return Box::new(EventSource::of_json(&path));
        }
        let client = Client { role: ask.role, channel: ask.channel.into(), id: 0, command: Vec::new() };
        Box::new(OverWebSocket::new(WebSocket::new("/connection/websocket", None), client))
    }
}

/// ```text
///   open ──connect, subscribe──► (waits) ──reply to the last command──► ready
/// ```
/// A WebSocket message may contain several replies, one per line.
struct Client {
    role: Role,
    channel: String,
    /// Id of the last command; the first commands have ids 1 and 2.
    id: u64,
    command: Vec<u8>,
}

impl Subprotocol for Client {
    fn opened(&mut self, out: &mut Vec<u8>, _: &mut dyn FnMut(Event<'_>)) {
        self.id = 2;
        let mut said = String::from(r#"{"id":1,"connect":{}}"#);
        if self.role.subscribes() {
            said += &format!("\n{{\"id\":2,\"subscribe\":{{\"channel\":\"{}\"}}}}", self.channel);
        }
        frame_into(TEXT, said.as_bytes(), out);
    }

    fn message(&mut self, message: &[u8], out: &mut Vec<u8>, emit: &mut dyn FnMut(Event<'_>)) -> anyhow::Result<()> {
        let last: &[u8] = if self.role.subscribes() { b"{\"id\":2," } else { b"{\"id\":1," };
        for line in message.split(|byte| *byte == b'\n') {
            if line.starts_with(b"{\"push\":") {
                payloads(line, |payload| emit(Event::Message(payload)));
            } else if line == b"{}" {
                // A ping.
                frame_into(TEXT, b"{}", out);
            } else if line.starts_with(b"{\"id\":1,") || line.starts_with(b"{\"id\":2,") {
                if memmem::find(line, b"\"error\":").is_some() {
                    bail!("refused: {}", String::from_utf8_lossy(line));
                }
                if line.starts_with(last) {
                    emit(Event::Ready);
                }
            } else if line.starts_with(b"{\"id\":") {
                let is_error = memmem::find(line, b"\"error\":").is_some();
                emit(if is_error { Event::Refused } else { Event::Accepted });
            }
        }
        Ok(())
    }

    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        self.id += 1;
        self.command.clear();
        write!(self.command, r#"{{"id":{},"publish":{{"channel":"{}","data":"#, self.id, self.channel)
            .expect("memory takes it");
        frame_of(TEXT, &[&self.command, payload, b"}}"], out);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::script::{in_pieces, websocket};

    #[test]
    fn client_subscribes_and_reads_batched_replies() {
        let script = websocket(
            &[
                "{\"id\":1,\"connect\":{\"ping\":25,\"pong\":true}}\n{\"id\":2,\"subscribe\":{}}",
                "{\"push\":{\"channel\":\"c\",\"pub\":{\"data\":[\"a\"],\"info\":{\"user\":\"\"}}}}\n{\"id\":3,\"publish\":{}}",
                "{}\n{\"push\":{\"channel\":\"c\",\"pub\":{\"data\":[\"b\"]}}}",
                "{\"id\":4,\"error\":{\"code\":100}}",
            ]
            .map(|message| (0x81, message.as_bytes())),
        );
        let ask = ClientOptions { role: Role::Both, channel: "c", poll_every: Duration::ZERO };
        let heard = in_pieces(|| Centrifugo.dialect(Transport::WebSocket, &ask), &script);
        assert_eq!(heard.events, ["Ready", "[\"a\"]", "Accepted", "[\"b\"]", "Refused"]);
        assert!(heard.sent.ends_with("\0\0\0\0{}"), "a ping is answered");
    }

    #[test]
    fn event_stream_payloads_are_unwrapped() {
        let script = b"HTTP/1.1 200 OK\r\n\r\n\r\ndata: {\"connect\":{\"subs\":{\"c\":{}}}}\n\n\
            data: {\"channel\":\"c\",\"pub\":{\"data\":[\"a\"],\"info\":{}}}\n\n";
        let ask = ClientOptions { role: Role::Subscriber, channel: "c", poll_every: Duration::ZERO };
        let heard = in_pieces(|| Centrifugo.dialect(Transport::Sse, &ask), script);
        assert_eq!(heard.events, ["Ready", "[\"a\"]"]);
    }
}
