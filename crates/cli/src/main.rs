//! The `millrace` binary. Each command has its own file; without a command, `serve` runs.

// `output` prints, so that a closed pipe ends a command without a panic.
#![deny(clippy::print_stdout, clippy::print_stderr)]
// Comments of flags are help texts, which show URLs as they are.
#![allow(rustdoc::bare_urls)]

mod admin;
mod argument;
mod cert;
mod config;
mod file;
mod gateway;
mod history;
mod lab;
mod login;
mod number;
mod output;
mod publish;
mod retry;
mod serve;
mod signal;
mod simulate;
mod since;
mod subscribe;
mod token;
mod trust;
mod upgrade;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use millrace_server::config::ConfigError;

/// docs/explanation/performance.md, "Memory", explains why this is not the system's allocator.
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
  millrace                                              start a server on http://127.0.0.1:8080
  millrace sub demo                                     subscribe to a channel
  millrace pub demo '{\"hello\":1}'                       publish to it
  curl 'http://127.0.0.1:8080/v1/channels/demo?wait=30'  receive the next message with curl
  millrace simulate fleet --cars 12                     12 simulated cars on the map at /carcare
  millrace lab run thorsen-broadcast --quick            run a short benchmark

A running server serves its documentation at /docs: http://127.0.0.1:8080/docs";

const SERVE_EXAMPLES: &str = "\
Prints `listening on URL` once the server accepts connections. SIGTERM drains the server: clients are asked to reconnect elsewhere, then the process exits; a second SIGTERM exits immediately. SIGHUP reloads the configuration. SIGUSR2 or `millrace upgrade` starts the binary again and hands over to it.

Example: serve phones in the local network with a development certificate
  millrace serve --tls-dev --listen 0.0.0.0:8443
Example: serve the Internet with a certificate from Let's Encrypt (docs/reference/tls.md)
  millrace serve --listen 0.0.0.0:443 --tls-acme app.example --tls-acme-accept-terms --set 'auth.keys=[\"millrace.key.pub\"]'
Example: two threads, UDP datagrams from devices, a heartbeat every 10 s
  millrace serve --shards 2 --udp 127.0.0.1:5005 --set limits.heartbeat=10s";

#[derive(Subcommand)]
enum Command {
    /// Start the server (the default command)
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(serve::Args),
    /// Publish the telemetry of simulated cars
    Simulate(simulate::Args),
    /// Publish messages to a channel
    Pub(publish::Args),
    /// Subscribe to channels and print their messages
    Sub(subscribe::Args),
    /// Print a range of a channel's history and exit
    History(history::Args),
    /// Send and receive files over a channel
    #[command(subcommand, after_help = file::EXAMPLES)]
    File(file::Command),
    /// Forward messages between the WebRTC data channels of peers
    Gateway(gateway::Args),
    /// Create a certificate for development
    #[command(
        subcommand,
        after_help = "Example: a certificate for this machine that phones in the local network can trust\n  millrace cert dev"
    )]
    Cert(cert::Command),
    /// Create keys, sign tokens and inspect them
    #[command(subcommand, after_help = token::EXAMPLES)]
    Token(token::Command),
    /// Replace the binary of a running server without losing a message
    #[command(after_help = upgrade::EXAMPLES)]
    Upgrade(upgrade::Args),
    /// List and change the channels and connections of a running server or cluster
    #[command(subcommand, after_help = admin::EXAMPLES)]
    Admin(admin::Command),
    /// Print or check the configuration
    #[command(
        subcommand,
        after_help = "Example: print every setting with its default value\n  millrace config default"
    )]
    Config(config::Command),
    /// Benchmark this server and other servers
    Lab(lab::Args),
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        let _ = error.print();
        // Clap exits with 2 on a bad flag, and code 2 of `lab` means an invalid run.
        let is_lab = error.use_stderr() && std::env::args().nth(1).as_deref() == Some("lab");
        std::process::exit(if is_lab { lab::EXIT_ERROR.into() } else { error.exit_code() })
    });
    let command = match cli.command.unwrap_or(Command::Serve(cli.serve)) {
        // The lab starts its own threads and runtimes.
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
                    Command::File(command) => file::run(command).await,
                    Command::Gateway(args) => gateway::run(args).await,
                    Command::Cert(command) => cert::run(command),
                    Command::Token(command) => token::run(command).await,
                    Command::Upgrade(args) => upgrade::run(args).await,
                    Command::Admin(command) => admin::run(command).await,
                    Command::Config(command) => config::run(command),
                    Command::Lab(_) => unreachable!("`lab` was handled above"),
                }
            })
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format_args!("millrace: {error:#}"));
            ExitCode::from(if error.is::<ConfigError>() { EXIT_CONFIG } else { 1 })
        }
    }
}
