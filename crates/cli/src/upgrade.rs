//! `millrace upgrade`: asks a running server to start its new binary and to hand over to it.

use std::{path::PathBuf, time::Instant};

use millrace_server::upgrade::{Progress, Target, running, upgrade};

use crate::output;

pub const EXAMPLES: &str = "\
The server starts the new binary with its own arguments and environment, and passes its listening sockets and the contents of its engine to it. Then it asks its clients to reconnect, which reach the new process, and ends. If the new binary does not start, the server goes on as before and this command says why.

Example: after the file of the running binary was replaced
  millrace upgrade
Example: try a binary at another path, in a server among several
  millrace upgrade --pid 4711 --binary ./millrace-next";

#[derive(clap::Args)]
pub struct Args {
    /// Process id of the server; not needed if only one runs here
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// New binary, by default the file from which the server was started
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
enum UpgradeError {
    #[error("no server runs here that this user may upgrade. Start one with `millrace serve`")]
    NoServer,
    #[error("several servers run here, with the process ids {}: choose one with --pid", list(.0))]
    Several(Vec<u32>),
    #[error("the server was not upgraded and serves as before: {0}")]
    Failed(String),
}

pub async fn run(Args { pid, binary }: Args) -> anyhow::Result<()> {
    let pid = match pid {
        Some(pid) => pid,
        None => match running()?[..] {
            [] => return Err(UpgradeError::NoServer.into()),
            [pid] => pid,
            ref several => return Err(UpgradeError::Several(several.to_vec()).into()),
        },
    };
    // The server has another working directory.
    let binary = binary.map(std::path::absolute).transpose()?;
    let began = Instant::now();
    let target = Target { binary };
    let last = upgrade(pid, &target, |step| {
        if *step == Progress::Started {
            output::note(format_args!("server {pid} starts the new binary ..."));
        }
    });
    match last.await? {
        Progress::Serving { pid: new } => {
            let took = began.elapsed().as_secs_f64();
            output::line(format_args!(
                "process {new} serves after {took:.1} s; process {pid} moves its clients and ends"
            ))?;
            Ok(())
        }
        Progress::Failed { why } => Err(UpgradeError::Failed(why).into()),
        Progress::Started => Ok(()),
    }
}

fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
