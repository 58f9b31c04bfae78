//! `millrace simulate earl`: the kit Earl with its LED module, connected to a server.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Args as ClapArgs;
use millrace_client::{
    publish::HttpPublisher,
    server::Server,
    subscription::{Options, Transport, Update, read},
};
use millrace_simulate::earl::{FIRMWARE, Kit, Report};
use tokio::{
    sync::{mpsc, watch},
    time::MissedTickBehavior,
};

use super::stop_signal;
use crate::{argument::ArgumentError, login::Login, output, retry::Retry, trust::Trust};

/// Real time between two looks at the kit.
const TICK: Duration = Duration::from_millis(10);
/// Commands that wait for the next look; further ones are dropped, because only the newest counts.
const COMMANDS_MAX: usize = 64;
/// Longest firmware that is read, in bytes.
const FIRMWARE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "The kit runs the firmware of `firmware/led-module` on a simulated MSP430. It reads commands from NAME/led, also those before its start, and publishes its lamps and errors to NAME/state and its light sensor to NAME/light. With tokens, it needs the permissions subscribe and history on NAME/led, and publish on NAME/state and NAME/light.\n\n\
    A command is JSON: colors of the LEDs `a` and `b` as \"#rrggbb\" or three levels from 0 to 15, and `blink`. The LED driver has only three brightness levels between off and full; the state says what it gave.\n\n\
    Example: a kit on the local server\n  millrace simulate earl\n\
    Example: its lamps in orange and blue\n  millrace pub earl/1/led '{\"a\": \"#ff8000\", \"b\": [0, 0, 15]}'\n\
    Example: LED A blinks\n  millrace pub earl/1/led '{\"a\": \"#ff0000\", \"blink\": {\"a\": true, \"on_ms\": 500, \"off_ms\": 500}}'\n\
    Example: what the lamps show\n  millrace sub earl/1/state --since earliest"
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

fn ambient(text: &str) -> Result<f64, ArgumentError> {
    match text.parse() {
        Ok(light) if (0.0..=1.0).contains(&light) => Ok(light),
        _ => Err(ArgumentError::expected("a number from 0 to 1")),
    }
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    args.trust.decide()?;
    let firmware = args.firmware.as_ref().map_or_else(|| Ok(FIRMWARE.to_vec()), |path| read_firmware(path))?;
    let mut kit = Kit::new(&firmware)?;
    kit.board_mut().sensor_mut().ambient = args.ambient;
    let server = args.to.with_token(args.login.token()?);
    let name = &args.name;
    output::note(format_args!(
        "the kit reads commands from {name}/led, and publishes to {name}/state and {name}/light of {}; press Ctrl-C to stop",
        server.shown()
    ));
    let (send, commands) = mpsc::channel(COMMANDS_MAX);
    let (state, states) = watch::channel(String::new());
    let (light, lights) = watch::channel(String::new());
    let subscription = Options {
        server: server.clone(),
        channels: vec![format!("{name}/led")],
        transport: Transport::WebSocket,
        // A kit that starts later shows what was commanded before.
        since: Some("earliest".into()),
        policy: "every".into(),
        poll_interval: Duration::from_secs(1),
        retry_for: Some(args.retry.retry_for),
    };
    let mut sink = |update: Update| {
        match update {
            Update::Message(message) => drop(send.try_send(message.data.get().as_bytes().to_vec())),
            Update::Gap(gap) => output::note(gap),
            Update::Lost(lost) => output::note(lost),
        }
        ControlFlow::Continue(())
    };
    let retry_for = args.retry.retry_for;
    tokio::select! {
        ended = read(&subscription, &mut sink) => Ok(ended?),
        ended = operate(kit, commands, &state, &light) => ended,
        ended = publish(&server, format!("{name}/state"), states, retry_for) => ended,
        ended = publish(&server, format!("{name}/light"), lights, retry_for) => ended,
        stopped = stop_signal() => stopped,
    }
}

fn read_firmware(path: &std::path::Path) -> anyhow::Result<Vec<u8>> {
    let bytes = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    ensure!(bytes <= FIRMWARE_BYTES_MAX, "{}: {bytes} bytes are no firmware of an MSP430", path.display());
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Runs the kit in real time.
async fn operate(
    mut kit: Kit,
    mut commands: mpsc::Receiver<Vec<u8>>,
    state: &watch::Sender<String>,
    light: &watch::Sender<String>,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        while let Ok(command) = commands.try_recv() {
            kit.handle_command(&command);
        }
        for report in kit.advance(started.elapsed())? {
            match report {
                Report::State(json) => state.send_replace(json),
                Report::Light(json) => light.send_replace(json),
            };
        }
    }
}

/// Publishes each report. If the server is slower than the kit, it gets the newest one.
async fn publish(
    server: &Server,
    channel: String,
    mut reports: watch::Receiver<String>,
    retry_for: Duration,
) -> anyhow::Result<()> {
    let mut publisher = HttpPublisher::new(retry_for, |lost| output::note(lost))?;
    let (path, headers) = (format!("/v1/channels/{channel}"), [("Content-Type", "application/json")]);
    while reports.changed().await.is_ok() {
        let report = reports.borrow_and_update().clone();
        publisher.post(server, &path, &headers, report.into_bytes(), |_| Ok(())).await?;
    }
    Ok(())
}
