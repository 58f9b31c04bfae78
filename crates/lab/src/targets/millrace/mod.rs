//! Millrace itself, seen from outside: this code relies only on `docs/reference/protocol.md`.

mod cluster;
mod data_channel;
mod lines;
mod mqtt;
mod poll;
mod session;

use std::{
    env,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;

use crate::{
    load::{
        Dialect,
        http::{EventSource, Poster},
        websocket::Bare,
    },
    targets::{ClientOptions, OVER_TCP, Options, Server, Target, TlsTarget, Transport, install, process::Ready},
};

pub use cluster::{MillraceCluster, NODE as CLUSTER_NODE};
pub use mqtt::MillraceMqtt;

pub struct Millrace;

impl Target for Millrace {
    fn name(&self) -> &'static str {
        "millrace"
    }

    fn version(&self, options: &Options) -> anyhow::Result<String> {
        let output = install::run(Command::new(binary(options)?).arg("--version"))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn transports(&self) -> &'static [Transport] {
        &Transport::ALL
    }

    /// Starts as many shards as there are CPUs in the options, or one if there are none, unless the arguments have
    /// `--shards`.
    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        Server::start(command(options)?, Ready::Says("listening on http://"), tempfile::tempdir()?, options)
    }

    fn metrics(&self) -> Option<&'static str> {
        Some("/metrics")
    }

    fn can_listen_anywhere(&self) -> bool {
        true
    }

    fn dialect(&self, transport: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        let path = format!("/v1/channels/{}", ask.channel);
        match transport {
            Transport::WebSocket if ask.role.subscribes() => Box::new(Bare::new(path)),
            Transport::WebSocket => Box::new(Bare::new(format!("{path}?subscribe=no"))),
            Transport::Session => Box::new(session::Session::over_websocket(ask)),
            Transport::DataChannel => Box::new(data_channel::DataChannel::new(ask)),
            Transport::Mqtt => crate::targets::mqtt::client(ask),
            _ if ask.role.publishes() => Box::new(Poster::new(&path, "Content-Type: application/json\r\n")),
            Transport::Sse => Box::new(EventSource::new(&path)),
            Transport::Stream => Box::new(lines::Lines::new(&path)),
            Transport::LongPolling => Box::new(poll::Poll::long(&path)),
            Transport::Polling => Box::new(poll::Poll::every(&path, ask.poll_every)),
        }
    }
}

impl TlsTarget for Millrace {
    fn transports_over_tls(&self) -> &'static [Transport] {
        OVER_TCP
    }

    fn start_with_certificate(&self, folder: &Path, options: &Options) -> anyhow::Result<Server> {
        let mut command = command(options)?;
        for (key, file) in [("cert", "cert.pem"), ("key", "key.pem")] {
            command.args(["--set", &format!("tls.{key}={}", folder.join(file).display())]);
        }
        Server::start(command, Ready::Says("listening on https://"), tempfile::tempdir()?, options)
    }
}

fn command(options: &Options) -> anyhow::Result<Command> {
    let mut command = Command::new(binary(options)?);
    command.arg("serve");
    if !options.arguments.iter().any(|argument| argument == "--shards") {
        command.args(["--shards", &options.cpus.len().max(1).to_string()]);
    }
    // With two different addresses, the server would report an error.
    if !options.arguments.iter().any(|argument| argument.starts_with("server.listen=")) {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    if let Some(address) = options.public_address {
        // Otherwise the server would announce 127.0.0.1 to peers of data channels.
        command.args(["--set", &format!(r#"rtc.public=["{address}"]"#)]);
    }
    Ok(command)
}

/// Returns the command of a simulated kit Earl that connects to `server`.
///
/// Errors: no program.
pub fn kit(server: SocketAddr, name: &str, options: &Options) -> anyhow::Result<Command> {
    let mut command = Command::new(binary(options)?);
    command.args(["simulate", "earl", "--name", name, "--to", &format!("http://{server}")]);
    Ok(command)
}

/// Starts `millrace gateway` on a free port of `listen`.
///
/// Errors: the gateway does not start; the error contains the end of its log.
pub fn start_gateway(listen: Ipv4Addr, options: &Options) -> anyhow::Result<Server> {
    let mut command = Command::new(binary(options)?);
    command.args(["gateway", "--listen", &format!("{listen}:0")]);
    Server::start(command, Ready::Says("listening on http://"), tempfile::tempdir()?, options)
}

/// Returns the program that the user names, or the one beside this program. A test program is one folder deeper.
pub(super) fn binary(options: &Options) -> anyhow::Result<PathBuf> {
    if let Some(named) = options.binary.clone().or_else(|| Some(env::var_os("MILLRACE_BIN")?.into())) {
        return Ok(named);
    }
    let own = env::current_exe()?;
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join("millrace")).find(|file| file.is_file());
    beside
        .or_else(|| install::on_path("millrace"))
        .context("no millrace beside this program: name it (millrace=PATH, or MILLRACE_BIN)")
}
