//! `millrace gateway`: a WebRTC peer that forwards messages between the data channels of other peers, or a gateway
//! between a kit on a serial device and the channels of a server, or a gateway that stores messages until a server has
//! accepted them.

mod buffer;
mod kit;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, ensure};
use millrace_client::server::Server;
use millrace_gateway::{Config, Gateway, forward};
use millrace_server::config::address;

use crate::{
    argument::ArgumentError, login::Login, number::number, output, retry::Retry, signal::stop_signal, trust::Trust,
};

const SECRET: &str = "MILLRACE_GATEWAY_SECRET";
const SECRET_BYTES_MIN: usize = 16;
const WINDOW: Duration = Duration::from_millis(250);
const BUNDLE_BYTES: u32 = 16 * 1024;

#[derive(clap::Args, Clone, Debug)]
#[command(group = clap::ArgGroup::new("uplink").args(["serial", "buffer"]))]
#[command(after_help = "\
A peer (a browser or a native program) joins by posting an SDP offer to /v1/connect?name=NAME; &to=NAME names the receiver of its messages. The gateway then forwards what the peer sends on its data channel `millrace`, or on `latest`, which is unordered and never retransmits. docs/reference/gateway.md describes the format of bundles. `GET /v1/stats` returns counters.

Prints `listening on URL` once the gateway accepts offers. SIGTERM closes all peers and exits.

With --serial, the gateway drives the LED module of a kit instead: it reads commands from NAME/led, also those before its start, and publishes to NAME/state and NAME/light. It opens the device again after a disconnect. With tokens, it needs the permissions subscribe and history on NAME/led, and publish on NAME/state and NAME/light. docs/how-to/light-a-kit.md describes the messages.

With --buffer, the gateway takes messages of devices instead, by the publishing requests of a server (POST /v1/channels/CHANNEL, POST /v1/publish), or from standard input. It answers 202 once a message is on disk, and deletes the message once the server has returned its position. docs/how-to/store-and-forward.md describes this.

Example: bundle the messages that sensors send to the peer `uplink` within 250 ms, and split the bundles that `uplink` sends back
  millrace gateway --mode both
Example: forward messages unchanged, for a page that another server hosts
  millrace gateway --mode forward --allow-origin http://127.0.0.1:8080
Example: accept devices of the local network, behind a proxy that terminates TLS
  MILLRACE_GATEWAY_SECRET=$(openssl rand -hex 16) millrace gateway --listen 0.0.0.0:8090 --public 192.0.2.7 --behind-proxy
Example: a kit on a USB port
  millrace gateway --serial /dev/ttyACM0 --kit earl/1 --to http://127.0.0.1:8080
Example: devices whose messages survive an outage of the network
  MILLRACE_TOKEN=.. millrace gateway --buffer /var/lib/millrace-buffer --to https://cars.example")]
pub struct Args {
    /// Address for HTTP requests with offers; port 0 picks a free port. Each peer gets a UDP port of its own
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8090", value_parser = address::parse)]
    listen: SocketAddr,
    /// How messages are forwarded
    #[arg(long, value_enum, default_value = "forward")]
    mode: Mode,
    /// Time from the first message of a bundle until the bundle is sent [default: 250ms]
    #[arg(long, value_name = "TIME", value_parser = window)]
    window: Option<Duration>,
    /// Maximum size of a bundle; a bundle that reaches it is sent before its window ends [default: 16384]
    #[arg(long, value_name = "BYTES", value_parser = number::<u32, _>(1..=65_536))]
    bundle_bytes: Option<u32>,
    /// Maximum bytes queued per peer; the oldest messages are dropped when the queue is full
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = number::<u32, _>(65_536..))]
    waiting_bytes: u32,
    /// Maximum number of peers
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = number::<u32, _>(1..=10_000))]
    peers: u32,
    /// Allow pages of this origin, for example https://app.example; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// IP address that peers send datagrams to, if it differs from the address of their HTTP request
    #[arg(long, value_name = "IP")]
    public: Option<IpAddr>,
    /// Accept offers from other machines because a proxy in front terminates TLS
    #[arg(long)]
    behind_proxy: bool,
    /// Accept offers from other machines without TLS (insecure): anyone on the network path can read the secret and
    /// impersonate a peer
    #[arg(long)]
    insecure_no_tls: bool,
    /// Accept offers from other machines without a secret (insecure): anyone can join
    #[arg(long)]
    insecure_no_auth: bool,
    /// Serial device of a kit's LED module, for example /dev/ttyACM0; 9600 baud, 8 data bits, no parity, 1 stop bit
    #[arg(long, value_name = "PATH", conflicts_with_all = PEERS_ONLY)]
    serial: Option<PathBuf>,
    /// Name of the kit, the prefix of its channels [default: earl/1]
    #[arg(long, value_name = "NAME", requires = "serial")]
    kit: Option<String>,
    #[command(flatten)]
    buffer: buffer::Args,
    /// URL of the server with the channels of the kit or of the devices [default: http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", requires = "uplink", value_parser = Server::parse)]
    to: Option<Server>,
    #[command(flatten)]
    retry: Retry,
    #[command(flatten)]
    login: Login,
    #[command(flatten)]
    trust: Trust,
}

/// Flags that have no effect with `--serial`.
const PEERS_ONLY: [&str; 11] = [
    "listen",
    "mode",
    "window",
    "bundle_bytes",
    "waiting_bytes",
    "peers",
    "allow_origin",
    "public",
    "behind_proxy",
    "insecure_no_tls",
    "insecure_no_auth",
];

