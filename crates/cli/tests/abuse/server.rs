//! The server under attack. It runs one shard on its own CPU, so an attack can saturate the server but not the
//! measuring clients.

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

/// Response timeout. A healthy server responds within this time.
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

    /// Returns the proportional set size (PSS) of the server in bytes.
    ///
    /// Panics if the process has ended.
    pub fn memory(&mut self) -> u64 {
        let pid = self.process.root_pids()[0];
        let alive = self.process.is_alive();
        assert!(alive, "the server has ended:\n{}", self.process.log_tail());
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it is ours");
        proc::number(&text, "Pss").expect("the kernel counts it")
    }

    /// Returns the memory that the server reports: the sum of `millrace_memory_bytes`.
    pub fn memory_told(&self) -> u64 {
        self.metric("millrace_memory_bytes")
    }

    /// Returns the sum of a metric family over its labels.
    pub fn metric(&self, family: &str) -> u64 {
        let text = self.get("/metrics").expect("an answer");
        let value = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            (name.split('{').next() == Some(family)).then(|| value.parse::<u64>().ok()).flatten()
        };
        text.lines().filter_map(value).sum()
    }

    /// Requests `path` on a new connection and returns the body of the `200` response.
    ///
    /// Errors: the request failed, timed out, or had another status.
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
