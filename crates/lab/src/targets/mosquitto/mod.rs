//! Mosquitto: MQTT 3.1.1 over WebSocket, quality of service 0.

use std::{fs, process::Command};

use crate::{
    load::Dialect,
    targets::{
        ClientOptions, Options, Server, Target, Transport, install, mqtt,
        process::{Ready, free_address},
    },
};

/// The broker, and the libraries that a small Debian lacks.
const PACKAGES: &[&str] = &["mosquitto", "libwrap0", "libdlt2", "libcjson1"];

pub struct Mosquitto;

impl Target for Mosquitto {
    fn name(&self) -> &'static str {
        "mosquitto"
    }

    /// Returns the version from the help text. The exit status is ignored, because `-h` exits with a failure.
    fn version(&self, options: &Options) -> anyhow::Result<String> {
        let output = command(options)?.arg("-h").output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::WebSocket]
    }

    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        let (folder, address, plain) = (tempfile::tempdir()?, free_address()?, free_address()?);
        let config = folder.path().join("mosquitto.conf");
        let user = if rustix::process::getuid().is_root() { "user root\n" } else { "" };
        // Version 2.0.11 exits if WebSocket is its only listener.
        let text = format!(
            "{user}listener {} 127.0.0.1\nlistener {} 127.0.0.1\nprotocol websockets\nsocket_domain ipv4\nallow_anonymous true\n\
             set_tcp_nodelay true\nmax_queued_messages 0\nmax_queued_bytes 0\nmax_connections -1\nlog_type error\nlog_type warning\n",
            plain.port(),
            address.port(),
        );
        fs::write(&config, text)?;
        let mut mosquitto = command(options)?;
        mosquitto.arg("-c").arg(config);
        Server::start(mosquitto, Ready::Accepts(address), folder, options)
    }

    fn dialect(&self, _: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        mqtt::client(ask)
    }
}

fn command(options: &Options) -> anyhow::Result<Command> {
    if let Some(named) = options.binary.clone().or_else(|| install::on_path("mosquitto")) {
        return Ok(Command::new(named));
    }
    install::unpacked(&install::debian(&options.cache, "mosquitto", PACKAGES)?, "usr/sbin/mosquitto")
}
