//! Mercure: server-sent events from the hub inside Caddy, with the transport that stores no history.

use std::{fs, process::Command};

use crate::{
    load::{
        Dialect,
        http::{EventSource, Poster},
    },
    targets::{
        ClientOptions, Options, Server, Target, Transport, install,
        process::{Ready, free_address},
    },
};

const HUB: &str = "/.well-known/mercure";
/// Key that signs [`TOKEN`]. Both are public: the hub only listens on loopback, and only during a run.
const KEY: &str = "millrace-lab-publishes-on-loopback-only";
/// HS256 of `{"mercure":{"publish":["*"]}}`.
const TOKEN: &str =
    "eyJhbGciOiJIUzI1NiJ9.eyJtZXJjdXJlIjp7InB1Ymxpc2giOlsiKiJdfX0.JKzMVLbQnjlja5zQASpbhYL_vIWgSpFh8SX7jnHmc_c";

pub struct Mercure;

impl Target for Mercure {
    fn name(&self) -> &'static str {
        "mercure"
    }

    /// Returns the versions of the hub and of Caddy. `version` prints only Caddy's; the hub's is in the list of
    /// modules.
    fn version(&self, options: &Options) -> anyhow::Result<String> {
        let mut command = Command::new(install::named(options, self.name(), self.name())?);
        let output = install::run(command.args(["list-modules", "--packages", "--versions"]))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let hub = text.lines().find(|line| line.starts_with("http.handlers.mercure")).unwrap_or("of unknown version");
        let mut command = Command::new(install::named(options, self.name(), self.name())?);
        let caddy = install::run(command.arg("version"))?;
        Ok(format!("{hub}, Caddy {}", String::from_utf8_lossy(&caddy.stdout).trim()))
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::Sse]
    }

    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        let (folder, address) = (tempfile::tempdir()?, free_address()?);
        let config = folder.path().join("Caddyfile");
        let program = install::named(options, self.name(), self.name())?;
        let command = |verb: &str| {
            let mut command = Command::new(&program);
            command.arg(verb).arg("--config").arg(&config).args(["--adapter", "caddyfile"]);
            command.env("XDG_DATA_HOME", folder.path()).env("XDG_CONFIG_HOME", folder.path());
            command
        };
        // From version 1.0 on, the old form of topics requires this setting. Earlier versions reject the setting.
        for compatibility in ["protocol_version_compatibility 8", ""] {
            let text = include_str!("Caddyfile")
                .replace("{port}", &address.port().to_string())
                .replace("{key}", KEY)
                .replace("{compatibility}", compatibility);
            fs::write(&config, text)?;
            if install::run(&mut command("adapt")).is_ok() {
                break;
            }
        }
        let mut hub = command("run");
        install::one_go_thread_per_cpu(&mut hub, options);
        Server::start(hub, Ready::Accepts(address), folder, options)
    }

    fn dialect(&self, _: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        let topic = format!("topic={}", ask.channel.replace('/', "%2F"));
        if ask.role.subscribes() {
            return Box::new(EventSource::new(&format!("{HUB}?{topic}")));
        }
        let headers = format!("Content-Type: application/x-www-form-urlencoded\r\nAuthorization: Bearer {TOKEN}\r\n");
        let wrap = move |payload: &[u8], body: &mut Vec<u8>| form(&topic, payload, body);
        Box::new(Poster::wrapping(HUB, &headers, Box::new(wrap)))
    }
}

/// Appends the form that publishes a payload. Only the ends `["` and `"]` and the spaces of a payload need encoding.
fn form(topic: &str, payload: &[u8], body: &mut Vec<u8>) {
    body.extend_from_slice(topic.as_bytes());
    body.extend_from_slice(b"&data=");
    for byte in payload {
        match byte {
            b' ' => body.push(b'+'),
            b'[' => body.extend_from_slice(b"%5B"),
            b']' => body.extend_from_slice(b"%5D"),
            b'"' => body.extend_from_slice(b"%22"),
            byte => body.push(*byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::Role;

    #[test]
    fn publication_is_sent_as_a_form() {
        let ask = ClientOptions { role: Role::Publisher, channel: "lab/all", poll_every: Duration::ZERO };
        let (mut publisher, mut out) = (Mercure.dialect(Transport::Sse, &ask), Vec::new());
        publisher.publish(b"[\"mr1 7 x\"]", &mut out);
        let said = String::from_utf8(out).unwrap();
        assert!(said.starts_with("POST /.well-known/mercure HTTP/1.1\r\n") && said.contains("Content-Length: 40\r\n"));
        assert!(said.ends_with("\r\n\r\ntopic=lab%2Fall&data=%5B%22mr1+7+x%22%5D"), "{said}");
    }
}
