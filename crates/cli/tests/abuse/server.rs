//! The server that is attacked: one shard on a CPU of its own, so that it can be brought to its limit while those who measure are not.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use millrace_lab::{
    host::proc,
    targets::{self, Options, Target},
};

/// Whoever is healthy answers within this.
const ANSWER: Duration = Duration::from_secs(2);

pub struct Server {
    process: targets::Server,
    pub address: SocketAddr,
    pub udp: Option<SocketAddr>,
}

impl Server {
    pub fn start(cpu: usize, arguments: &[String], descriptors: u64) -> Self {
        let options = Options {
            binary: Some(
                std::env::var_os("MILLRACE_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_millrace").into()).into(),
            ),
            cpus: vec![cpu],
            descriptors,
            arguments: arguments.to_vec(),
            ..Options::default()
        };
        let process = millrace().start(&options).expect("the server starts");
        let address = process.address;
        let mut server = Self { process, address, udp: None };
        let info: serde_json::Value = serde_json::from_str(&server.get("/v1/info").expect("an answer")).expect("JSON");
        server.udp = info["udp"].as_str().map(|udp| udp.parse().expect("an address"));
        server
    }

    /// Proportional memory, in bytes.
    ///
    /// Panics if the process is gone.
    pub fn memory(&mut self) -> u64 {
        let pid = self.process.root_pids()[0];
        let alive = self.process.is_alive();
        assert!(alive, "the server has ended:\n{}", self.process.log_tail());
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it is ours");
        proc::number(&text, "Pss").expect("the kernel counts it")
    }

    /// What it says itself: the sum of `millrace_memory_bytes`.
    pub fn memory_told(&self) -> u64 {
        self.metric("millrace_memory_bytes")
    }

    /// The sum of a family over its labels.
    pub fn metric(&self, family: &str) -> u64 {
        let text = self.get("/metrics").expect("an answer");
        let value = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            (name.split('{').next() == Some(family)).then(|| value.parse::<u64>().ok()).flatten()
        };
        text.lines().filter_map(value).sum()
    }

    /// The body of a `200`, on a connection of its own.
    ///
    /// Errors: it did not come in time.
    pub fn get(&self, path: &str) -> Result<String, String> {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect_timeout(&self.address, ANSWER)?;
            stream.set_read_timeout(Some(ANSWER))?;
            write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let asked = Instant::now();
        let text = ask().map_err(|error| format!("{path}: {error} after {:?}", asked.elapsed()))?;
        match text.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200") => {
                Ok(body.to_owned())
            }
            _ => Err(format!("{path}: {text}")),
        }
    }
}

pub fn millrace() -> &'static dyn Target {
    targets::find("millrace").expect("our own")
}
