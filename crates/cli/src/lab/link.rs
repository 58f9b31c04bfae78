//! `millrace lab link`: emulated network links.

use std::{
    io::IsTerminal,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command as Program, ExitCode, ExitStatus},
};

use anyhow::Context;
use clap::{Args as ClapArgs, Subcommand};
use millrace_client::server::Server;
use millrace_lab::{
    histogram::Histogram,
    path::{
        Emulator, PathSettings, Report, behind,
        check::{self, Check},
        emulator::Records,
    },
};
use millrace_link::{Cause, Config, Counters, Direction, Trace, Traces, profiles};

use super::{exit::EXIT_MISSED, feed::server_of, link_live::LinkPage, run::pair, signals::stop_by_signal};
use crate::{output, trust::Trust};

#[derive(ClapArgs)]
#[command(
    after_help = "A link has a rate with a queue, delay, jitter and loss in each direction, repeats from a seed, and can emulate a NAT and the states of a mobile radio. It needs root, /dev/net/tun and `ip` (iproute2).\n\n\
    Example: all profiles with their figures\n  millrace lab link list\n\
    Example: subscribe over an emulated 3G network\n  \
    millrace lab link run --path 3g -- sh -c 'millrace sub demo --to http://$LINK_HOST:8080'\n\
    Example: is the emulation exact on this machine?\n  millrace lab link check"
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the profiles of links
    #[command(after_help = "Example\n  millrace lab link list")]
    List,
    /// Run a program behind a link to this machine
    Run(Box<RunArgs>),
    /// Compare emulated links with their settings on this machine
    Check(CheckArgs),
}

#[derive(ClapArgs)]
#[command(
    after_help = "The program runs in a network namespace of its own; the link to this machine is its only network. $LINK_HOST is the address of this machine there, also of servers that listen on 127.0.0.1 only. All that this command creates disappears when it ends. The exit code is that of the program, or 128 plus its signal.\n\n\
    Example: a shell behind a mobile network with 5 % loss towards it\n  millrace lab link run --path lte --set down.loss=5% -- bash\n\
    Example: an own link, with all packets in a file for Wireshark\n  \
    millrace lab link run --set up.delay=24ms --set down.delay=24ms --set down.rate=2Mbit/s --log packets.pcapng -- bash\n\
    Example: watch the link on the page /link of a server of its own, and change it there\n  \
    millrace lab link run --path lte --live -- bash"
)]
struct RunArgs {
    /// Profile of the link; without it, a link that changes nothing but what --set says
    #[arg(long, value_name = "PROFILE", default_value = "")]
    path: String,
    /// Change one value of the profile, such as down.loss=1%; `none` removes a setting, such as down.rate=none; a trace
    /// is the name of a file in the format of mahimahi, or .csv
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Seed of losses and jitter
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write all packets that leave the link to this file (pcapng)
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Show the state of the link on the page /link of a Millrace server, and let the page change the settings; without
    /// --to, start a server on a free port
    #[arg(long, value_name = "URL", num_args = 0..=1, require_equals = true, value_parser = Server::parse)]
    live: Option<Option<Server>>,
    /// Server of --live (authenticated by MILLRACE_TOKEN); --live=URL means the same
    #[arg(long, value_name = "URL", requires = "live", value_parser = Server::parse)]
    to: Option<Server>,
    #[command(flatten)]
    trust: Trust,
    /// Program with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    program: Vec<String>,
}

#[derive(ClapArgs)]
#[command(
    after_help = "Sends datagrams over links between two network namespaces, and compares delay, rate, queue and losses with the settings. Takes about two minutes. Exit code 1 if a figure is off.\n\n\
    Example\n  millrace lab link check"
)]
struct CheckArgs {
    /// Seed of losses and jitter
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::List => list(),
        Command::Run(args) => run_program(*args),
        Command::Check(args) => check(&args),
    }
}

