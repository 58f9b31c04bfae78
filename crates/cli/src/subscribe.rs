//! `millrace sub`: prints the messages of channels over any transport, and resumes after a lost connection.

use std::ops::ControlFlow;
use std::time::Duration;

use clap::Args as ClapArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use millrace_client::server::Server;
use millrace_client::subscription::{Message, Options, TRANSPORTS, Transport, Update, read};
use tokio::signal::unix::{SignalKind, signal};

use crate::{login::Login, number::number, output, retry::duration, since::since, trust::Trust};

/// Default time between two polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(10);

#[derive(Debug, ClapArgs)]
#[command(after_help = "Messages are printed on standard output, gaps and lost connections on standard error.\n\n\
    Example: watch one car\n  millrace sub cars/1/telemetry\n\
    Example: watch all cars, with channel and position\n  millrace sub 'cars/+/telemetry' --json\n\
    Example: the whole history, then new messages, over server-sent events\n  \
    millrace sub chat/lobby --transport sse --since earliest\n\
    Example: the last ten minutes, then new messages\n  millrace sub chat/lobby --since 10m\n\
    Example: a server with TLS\n  millrace sub chat/lobby --to https://localhost:8443\n\
    Example: wait for one message\n  millrace sub chat/lobby --limit 1")]
pub struct Args {
    /// Channels to subscribe to; over WebSocket also patterns, where + matches one level and # matches the rest
    #[arg(required = true, value_name = "CHANNEL")]
    channels: Vec<String>,
    /// Transport to use
    #[arg(long, default_value = "websocket", value_parser = transport())]
    transport: Transport,
    /// Where to start: a position, now, earliest, a duration before now such as 10m, or a time such as
    /// 2026-11-20T10:00:00Z
    #[arg(long, value_name = "S", value_parser = since)]
    since: Option<String>,
    /// Receive every message, or only the latest per key when this subscriber falls behind
    #[arg(long, default_value = "every", value_parser = ["every", "latest"])]
    policy: String,
    /// Exit after this many messages
    #[arg(long, value_name = "N", value_parser = number::<u64, _>(1..))]
    limit: Option<u64>,
    /// Print each message as a JSON object: channel, position, time, key, data
    #[arg(long)]
    json: bool,
    /// Time between two polls, with --transport polling [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    interval: Option<Duration>,
    /// Retry for this long if the server does not answer, then exit with code 1 [default: forever]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    retry_for: Option<Duration>,
    /// URL of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", value_parser = Server::parse)]
    to: Server,
    #[command(flatten)]
    login: Login,
    #[command(flatten)]
    trust: Trust,
}

fn transport() -> impl TypedValueParser<Value = Transport> {
    PossibleValuesParser::new(TRANSPORTS.map(Transport::name)).try_map(|name| name.parse::<Transport>())
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    args.trust.decide()?;
    let polls = args.transport == Transport::Polling;
    anyhow::ensure!(polls || args.interval.is_none(), "--interval has no effect without --transport polling");
    let options = Options {
        server: args.to.with_token(args.login.token()?),
        channels: args.channels,
        transport: args.transport,
        since: args.since,
        policy: args.policy,
        poll_interval: args.interval.unwrap_or(POLL_INTERVAL).max(POLL_INTERVAL_MIN),
        retry_for: args.retry_for,
    };
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut sink = |update: Update| match update {
        Update::Message(message) => {
            left -= 1;
            let written = print(&message, args.json);
            // A closed output, such as `| head`, ends the command, too.
            if left == 0 || written.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
        Update::Gap(gap) => {
            output::note(gap);
            ControlFlow::Continue(())
        }
        Update::StateComplete(channel) => {
            output::note(format!("{channel}: the whole state was received; its changes follow"));
            ControlFlow::Continue(())
        }
        Update::Lost(lost) => {
            output::note(lost);
            ControlFlow::Continue(())
        }
    };
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        outcome = read(&options, &mut sink) => Ok(outcome?),
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

/// Prints one line and flushes it. `whole`: prints the message with its envelope, as JSON.
fn print(message: &Message, whole: bool) -> anyhow::Result<()> {
    let line = if whole { serde_json::to_string(message)?.replace(['\n', '\r'], " ") } else { message.line() };
    Ok(output::line(line)?)
}
