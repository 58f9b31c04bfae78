//! The control socket of a running server: `millrace upgrade` connects to it. Its name in the kernel's abstract
//! namespace contains the process id. Only the server's own user and root may use it.
//!
//! The command sends one line of JSON ([`Target`]); the server answers with one line for each step ([`Progress`]).

use std::{
    fs,
    future::pending,
    io,
    os::linux::net::SocketAddrExt as _,
    os::unix::net::{SocketAddr, UnixListener as BoundUnix, UnixStream as StdUnix},
    path::PathBuf,
    time::Duration,
};

use millrace_transport::cannot_accept;
use rustix::{net::sockopt::socket_peercred, process::geteuid};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    sync::mpsc,
    time::{sleep, timeout},
};

/// Prefix of the name of the socket. The process id follows.
const NAME: &str = "millrace-control-";
/// Maximum length of a line, in bytes.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Time for the command to send its line.
const LINE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a failed accept, for example because the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Order of the command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The new binary; the path of the running one if it is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary: Option<PathBuf>,
}

/// A step of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// The new process is being started.
    Started,
    /// The new process serves, and the old one drains.
    Serving { pid: u32 },
    /// The old process serves as before.
    Failed { why: String },
}

/// An order to upgrade, from the command or a signal.
pub struct Order {
    pub target: Target,
    /// Receives the steps; dropped with the last one.
    pub progress: mpsc::UnboundedSender<Progress>,
}

/// Reasons why the command cannot upgrade.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("no server of process id {0} runs here, or it belongs to another user")]
    NotRunning(u32),
    #[error("the connection to the server failed: {0}")]
    Io(#[from] io::Error),
    #[error("the server closed the connection before the upgrade ended: see its log, or it belongs to another user")]
    Closed,
}

/// The listening control socket; `None` if the server has none.
pub struct ControlSocket(Option<UnixListener>);

impl ControlSocket {
    /// Opens the socket. A server without it serves all the same: processes in containers that share a network
    /// namespace can have the same process id, and any local user can take a name.
    pub fn open() -> Self {
        let listener = Self::bind().inspect_err(|error| {
            tracing::warn!(%error, "`millrace upgrade` cannot reach this server; SIGUSR2 upgrades it");
        });
        Self(listener.ok())
    }

    /// Errors: another process has the name, or the system refuses the socket.
    fn bind() -> io::Result<UnixListener> {
        let listener = BoundUnix::bind_addr(&address(std::process::id())?)?;
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener)
    }

    /// Waits for the next order, forever without a socket. Connections of other users and malformed orders are dropped.
    pub async fn next(&self) -> Order {
        let Some(listener) = &self.0 else { return pending().await };
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    if let Ok(Some(order)) = timeout(LINE_TIMEOUT, read_order(stream)).await {
                        return order;
                    }
                }
                Err(error) => {
                    cannot_accept(&error, "a connection to the control socket");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

async fn read_order(stream: UnixStream) -> Option<Order> {
    let peer = socket_peercred(&stream).ok()?.uid;
    if peer != geteuid() && !peer.is_root() {
        return None;
    }
    let mut stream = BufReader::new(stream);
    let line = read_line(&mut stream).await.ok()??;
    let target = serde_json::from_str(&line).ok()?;
    let (progress, mut steps) = mpsc::unbounded_channel::<Progress>();
    tokio::spawn(async move {
        while let Some(step) = steps.recv().await {
            let Ok(mut line) = serde_json::to_string(&step) else { return };
            line.push('\n');
            if stream.write_all(line.as_bytes()).await.is_err() {
                return;
            }
        }
    });
    Some(Order { target, progress })
}

/// Reads a line. Returns `None` at the end, or if the line is too long.
async fn read_line(stream: &mut BufReader<UnixStream>) -> io::Result<Option<String>> {
    use tokio::io::AsyncReadExt as _;
    let mut line = String::new();
    stream.take(LINE_BYTES_MAX as u64).read_line(&mut line).await?;
    Ok(line.ends_with('\n').then_some(line))
}

/// Returns the process ids of the running servers, lowest first.
///
/// Errors: `/proc` cannot be read.
pub fn running() -> io::Result<Vec<u32>> {
    let sockets = fs::read_to_string("/proc/net/unix")?;
    let ids =
        sockets.lines().filter_map(|line| line.rsplit(' ').next()?.strip_prefix('@')?.strip_prefix(NAME)?.parse().ok());
    let mut ids: Vec<u32> = ids.collect();
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Asks the server of this process id to upgrade. Calls `on_step` for each step, and returns the last one.
///
/// Errors: no such server, or it ended.
pub async fn upgrade(pid: u32, target: &Target, mut on_step: impl FnMut(&Progress)) -> Result<Progress, ControlError> {
    let stream = StdUnix::connect_addr(&address(pid)?).map_err(|_| ControlError::NotRunning(pid))?;
    stream.set_nonblocking(true)?;
    let mut stream = BufReader::new(UnixStream::from_std(stream)?);
    let mut line = serde_json::to_string(target).map_err(io::Error::other)?;
    line.push('\n');
    stream.write_all(line.as_bytes()).await?;
    loop {
        let line = read_line(&mut stream).await?.ok_or(ControlError::Closed)?;
        let step: Progress = serde_json::from_str(&line).map_err(io::Error::other)?;
        on_step(&step);
        if step != Progress::Started {
            return Ok(step);
        }
    }
}

fn address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{NAME}{pid}"))
}
