//! A cluster: nodes, the broker that they share, and HAProxy in front.

use std::{path::PathBuf, process::Command, time::Duration};

use millrace_client::server::Server;
use rustix::process::Signal;

use crate::{
    balancer::Balancer,
    broker::{Broker, Kind},
    judge::Position,
    ports::free_port,
    process::{BOUND, Folder, Process, until},
};

/// Maximum time of a graceful shutdown.
const DRAIN_MAX: Duration = Duration::from_secs(60);

/// Shared secret: each node accepts the resume tickets of the other nodes.
const SECRET: &str = "server.secret=a secret for tests only";

pub struct Cluster {
    // Drop order: the broker's clients before the broker, the folder with all files last.
    pub balancer: Balancer,
    nodes: Vec<Node>,
    pub broker: Broker,
    http: reqwest::Client,
    _folder: Folder,
}

struct Node {
    port: u16,
    agent: u16,
    process: Option<Process>,
    log: PathBuf,
    args: Vec<String>,
}

impl Cluster {
    /// Starts `up` of `count` nodes; the balancer knows all of them. `settings` have the form `SECTION.KEY=VALUE`.
    pub async fn start(name: &str, kind: Kind, count: usize, up: usize, settings: &[&str]) -> Self {
        Self::start_by(false, name, kind, count, up, settings).await
    }

    /// Like [`Cluster::start`]. With `is_wired`, the nodes connect to the broker through a proxy that can fail.
    pub async fn start_by(is_wired: bool, name: &str, kind: Kind, count: usize, up: usize, settings: &[&str]) -> Self {
        let folder = Folder::new(name);
        let broker = Broker::start(kind, is_wired, &folder).await;
        let nodes: Vec<Node> = (0..count).map(|i| Node::new(i, &broker.url(), settings, &folder)).collect();
        let balancer =
            Balancer::start(&folder, &nodes.iter().map(|node| (node.port, node.agent)).collect::<Vec<_>>()).await;
        let http = millrace_client::tls::http().timeout(Duration::from_secs(5)).build().expect("a client");
        let mut cluster = Self { balancer, nodes, broker, http, _folder: folder };
        for i in 0..up {
            cluster.begin(i);
        }
        for i in 0..up {
            cluster.ready(i).await;
        }
        cluster
    }

    /// Returns the balancer's address, which clients use.
    pub fn server(&self) -> Server {
        Server::parse(&format!("http://127.0.0.1:{}", self.balancer.port)).expect("an address")
    }

    /// Returns the address of a node, which bypasses the balancer.
    pub fn node(&self, i: usize) -> Server {
        Server::parse(&format!("http://127.0.0.1:{}", self.nodes[i].port)).expect("an address")
    }

    /// Returns the process id of a running node.
    pub fn id(&self, i: usize) -> u32 {
        self.nodes[i].process.as_ref().expect("a node that runs").id()
    }

    /// Kills a node with SIGKILL.
    pub fn kill(&mut self, i: usize) {
        self.nodes[i].process = None;
    }

    /// Sends SIGTERM; the node drains and then ends.
    pub fn terminate(&self, i: usize) {
        self.nodes[i].process.as_ref().expect("a node that runs").signal(Signal::TERM);
    }

    /// Returns when a killed or terminated node has ended. A terminated node must exit with success.
    pub async fn ended(&mut self, i: usize) {
        let Some(process) = self.nodes[i].process.take() else { return };
        let status = process.end(DRAIN_MAX).await;
        assert!(status.success(), "node {i} ended with {status} instead of well");
    }

    pub fn begin(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        assert!(node.process.is_none(), "node {i} runs");
        node.process = Some(Process::start(millrace().args(&node.args), &node.log));
    }

    /// Upgrades a node with `millrace upgrade`. Returns when the old process has ended.
    pub async fn upgrade(&mut self, i: usize) {
        let id = self.id(i).to_string();
        let node = &mut self.nodes[i];
        let upgrade = Process::start(millrace().args(["upgrade", "--pid", &id]), &node.log);
        let status = upgrade.end(BOUND).await;
        assert!(status.success(), "the upgrade of node {i} ended with {status}; see {}", node.log.display());
        let status = node.process.as_mut().expect("a node that runs").replaced(DRAIN_MAX).await;
        assert!(status.success(), "node {i} ended with {status} instead of well");
    }

    /// Returns when a started node is ready and the balancer has detected it.
    pub async fn ready(&mut self, i: usize) {
        let url = format!("http://127.0.0.1:{}/readyz", self.nodes[i].port);
        let node = &mut self.nodes[i];
        until(&format!("node {i} is ready"), BOUND, async || {
            let ended = node.process.as_mut().expect("it was begun").ended();
            assert!(ended.is_none(), "node {i} ended: {ended:?}; see {}", node.log.display());
            self.http.get(&url).send().await.is_ok_and(|answer| answer.status() == 200)
        })
        .await;
        let balancer = &self.balancer;
        until(&format!("the balancer sees node {i}"), BOUND, async || balancer.sees(i).await).await;
    }

    /// Returns the newest position of a channel, or `None` if the channel is empty.
    pub async fn top(&self, channel: &str) -> Option<Position> {
        let url = self.server().http(&format!("/v1/channels/{channel}"));
        let answer = self.http.get(&url).send().await.expect("the cluster answers");
        assert!(answer.status().is_success(), "{url}: {answer:?}");
        let position = answer.headers().get("millrace-position").and_then(|value| value.to_str().ok());
        let position = Position::parse(position.expect("every answer has its position"));
        (position.offset > 0).then_some(position)
    }
}

/// Returns the command of the binary under test, without the environment's `MILLRACE_` variables.
fn millrace() -> Command {
    let program = std::env::var("MILLRACE_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_millrace").into());
    let mut command = Command::new(program);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MILLRACE_")) {
        command.env_remove(name);
    }
    command
}

impl Node {
    fn new(i: usize, engine: &str, settings: &[&str], folder: &Folder) -> Self {
        let (port, agent) = (free_port(), free_port());
        let listen = format!("127.0.0.1:{port}");
        let mut args: Vec<String> = ["serve", "--listen", &listen, "--engine", engine].map(str::to_owned).into();
        let agent_at = format!("server.agent=127.0.0.1:{agent}");
        for setting in [agent_at.as_str(), SECRET].iter().chain(settings) {
            args.extend(["--set".to_owned(), (*setting).to_owned()]);
        }
        Self { port, agent, process: None, log: folder.path(&format!("node-{i}.log")), args }
    }
}
