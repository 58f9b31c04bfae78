//! `millrace serve`: loads the configuration from file, environment and flags, then serves until a signal arrives.

use std::path::PathBuf;

use millrace_server::{
    Reload, Sources,
    config::Value,
    log,
    tls::dev::{self, Files},
    upgrade,
};

use crate::{argument::ArgumentError, cert, number::number, output};

/// Flags that set configuration values; `serve` and `config` share them.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// Address to serve HTTP and WebSocket on, for example 0.0.0.0:8080; PORT alone means 127.0.0.1:PORT, and port 0
    /// picks a free port
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Number of threads; each connection belongs to one of them [default: one per core]
    #[arg(long, value_name = "N", value_parser = number::<usize, _>(0..=1024))]
    shards: Option<usize>,
    /// Engine that orders and stores publications: memory, sqlite:PATH, redis://HOST:PORT or nats://HOST:PORT
    #[arg(long, value_name = "URL")]
    engine: Option<String>,
    /// Receive UDP datagrams from devices on this address
    #[arg(long, value_name = "HOST:PORT")]
    udp: Option<String>,
    /// Serve other machines without TLS because a proxy in front terminates it
    #[arg(long)]
    behind_proxy: bool,
    /// Serve other machines without TLS (insecure): anyone on the network path can read and change the traffic
    #[arg(long)]
    insecure_no_tls: bool,
    /// Serve other machines without authentication (insecure): anyone can read and publish everything
    #[arg(long)]
    insecure_no_auth: bool,
    /// Serve TLS with a development certificate; creates the certificate if it is missing (see `millrace cert dev`)
    #[arg(long)]
    tls_dev: bool,
    /// Serve TLS with a certificate for this domain, obtained and renewed by ACME; may be repeated
    #[arg(long, value_name = "DOMAIN", conflicts_with = "tls_dev")]
    tls_acme: Vec<String>,
    /// Accept the terms of service of the ACME server (Let's Encrypt unless tls.acme.directory names another)
    #[arg(long)]
    tls_acme_accept_terms: bool,
    /// Open the lanes of the page /race also where other machines can reach this server; operators control their links
    #[arg(long)]
    race: bool,
    /// Configuration file (TOML); `millrace config default` prints one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Override a setting, for example limits.heartbeat=10s; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE", value_parser = parse_set)]
    set: Vec<(String, String)>,
}

impl Args {
    /// Flags that only name a configuration file.
    pub fn of_file(config: Option<PathBuf>) -> Self {
        Self { config, ..Self::default() }
    }

    /// Errors: an unreadable file, an unknown key or a bad value; each error names its source.
    pub fn load(self) -> anyhow::Result<Sources> {
        let switch = |on: bool| on.then(|| "true".to_owned());
        let dev = Files::at(&dev::default_dir());
        let dev_file = |path: PathBuf| self.tls_dev.then(|| path.display().to_string());
        let domains = (!self.tls_acme.is_empty()).then(|| format!("{:?}", self.tls_acme));
        let flags = [
            ("server.behind_proxy", "--behind-proxy", switch(self.behind_proxy)),
            ("server.insecure_no_tls", "--insecure-no-tls", switch(self.insecure_no_tls)),
            ("server.insecure_no_auth", "--insecure-no-auth", switch(self.insecure_no_auth)),
            ("tls.cert", "--tls-dev", dev_file(dev.cert)),
            ("tls.key", "--tls-dev", dev_file(dev.key)),
            ("tls.give_out_ca", "--tls-dev", dev_file(dev.ca)),
            ("tls.acme.domains", "--tls-acme", domains),
            ("tls.acme.accept_terms", "--tls-acme-accept-terms", switch(self.tls_acme_accept_terms)),
            ("race.enabled", "--race", self.race.then(|| "on".to_owned())),
            ("server.listen", "--listen", self.listen),
            ("server.shards", "--shards", self.shards.map(|shards| shards.to_string())),
            ("engine.url", "--engine", self.engine),
            ("server.udp", "--udp", self.udp),
        ];
        let named = flags
            .into_iter()
            .filter_map(|(key, flag, text)| Some(Value { key: key.into(), text: text?, from: flag.into() }));
        let set = self.set.into_iter().map(|(key, text)| Value { key, text, from: "--set".into() });
        // Variables of other programs may contain any bytes; only ours must be UTF-8.
        let env = std::env::vars_os().map(|(name, value)| (name.to_string_lossy().into_owned(), value));
        let env = env.filter(|(name, _)| name.starts_with("MILLRACE_")).map(|(name, value)| {
            let text = value.into_string().map_err(|_| anyhow::anyhow!("{name} is not UTF-8"))?;
            Ok((name, text))
        });
        let env: Vec<_> = env.collect::<anyhow::Result<_>>()?;
        Ok(Sources::load(self.config.as_deref(), env.into_iter(), named.chain(set))?)
    }
}

/// Loads and checks the configuration. If this process was started by an upgrade, the old process learns why the
/// configuration is refused.
///
/// Errors: those of [`Args::load`] and of [`millrace_server::check`].
fn load_for_start(args: &Args) -> anyhow::Result<Sources> {
    let checked = args.clone().load().and_then(|sources| {
        millrace_server::check(&sources.config)?;
        Ok(sources)
    });
    checked.inspect_err(upgrade::refuse)
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let sources = load_for_start(&args)?;
    // After the checks, so that a server that refuses to start leaves no certificate authority behind.
    if args.tls_dev {
        let made = dev::make(&dev::default_dir(), &[], true)?;
        if made.new_ca {
            output::note(cert::next_steps(&made));
        }
    }
    // Logs go to standard error: scripts read `listening on URL` from standard output.
    let set_log_level = log::init(&sources.config.log);
    let load = Box::new(move || args.clone().load());
    millrace_server::run(sources, Reload { load, set_log_level }).await
}

fn parse_set(text: &str) -> Result<(String, String), ArgumentError> {
    let expected = || ArgumentError::expected("SECTION.KEY=VALUE, for example limits.heartbeat=10s");
    let (key, value) = text.split_once('=').ok_or_else(expected)?;
    Ok((key.to_owned(), value.to_owned()))
}
