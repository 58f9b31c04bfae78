//! NATS over WebSocket: its own text protocol in binary messages, whose boundaries may be anywhere.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, bail};
use memchr::memmem;

use crate::{
    load::{
        Dialect, Event, Role,
        http::join,
        websocket::{BINARY, OverWebSocket, Subprotocol, WebSocket, frame_into, frame_of},
    },
    targets::{
        ClientOptions, Options, Server, Target, Transport, install,
        process::{Ready, free_address},
    },
};

/// Go module of the server, if Go is installed. Otherwise Debian's package is used, which is some years older.
const MODULE: &str = "github.com/nats-io/nats-server/v2@v2.15.2";

pub struct Nats;

impl Target for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn version(&self, options: &Options) -> anyhow::Result<String> {
        let output = install::run(Command::new(binary(options)?).arg("--version"))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::WebSocket]
    }

    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        let (folder, address) = (tempfile::tempdir()?, free_address()?);
        let config = folder.path().join("nats.conf");
        let text = format!(
            "listen: \"127.0.0.1:-1\"\nmax_connections: 1000000\n\
             websocket {{ listen: \"{address}\", no_tls: true, compression: false }}\n"
        );
        fs::write(&config, text)?;
        let mut nats = Command::new(binary(options)?);
        nats.arg("-c").arg(config);
        install::one_go_thread_per_cpu(&mut nats, options);
        Server::start(nats, Ready::Accepts(address), folder, options)
    }

    fn dialect(&self, _: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        let client = Client { role: ask.role, subject: ask.channel.replace('/', "."), rest: Vec::new() };
        Box::new(OverWebSocket::new(WebSocket::new("/", None), client))
    }
}

fn binary(options: &Options) -> anyhow::Result<PathBuf> {
    if let Some(named) = options.binary.clone().or_else(|| install::on_path("nats-server")) {
        return Ok(named);
    }
    match install::on_path("go") {
        Some(_) => Ok(install::go(&options.cache, "nats", MODULE)?.join("nats-server")),
        None => Ok(install::debian(&options.cache, "nats", &["nats-server"])?.join("usr/sbin/nats-server")),
    }
}

/// ```text
///   INFO ──CONNECT, SUB, PING──► (waits) ──PONG──► ready: the subscription is active
/// ```
struct Client {
    role: Role,
    subject: String,
    rest: Vec<u8>,
}

impl Subprotocol for Client {
    fn opened(&mut self, _: &mut Vec<u8>, _: &mut dyn FnMut(Event<'_>)) {
        self.rest.clear();
    }

    fn message(&mut self, message: &[u8], out: &mut Vec<u8>, emit: &mut dyn FnMut(Event<'_>)) -> anyhow::Result<()> {
        let Client { role, subject, rest } = self;
        join(rest, message, |bytes| operations(bytes, *role, subject, out, emit))
    }

    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        let head = format!("PUB {} {}\r\n", self.subject, payload.len());
        frame_of(BINARY, &[head.as_bytes(), payload, b"\r\n"], out);
    }
}

/// Handles complete operations and returns the number of bytes consumed.
fn operations(
    bytes: &[u8],
    role: Role,
    subject: &str,
    out: &mut Vec<u8>,
    emit: &mut dyn FnMut(Event<'_>),
) -> anyhow::Result<usize> {
    let mut at = 0;
    while let Some(length) = memmem::find(&bytes[at..], b"\r\n") {
        let line = &bytes[at..at + length];
        let body = at + length + 2;
        if line.starts_with(b"MSG ") {
            let size = line.rsplit(|byte| *byte == b' ').next().and_then(|text| std::str::from_utf8(text).ok());
            let size: usize = size.and_then(|size| size.parse().ok()).context("a message without a size")?;
            let Some(payload) = bytes.get(body..body + size).filter(|_| bytes.len() >= body + size + 2) else { break };
            emit(Event::Message(payload));
            at = body + size + 2;
            continue;
        }
        at = body;
        match line.split(|byte| *byte == b' ').next().unwrap_or_default() {
            b"INFO" => {
                let mut said = String::from(
                    "CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"lab\",\"version\":\"1\"}\r\n",
                );
                if role.subscribes() {
                    said += &format!("SUB {subject} 1\r\n");
                }
                frame_into(BINARY, (said + "PING\r\n").as_bytes(), out);
            }
            b"PING" => frame_into(BINARY, b"PONG\r\n", out),
            b"PONG" => emit(Event::Ready),
            b"-ERR" => bail!("refused: {}", String::from_utf8_lossy(line)),
            _ => {}
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::script::{in_pieces, websocket};

    #[test]
    fn operations_survive_any_split_into_messages() {
        let parts = ["INFO {}\r\n", "PO", "NG\r\nMSG a.b 1 5\r\n[\"a\"", "]\r\nMSG a.b 1 5\r\n[\"b\"]\r\nPING\r\n"];
        let script = websocket(&parts.map(|part| (0x82, part.as_bytes())));
        let ask = ClientOptions { role: Role::Both, channel: "a/b", poll_every: Duration::ZERO };
        let heard = in_pieces(|| Nats.dialect(Transport::WebSocket, &ask), &script);
        assert_eq!(heard.events, ["Ready", "[\"a\"]", "[\"b\"]"]);
        assert!(heard.sent.contains("SUB a.b 1\r\nPING\r\n") && heard.sent.ends_with("PONG\r\n"));
    }
}
