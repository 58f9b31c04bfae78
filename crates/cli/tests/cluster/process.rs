//! Child processes that never outlive a test, the folder with their logs, and a lock that runs one test at a time.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Time limit of every step. A step that takes longer is broken on any machine.
pub const BOUND: Duration = Duration::from_secs(60);
/// Interval between two checks of a condition.
const LOOK: Duration = Duration::from_millis(20);

/// A process group. Its output goes to a file.
pub struct Process {
    child: Child,
    name: String,
    /// The child has ended, and a process that it has started in its group continues its work.
    is_replaced: bool,
}

impl Process {
    /// Starts the command in its own process group; its output is appended to `log`.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(log).expect("the log can be written");
        let copy = file.try_clone().expect("a second handle");
        let name = command.get_program().to_string_lossy().into_owned();
        let command = command.stdin(Stdio::null()).stdout(file).stderr(copy).process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        Self { child, name, is_replaced: false }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process is there");
    }

    /// Returns the exit status if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    /// Waits up to `within` until the child has ended by itself; another process of its group goes on.
    pub async fn replaced(&mut self, within: Duration) -> ExitStatus {
        self.is_replaced = true;
        self.wait(within).await
    }

    /// Waits up to `within` until the process has ended by itself.
    pub async fn end(mut self, within: Duration) -> ExitStatus {
        self.wait(within).await
    }

    async fn wait(&mut self, within: Duration) -> ExitStatus {
        let name = format!("the end of {}", self.name);
        let mut status = None;
        until(&name, within, async || {
            status = self.ended();
            status.is_some()
        })
        .await;
        status.expect("it has ended")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended().is_none() || self.is_replaced {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Waits for a condition.
///
/// Panics if the condition is not true within the time limit.
pub async fn until(what: &str, within: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// A new folder. It is removed after a test that passed; after a failed test it stays and its path is printed.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cluster-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("the target folder is writable");
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        match std::thread::panicking() {
            true => print_line(&format!("what the processes said is in {}", self.0.display())),
            false => drop(std::fs::remove_dir_all(&self.0)),
        }
    }
}

/// Acquires the lock of cluster tests. Clusters use many resources, so one test runs at a time.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints to the terminal and bypasses the output capture of the test harness. Seeds and figures are useful for
/// passed tests, too.
pub fn print_line(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Returns a test setting from the environment.
///
/// Panics if the value is not a number.
pub fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Returns true if a program is installed; prints a message if not.
pub fn is_there(program: &str) -> bool {
    let there = path_of(program).is_some();
    if !there {
        print_line(&format!("SKIPPED: {program} is not installed (scripts/setup.sh does it)"));
    }
    there
}

/// Returns the path of a program. Debian installs servers in `/usr/sbin`, which is not in every user's `PATH`.
pub fn path_of(program: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&paths).chain(["/usr/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|path| File::open(path).is_ok())
}
