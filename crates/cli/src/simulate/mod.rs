//! `millrace simulate`: cars that publish telemetry, the town they drive in, prices of a ticker, the kit Earl, and a
//! camera.

mod earl;
mod ticker;
mod video;

use std::cell::RefCell;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Args as ClapArgs, Subcommand};
use millrace_client::clock::now_ms;
use millrace_client::server::{Server, Token};
use millrace_simulate::answers::{self, Garage};
use millrace_simulate::fleet::Fleet;
use millrace_simulate::publisher::Publisher;
use millrace_simulate::record::Record;
use millrace_simulate::replay::{Replay, to_csv};
use millrace_simulate::rule::{Rule, Sender};
use millrace_simulate::town::Town;
use tokio::time::MissedTickBehavior;

use crate::{
    argument::ArgumentError, login::Login, number::number, output, retry::Retry, signal::stop_signal, trust::Trust,
};

const STATUS_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: 12 cars on the map at http://127.0.0.1:8080/carcare\n  \
    millrace simulate fleet --cars 12 --seed 7 --interval 1s --to http://127.0.0.1:8080")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Replay one recorded drive
    Car(Car),
    /// Simulate the kit Earl: LED module, firmware and light sensor
    Earl(earl::Args),
    /// Simulate many cars in the town
    Fleet(FleetArgs),
    /// Print one drive through the town as CSV, for `simulate car`
    Drive(Drive),
    /// Simulate the prices of a ticker
    Ticker(ticker::Args),
    /// Print the map of the town as GeoJSON
    #[command(
        after_help = "Example: create the map that the web pages show\n  millrace simulate town > web/public/town.json"
    )]
    Town {
        /// Seed of the town
        #[arg(long, default_value_t = millrace_simulate::town::DEFAULT_SEED, value_parser = number::<u64, _>(..))]
        seed: u64,
    },
    /// Write the video of a synthetic camera to a file, for the fake camera of a browser
    Video(video::Args),
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "The file has the header time,lat,lon,elevation,accuracy,bearing,speed (RFC 3339, degrees, degrees, \
    metres, metres, degrees, m/s).\nOne row is published per interval, with the current time as its timestamp.\n\n\
    Example: one row every 5 s, forever\n  \
    millrace simulate car --csv crates/simulate/fixtures/drive.csv --car 1 --interval 5s --loop\n\
    Example: over UDP, to a server with --udp 127.0.0.1:8081\n  \
    millrace simulate car --csv crates/simulate/fixtures/drive.csv --car 1 --to udp://127.0.0.1:8081"
)]
struct Car {
    /// CSV file of a recorded drive
    #[arg(long, value_name = "FILE")]
    csv: PathBuf,
    /// The car's number; its records go to the channel cars/NUMBER/telemetry
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = number::<u32, _>(1..))]
    car: u32,
    /// Start again at the end of the file
    #[arg(long = "loop")]
    again: bool,
    /// Exit after this many rows
    #[arg(long, value_name = "N", value_parser = number::<u64, _>(..))]
    count: Option<u64>,
    /// Time between two records of a car, for example 500ms or 5s
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = interval)]
    interval: Duration,
    #[command(flatten)]
    destination: Destination,
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "The same seed gives the same routes. `seq` increases by 1 per record of a car, so a subscriber can prove that it missed nothing.\n\n\
    Example: 12 cars, each with one record per second\n  millrace simulate fleet --cars 12 --seed 7\n\
    Example: 200 cars at ten times real speed, 60 records each\n  \
    millrace simulate fleet --cars 200 --speedup 10 --count 60\n\
    Example: devices that publish only events\n  \
    millrace simulate fleet --cars 50 --rule event"
)]
struct FleetArgs {
    /// Number of cars, numbered from 1
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = number::<u32, _>(1..=100_000))]
    cars: u32,
    /// Seed of the routes and events
    #[arg(long, default_value_t = 7, value_parser = number::<u64, _>(..))]
    seed: u64,
    /// Exit after this many intervals
    #[arg(long, value_name = "N", value_parser = number::<u64, _>(..))]
    count: Option<u64>,
    /// Speed of simulated time relative to real time
    #[arg(long, value_name = "X", default_value = "1", value_parser = speedup)]
    speedup: f64,
    /// Time between two records of a car, for example 500ms or 5s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    #[command(flatten)]
    destination: Destination,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: create the drive that is shipped with Millrace\n  \
    millrace simulate drive --seed 3 --rows 120 --interval 5s > crates/simulate/fixtures/drive.csv")]
