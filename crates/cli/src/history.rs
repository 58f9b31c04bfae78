//! `millrace history`: prints a range of a channel's past, then ends.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;

use clap::Args as ClapArgs;
use millrace_edge::subscription::{Range, Update, read_range};
use millrace_edge::wire::Server;

use crate::{login::Login, number::number, retry::Retry, since::since, trust::Trust};

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "One line of JSON per publication: channel, position, time (ms since 1970), key, data. Gaps go to the standard error, and so does `no history` if there is nothing to print; the exit code is 0 then, too.\n\
    `--until X` ends a range where `--since X` begins one, so ranges join: after a position, before the first publication at or after a time.\n\n\
    Example: all that is kept of one car\n  millrace history cars/1/telemetry > drive.ndjson\n\
    Example: an hour of it\n  \
    millrace history cars/1/telemetry --since 2026-11-20T10:00:00Z --until 2026-11-20T11:00:00Z\n\
    Example: the last ten minutes\n  millrace history cars/1/telemetry --since 10m\n\
    Example: ten publications after a position\n  millrace history chat/lobby --since 5f0c12ab:57 --limit 10"
)]
pub struct Args {
    /// Which channel
    channel: String,
    /// Where to start: a position, earliest, a duration before now such as 10m, or a time such as 2026-11-20T10:00:00Z or
    /// 2026-11-20T11:00:00.5+01:00
    #[arg(long, value_name = "S", default_value = "earliest", value_parser = since)]
    since: String,
    /// Where to end: a position, a time, a duration before now, or now
    #[arg(long, value_name = "S", default_value = "now", value_parser = since)]
    until: String,
    /// Stop after this many publications
    #[arg(long, value_name = "N", value_parser = number::<u64, _>(1..))]
    limit: Option<u64>,
    /// The server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", value_parser = Server::parse)]
    to: Server,
    #[command(flatten)]
    retry: Retry,
    #[command(flatten)]
    login: Login,
    #[command(flatten)]
    trust: Trust,
}

pub async fn run(Args { channel, since, until, limit, to, retry, login, trust }: Args) -> anyhow::Result<()> {
    trust.decide()?;
    let retry_for = retry.retry_for;
    let range = Range { server: to.with_token(login.token()?), channel, since, until, limit, retry_for };
    let mut printed = 0u64;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut print = |update: Update| match update {
        Update::Message(message) => {
            printed += 1;
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
        Update::Lost(lost) => {
            eprintln!("{lost}");
            ControlFlow::Continue(())
        }
    };
    let read = read_range(&range, &mut print).await;
    // A pipe that was closed is no error of ours.
    let _ = out.flush();
    read?;
    if printed == 0 {
        eprintln!("no history of {} from {} to {}", range.channel, range.since, range.until);
    }
    Ok(())
}
