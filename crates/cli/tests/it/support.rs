//! Real `millrace` processes and a minimal HTTP client for tests. The client uses HTTP/1.0, or HTTP/1.1 with
//! `Connection: close`: the end of the connection ends the body.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

pub use crate::ports::free_port;

/// Time limit of every step. A step that takes longer is broken on any machine.
pub const BOUND: Duration = Duration::from_secs(60);

/// Returns the command of the binary under test, without the environment's `MILLRACE_` variables.
pub fn millrace(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args(args);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MILLRACE_")) {
        command.env_remove(name);
    }
    command
}

/// Runs `millrace` until it ends.
pub fn run(args: &[&str]) -> Ended {
    Process::start(&mut millrace(args)).finish()
}

/// Exit status and output of a process.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub out: String,
    pub err: String,
}

/// A process group that never outlives the test.
pub struct Process {
    child: Child,
    pub out: Lines,
    pub err: Lines,
}

impl Process {
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null());
        Self::start_with_input(command)
    }

    /// Starts the command and keeps the standard input that it sets.
    pub fn start_with_input(command: &mut Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().expect("the process starts");
        let out = Lines::of(child.stdout.take().expect("it is piped"));
        let err = Lines::of(child.stderr.take().expect("it is piped"));
        Self { child, out, err }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Closes the standard input of the process.
    pub fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process is there");
    }

    /// Waits for the end of the process, reading its output meanwhile. A pause in output may last [`BOUND`] at most.
    pub fn finish(mut self) -> Ended {
        let (out, err) = (self.out.rest(), self.err.rest());
        let status = self.child.wait().expect("it is our child");
        Ended { code: status.code(), signal: status.signal(), out, err }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Lines of an output stream. A separate thread reads them, so that waiting has a time limit.
pub struct Lines {
    seen: Vec<String>,
    coming: Receiver<String>,
}

impl Lines {
    pub fn of(source: impl Read + Send + 'static) -> Self {
        let (sender, coming) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(source).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { seen: Vec::new(), coming }
    }

    /// Returns the next line, or `None` at the end.
    pub fn next(&mut self) -> Option<String> {
        match self.coming.recv_timeout(BOUND) {
            Ok(line) => {
                self.seen.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("nothing more came in time; before: {:#?}", self.seen),
        }
    }

    /// Returns the next line that contains `part`.
    pub fn wait_for(&mut self, part: &str) -> String {
        let deadline = Instant::now() + BOUND;
        while let Some(line) = self.next() {
            if line.contains(part) {
                return line;
            }
            assert!(Instant::now() < deadline, "no {part:?} in time: {:#?}", self.seen);
        }
        panic!("it ended without {part:?}: {:#?}", self.seen)
    }

    /// Reads to the end and returns all lines, including those already read.
    pub fn rest(&mut self) -> String {
        while self.next().is_some() {}
        self.seen.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// A server on a free port.
pub struct Server {
    pub process: Process,
    /// `HOST:PORT`
    pub address: String,
    pub url: String,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Server {
    pub fn start(args: &[&str]) -> Self {
        Self::start_from(millrace(&["serve", "--listen", "127.0.0.1:0"]).args(args))
    }

    pub fn start_from(command: &mut Command) -> Self {
        let mut process = Process::start(command);
        let line = process.out.wait_for("listening on ");
        let url = line.trim_start_matches("listening on ").to_owned();
        Self { process, address: url.rsplit('/').next().unwrap_or_default().to_owned(), url }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "")
    }

    pub fn post(&self, path: &str, body: &str) -> Answer {
        self.ask("POST", path, &[], body)
    }

    /// Returns the status, or `None` without a response.
    pub fn try_post(&self, path: &str, body: &str) -> Option<u16> {
        let mut answer = String::new();
        try_send(&self.address, "POST", path, &[], body).ok()?.read_to_string(&mut answer).ok()?;
        answer.split(' ').nth(1)?.parse().ok()
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
        ask(&self.address, method, path, headers, body)
    }

    /// Returns the lines of a streaming response, including its header.
    pub fn open(&self, path: &str, accept: &str) -> Lines {
        Lines::of(send(&self.address, "GET", path, &[&format!("Accept: {accept}")], ""))
    }

    /// Repeats the request until the response is as wanted.
    pub fn get_until(&self, path: &str, wanted: impl Fn(&Answer) -> bool) -> Answer {
        self.ask_until("GET", path, "", wanted)
    }

    pub fn ask_until(&self, method: &str, path: &str, body: &str, wanted: impl Fn(&Answer) -> bool) -> Answer {
        let deadline = Instant::now() + BOUND;
        loop {
            let answer = self.ask(method, path, &[], body);
            if wanted(&answer) {
                return answer;
            }
            assert!(Instant::now() < deadline, "not in time: {answer:?}");
        }
    }
}

/// Sends one request to `HOST:PORT`.
pub fn ask(address: &str, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
    let mut answer = String::new();
    send(address, method, path, headers, body).read_to_string(&mut answer).expect("an answer in time");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

fn send(address: &str, method: &str, path: &str, headers: &[&str], body: &str) -> TcpStream {
    try_send(address, method, path, headers, body).expect("the server listens and reads")
}

fn try_send(address: &str, method: &str, path: &str, headers: &[&str], body: &str) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(BOUND)).expect("a time that is not 0");
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let length = body.len();
    // A request with a host is sent as browsers send it.
    let version = if headers.contains("Host: ") { "1.1\r\nConnection: close" } else { "1.0" };
    write!(stream, "{method} {path} HTTP/{version}\r\n{headers}Content-Length: {length}\r\n\r\n{body}")?;
    Ok(stream)
}

/// Writes a file for this test and returns its path.
pub fn file(name: &str, text: &str) -> String {
    let path = format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&path, text).expect("the target directory is writable");
    path
}

/// Returns flags for frequent polling in `sub`. Other transports do not accept them.
pub fn polls_often(transport: &str) -> &'static [&'static str] {
    if transport == "polling" { &["--interval", "20ms"] } else { &[] }
}

/// Returns the path of a file in this repository.
pub fn repository(path: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
