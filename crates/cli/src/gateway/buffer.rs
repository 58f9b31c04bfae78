//! `millrace gateway --buffer`: messages of devices, stored until a server has accepted them.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context;
use millrace_client::server::Server;
use millrace_gateway::store_and_forward::{BufferConfig, Config, StoreAndForward, Urgent};

use crate::{argument::ArgumentError, number::number, output, retry::duration, signal::stop_signal};

/// Flags of store and forward.
#[derive(clap::Args, Clone, Debug)]
#[group(id = "store_and_forward")]
pub struct Args {
    /// Store messages of devices in this directory until the server has accepted them, and send them in order
    #[arg(long, value_name = "DIR", conflicts_with_all = super::FORWARDING_ONLY)]
    pub buffer: Option<PathBuf>,
    /// Read messages from standard input too, one line {"channel", "data", ..} each, and exit when all are sent
    #[arg(long, requires = "buffer")]
    stdin: bool,
    /// Maximum number of stored messages; when it is reached, the oldest are dropped [default: 100000]
    #[arg(long, value_name = "N", requires = "buffer", value_parser = number::<u32, _>(1000..=10_000_000))]
    buffer_count: Option<u32>,
    /// Maximum bytes of stored messages; the files take up to three times as much [default: 67108864]
    #[arg(long, value_name = "BYTES", requires = "buffer", value_parser = number::<u64, _>(4_194_304..))]
    buffer_bytes: Option<u64>,
    /// Maximum age of stored messages; older ones are dropped [default: 7d]
    #[arg(long, value_name = "TIME", requires = "buffer", value_parser = age)]
    buffer_age: Option<Duration>,
    /// Maximum number of messages sent per second, for example after an outage [default: 1000]
    #[arg(long, value_name = "N", requires = "buffer", value_parser = number::<u32, _>(1..=1_000_000))]
    flush_rate: Option<u32>,
    /// Channels that are sent first and dropped last, for example cars/+/events; may be repeated
    #[arg(long, value_name = "PATTERN", requires = "buffer")]
    urgent: Vec<String>,
}

/// Runs until a signal, or with `--stdin` until every message has left the buffer.
pub async fn run(
    args: Args,
    directory: PathBuf,
    listen: SocketAddr,
    secret: Option<String>,
    to: Server,
) -> anyhow::Result<()> {
    let config = Config { directory, buffer: args.config(), server: to, secret, note: |line| output::note(line) };
    let server = config.server.shown();
    let mut gateway = StoreAndForward::open(config)?;
    let address = gateway.listen(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    let waiting = gateway.stats().await?.waiting;
    output::line(format_args!("listening on http://{address}"))?;
    output::note(format_args!("messages are sent to {server}; {waiting} wait in the buffer; press Ctrl-C to stop"));
    let input = args.stdin.then(tokio::io::stdin);
    tokio::select! {
        ended = gateway.run(input) => Ok(ended?),
        stopped = stop_signal() => stopped,
    }
}

impl Args {
    fn config(&self) -> BufferConfig {
        let defaults = BufferConfig::default();
        BufferConfig {
            count_max: self.buffer_count.map_or(defaults.count_max, |count| count as usize),
            bytes_max: self.buffer_bytes.unwrap_or(defaults.bytes_max),
            age_max_ms: self.buffer_age.map_or(defaults.age_max_ms, |age| age.as_millis() as u64),
            rate_per_s: self.flush_rate.unwrap_or(defaults.rate_per_s),
            urgent: Urgent::new(self.urgent.clone()),
            ..defaults
        }
    }
}

fn age(text: &str) -> Result<Duration, ArgumentError> {
    match duration(text)? {
        age if age >= Duration::from_secs(1) => Ok(age),
        _ => Err(ArgumentError::expected("at least 1s")),
    }
}