struct Drive {
    #[arg(long, default_value_t = 3, value_parser = number::<u64, _>(..))]
    seed: u64,
    #[arg(long, default_value_t = 120, value_parser = number::<u32, _>(..))]
    rows: u32,
    /// Time between two rows
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = interval)]
    interval: Duration,
}

/// Rule that decides when a device publishes.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Speak {
    /// Every interval
    Continuous,
    /// Only on events: harsh braking, high engine speed, a trouble code
    Event,
}

/// Rule and destination of the records.
#[derive(Debug, ClapArgs)]
struct Destination {
    /// Rule that decides when a device publishes
    #[arg(long, value_name = "RULE", default_value = "continuous")]
    rule: Speak,
    /// URL of the server: http://HOST:PORT, https://HOST:PORT, or udp://HOST:PORT for datagrams
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    to: String,
    /// Do not answer requests to the cars (by default, the first 100 cars answer, unless the records go over UDP)
    #[arg(long)]
    no_answers: bool,
    #[command(flatten)]
    retry: Retry,
    #[command(flatten)]
    login: Login,
    #[command(flatten)]
    trust: Trust,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.what {
        What::Car(args) => car(args).await,
        What::Earl(args) => earl::run(args).await,
        What::Fleet(args) => fleet(args).await,
        What::Drive(args) => Ok(output::text(drive(&args))?),
        What::Ticker(args) => ticker::run(args).await,
        What::Town { seed } => Ok(output::text(Town::new(seed).to_geojson())?),
        What::Video(args) => video::run(&args),
    }
}

async fn car(args: Car) -> anyhow::Result<()> {
    let open = || -> anyhow::Result<_> {
        let file = File::open(&args.csv).with_context(|| format!("cannot open {}", args.csv.display()))?;
        Replay::new(BufReader::new(file), args.car).with_context(|| args.csv.display().to_string())
    };
    let mut rows = open()?;
    let next = || -> anyhow::Result<Option<Vec<Record>>> {
        let row = match rows.next() {
            None if args.again => {
                rows = open()?;
                rows.next()
            }
            row => row,
        };
        let Some(row) = row else { return Ok(None) };
        let record = row.with_context(|| args.csv.display().to_string())?;
        Ok(Some(vec![Record { timestamp: now_ms(), ..record }]))
    };
    send_paced(&args.destination, args.interval, args.count, &RefCell::default(), next).await
}

async fn fleet(args: FleetArgs) -> anyhow::Result<()> {
    let mut fleet = Fleet::new(Town::default(), args.cars, args.seed);
    let step = args.interval.mul_f64(args.speedup);
    let garage = RefCell::new(Garage::default());
    let next = || {
        garage.borrow_mut().take_cleared().into_iter().for_each(|car| fleet.clear_codes(car));
        Ok(Some(fleet.step(now_ms(), step)))
    };
    send_paced(&args.destination, args.interval, args.count, &garage, next).await
}

/// Publishes the records of `next` once per interval: until `next` returns `None`, `count` times, or until a signal
/// arrives. Meanwhile the cars answer requests from what `garage` has taken of their records.
async fn send_paced(
    destination: &Destination,
    interval: Duration,
    count: Option<u64>,
    garage: &RefCell<Garage>,
    mut next: impl FnMut() -> anyhow::Result<Option<Vec<Record>>>,
) -> anyhow::Result<()> {
    destination.trust.decide()?;
    let to = &destination.to;
    let mut sender = Sender::new(match destination.rule {
        Speak::Continuous => Rule::Continuous,
        Speak::Event => Rule::Event,
    });
    let next = || {
        let records = next()?;
        records.iter().for_each(|records| garage.borrow_mut().take(records));
        Ok(records.map(|records| sender.select(records)))
    };
    let has_token = destination.login.is_given();
    ensure!(!has_token || !to.starts_with("udp://"), "--token has no effect with {to}: datagrams carry no token");
    let token = destination.login.clone().token()?;
    let answering = answer(destination, token.clone(), garage);
    let mut publisher = Publisher::new(to, token, destination.retry.retry_for, |lost| output::note(lost)).await?;
    // The URL may contain a password.
    let shown = Server::parse(to).map_or_else(|_| to.clone(), |server| server.shown());
    output::note(format_args!(
        "publishing to {shown} every {}; press Ctrl-C to stop",
        humantime::format_duration(interval)
    ));
    let outcome = tokio::select! {
        outcome = send_all(&mut publisher, interval, count, next) => outcome,
        stopped = stop_signal() => stopped,
        () = answering => Ok(()),
    };
    output::note(status(&publisher));
    outcome
}

