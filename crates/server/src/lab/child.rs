//! Child processes of the lab: `millrace lab ..` of this program, each in a process group of its own.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use millrace_protocol::{Code, Error};
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, kill_process_group, prlimit, waitid};

/// Prefix of the variables with the settings and secrets of a server.
const PREFIX: &str = "MILLRACE_";
/// Rest of the names of the variables with this prefix that the lab reads: the programs of rivals.
const TARGETS: [&str; 8] = ["CENTRIFUGO", "DURABLE_STREAMS", "MERCURE", "MOSQUITTO", "NATS", "NCHAN", "PUSHPIN", "UWS"];
/// The first process that the system ends when memory runs out is one of the lab, not the server.
/// Source: proc(5), `/proc/pid/oom_score_adj`.
const OOM_SCORE: &str = "800\n";
/// Time for a question to the lab, such as a comparison.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Maximum size of an answer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Interval between two looks at a child.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Maximum length of an error that the lab reports, in characters.
const DETAIL_CHARS_MAX: usize = 500;

/// How the lab is started.
pub struct Program {
    pub path: PathBuf,
    /// Working directory.
    pub directory: PathBuf,
    /// Maximum private memory of one process.
    pub memory_bytes_max: u64,
    /// Maximum size of one file.
    pub file_bytes_max: u64,
}

/// A child and all processes that it starts. Dropping this value kills them.
pub struct Group {
    child: Child,
    is_reaped: bool,
}

impl Program {
    /// Starts the lab with these arguments. `log` receives its standard error.
    ///
    /// Errors: `unavailable` with the reason.
    pub fn start(&self, arguments: &[String], input: Stdio, log: Stdio) -> Result<Group, Error> {
        use std::os::unix::process::CommandExt as _;

        let mut command = Command::new(&self.path);
        command.args(arguments).current_dir(&self.directory).process_group(0);
        command.stdin(input).stdout(Stdio::piped()).stderr(log);
        // The settings and secrets of this server are not those of the servers that the lab starts.
        for (name, _) in std::env::vars_os() {
            if let Some(name) = name.to_str()
                && (name == "NOTIFY_SOCKET" || name.strip_prefix(PREFIX).is_some_and(|rest| !TARGETS.contains(&rest)))
            {
                command.env_remove(name);
            }
        }
        let child = command
            .spawn()
            .map_err(|error| unavailable(format!("the lab cannot be started: {}: {error}", self.path.display())))?;
        let group = Group { child, is_reaped: false };
        self.limit(&group).map_err(|error| unavailable(format!("the lab cannot be limited: {error}")))?;
        Ok(group)
    }

    /// Limits the child and all processes that it starts later.
    fn limit(&self, group: &Group) -> io::Result<()> {
        let limit = |most: u64| Rlimit { current: Some(most), maximum: Some(most) };
        for (resource, most) in
            [(Resource::Core, 0), (Resource::Fsize, self.file_bytes_max), (Resource::Data, self.memory_bytes_max)]
        {
            prlimit(Some(group.pid()), resource, limit(most))?;
        }
        let adjust = fs::write(format!("/proc/{}/oom_score_adj", group.child.id()), OOM_SCORE);
        if let Err(error) = adjust {
            tracing::debug!(%error, "the lab keeps the priority of this server when memory runs out");
        }
        Ok(())
    }

    /// Runs the lab to its end, and returns its output. `accepts`: exit codes of a success.
    ///
    /// Errors: `bad_request` with the error of the lab; `unavailable` if it does not answer in time.
    pub fn ask(&self, arguments: &[&str], accepts: &[i32]) -> Result<Vec<u8>, Error> {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let mut group = self.start(&arguments, Stdio::null(), Stdio::piped())?;
        let read = |source: Option<Box<dyn io::Read + Send>>| {
            thread::spawn(move || {
                let mut bytes = Vec::new();
                if let Some(source) = source {
                    // A failed read truncates the answer, which is then no valid JSON.
                    let _ = source.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes);
                }
                bytes
            })
        };
        let output = read(group.child.stdout.take().map(|pipe| Box::new(pipe) as _));
        let errors = read(group.child.stderr.take().map(|pipe| Box::new(pipe) as _));
        let deadline = Instant::now() + ANSWER_MAX;
        while !group.has_ended() && Instant::now() < deadline {
            thread::sleep(LOOK_EVERY);
        }
        let is_late = !group.has_ended();
        let status = group.end().map_err(|error| unavailable(format!("the lab cannot be observed: {error}")))?;
        let (output, errors) = (output.join().unwrap_or_default(), errors.join().unwrap_or_default());
        if is_late {
            return Err(unavailable(format!("the lab has not answered within {} s", ANSWER_MAX.as_secs())));
        }
        match status.code() {
            Some(code) if accepts.contains(&code) => Ok(output),
            _ => Err(Error::new(Code::BadRequest, detail(&errors, status))),
        }
    }
}

