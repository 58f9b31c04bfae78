//! Real servers for the tests: each on a free port, in its own folder, started once per test binary. They stop with the
//! test binary, however it ends.

use std::{
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, TcpStream},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

pub use crate::ports::free_port;

/// A server process. A shell runs it, and removes it and its folder when this process has ended, because statics are
/// never dropped. A test may have ended the server before; the shell does not report that.
pub struct Server {
    pub port: u16,
    /// Process id of the server itself.
    pub pid: u32,
    shell: Child,
    _stdin: Option<ChildStdin>,
}

impl Server {
    /// Starts `command` (in which `$dir` is its folder) and waits until `port` accepts connections.
    pub fn start(port: u16, command: &str) -> Self {
        let script = format!(
            "dir=$(mktemp -d); cd \"$dir\"; {command} >\"$dir/log\" 2>&1 </dev/null & pid=$!; echo $pid; read end; \
             {{ kill -CONT $pid; kill $pid; wait $pid; }} 2>/dev/null; rm -rf \"$dir\""
        );
        let mut shell = Command::new("sh");
        let mut shell = shell.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let server = Self { port, pid: line.trim().parse().unwrap(), _stdin: shell.stdin.take(), shell };
        let reached = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        assert!(until(Duration::from_secs(10), reached), "`{command}` does not listen on {port}");
        server
    }

    /// Sends the server a signal, such as `STOP`.
    pub fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([&format!("-{name}"), &self.pid.to_string()]).status().unwrap().success());
    }

    /// Ends the server and waits until it has ended.
    pub fn end(mut self) -> u16 {
        drop(self._stdin.take());
        self.shell.wait().unwrap();
        self.port
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self._stdin.take());
        let _ = self.shell.wait();
    }
}

/// Waits until the condition holds. Returns false after `limit`.
pub fn until(limit: Duration, condition: impl Fn() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !condition() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Returns whether this program is installed. Prints `SKIPPED` if not.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has =
        std::env::split_paths(&path).chain([Path::new("/usr/sbin").into()]).any(|dir| dir.join(program).is_file());
    if !has {
        eprintln!("SKIPPED: `{program}` is not installed here (scripts/setup.sh does that)");
    }
    has
}

/// Starts a Redis server without persistence.
pub fn redis_on(port: u16, more: &str) -> Server {
    let command = format!("redis-server --port {port} --save '' --appendonly no {more}");
    Server::start(port, &command)
}

/// Returns the URL of the shared Redis server; `None` if Redis is not installed.
pub fn redis() -> Option<String> {
    static REDIS: OnceLock<Option<Server>> = OnceLock::new();
    let server = REDIS.get_or_init(|| has("redis-server").then(|| redis_on(free_port(), "")));
    server.as_ref().map(|server| format!("redis://127.0.0.1:{}", server.port))
}

/// Starts a NATS server with JetStream that keeps its streams in `dir` and accepts the largest publications.
pub fn nats_on(port: u16, dir: &str) -> Server {
    let start = format!("exec nats-server -c \"$dir/conf\" -a 127.0.0.1 -p {port} -js -sd {dir}");
    Server::start(port, &format!("(echo 'max_payload: 2MB' >\"$dir/conf\"; {start})"))
}

/// Returns the URL of the shared NATS server; `None` if NATS is not installed.
pub fn nats() -> Option<String> {
    static NATS: OnceLock<Option<Server>> = OnceLock::new();
    let server = NATS.get_or_init(|| has("nats-server").then(|| nats_on(free_port(), "\"$dir\"")));
    server.as_ref().map(|server| format!("nats://127.0.0.1:{}", server.port))
}

/// Returns the URL of the shared Redis cluster of three nodes; `None` if Redis is not installed.
pub fn redis_cluster() -> Option<String> {
    static CLUSTER: OnceLock<Option<Vec<Server>>> = OnceLock::new();
    let servers = CLUSTER.get_or_init(|| has("redis-server").then(start_cluster));
    let hosts: Vec<_> = servers.as_ref()?.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
    Some(format!("redis+cluster://{}", hosts.join(",")))
}

pub fn start_cluster() -> Vec<Server> {
    let buses = [(); 3].map(|()| free_port());
    let servers: Vec<_> = buses
        .iter()
        .map(|bus| {
            let more = format!("--cluster-enabled yes --cluster-node-timeout 2000 --cluster-port {bus}");
            redis_on(free_port(), &more)
        })
        .collect();
    for (i, server) in servers.iter().enumerate() {
        let (first, last) = (i * 16384 / 3, (i + 1) * 16384 / 3 - 1);
        ask(server.port, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        for (other, bus) in servers.iter().zip(buses) {
            ask(server.port, &["CLUSTER", "MEET", "127.0.0.1", &other.port.to_string(), &bus.to_string()]);
        }
    }
    let is_whole = |server: &Server| {
        let info = ask(server.port, &["CLUSTER", "INFO"]);
        info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3") && info.contains("cluster_size:3")
    };
    assert!(until(Duration::from_secs(30), || servers.iter().all(is_whole)), "the cluster does not come together");
    servers
}

/// Sends a command to a Redis server and returns its complete answer, unparsed.
pub fn ask(port: u16, command: &[&str]) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut request = format!("*{}\r\n", command.len());
    for word in command {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    // Everything before the end of the connection is the answer.
    request.push_str("*1\r\n$4\r\nQUIT\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(!answer.starts_with('-'), "{command:?}: {answer}");
    answer
}
