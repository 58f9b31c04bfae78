//! `millrace simulate earl`: the kit Earl with its LED module, connected to a server, a serial connection, or standard
//! input and output.

mod real_time;
mod serial;
mod stdio;

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use clap::Args as ClapArgs;
use millrace_client::server::Server;
use millrace_gateway::kit::{Channels, Reports};
use millrace_simulate::earl::{FIRMWARE, Kit, Module};

use crate::{argument::ArgumentError, login::Login, output, retry::Retry, signal::stop_signal, trust::Trust};

/// Longest firmware that is read, in bytes.
const FIRMWARE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "The kit runs the firmware of `firmware/led-module` on a simulated MSP430. It reads commands from NAME/led, also those before its start, and publishes its lamps and errors to NAME/state and its light sensor to NAME/light. With tokens, it needs the permissions subscribe and history on NAME/led, and publish on NAME/state and NAME/light.\n\n\
    A command is JSON: colors of the LEDs `a` and `b` as \"#rrggbb\" or three levels from 0 to 15, and `blink`. The LED driver has only three brightness levels between off and full; the state says what it gave.\n\n\
    With --serial, only the LED module is simulated: a pseudo terminal is its serial connection, and `millrace gateway --serial` is its host. If --to is given, the light of the lamps goes to NAME/lamps, because a module cannot report it; this needs the permission publish on NAME/lamps.\n\n\
    Example: a kit on the local server\n  millrace simulate earl\n\
    Example: its lamps in orange and blue\n  millrace pub earl/1/led '{\"a\": \"#ff8000\", \"b\": [0, 0, 15]}'\n\
    Example: LED A blinks\n  millrace pub earl/1/led '{\"a\": \"#ff0000\", \"blink\": {\"a\": true, \"on_ms\": 500, \"off_ms\": 500}}'\n\
    Example: what the lamps show\n  millrace sub earl/1/state --since earliest\n\
    Example: a module on a serial connection, and its gateway\n  millrace simulate earl --serial-link /tmp/earl &\n  millrace gateway --serial /tmp/earl"
)]
pub struct Args {
    /// Name of the kit, the prefix of its channels
    #[arg(long, value_name = "NAME", default_value = "earl/1")]
    name: String,
    /// ELF file for the MSP430G2553 [default: the firmware that is part of this program]
    #[arg(long, value_name = "FILE")]
    firmware: Option<PathBuf>,
    /// Light around the sensor, from 0 (dark) to 1 (as bright as both lamps)
    #[arg(long, value_name = "LIGHT", default_value = "0.1", value_parser = ambient)]
    ambient: f64,
    /// Offer the serial connection of the LED module as a pseudo terminal, and print its path
    #[arg(long)]
    serial: bool,
    /// As --serial, with a symbolic link PATH to the terminal; a link that exists is replaced
    #[arg(long, value_name = "PATH")]
    serial_link: Option<PathBuf>,
    /// Read commands from standard input and write reports to standard output, one JSON object per line
    #[arg(long, conflicts_with_all = ["serial", "serial_link", "to"])]
    stdio: bool,
    /// URL of the server [default: http://127.0.0.1:8080; with --serial: none]
    #[arg(long, value_name = "URL", value_parser = Server::parse)]
    to: Option<Server>,
    #[command(flatten)]
    retry: Retry,
    #[command(flatten)]
    login: Login,
    #[command(flatten)]
    trust: Trust,
}

fn ambient(text: &str) -> Result<f64, ArgumentError> {
    match text.parse() {
        Ok(light) if (0.0..=1.0).contains(&light) => Ok(light),
        _ => Err(ArgumentError::expected("a number from 0 to 1")),
    }
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let firmware = args.firmware.as_ref().map_or_else(|| Ok(FIRMWARE.to_vec()), |path| read_firmware(path))?;
    if args.serial || args.serial_link.is_some() {
        let mut module = Module::new(&firmware)?;
        module.board_mut().sensor_mut().ambient = args.ambient;
        let link = args.serial_link.clone();
        let channels = args.to.is_some().then(|| args.channels()).transpose()?;
        return serial::run(module, link, channels).await;
    }
    let mut kit = Kit::new(&firmware)?;
    kit.board_mut().sensor_mut().ambient = args.ambient;
    if args.stdio {
        return stdio::run(kit).await;
    }
    let channels = args.channels()?;
    let name = &channels.name;
    output::note(format_args!(
        "the kit reads commands from {name}/led, and publishes to {name}/state and {name}/light of {}; press Ctrl-C to stop",
        channels.server.shown()
    ));
    let (kit, reports) = (RefCell::new(kit), Reports::default());
    let handle_command = |json: &[u8]| kit.borrow_mut().handle_command(json);
    let report = |report| {
        reports.send(report);
        Ok(())
    };
    tokio::select! {
        ended = channels.serve(&reports, handle_command) => Ok(ended?),
        ended = real_time::operate(&kit, report) => ended,
        stopped = stop_signal() => stopped,
    }
}

impl Args {
    fn channels(&self) -> anyhow::Result<Channels> {
        self.trust.decide()?;
        let to = self.to.clone().map_or_else(|| Server::parse("http://127.0.0.1:8080"), Ok)?;
        let server = to.with_token(self.login.clone().token()?);
        let (name, retry_for) = (self.name.clone(), self.retry.retry_for);
        Ok(Channels { server, name, retry_for, note: |line| output::note(line) })
    }
}

fn read_firmware(path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    ensure!(bytes <= FIRMWARE_BYTES_MAX, "{}: {bytes} bytes are no firmware of an MSP430", path.display());
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
