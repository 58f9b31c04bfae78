//! `millrace serve`: the configuration that files, environment and flags make, served until a signal ends it.

use std::io::IsTerminal;
use std::path::PathBuf;

use millrace_server::{Reload, SetLogLevel, Sources, config::Value};
use tracing_subscriber::{EnvFilter, Layer as _, fmt, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _};

/// What decides the configuration on the command line; shared by `serve` and `config`.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// Where to serve HTTP and WebSocket, such as 0.0.0.0:8080; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Threads, each with its own connections [default: one per core]
    #[arg(long, value_name = "N")]
    shards: Option<usize>,
    /// Where order and history live: memory, sqlite:PATH, redis://HOST:PORT or nats://HOST:PORT
    #[arg(long, value_name = "URL")]
    engine: Option<String>,
    /// Receive datagrams from devices here
    #[arg(long, value_name = "HOST:PORT")]
    udp: Option<String>,
    /// Configuration file (TOML); `millrace config default` prints one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Any setting, such as limits.heartbeat=10s; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE", value_parser = parse_set)]
    set: Vec<(String, String)>,
}

impl Args {
    /// What the file and the environment say, without any flag.
    pub fn of_file(config: Option<PathBuf>) -> Self {
        Self { config, ..Self::default() }
    }

    /// Errors: a bad file, an unknown key, a bad value; each says where it stands.
    pub fn load(self) -> anyhow::Result<Sources> {
        let quoted = |text: String| format!("{text:?}");
        let flags = [
            ("server.listen", "--listen", self.listen.map(quoted)),
            ("server.shards", "--shards", self.shards.map(|shards| shards.to_string())),
            ("engine.url", "--engine", self.engine.map(quoted)),
            ("server.udp", "--udp", self.udp.map(quoted)),
        ];
        let named = flags
            .into_iter()
            .filter_map(|(key, flag, text)| Some(Value { key: key.into(), text: text?, from: flag.into() }));
        let set = self.set.into_iter().map(|(key, text)| Value { key, text, from: "--set".into() });
        Ok(Sources::load(self.config.as_deref(), std::env::vars(), named.chain(set))?)
    }
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let config = args.clone().load()?.config;
    let set_log_level = init_log(&config.log);
    let load = Box::new(move || Ok(args.clone().load()?.config));
    millrace_server::run(config, Reload { load, set_log_level }).await
}

/// Log lines go to standard error; standard output has only what scripts wait for. Returns what changes the level.
fn init_log(log: &millrace_server::config::Log) -> SetLogLevel {
    let filter = EnvFilter::try_new(&log.level).unwrap_or_else(|_| "info".into());
    let is_terminal = std::io::stderr().is_terminal();
    let (filter, level) = reload::Layer::new(filter);
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(is_terminal);
    let lines = if log.format == "json" { lines.json().boxed() } else { lines.boxed() };
    tracing_subscriber::registry().with(filter).with(lines).init();
    Box::new(move |new| Ok(level.reload(EnvFilter::try_new(new)?)?))
}

fn parse_set(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("use SECTION.KEY=VALUE, such as limits.heartbeat=10s")?;
    Ok((key.to_owned(), value.to_owned()))
}
