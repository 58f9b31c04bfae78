//! The broker that the nodes share: a real server of the engine's kind. Tests can pause it, stop it and delete its
//! data.

use std::{path::PathBuf, process::Command, time::Duration};

use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    ports::free_port,
    process::{BOUND, Folder, Process, is_there, path_of, until},
    wire::FaultyProxy,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The engine runs in the node itself, without a broker process.
    Memory,
    Redis,
    Nats,
}

pub struct Broker {
    kind: Kind,
    port: u16,
    data: PathBuf,
    log: PathBuf,
    process: Option<Process>,
    /// Proxy between the nodes and the broker, if the network is to fail.
    wire: Option<FaultyProxy>,
}

impl Kind {
    fn program(self) -> Option<&'static str> {
        match self {
            Kind::Memory => None,
            Kind::Redis => Some("redis-server"),
            Kind::Nats => Some("nats-server"),
        }
    }

    /// Returns true if the program of this kind is installed; prints a message if not.
    pub fn is_there(self) -> bool {
        self.program().is_none_or(is_there)
    }
}

impl Broker {
    /// Starts a broker. With `is_wired`, nodes connect to the broker through a [`FaultyProxy`].
    pub async fn start(kind: Kind, is_wired: bool, folder: &Folder) -> Self {
        let (data, log, port) = (folder.path("broker"), folder.path("broker.log"), free_port());
        let wire = is_wired.then(|| FaultyProxy::start(port));
        let mut broker = Self { kind, port, data, log, process: None, wire };
        broker.begin().await;
        broker
    }

    /// Returns the broker's URL in the form that `--engine` accepts.
    pub fn url(&self) -> String {
        let port = self.wire.as_ref().map_or(self.port, |wire| wire.port);
        match self.kind {
            Kind::Memory => "memory".into(),
            Kind::Redis => format!("redis://127.0.0.1:{port}"),
            Kind::Nats => format!("nats://127.0.0.1:{port}"),
        }
    }

    pub fn wire(&self) -> &FaultyProxy {
        self.wire.as_ref().expect("a broker that was started with a wire")
    }

    pub fn pause(&self) {
        self.running().signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.running().signal(Signal::CONT);
    }

    pub async fn stop(&mut self, signal: Signal) {
        let process = self.process.take().expect("a broker that runs");
        process.signal(signal);
        process.end(BOUND).await;
    }

    pub fn lose_data(&self) {
        assert!(self.process.is_none(), "it still runs");
        std::fs::remove_dir_all(&self.data).expect("it had data");
    }

    /// Starts the process and returns when the broker responds.
    pub async fn begin(&mut self) {
        let Some(program) = self.kind.program() else { return };
        std::fs::create_dir_all(&self.data).expect("the folder is writable");
        let (port, data) = (self.port.to_string(), self.data.display().to_string());
        let mut command = Command::new(path_of(program).expect("it was looked for"));
        match self.kind {
            Kind::Memory => {}
            // Redis writes to disk before it responds, so a killed broker loses no acknowledged write.
            Kind::Redis => drop(command.args([
                "--bind",
                "127.0.0.1",
                "--port",
                &port,
                "--dir",
                &data,
                "--save",
                "",
                "--appendonly",
                "yes",
                "--appendfsync",
                "always",
            ])),
            Kind::Nats => drop(command.args(["--addr", "127.0.0.1", "--port", &port, "-js", "-sd", &data])),
        }
        self.process = Some(Process::start(&mut command, &self.log));
        until(&format!("{program} answers"), BOUND, async || self.answers().await.unwrap_or(false)).await;
    }

    async fn answers(&self) -> std::io::Result<bool> {
        let ask = async {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
            let mut answer = [0; 5];
            if self.kind == Kind::Redis {
                stream.write_all(b"PING\r\n").await?;
            }
            stream.read_exact(&mut answer).await?;
            Ok(&answer == b"+PONG" || &answer == b"INFO ")
        };
        tokio::time::timeout(Duration::from_secs(1), ask).await?
    }

    fn running(&self) -> &Process {
        self.process.as_ref().expect("a broker that runs")
    }
}
