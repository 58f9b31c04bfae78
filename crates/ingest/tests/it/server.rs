//! A real server in this process, and raw requests to it.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use millrace_server::{Config, Running};
use serde_json::Value;

/// Maximum time that a test waits for anything.
pub const BOUND: Duration = Duration::from_secs(30);

pub struct Server {
    running: Option<Running>,
    pub address: SocketAddr,
}

/// Answer with its complete body.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Returns the value of a header, or an empty text.
    pub fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(other, _)| other.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    }

    /// Returns the numbers of live, late, duplicate and dropped points.
    pub fn summary(&self) -> [usize; 4] {
        let numbers: Vec<usize> = self
            .header("millrace-ingest")
            .split(", ")
            .map(|part| part.split_once('=').unwrap_or_else(|| panic!("no summary: {self:?}")).1.parse().unwrap())
            .collect();
        numbers.try_into().unwrap()
    }
}

impl Server {
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        config.server.shards = 2;
        change(&mut config);
        let running = millrace_server::start(config).expect("a server on a free port");
        Self { address: running.address, running: Some(running) }
    }

    /// Returns the address of the port for NMEA sentences.
    pub fn nmea(&self) -> SocketAddr {
        self.running.as_ref().and_then(|running| running.nmea).expect("a port for NMEA sentences")
    }

    /// Sends a recorded request. The length of its body is added; everything else is sent as it was recorded.
    pub fn replay(&self, recorded: &str) -> Answer {
        let (head, body) = recorded.split_once("\n\n").unwrap_or((recorded.trim_end(), ""));
        let mut request = head.replace('\n', "\r\n");
        if head.starts_with("POST") {
            request += &format!("\r\nContent-Length: {}", body.len());
        }
        self.send(&format!("{request}\r\nConnection: close\r\n\r\n{body}"))
    }

    pub fn get(&self, target: &str, headers: &str) -> Answer {
        self.send(&format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Connection: close\r\n\r\n"))
    }

    pub fn post(&self, target: &str, headers: &str, body: &str) -> Answer {
        let length = body.len();
        let head = format!("POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Content-Length: {length}\r\n");
        self.send(&format!("{head}Connection: close\r\n\r\n{body}"))
    }

    fn send(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).expect("the server listens");
        stream.set_read_timeout(Some(BOUND)).unwrap();
        // The server may answer before it has read a body that is too large.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer in time");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// Returns the records of a channel, oldest first.
    pub fn records(&self, channel: &str) -> Vec<Value> {
        self.records_with(channel, "")
    }

    pub fn records_with(&self, channel: &str, headers: &str) -> Vec<Value> {
        let answer = self.get(&format!("/v1/channels/{channel}?since=earliest&limit=1000"), headers);
        if answer.status == 204 {
            return Vec::new();
        }
        assert_eq!(answer.status, 200, "{answer:?}");
        let page: Value = serde_json::from_str(&answer.body).unwrap();
        page["messages"].as_array().unwrap().iter().map(|message| message["data"].clone()).collect()
    }

    /// Waits until the channel has `count` records.
    pub fn await_records(&self, channel: &str, count: usize) -> Vec<Value> {
        let deadline = Instant::now() + BOUND;
        loop {
            let records = self.records(channel);
            if records.len() >= count {
                return records;
            }
            assert!(Instant::now() < deadline, "{records:?}");
            std::thread::yield_now();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop();
        }
    }
}

/// Returns the times of records.
pub fn times(records: &[Value]) -> Vec<u64> {
    records.iter().map(|record| record["timestamp"].as_u64().unwrap()).collect()
}

/// Returns the current time in milliseconds since 1970.
pub fn now_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}