/// Answers requests to the cars. Never returns: cars that cannot answer still send their records.
async fn answer(destination: &Destination, token: Option<Token>, garage: &RefCell<Garage>) {
    let to = &destination.to;
    if !destination.no_answers
        && !to.starts_with("udp://")
        && let Ok(server) = Server::parse(to)
    {
        // The cars exist after the first record.
        let started = garage.borrow().started();
        started.notified().await;
        let retry_for = destination.retry.retry_for;
        if let Err(error) = answers::answer(&server.with_token(token), garage, retry_for, |_| ()).await {
            output::note(format_args!("the cars answer no requests: {error}"));
        }
    }
    std::future::pending().await
}

async fn send_all(
    publisher: &mut Publisher,
    interval: Duration,
    count: Option<u64>,
    mut next: impl FnMut() -> anyhow::Result<Option<Vec<Record>>>,
) -> anyhow::Result<()> {
    let mut ticks = tokio::time::interval(interval);
    // After a pause the cars continue at their pace; they do not catch up.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reported = Instant::now();
    for _ in 0..count.unwrap_or(u64::MAX) {
        ticks.tick().await;
        let Some(records) = next()? else { return Ok(()) };
        if !records.is_empty() {
            publisher.send(&records).await?;
        }
        if reported.elapsed() >= STATUS_EVERY {
            reported = Instant::now();
            output::note(status(publisher));
        }
    }
    Ok(())
}

fn status(publisher: &Publisher) -> String {
    let sent = publisher.sent();
    let Some(stats) = publisher.stats() else { return format!("{sent} records sent by UDP") };
    let round_trip = stats.round_trip.map_or("–".into(), |time| format!("{:.1} ms", time.as_secs_f64() * 1000.0));
    format!("{sent} records sent, {} retries, round trip {round_trip}", stats.retries)
}

fn drive(args: &Drive) -> String {
    // A Monday morning.
    const START_MS: u64 = 1_777_879_800_000;
    let step_ms = args.interval.as_millis() as u64;
    let mut fleet = Fleet::new(Town::default(), 1, args.seed);
    let records = (0..u64::from(args.rows)).flat_map(|row| fleet.step(START_MS + row * step_ms, args.interval));
    to_csv(&records.collect::<Vec<_>>())
}

fn interval(text: &str) -> Result<Duration, ArgumentError> {
    let interval =
        humantime::parse_duration(text).map_err(|error| ArgumentError::Duration { error, example: "500ms or 5s" })?;
    match interval >= Duration::from_millis(1) && interval <= Duration::from_secs(86_400) {
        true => Ok(interval),
        false => Err(ArgumentError::expected("1ms to 1day")),
    }
}

fn speedup(text: &str) -> Result<f64, ArgumentError> {
    match text.parse() {
        Ok(factor) if (0.01..=1000.0).contains(&factor) => Ok(factor),
        _ => Err(ArgumentError::expected("a number from 0.01 to 1000")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_and_speedups_are_checked() {
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        assert!(["0s", "2days", "five"].iter().all(|text| interval(text).is_err()));
        assert_eq!(speedup("10"), Ok(10.0));
        assert!(["0", "-1", "NaN", "x"].iter().all(|text| speedup(text).is_err()));
    }

    #[test]
    fn shipped_drive_matches_printed_drive() {
        let args = Drive { seed: 3, rows: 120, interval: Duration::from_secs(5) };
        assert_eq!(drive(&args), include_str!("../../../simulate/fixtures/drive.csv"));
    }
}
