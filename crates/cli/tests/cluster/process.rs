//! Processes that never outlive a test, the folder with what they say, and one test at a time.

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

/// What takes longer is broken, on any machine.
pub const BOUND: Duration = Duration::from_secs(20);
/// Between two looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(20);

/// A process with its children; what it says goes to a file.
pub struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Appends to `log`.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(log).expect("the log can be written");
        let copy = file.try_clone().expect("a second handle");
        let name = command.get_program().to_string_lossy().into_owned();
        let command = command.stdin(Stdio::null()).stdout(file).stderr(copy).process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        Self { child, name }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process is there");
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    /// Waits until it has ended by itself, so long at most.
    pub async fn end(mut self, within: Duration) -> ExitStatus {
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
        if self.ended().is_none() {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Waits for a condition, and panics if it does not come in time.
pub async fn until(what: &str, within: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// A new folder, removed after a test that passed. After one that failed it stays, and is named.
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
            true => say(&format!("what the processes said is in {}", self.0.display())),
            false => drop(std::fs::remove_dir_all(&self.0)),
        }
    }
}

/// Clusters are heavy: one runs at a time.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// To the terminal, past what the test harness captures: seeds and figures are wanted of tests that pass, too.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A setting of the tests from the environment.
///
/// Panics if it is there and not a number.
pub fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Whether a program can be started here; says so if not.
pub fn is_there(program: &str) -> bool {
    let there = path_of(program).is_some();
    if !there {
        say(&format!("SKIPPED: {program} is not installed (scripts/setup.sh does it)"));
    }
    there
}

/// Where a program is; Debian keeps servers where users do not look.
pub fn path_of(program: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&paths).chain(["/usr/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|path| File::open(path).is_ok())
}
