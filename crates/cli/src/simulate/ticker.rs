//! `millrace simulate ticker`: simulated prices of a few symbols.

use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use millrace_client::{clock::now_ms, publish::HttpPublisher, server::Server};
use millrace_simulate::ticker::Market;
use tokio::time::MissedTickBehavior;

use super::{STATUS_EVERY, interval};
use crate::{login::Login, number::number, output, retry::Retry, signal::stop_signal, trust::Trust};

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Each message is a tick: {\"symbol\":\"MILL\",\"price\":128.41,\"time\":1795600000000,\"seq\":17}, with the symbol as its key. `time` is the time of publication in milliseconds since 1970, and `seq` increases by 1, so a subscriber can prove that it missed nothing. With tokens, it needs the permission publish on the channel.\n\n\
    Example: prices for the pages /ticker and /race of the local server\n  millrace simulate ticker\n\
    Example: 200 ticks per second, 5000 in all\n  millrace simulate ticker --interval 5ms --count 5000"
)]
pub struct Args {
    /// Channel of the ticks
    #[arg(long, value_name = "CHANNEL", default_value = "ticker")]
    channel: String,
    /// Time between two ticks, for example 5ms or 1s
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = interval)]
    interval: Duration,
    /// Seed of the prices
    #[arg(long, default_value_t = 7, value_parser = number::<u64, _>(..))]
    seed: u64,
    /// Exit after this many ticks
    #[arg(long, value_name = "N", value_parser = number::<u64, _>(..))]
    count: Option<u64>,
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

pub async fn run(args: Args) -> anyhow::Result<()> {
    args.trust.decide()?;
    let mut publisher = HttpPublisher::new(args.retry.retry_for, |lost| output::note(lost))?;
    output::note(format_args!(
        "publishing to {} every {}; press Ctrl-C to stop",
        args.to.shown(),
        humantime::format_duration(args.interval)
    ));
    let mut sent = 0;
    let outcome = tokio::select! {
        outcome = send_all(&args, &mut publisher, &mut sent) => outcome,
        stopped = stop_signal() => stopped,
    };
    output::note(format_args!("{sent} ticks sent, {} retries", publisher.stats.retries));
    outcome
}

/// Publishes one tick per interval. Ticks are published one after the other, so that they stay in order.
async fn send_all(args: &Args, publisher: &mut HttpPublisher, sent: &mut u64) -> anyhow::Result<()> {
    let server = args.to.clone().with_token(args.login.clone().token()?);
    let path = format!("/v1/channels/{}", args.channel);
    let mut market = Market::new(args.seed);
    let mut ticks = tokio::time::interval(args.interval);
    // After a pause the prices continue at their pace; they do not catch up.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reported = Instant::now();
    while args.count.is_none_or(|count| *sent < count) {
        ticks.tick().await;
        let tick = market.next(now_ms());
        let body = serde_json::to_vec(&tick)?;
        let headers = [("Content-Type", "application/json"), ("Millrace-Key", tick.symbol)];
        publisher.post(&server, &path, &headers, body, |_| Ok(())).await?;
        *sent += 1;
        if reported.elapsed() >= STATUS_EVERY {
            reported = Instant::now();
            output::note(format_args!("{sent} ticks sent, {} retries", publisher.stats.retries));
        }
    }
    Ok(())
}
