//! `millrace gateway`: a native peer that forwards between the data channels of its peers.

use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, ensure};
use millrace_edge::gateway::{Config, Gateway};
use millrace_rtc::forward;
use millrace_server::config::address;

use crate::{number::number, simulate::stop_signal};

const SECRET: &str = "MILLRACE_GATEWAY_SECRET";
const SECRET_BYTES_MIN: usize = 16;
const WINDOW: Duration = Duration::from_millis(250);
const BUNDLE_BYTES: u32 = 16 * 1024;

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
A peer, in a browser or native, joins by posting an offer to /v1/connect?name=NAME, with &to=NAME if what it sends is for somebody. What it sends on its data channel
`millrace` (or `latest`, unordered and never repeated) then goes there. docs/gateway.md says what a bundle looks like. `GET /v1/stats` has what was counted.

Prints `listening on URL` once it takes offers. SIGTERM ends it, and says good-bye to all.

Example: what sensors say within 250 ms goes to the peer `uplink` as one message, and bundles of `uplink` to those that their parts name
  millrace gateway --mode both
Example: one to one, for a page that another server serves
  millrace gateway --mode forward --allow-origin http://127.0.0.1:8080
Example: for the devices of this network, behind a proxy that speaks TLS
  MILLRACE_GATEWAY_SECRET=$(openssl rand -hex 16) millrace gateway --listen 0.0.0.0:8090 --public 192.0.2.7 --behind-proxy")]
pub struct Args {
    /// Where offers come in; port 0 takes a free one. Datagrams come to a free port of their own for each peer
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8090", value_parser = address::parse)]
    listen: SocketAddr,
    /// What becomes of messages
    #[arg(long, value_enum, default_value = "forward")]
    mode: Mode,
    /// From the first message of a bundle until it goes [default: 250ms]
    #[arg(long, value_name = "TIME", value_parser = window)]
    window: Option<Duration>,
    /// Maximum size of a bundle; a bundle that reaches it is sent before its window ends [default: 16384]
    #[arg(long, value_name = "BYTES", value_parser = number::<u32, _>(1..=65_536))]
    bundle_bytes: Option<u32>,
    /// So much may wait for a peer that takes less than comes, bytes; then its oldest messages give way
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = number::<u32, _>(65_536..))]
    waiting_bytes: u32,
    /// Most peers
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = number::<u32, _>(1..=10_000))]
    peers: u32,
    /// Let pages of this origin join, such as https://app.example; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// The address that peers send to, if it is not the one that they post to
    #[arg(long, value_name = "IP")]
    public: Option<IpAddr>,
    /// A proxy in front of it speaks TLS, so that it takes offers from beyond this machine
    #[arg(long)]
    behind_proxy: bool,
    /// Take offers from beyond this machine without encryption: who is on the way may read the secret and take a peer's place
    #[arg(long)]
    insecure_no_tls: bool,
    /// Take offers from beyond this machine without a secret: everybody may join
    #[arg(long)]
    insecure_no_auth: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Mode {
    /// Each message goes as it is to whom its sender has named
    Forward,
    /// Messages to the same receiver are gathered, and go as one
    Multiplex,
    /// A message of a peer that has named nobody is a bundle, and its parts go to those that they name
    Demultiplex,
    /// Messages of peers that have named somebody are gathered, those of others are split
    Both,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let secret = std::env::var(SECRET).ok().filter(|secret| !secret.is_empty());
    let config = args.config(secret)?;
    let gateway = Gateway::bind(config).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    writeln!(std::io::stdout(), "listening on http://{}", gateway.address()?)?;
    tokio::select! {
        () = gateway.run() => Ok(()),
        stopped = stop_signal() => stopped,
    }
}

impl Args {
    /// Errors: it would take offers of strangers, and nobody has said that it may.
    fn config(&self, secret: Option<String>) -> anyhow::Result<Config> {
        let is_near = self.listen.ip().to_canonical().is_loopback();
        ensure!(
            is_near || self.behind_proxy || self.insecure_no_tls,
            "{} is beyond this machine, and offers would come without encryption: put a proxy that speaks TLS in front (--behind-proxy), or say --insecure-no-tls",
            self.listen
        );
        ensure!(
            is_near || secret.is_some() || self.insecure_no_auth,
            "{} is beyond this machine, and everybody could join: set {SECRET}, or say --insecure-no-auth",
            self.listen
        );
        let is_long = secret.as_ref().is_none_or(|secret| secret.len() >= SECRET_BYTES_MIN);
        ensure!(is_long, "{SECRET} has less than {SECRET_BYTES_MIN} bytes; `openssl rand -hex 16` makes a good one");
        let gathers = matches!(self.mode, Mode::Multiplex | Mode::Both);
        ensure!(
            gathers || (self.window.is_none() && self.bundle_bytes.is_none()),
            "--window and --bundle-bytes have no effect unless messages are gathered: --mode multiplex or --mode both"
        );
        let forward = forward::Config {
            gathers,
            splits: matches!(self.mode, Mode::Demultiplex | Mode::Both),
            window: self.window.unwrap_or(WINDOW),
            bundle_bytes_max: self.bundle_bytes.unwrap_or(BUNDLE_BYTES) as usize,
            waiting_bytes_max: self.waiting_bytes as usize,
            peers_max: self.peers as usize,
        };
        Ok(Config { listen: self.listen, forward, secret, origins: self.allow_origin.clone(), public: self.public })
    }
}

fn window(text: &str) -> Result<Duration, String> {
    let window = humantime::parse_duration(text).map_err(|error| format!("{error}; one looks like 250ms"))?;
    match window >= Duration::from_millis(1) && window <= Duration::from_secs(60) {
        true => Ok(window),
        false => Err("a window is 1ms to 1min".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn config(line: &[&str], secret: Option<&str>) -> anyhow::Result<Config> {
        Line::try_parse_from([&["gateway"], line].concat())?.args.config(secret.map(str::to_owned))
    }

    #[test]
    fn beyond_this_machine_it_wants_encryption_and_a_secret() {
        let (long, far) = (Some("0123456789abcdef"), ["--listen", "0.0.0.0:0"]);
        assert!(config(&[], None).is_ok());
        assert!(config(&[], Some("short")).is_err());
        assert!(config(&far, long).is_err());
        assert!(config(&[&far[..], &["--behind-proxy"]].concat(), None).is_err());
        assert!(config(&[&far[..], &["--behind-proxy"]].concat(), long).is_ok());
        assert!(config(&[&far[..], &["--insecure-no-tls", "--insecure-no-auth"]].concat(), None).is_ok());
    }

    #[test]
    fn modes_and_windows() {
        let both = config(&["--mode", "both", "--window", "40ms"], None).expect("good flags").forward;
        assert!(both.gathers && both.splits && both.window == Duration::from_millis(40));
        let plain = config(&[], None).expect("good flags").forward;
        assert!(!plain.gathers && !plain.splits && plain.window == Duration::from_millis(250));
        for bad in [["--window", "0s"], ["--window", "soon"], ["--mode", "mixed"], ["--bundle-bytes", "0"]] {
            assert!(config(&bad, None).is_err(), "{bad:?}");
        }
    }
}