/// Flags that have no effect with `--buffer`.
const FORWARDING_ONLY: [&str; 7] =
    ["mode", "window", "bundle_bytes", "waiting_bytes", "peers", "allow_origin", "public"];

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Mode {
    /// Send each message unchanged to the receiver that its sender named
    Forward,
    /// Bundle messages to the same receiver into one message
    Multiplex,
    /// Split bundles from peers that named no receiver; each part names its own
    Demultiplex,
    /// Bundle the messages of peers that named a receiver, and split those of all others
    Both,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let to = args.to.clone().map_or_else(|| Server::parse("http://127.0.0.1:8080"), Ok)?;
    if let Some(path) = &args.serial {
        let name = args.kit.unwrap_or_else(|| "earl/1".into());
        return kit::run(path, name, to, args.retry, args.login, &args.trust).await;
    }
    let secret = std::env::var(SECRET).ok().filter(|secret| !secret.is_empty());
    if let Some(directory) = args.buffer.buffer.clone() {
        args.trust.decide()?;
        args.check_listener(secret.as_deref())?;
        let to = to.with_token(args.login.token()?);
        return buffer::run(args.buffer, directory, args.listen, secret, to).await;
    }
    ensure!(
        !args.login.is_given(),
        "--token has no effect without --serial or --buffer: peers of this gateway use {SECRET}"
    );
    let config = args.config(secret)?;
    let gateway = Gateway::bind(config).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    output::line(format_args!("listening on http://{}", gateway.address()?))?;
    tokio::select! {
        () = gateway.run() => Ok(()),
        stopped = stop_signal() => stopped,
    }
}

impl Args {
    /// Errors: a flag combination that is insecure without a waiver.
    fn check_listener(&self, secret: Option<&str>) -> anyhow::Result<()> {
        let is_loopback = self.listen.ip().to_canonical().is_loopback();
        ensure!(
            is_loopback || self.behind_proxy || self.insecure_no_tls,
            "--listen {}: other machines could connect without TLS; put a proxy that terminates TLS in front and add --behind-proxy, or add --insecure-no-tls",
            self.listen
        );
        ensure!(
            is_loopback || secret.is_some() || self.insecure_no_auth,
            "--listen {}: anyone could join; set {SECRET}, or add --insecure-no-auth",
            self.listen
        );
        let is_long = secret.is_none_or(|secret| secret.len() >= SECRET_BYTES_MIN);
        ensure!(
            is_long,
            "{SECRET} is shorter than {SECRET_BYTES_MIN} bytes; `openssl rand -hex 16` generates a suitable one"
        );
        Ok(())
    }

    /// Errors: as [`Args::check_listener`], or a flag without effect.
    fn config(&self, secret: Option<String>) -> anyhow::Result<Config> {
        self.check_listener(secret.as_deref())?;
        let gathers = matches!(self.mode, Mode::Multiplex | Mode::Both);
        ensure!(
            gathers || (self.window.is_none() && self.bundle_bytes.is_none()),
            "--window and --bundle-bytes have no effect without bundling: add --mode multiplex or --mode both"
        );
        let forward = forward::Config {
            gathers,
            splits: matches!(self.mode, Mode::Demultiplex | Mode::Both),
            window: self.window.unwrap_or(WINDOW),
            bundle_bytes_max: self.bundle_bytes.unwrap_or(BUNDLE_BYTES) as usize,
            queue_bytes_max: self.waiting_bytes as usize,
            peers_max: self.peers as usize,
        };
        Ok(Config { listen: self.listen, forward, secret, origins: self.allow_origin.clone(), public: self.public })
    }
}

fn window(text: &str) -> Result<Duration, ArgumentError> {
    let window =
        humantime::parse_duration(text).map_err(|error| ArgumentError::Duration { error, example: "250ms" })?;
    match window >= Duration::from_millis(1) && window <= Duration::from_secs(60) {
        true => Ok(window),
        false => Err(ArgumentError::expected("1ms to 1min")),
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
    fn remote_peers_require_tls_and_secret() {
        let (long, far) = (Some("0123456789abcdef"), ["--listen", "0.0.0.0:0"]);
        assert!(config(&[], None).is_ok());
        assert!(config(&[], Some("short")).is_err());
        assert!(config(&far, long).is_err());
        assert!(config(&[&far[..], &["--behind-proxy"]].concat(), None).is_err());
        assert!(config(&[&far[..], &["--behind-proxy"]].concat(), long).is_ok());
        assert!(config(&[&far[..], &["--insecure-no-tls", "--insecure-no-auth"]].concat(), None).is_ok());
    }

    #[test]
    fn flags_of_kit_and_peers_exclude_each_other() {
        let parse = |line: &[&str]| Line::try_parse_from([&["gateway"], line].concat());
        assert!(parse(&["--serial", "/dev/ttyACM0", "--kit", "earl/2", "--to", "http://127.0.0.1:1"]).is_ok());
        for wrong in [&["--kit", "earl/2"][..], &["--to", "http://127.0.0.1:1"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        for peers in [&["--listen", "127.0.0.1:0"][..], &["--mode", "both"], &["--peers", "3"], &["--behind-proxy"]] {
            assert!(parse(&[&["--serial", "x"], peers].concat()).is_err(), "{peers:?}");
        }
    }

    #[test]
    fn flags_set_mode_and_window() {
        let both = config(&["--mode", "both", "--window", "40ms"], None).expect("good flags").forward;
        assert!(both.gathers && both.splits && both.window == Duration::from_millis(40));
        let plain = config(&[], None).expect("good flags").forward;
        assert!(!plain.gathers && !plain.splits && plain.window == Duration::from_millis(250));
        for bad in [["--window", "0s"], ["--window", "soon"], ["--mode", "mixed"], ["--bundle-bytes", "0"]] {
            assert!(config(&bad, None).is_err(), "{bad:?}");
        }
    }
}
