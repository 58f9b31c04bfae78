//! `millrace history`: prints a range of a channel's past, then ends.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;

use clap::Args as ClapArgs;
use millrace_edge::subscription::{Range, Update, read_range};
use millrace_edge::wire::Server;

use crate::{login::Login, trust::Trust};

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "One line of JSON per publication: channel, position, time (ms since 1970), key, data. Gaps go to the standard error.\n\
    `--until X` ends a range where `--since X` begins one, so ranges join: after a position, before the first publication at or after a time.\n\n\
    Example: all that is kept of one car\n  millrace history cars/1/telemetry > drive.ndjson\n\
    Example: an hour of it\n  \
    millrace history cars/1/telemetry --since 2026-11-20T10:00:00Z --until 2026-11-20T11:00:00Z\n\
    Example: ten publications after a position\n  millrace history chat/lobby --since 5f0c12ab:57 --limit 10"
)]
pub struct Args {
    /// Which channel
    channel: String,
    /// Where to start: a position, earliest, or a time such as 2026-11-20T10:00:00Z or 2026-11-20T11:00:00.5+01:00
    #[arg(long, value_name = "S", default_value = "earliest")]
    since: String,
    /// Where to end: a position, a time, or now
    #[arg(long, value_name = "S", default_value = "now")]
    until: String,
    /// Stop after this many publications
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// The server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", value_parser = Server::parse)]
    to: Server,
    #[command(flatten)]
    login: Login,
    #[command(flatten)]
    trust: Trust,
}

pub async fn run(Args { channel, since, until, limit, to, login, trust }: Args) -> anyhow::Result<()> {
    trust.decide()?;
    let range = Range { server: to.with_token(login.token()?), channel, since, until, limit };
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut print = |update: Update| match update {
        Update::Message(message) => {
            let line = serde_json::to_string(&message).map(|line| line.replace(['\n', '\r'], " "));
            // An output that takes no more has had enough.
            if line.is_ok_and(|line| writeln!(out, "{line}").is_ok()) {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        }
        Update::Gap(gap) => {
            eprintln!("{gap}");
            ControlFlow::Continue(())
        }
        Update::Lost { why, wait } => {
            eprintln!("trying again in {:.1} s: {why}", wait.as_secs_f64());
            ControlFlow::Continue(())
        }
    };
    let read = read_range(&range, &mut print).await;
    // A pipe that was closed is no error of ours.
    let _ = out.flush();
    Ok(read?)
}
