//! `millrace pub`: publishes from the command line. Retries with an idempotency key, so each message is stored once.

use std::io::BufRead;
use std::time::Duration;

use anyhow::Context;
use clap::Args as ClapArgs;
use millrace_client::http::query_value;
use millrace_client::publish::{AttemptError, HttpPublisher};
use millrace_client::server::Server;
use serde::Deserialize;

use crate::{argument::ArgumentError, login::Login, output, retry::Retry, trust::Trust};

/// The server refuses larger messages, so reading stops there.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

#[derive(Debug, ClapArgs)]
#[command(after_help = "Prints the position of every publication.\n\n\
    Example: one message\n  millrace pub chat/lobby '{\"text\": \"hello\"}'\n\
    Example: a price that replaces the previous one for subscribers with --policy latest\n  millrace pub prices '{\"oak\": 12}' --key oak --ttl 60s\n\
    Example: publish each line of another program's output\n  vmstat 1 | millrace pub host/vmstat")]
pub struct Args {
    /// Channel to publish to, for example cars/1/telemetry
    channel: String,
    /// Message to publish; without it, each line of standard input is published
    data: Option<String>,
    /// Key of the message; subscribers with policy `latest` receive only the newest message per key
    #[arg(long)]
    key: Option<String>,
    /// Lifetime of the message in history, for example 60s
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    ttl: Option<Duration>,
    /// Require valid JSON [default: JSON if the message parses as JSON, otherwise text]
    #[arg(long)]
    json: bool,
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

#[derive(Deserialize)]
struct Answer {
    position: String,
}

pub async fn run(mut args: Args) -> anyhow::Result<()> {
    args.trust.decide()?;
    args.to = args.to.with_token(args.login.clone().token()?);
    let mut publisher = HttpPublisher::new(args.retry.retry_for, |lost| output::note(lost))?;
    if let Some(data) = &args.data {
        return publish(&args, &mut publisher, data.clone().into_bytes()).await;
    }
    // Blocking reads are fine here: nothing else has to run until the next line.
    let mut input = std::io::stdin().lock();
    while let Some(line) = next_line(&mut input)? {
        publish(&args, &mut publisher, line).await?;
    }
    Ok(())
}

async fn publish(args: &Args, publisher: &mut HttpPublisher, data: Vec<u8>) -> anyhow::Result<()> {
    let path = format!("/v1/channels/{}", query_value(&args.channel));
    let ttl = args.ttl.map(|ttl| ttl.as_secs().to_string());
    let mut headers: Vec<(&str, &str)> = Vec::new();
    headers.extend(args.json.then_some(("Content-Type", "application/json")));
    headers.extend(args.key.as_deref().map(|key| ("Millrace-Key", key)));
    headers.extend(ttl.as_deref().map(|ttl| ("Millrace-TTL", ttl)));
    let check = |answer: &[u8]| match serde_json::from_slice::<Answer>(answer) {
        Ok(_) => Ok(()),
        Err(error) => Err(AttemptError::Retryable(format!("unexpected response: {error}"))),
    };
    let answer = publisher.post(&args.to, &path, &headers, data, check).await?;
    let answer: Answer = serde_json::from_slice(&answer)?;
    output::line(answer.position)?;
    Ok(())
}

/// Reads the next line without its line ending. Returns `None` at the end of the input.
fn next_line(input: &mut impl BufRead) -> anyhow::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    loop {
        let part = input.fill_buf().context("cannot read the input")?;
        if part.is_empty() {
            return Ok((!line.is_empty()).then_some(line));
        }
        let end = part.iter().position(|&byte| byte == b'\n');
        line.extend_from_slice(&part[..end.unwrap_or(part.len())]);
        let used = end.map_or(part.len(), |end| end + 1);
        input.consume(used);
        anyhow::ensure!(line.len() <= MESSAGE_BYTES_MAX, "a line is longer than {MESSAGE_BYTES_MAX} bytes");
        if end.is_some() {
            line.truncate(line.len() - usize::from(line.last() == Some(&b'\r')));
            return Ok(Some(line));
        }
    }
}

/// A clap parser for `--ttl`. The server takes whole seconds.
fn ttl(text: &str) -> Result<Duration, ArgumentError> {
    let ttl =
        humantime::parse_duration(text).map_err(|error| ArgumentError::Duration { error, example: "60s or 2h" })?;
    if ttl.as_secs() > 0 { Ok(ttl) } else { Err(ArgumentError::expected("at least 1s")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_with_a_line_feed_or_with_the_input() {
        let mut input = std::io::BufReader::with_capacity(4, &b"first line\r\n\nlast"[..]);
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut input).expect("short lines") {
            lines.push(String::from_utf8(line).expect("text"));
        }
        assert_eq!(lines, ["first line", "", "last"]);
        let long = vec![b'x'; MESSAGE_BYTES_MAX + 1];
        assert!(next_line(&mut &long[..]).is_err());
    }

    #[test]
    fn ttl_is_at_least_one_second() {
        assert_eq!(ttl("2m"), Ok(Duration::from_secs(120)));
        assert!(ttl("10ms").is_err() && ttl("soon").is_err());
    }
}
