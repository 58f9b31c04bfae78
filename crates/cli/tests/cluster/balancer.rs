//! HAProxy in front of the nodes.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};

use crate::{
    ports::free_port,
    process::{BOUND, Folder, Process, path_of, until},
};

pub struct Balancer {
    pub port: u16,
    socket: PathBuf,
    _process: Process,
}

/// Number of nodes in the shipped configuration.
pub const NODES: usize = 3;

impl Balancer {
    /// Starts HAProxy with the shipped configuration and an additional statistics socket. `nodes` holds the listen
    /// port and the agent port of each node. A node that is missing gets free ports, where no process listens.
    pub async fn start(folder: &Folder, nodes: &[(u16, u16)]) -> Self {
        let (port, socket, more) = (free_port(), folder.path("haproxy.sock"), folder.path("more.cfg"));
        let text = format!("global\n    stats socket {} level admin\n", socket.display());
        std::fs::write(&more, text).expect("the folder is writable");
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/haproxy.cfg");
        let mut command = Command::new(path_of("haproxy").expect("it was looked for"));
        command.arg("-f").arg(shipped).arg("-f").arg(&more);
        command.env("MILLRACE_BIND", format!("127.0.0.1:{port}"));
        command.env("MILLRACE_FIGURES", format!("127.0.0.1:{}", free_port()));
        for i in 0..NODES {
            let (node, agent) = nodes.get(i).copied().unwrap_or_else(|| (free_port(), free_port()));
            command.env(format!("MILLRACE_NODE{}", i + 1), format!("127.0.0.1:{node}"));
            command.env(format!("MILLRACE_AGENT{}", i + 1), agent.to_string());
        }
        let process = Process::start(&mut command, &folder.path("haproxy.log"));
        until("haproxy listens", BOUND, async || TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
        Self { port, socket, _process: process }
    }

    /// Returns true if HAProxy sends clients to this node.
    pub async fn sees(&self, node: usize) -> bool {
        let name = format!("node{}", node + 1);
        let up = |line: &Vec<String>| {
            line.get(1) == Some(&name) && line.get(17).is_some_and(|state| state.starts_with("UP"))
        };
        self.statistics().await.iter().any(up)
    }

    /// Resets all counters, including the maximum rates.
    pub async fn clear(&self) {
        self.ask("clear counters all").await;
    }

    /// Returns the maximum number of client connections in one second, and the maximum number of requests to one node
    /// in one second.
    pub async fn rates_max(&self) -> (u64, u64) {
        let lines = self.statistics().await;
        let most = |kind: &str, column: usize| {
            let of_kind = lines.iter().filter(|line| line.get(32).is_some_and(|found| found == kind));
            of_kind.filter_map(|line| line.get(column)?.parse().ok()).max().unwrap_or(0)
        };
        (most("0", 78), most("2", 35))
    }

    /// Returns the rows of the statistics table.
    ///
    /// Source: HAProxy 2.6 management guide, section 9.1, "CSV format".
    async fn statistics(&self) -> Vec<Vec<String>> {
        self.ask("show stat").await.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
    }

    async fn ask(&self, command: &str) -> String {
        let ask = async {
            let mut stream = UnixStream::connect(&self.socket).await?;
            stream.write_all(format!("{command}\n").as_bytes()).await?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await.map(|_| text)
        };
        tokio::time::timeout(BOUND, ask).await.expect("haproxy answers").expect("its socket is there")
    }
}
