//! Two Millrace nodes behind HAProxy, with the shipped configuration, and one Redis that both nodes share.
//!
//! ```text
//!   clients ──► HAProxy ──┬──► node 1 ──┬──► Redis
//!                         └──► node 2 ──┘
//! ```

use std::{fs, net::SocketAddr, process::Command};

use anyhow::Context;

use super::{Millrace, command};
use crate::{
    load::{Dialect, RetryingPoster, websocket::Bare},
    targets::{
        ClientOptions, OVER_TCP, Options, Server, Target, Transport, install,
        process::{Ready, free_address},
    },
};

/// Configuration that we ship for three nodes; here the third one is down.
const HAPROXY: &str = include_str!("../../../../../deploy/haproxy.cfg");
const NODES: usize = 2;
/// Name of the nodes for [`Server::kill_part`].
pub const NODE: &str = "node";
/// Shared by the nodes: each accepts the resume tickets of the other.
const SECRET: &str = "server.secret=only for the lab, which serves this machine";

pub struct MillraceCluster;

impl Target for MillraceCluster {
    fn name(&self) -> &'static str {
        "millrace-cluster"
    }

    fn version(&self, options: &Options) -> anyhow::Result<String> {
        let first_line = |program: &str, argument: &str| -> anyhow::Result<String> {
            let output = install::run(Command::new(program_of(program)?).arg(argument))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok(text.lines().next().unwrap_or_default().split(" - ").next().unwrap_or_default().to_owned())
        };
        let (haproxy, redis) = (first_line("haproxy", "-v")?, first_line("redis-server", "--version")?);
        Ok(format!("{}, {haproxy}, {redis}", Millrace.version(options)?))
    }

    fn transports(&self) -> &'static [Transport] {
        OVER_TCP
    }

    /// Starts Redis, the nodes and HAProxy, all on the CPUs of the options. The arguments are those of the nodes.
    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        let plain = Options { arguments: Vec::new(), ..options.clone() };
        let redis_address = free_address()?;
        let redis = redis(redis_address, &plain)?;
        let mut parts = Vec::new();
        let mut haproxy = Command::new(program_of("haproxy")?);
        for i in 1..=NODES {
            let agent = free_address()?;
            let node = node(redis_address, agent, options).with_context(|| format!("node {i}"))?;
            haproxy.env(format!("MILLRACE_NODE{i}"), node.address.to_string());
            haproxy.env(format!("MILLRACE_AGENT{i}"), agent.port().to_string());
            parts.push((NODE, node));
        }
        parts.push(("redis", redis));
        let down = free_address()?;
        haproxy.env("MILLRACE_NODE3", down.to_string()).env("MILLRACE_AGENT3", down.port().to_string());
        let address = free_address()?;
        haproxy.env("MILLRACE_BIND", address.to_string()).env("MILLRACE_FIGURES", free_address()?.to_string());
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("haproxy.cfg");
        fs::write(&file, HAPROXY)?;
        haproxy.arg("-f").arg(file);
        Ok(Server::start(haproxy, Ready::Accepts(address), folder, &plain)?.with_parts(parts))
    }

    /// Publications use requests of their own on every transport, so that they can be repeated.
    fn is_duplex(&self, _: Transport) -> bool {
        false
    }

    /// Creates a client that resumes after a node has died, without losses and duplicates.
    fn dialect(&self, transport: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        let path = format!("/v1/channels/{}", ask.channel);
        match transport {
            _ if ask.role.publishes() => Box::new(RetryingPoster::new(&path, "Content-Type: application/json\r\n")),
            Transport::WebSocket => Box::new(Bare::counting(path)),
            _ => Millrace.dialect(transport, ask),
        }
    }
}

fn program_of(name: &str) -> anyhow::Result<std::path::PathBuf> {
    install::on_path(name).with_context(|| format!("{name} is not installed (Debian: apt install {name})"))
}

fn redis(address: SocketAddr, options: &Options) -> anyhow::Result<Server> {
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(program_of("redis-server")?);
    command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(folder.path());
    Server::start(command, Ready::Accepts(address), folder, options)
}

fn node(redis: SocketAddr, agent: SocketAddr, options: &Options) -> anyhow::Result<Server> {
    let mut command = command(options)?;
    command.args(["--engine", &format!("redis://{redis}"), "--set", SECRET]);
    command.args(["--set", &format!("server.agent={agent}")]);
    Server::start(command, Ready::Says("listening on http://"), tempfile::tempdir()?, options)
}
