use std::{
    env,
    ffi::OsString,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use millrace_engine::{
    Engine,
    hand_over::{HandOver, PROTOCOL, Successor},
};
use millrace_node::Router;
use millrace_presence::Presence;

use super::{
    Config, SocketSet, VARIABLE,
    messages::{Hello, Reply, Seed, receive, send},
};

/// Time for a failed process to end by itself, so that its exit status can be reported.
const END_TIMEOUT: Duration = Duration::from_millis(500);

/// Program that this process runs, as it was named at the start. A later file of this name is the new binary.
static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| env::current_exe().ok());

/// Reads the path of the program. Call it at the start, before the file may be replaced.
pub fn remember_program() {
    LazyLock::force(&PROGRAM);
}

/// Returns the path of the program, if it is known.
pub fn program() -> Option<PathBuf> {
    PROGRAM.clone()
}

/// Reasons why an upgrade failed. The old process serves as before.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    #[error("the path of the running program is unknown; name the new binary with --binary")]
    NoProgram,
    #[error("cannot start {}: {error}", .program.display())]
    Start { program: PathBuf, error: io::Error },
    #[error("the new process refused to take over: {why}")]
    Refused { why: String },
    #[error("the new process ended before it served ({status}); its messages are in the log of this server")]
    Ended { status: String },
    #[error(
        "the new process was not {step} within {after:?}, so it was ended; `upgrade.{step}_timeout` sets this time"
    )]
    Timeout { step: &'static str, after: Duration },
    #[error("the connection to the new process failed: {0}")]
    Io(#[from] io::Error),
    #[error("the thread of the upgrade has failed, which is a defect; see the log")]
    Panicked,
    #[error("the engine could not be opened again after the new process had failed: {0}. Restart the server")]
    Lost(io::Error),
}

/// Parts of the old process that the new one takes over.
pub struct Handed {
    pub engine: Arc<dyn Engine>,
    pub engine_url: String,
    pub router: Arc<Router>,
    pub shards: usize,
    pub sockets: Arc<SocketSet>,
    pub seed: Seed,
    pub node: String,
    pub presence: Option<Arc<Presence>>,
}

/// A started process, ended when this value is dropped before [`NewProcess::leave`].
struct NewProcess {
    child: Option<Child>,
    stream: UnixStream,
    /// The state that the process must report next, `ready` or `serving`, and the time limit.
    step: &'static str,
    timeout: Duration,
}

/// Starts the new binary and hands everything over to it. Returns its process id once it serves. Blocks the thread.
///
/// Errors: the new process did not start or failed. It has ended, and this process serves as before, except after
/// [`UpgradeError::Lost`].
pub fn hand_over(handed: &Handed, binary: Option<&Path>, config: Config) -> Result<u32, UpgradeError> {
    let mut process = NewProcess::start(binary, config.ready_timeout)?;
    let hello = Hello {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").into(),
        engine: millrace_engine::engine_name(&handed.engine_url).into(),
        shards: handed.shards,
        sockets: handed.sockets.names(),
        seed: handed.seed.clone(),
        node: handed.node.clone(),
    };
    let sent = send(&mut process.stream, &hello).and_then(|()| handed.sockets.send(&process.stream));
    // A process that has refused closes its end before it has read everything.
    let version = match (process.reply()?, sent) {
        (Reply::Ready { version }, Ok(())) => version,
        (_, sent) => return Err(sent.err().unwrap_or_else(|| io::ErrorKind::InvalidData.into()).into()),
    };
    tracing::info!(pid = process.id(), version, "the new process is ready; handing over");
    let successor = Successor::new(handed.router.clone(), millrace_engine::unix_ms);
    process.expect("serving", config.serving_timeout)?;
    let to = HandOver::new(process.stream.try_clone()?, successor.clone());
    let serving = match handed.engine.hand_over(&to) {
        Ok(()) => process.reply().and_then(|reply| match reply {
            Reply::Serving { node } => Ok(node),
            _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }),
        Err(error) => Err(process.failure(error)),
    };
    let serving = serving.and_then(|node| {
        process.stream.set_read_timeout(None)?;
        process.stream.set_write_timeout(None)?;
        handed.presence.iter().for_each(|presence| presence.share_with(Some(&node)));
        Ok(successor.start(&process.stream)?)
    });
    match serving {
        Ok(()) => Ok(process.leave()),
        Err(error) => {
            // The new process must be gone before the engine is opened again.
            let error = process.end(error);
            handed.presence.iter().for_each(|presence| presence.share_with(None));
            successor.lose();
            handed.engine.take_back().map_err(UpgradeError::Lost)?;
            Err(error)
        }
    }
}

impl NewProcess {
    /// Starts the program. It must be ready within this time.
    fn start(binary: Option<&Path>, ready_timeout: Duration) -> Result<Self, UpgradeError> {
        let program = binary.or(PROGRAM.as_deref()).ok_or(UpgradeError::NoProgram)?.to_owned();
        let (stream, theirs) = UnixStream::pair()?;
        let arguments: Vec<OsString> = env::args_os().skip(1).collect();
        let started = Command::new(&program).args(arguments).env(VARIABLE, "1").stdin(OwnedFd::from(theirs)).spawn();
        let child = started.map_err(|error| UpgradeError::Start { program, error })?;
        let mut process = Self { child: Some(child), stream, step: "ready", timeout: ready_timeout };
        process.expect("ready", ready_timeout)?;
        Ok(process)
    }

    /// Sets the state that the process must report next, and the time limit. The limit also applies to writes, because
    /// a process that hangs does not read.
    fn expect(&mut self, step: &'static str, timeout: Duration) -> io::Result<()> {
        (self.step, self.timeout) = (step, timeout);
        self.stream.set_read_timeout(Some(timeout))?;
        self.stream.set_write_timeout(Some(timeout))
    }

    fn id(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Waits for the next reply.
    ///
    /// Errors: a refusal, the end of the process, or no reply in time.
    fn reply(&mut self) -> Result<Reply, UpgradeError> {
        match receive(&mut self.stream) {
            Ok(Reply::Failed { why }) => Err(UpgradeError::Refused { why }),
            Ok(reply) => Ok(reply),
            Err(error) => Err(self.failure(error)),
        }
    }

    /// Returns why reading from the process or writing to it has failed.
    fn failure(&mut self, error: io::Error) -> UpgradeError {
        match error.kind() {
            io::ErrorKind::WouldBlock => UpgradeError::Timeout { step: self.step, after: self.timeout },
            _ => self.ended().map_or(UpgradeError::Io(error), |status| UpgradeError::Ended { status }),
        }
    }

    /// Returns the exit status if the process ends within [`END_TIMEOUT`].
    fn ended(&mut self) -> Option<String> {
        let child = self.child.as_mut()?;
        let end = Instant::now() + END_TIMEOUT;
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Some(status.to_string()),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                _ => return None,
            }
        }
    }

    /// Ends the process. Returns the reason of its failure, with its exit status if it had ended by itself.
    fn end(mut self, error: UpgradeError) -> UpgradeError {
        match error {
            UpgradeError::Io(error) => {
                self.ended().map_or(UpgradeError::Io(error), |status| UpgradeError::Ended { status })
            }
            error => error,
        }
    }

    /// Lets the process live, and returns its id.
    fn leave(mut self) -> u32 {
        let id = self.id();
        self.child = None;
        id
    }
}

impl Drop for NewProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
