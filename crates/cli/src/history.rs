//! `millrace history`: prints a range of a channel's history and exits.

use std::io::Write;
use std::ops::ControlFlow;

use clap::Args as ClapArgs;
use millrace_client::server::Server;
use millrace_client::subscription::{Range, Update, read_range};

use crate::{login::Login, number::number, output, retry::Retry, since::since, trust::Trust};

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Prints one JSON object per line: channel, position, time (ms since 1970), key, data. Gaps are reported on standard error. An empty range prints `no history` on standard error and exits with code 0.\n\
    `--until X` ends a range exactly where `--since X` starts one, so consecutive ranges neither overlap nor leave a gap: a position includes its publication, a time excludes the publications at or after it.\n\n\
    Example: the whole history of one car\n  millrace history cars/1/telemetry > drive.ndjson\n\
    Example: one hour\n  \
    millrace history cars/1/telemetry --since 2026-11-20T10:00:00Z --until 2026-11-20T11:00:00Z\n\
    Example: the last ten minutes\n  millrace history cars/1/telemetry --since 10m\n\
    Example: ten publications after a position\n  millrace history chat/lobby --since 5f0c12ab:57 --limit 10"
)]
pub struct Args {
    /// Channel to read
    channel: String,
    /// Start of the range: a position, earliest, a duration before now such as 10m, or a time such as
    /// 2026-11-20T10:00:00Z or 2026-11-20T11:00:00.5+01:00
    #[arg(long, value_name = "S", default_value = "earliest", value_parser = since)]
    since: String,
    /// End of the range: a position, a time, a duration before now, or now
    #[arg(long, value_name = "S", default_value = "now", value_parser = since)]
    until: String,
    /// Stop after this many publications
    #[arg(long, value_name = "N", value_parser = number::<u64, _>(1..))]
    limit: Option<u64>,
    /// URL of the server
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
    let mut out = output::buffer();
    let mut print = |update: Update| match update {
        Update::Message(message) => {
            printed += 1;
            let line = serde_json::to_string(&message).map(|line| line.replace(['\n', '\r'], " "));
            // A closed output, such as `| head`, ends the command.
            if line.is_ok_and(|line| writeln!(out, "{line}").is_ok()) {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        }
        Update::Gap(gap) => {
            output::note(gap);
            ControlFlow::Continue(())
        }
        // A range is no state.
        Update::StateComplete(_) => ControlFlow::Continue(()),
        Update::Lost(lost) => {
            output::note(lost);
            ControlFlow::Continue(())
        }
    };
    let read = read_range(&range, &mut print).await;
    // A closed pipe is not an error.
    let _ = out.flush();
    read?;
    if printed == 0 {
        output::note(format_args!("no history of {} from {} to {}", range.channel, range.since, range.until));
    }
    Ok(())
}