impl Group {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Returns whether the first process has ended. It stays a zombie, so that the id of its group is not used again.
    pub fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(self.pid()), options), Ok(None))
    }

    /// Kills all processes of the group.
    pub fn kill(&self) {
        // Fails if no process is left.
        let _ = kill_process_group(self.pid(), Signal::KILL);
    }

    /// Kills what is left of the group, and waits for the end of the first process.
    pub fn end(&mut self) -> io::Result<ExitStatus> {
        self.kill();
        self.is_reaped = true;
        self.child.wait()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_reaped {
            let _ = self.end();
        }
    }
}

/// Returns the error that a lab has written before it failed.
pub fn detail(errors: &[u8], status: ExitStatus) -> String {
    let text = String::from_utf8_lossy(errors);
    let line = text.lines().rev().find_map(|line| line.strip_prefix("millrace: ").or(line.strip_prefix("error: ")));
    let mut detail = line.map_or_else(|| format!("the lab ended with {status}"), str::to_owned);
    if let Some((end, _)) = detail.char_indices().nth(DETAIL_CHARS_MAX) {
        detail.truncate(end);
    }
    detail
}

/// Returns the end of a log.
pub fn tail(path: &Path) -> Vec<u8> {
    let read = || -> io::Result<Vec<u8>> {
        use std::io::Seek as _;
        const BYTES: u64 = 16 * 1024;

        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(io::SeekFrom::Start(length.saturating_sub(BYTES)))?;
        let mut bytes = Vec::new();
        file.take(BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().unwrap_or_default()
}

pub fn unavailable(detail: impl Into<String>) -> Error {
    Error::new(Code::Unavailable, detail.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `sh`, with the limits of the lab.
    fn shell(directory: &Path) -> Program {
        Program {
            path: "/bin/sh".into(),
            directory: directory.into(),
            memory_bytes_max: 256 << 20,
            file_bytes_max: 4096,
        }
    }

    #[test]
    fn end_kills_processes_that_the_child_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let script = "sleep 1000 & echo $! > pid; exit 7";
        let mut group =
            shell(folder.path()).start(&["-c".into(), script.into()], Stdio::null(), Stdio::null()).unwrap();
        while !group.has_ended() {
            thread::yield_now();
        }
        let pid: i32 = fs::read_to_string(folder.path().join("pid")).unwrap().trim().parse().unwrap();
        // The process is a zombie until its new parent has waited for it.
        let runs = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        assert!(runs(), "the grandchild outlives the child");
        assert_eq!(group.end().unwrap().code(), Some(7));
        let deadline = Instant::now() + Duration::from_secs(10);
        while runs() {
            assert!(Instant::now() < deadline, "the grandchild was not killed");
            thread::yield_now();
        }
    }

    #[test]
    fn size_of_files_is_limited() {
        let folder = tempfile::tempdir().unwrap();
        let script = "read go; head -c 10000 /dev/zero > file";
        let mut group =
            shell(folder.path()).start(&["-c".into(), script.into()], Stdio::piped(), Stdio::null()).unwrap();
        // The limits apply by now.
        drop(group.child().stdin.take());
        while !group.has_ended() {
            thread::yield_now();
        }
        group.end().unwrap();
        assert_eq!(fs::metadata(folder.path().join("file")).unwrap().len(), 4096);
    }

    #[test]
    fn error_of_the_lab_is_passed_on() {
        let folder = tempfile::tempdir().unwrap();
        let ask = |script: &str| shell(folder.path()).ask(&["-c", script], &[0, 1]);
        assert_eq!(ask("echo out; exit 1").unwrap(), b"out\n");
        let error = ask("echo 'note' >&2; echo 'millrace: no parameter x' >&2; exit 3").unwrap_err();
        assert_eq!((error.code, error.detail.as_ref()), (Code::BadRequest, "no parameter x"));
        let error = ask("kill -9 $$").unwrap_err();
        assert!(error.detail.contains("signal"), "{}", error.detail);
    }
}