fn list() -> anyhow::Result<ExitCode> {
    output::line(format_args!("{:<18} {:<38} {:<38} source", "profile", "up", "down"))?;
    for (name, profile) in profiles() {
        let Config { up, down, .. } = &profile.config;
        output::line(format_args!("{name:<18} {:<38} {:<38} {}", up.to_string(), down.to_string(), profile.source))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run_program(args: RunArgs) -> anyhow::Result<ExitCode> {
    let mut path = PathSettings::of(&args.path);
    for (key, value) in &args.set {
        path.set(key, value)?;
    }
    let config = path.config()?.unwrap_or_default();
    let trace = |file: &Option<String>| file.as_deref().map(|file| read_trace(Path::new(file))).transpose();
    let traces = Traces { up: trace(&config.up.trace)?, down: trace(&config.down.trace)? };
    let stop = stop_by_signal()?;
    let (program, arguments) = args.program.split_first().context("a program is missing")?;
    let mut command = Program::new(program);
    command.args(arguments);
    let mut page = None;
    if let Some(server) = args.live {
        let server = server_of(server, args.to, &args.trust)?;
        let live = LinkPage::start(server, path, traces.clone(), args.seed, args.program.clone())?;
        output::note(format_args!("live: {}", live.page()));
        page = Some(live);
    }
    let records = Records { log: args.log, ..Records::default() };
    let options = behind::Options { config, traces, seed: args.seed, records };
    let is_terminal = std::io::stderr().is_terminal();
    let start = |host| {
        if is_terminal {
            output::note(format_args!("{program} runs behind the link; this machine is {host} there"));
        }
    };
    let look = |emulator: &Emulator| page.iter_mut().for_each(|page| page.look(emulator));
    let ended = behind::run(options, command, &stop, start, look);
    let code_of = |status: ExitStatus| status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    let code = ended.as_ref().ok().map(|(status, _)| code_of(*status).unwrap_or(1) as u8);
    if let Some(page) = page {
        page.end(code);
    }
    let (_, report) = ended?;
    summary(&report);
    Ok(ExitCode::from(code.unwrap_or(1)))
}

/// Prints on standard error what passed the link.
fn summary(report: &Report) {
    for direction in Direction::BOTH {
        let counters = match direction {
            Direction::Up => &report.up,
            Direction::Down => &report.down,
        };
        output::note(format_args!("{:<4}  {}", direction.name(), describe(counters)));
    }
    output::note(format_args!(
        "emulator  {:.1} us of CPU per packet, packets leave late by {:.0} us (p99)",
        report.cpu_per_packet().as_secs_f64() * 1e6,
        report.lateness.quantile_us(0.99).unwrap_or_default()
    ));
}

fn describe(counters: &Counters) -> String {
    let mut text = format!("{} of {} packets delivered", counters.delivered, counters.received);
    for cause in Cause::ALL {
        let dropped = counters.dropped(cause);
        if dropped > 0 {
            text += &format!(", {dropped} lost ({})", cause.name());
        }
    }
    if counters.in_flight() > 0 {
        text += &format!(", {} on the link at the end", counters.in_flight());
    }
    if counters.queue_packets_max > 1 {
        let delay_ms = counters.queue_delay_max.as_secs_f64() * 1000.0;
        text += &format!(", at most {} in the queue for {delay_ms:.0} ms", counters.queue_packets_max);
    }
    text
}

fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let outcome = check::run(args.seed, |name| output::note(format_args!("{name} ..")))?;
    if args.json {
        output::line(serde_json::to_string_pretty(&outcome)?)?;
    } else {
        output::line(format_args!("{:<58} {:>10} {:>10} {:>10}", "", "set", "measured", "tolerance"))?;
        for check in &outcome.checks {
            let Check { name, unit, expected, measured, tolerance } = check;
            let verdict = if check.is_good() { "" } else { "  OFF" };
            let label = format!("{name} ({unit})");
            output::line(format_args!("{label:<58} {expected:>10.3} {measured:>10.3} {tolerance:>10.3}{verdict}"))?;
        }
        for skipped in &outcome.skipped {
            output::line(format_args!("skipped: {skipped}"))?;
        }
        let delays = |delay: &Histogram| {
            let us = |share| delay.quantile_us(share).unwrap_or_default();
            format!("{} us (p50), {} us (p99)", us(0.5), us(0.99))
        };
        output::line(format_args!(
            "emulator at 100 Mbit/s: {:.1} us of CPU per packet, adds a delay of {}",
            outcome.cpu_us_per_packet,
            delays(&outcome.added_delay)
        ))?;
        output::line(format_args!("emulator in all checks: adds a delay of {}", delays(&outcome.lateness)))?;
    }
    Ok(ExitCode::from(if outcome.is_good() { 0 } else { EXIT_MISSED }))
}

/// Reads a trace. The name of the file decides about its format.
fn read_trace(path: &Path) -> anyhow::Result<Trace> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the trace {}", path.display()))?;
    let is_csv = path.extension().is_some_and(|extension| extension == "csv");
    let trace = if is_csv { Trace::from_csv(&text) } else { Trace::from_mahimahi(&text) };
    trace.with_context(|| path.display().to_string())
}
