//! `millrace`: one binary. Each command is a file; `serve` is what runs without one.

mod cert;
mod config;
mod gateway;
mod history;
mod lab;
mod login;
mod number;
mod publish;
mod retry;
mod serve;
mod simulate;
mod since;
mod subscribe;
mod token;
mod trust;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use millrace_server::config::ConfigError;

/// Why not the system's: docs/performance.md, "Memory".
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Source: sysexits.h, EX_CONFIG.
const EXIT_CONFIG: u8 = 78;

/// Real-time data to any client, over whichever web transport reaches it.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Args,
}

const EXAMPLES: &str = "\
Try it:
  millrace                                              serve on http://127.0.0.1:8080
  millrace sub demo                                     read a channel
  millrace pub demo '{\"hello\":1}'                       publish to it
  curl 'http://127.0.0.1:8080/v1/channels/demo?wait=30'  the same with curl: the next message
  millrace simulate fleet --cars 12                     a town of cars, on the map at /carcare
  millrace lab run thorsen-broadcast --quick            measure it";

const SERVE_EXAMPLES: &str = "\
Prints `listening on URL` once it accepts connections. SIGTERM drains: readers are told to move, then it ends; a second one ends it at once. SIGHUP reads the configuration again.

Example: for the phones in this network, with a certificate of this machine's own
  millrace serve --tls-dev --listen 0.0.0.0:8443
Example: for everybody, with a certificate from Let's Encrypt (docs/tls.md)
  millrace serve --listen 0.0.0.0:443 --tls-acme app.example --tls-acme-accept-terms --set 'auth.keys=[\"millrace.key.pub\"]'
Example: two threads, datagrams from devices, a shorter heartbeat
  millrace serve --shards 2 --udp 127.0.0.1:5005 --set limits.heartbeat=10s";

#[derive(Subcommand)]
enum Command {
    /// Serve channels (what runs without a command)
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(serve::Args),
    /// Drive simulated cars that publish to a server
    Simulate(simulate::Args),
    /// Publish to a channel
    Pub(publish::Args),
    /// Read channels
    Sub(subscribe::Args),
    /// Read a range of a channel's past, then end
    History(history::Args),
    /// Forward between the data channels of peers: one to one, many as one, one to many
    Gateway(gateway::Args),
    /// Make certificates to begin with
    #[command(subcommand, after_help = "Example: for this machine and the phones in its network\n  millrace cert dev")]
    Cert(cert::Command),
    /// Make keys, sign tokens, and say what a token is worth
    #[command(subcommand, after_help = token::EXAMPLES)]
    Token(token::Command),
    /// Print or check the configuration
    #[command(subcommand, after_help = "Example: what can be set, and what it is set to\n  millrace config default")]
    Config(config::Command),
    /// Measure this server and others
    Lab(lab::Args),
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        let _ = error.print();
        // Code 2 of `lab` means something else.
        let is_lab = error.use_stderr() && std::env::args().nth(1).as_deref() == Some("lab");
        std::process::exit(if is_lab { lab::EXIT_ERROR.into() } else { error.exit_code() })
    });
    let command = match cli.command.unwrap_or(Command::Serve(cli.serve)) {
        // It works with threads of its own.
        Command::Lab(args) => return lab::run(args),
        command => command,
    };
    let result =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Into::into).and_then(|runtime| {
            runtime.block_on(async {
                match command {
                    Command::Serve(args) => serve::run(args).await,
                    Command::Simulate(args) => simulate::run(args).await,
                    Command::Pub(args) => publish::run(args).await,
                    Command::Sub(args) => subscribe::run(args).await,
                    Command::History(args) => history::run(args).await,
                    Command::Gateway(args) => gateway::run(args).await,
                    Command::Cert(command) => cert::run(command),
                    Command::Token(command) => token::run(command).await,
                    Command::Config(command) => config::run(command),
                    Command::Lab(_) => unreachable!("it has returned above"),
                }
            })
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("millrace: {error:#}");
            ExitCode::from(if error.is::<ConfigError>() { EXIT_CONFIG } else { 1 })
        }
    }
}
