//! `millrace lab run`: runs a scenario, records it and writes a report.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, ensure};
use clap::Args as ClapArgs;
use millrace_client::server::Server;
use millrace_lab::{
    analysis::{analyse, table},
    recording::Form,
    report::{self, live},
    scenarios,
    shell::quoted,
    slo::Slo,
    sweep::{Request, Scenario, Settings, Store},
    targets,
};

use super::{
    exit,
    feed::server_of,
    live::Live,
    signals::stop_by_signal,
    supervised::{self, Supervised},
    view,
};
use crate::{argument::ArgumentError, number::number, output, trust::Trust};

const DEFAULT_SEED: u64 = 1;

#[derive(ClapArgs)]
#[command(
    after_help = "Writes recording.json to the output folder after each run, and report.html at the end. Ctrl-C keeps the recording; --resume continues it.\n\n\
    Example: compare Millrace with ws and with your own build of uWebSockets\n  \
    millrace lab run thorsen-broadcast --targets millrace,ws,uws=/opt/uws --transports websocket\n\
    Example: set the levels, and a service level that decides the exit code\n  \
    millrace lab run thorsen-broadcast --set clients=100,1000 --set test=10s --slo 'p99<100ms'\n\
    Example: all transports over two emulated networks\n  millrace lab run networks --quick --set only=lte,geo-satellite\n\
    Example: limit the run to half an hour\n  millrace lab run thorsen-broadcast --budget 30\n\
    Example: watch the run on the page /lab of a running server\n  millrace lab run thorsen-broadcast --quick --live --to http://127.0.0.1:8080\n\
    Example: continue an interrupted run\n  millrace lab run --resume lab-results/thorsen-broadcast-20261121T200000Z"
)]
pub struct Args {
    /// Scenario to run; `millrace lab list` lists them
    #[arg(required_unless_present = "resume")]
    scenario: Option<String>,
    #[command(flatten)]
    selection: Selection,
    /// Output folder [default: lab-results/SCENARIO-TIME]
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    out: Option<PathBuf>,
    /// Continue the interrupted run in this folder
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// Show the progress on the page /lab of a Millrace server; without --to, start a server on a free port, which uses
    /// some CPU of this machine
    #[arg(long, value_name = "URL", num_args = 0..=1, require_equals = true, value_parser = Server::parse)]
    live: Option<Option<Server>>,
    /// Server of --live (authenticated by MILLRACE_TOKEN); --live=URL means the same
    #[arg(long, value_name = "URL", requires = "live", value_parser = Server::parse)]
    to: Option<Server>,
    /// Print the progress as JSON, one event per line, and stop when standard input is closed
    #[arg(long, conflicts_with = "live")]
    supervised: bool,
    #[command(flatten)]
    trust: Trust,
    /// Skip levels (never repeats) until the estimated duration fits
    #[arg(long, value_name = "MINUTES", conflicts_with = "resume", value_parser = minutes)]
    budget: Option<Duration>,
}

/// The flags of `run` and `capacity`.
#[derive(ClapArgs)]
pub struct Selection {
    /// Short trial in under a minute; noise of the machine is reported but does not invalidate runs
    #[arg(long)]
    quick: bool,
    /// Use the parameters and durations of the thesis
    #[arg(long, conflicts_with = "quick")]
    thesis: bool,
    /// Servers to measure, by name, or by name and executable: millrace,ws,uws=/opt/uws. Label two executables of one
    /// kind: millrace@old=PATH,millrace@new=PATH
    #[arg(long, value_name = "NAME[=PATH],..", value_delimiter = ',')]
    targets: Vec<String>,
    /// Transports to measure: websocket, session, sse, stream, long-polling, polling, data-channel
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    transports: Vec<String>,
    /// Set a parameter of the scenario; separate several levels by commas; PART.KEY sets it for one part only, and
    /// only=PART,.. chooses the parts to run
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Number of runs of each combination
    #[arg(long, value_name = "N", value_parser = number::<u32, _>(..))]
    repeats: Option<u32>,
    /// Seed of the order of runs and of random arrivals [default: 1]
    #[arg(long, value_name = "N", value_parser = number::<u64, _>(..))]
    seed: Option<u64>,
    /// Service level that each run must keep, for example 'p99<100ms' or 'p99.9<1s,lost<1%'
    #[arg(long, value_name = "LEVEL")]
    pub slo: Option<Slo>,
}

pub fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    let (page, to, trust) = (args.live.take(), args.to.take(), args.trust.clone());
    let is_supervised = args.supervised;
    let request = args.request()?;
    let stop = stop_by_signal()?;
    let folder = request.folder.clone();
    let mut view = view::of_terminal();
    let first = live::announced(request.scenario.name, request.form, &request.command);
    if let Some(server) = page {
        let live = Live::start(server_of(server, to, &trust)?, first)?;
        output::note(format_args!("live: {}", live.page()));
        view = Box::new(view::Both(view, Box::new(live)));
    } else if is_supervised {
        supervised::stop_with_input(stop.clone())?;
        view = Box::new(view::Both(view, Box::new(Supervised::start(&first)?)));
    }
    let verdict = request.run(&mut *view, &stop);
    drop(view);
    if folder.exists() {
        if let Ok(recording) = Store::read(&folder) {
            let analysis = analyse(&[recording])?;
            output::note(table::summary(&analysis).trim_end());
            match report::write(&folder, &analysis) {
                Ok(page) => output::note(format_args!("report: {}", page.display())),
                Err(error) => output::note(format_args!("cannot write the report: {error:#}")),
            }
        }
        if !is_supervised {
            output::line(folder.display())?;
        }
    }
    Ok(exit::of(&verdict?))
}

impl Args {
    fn request(self) -> anyhow::Result<Request> {
        let command = command_line();
        let Some(folder) = self.resume else {
            let name = self.scenario.context("missing scenario: `millrace lab list` lists them")?;
            let scenario = scenarios::find(&name)?;
            if scenario.name != name {
                output::note(format_args!("warning: {name} is a former name of the scenario {}", scenario.name));
            }
            let folder = self.out.unwrap_or_else(|| fresh_folder(scenario.name));
            return self.selection.request(scenario, folder, self.budget, command);
        };
        ensure!(self.selection.seed.is_none(), "--seed has no effect with --resume: the recording has its own");
        // Values that were not given again keep those of the recording.
        let old = Store::read(&folder)?;
        ensure!(
            self.scenario.as_ref().is_none_or(|name| *name == old.scenario),
            "{} holds a recording of {}",
            folder.display(),
            old.scenario
        );
        let (scenario, is_changed) = (scenarios::find(&old.scenario)?, self.selection.is_given());
        let slo = old.slo.as_deref().map(str::parse).transpose()?;
        let mut request = self.selection.request(scenario, folder, None, command)?;
        request.resume = true;
        request.seed = old.seed;
        request.slo = request.slo.or(slo);
        if !is_changed {
            (request.form, request.settings) = (old.form, Settings::from_json(&old.parameters)?);
        }
        Ok(request)
    }
}

impl Selection {
    /// Whether any flag changes what is run.
    fn is_given(&self) -> bool {
        self.quick || self.thesis || !self.set.is_empty() || self.repeats.is_some() || !self.transports.is_empty()
    }

    pub fn request(
        self,
        scenario: &'static Scenario,
        folder: PathBuf,
        budget: Option<Duration>,
        command: String,
    ) -> anyhow::Result<Request> {
        let form = match (self.quick, self.thesis) {
            (true, _) => Form::Quick,
            (_, true) => Form::Thesis,
            _ => Form::Full,
        };
        let mut binaries = BTreeMap::new();
        let mut names = Vec::new();
        for target in &self.targets {
            let (name, path) =
                target.split_once('=').map_or((target.as_str(), None), |(name, path)| (name, Some(path)));
            let labelled = targets::kind(name) != name;
            ensure!(!labelled || path.is_some(), "target {name} needs an executable: --targets {name}=PATH");
            path.into_iter().for_each(|path| drop(binaries.insert(name.to_owned(), PathBuf::from(path))));
            names.push(name);
        }
        // The target `millrace` is this executable, whatever its name.
        if std::env::var_os("MILLRACE_BIN").is_none() {
            binaries.entry("millrace".to_owned()).or_insert(std::env::current_exe()?);
        }
        let mut sets = Vec::new();
        if !names.is_empty() {
            sets.push(("targets".to_owned(), names.join(",")));
        }
        if !self.transports.is_empty() {
            for name in &self.transports {
                targets::parse_transport(name)?;
            }
            sets.push(("transports".to_owned(), self.transports.join(",")));
        }
        sets.extend(self.repeats.map(|repeats| ("repeats".to_owned(), repeats.to_string())));
        sets.extend(self.set);
        Ok(Request {
            scenario,
            form,
            settings: Settings::read(scenario, form, &sets)?,
            seed: self.seed.unwrap_or(DEFAULT_SEED),
            slo: self.slo,
            binaries,
            budget,
            folder,
            resume: false,
            command,
        })
    }
}

/// `lab-results/NAME-20261121T200000Z`
pub fn fresh_folder(name: &str) -> PathBuf {
    let time = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    format!("lab-results/{name}-{}", time.replace(['-', ':'], "")).into()
}

/// The command line, quoted so that a shell can run it again. A person who runs it is no supervisor.
pub fn command_line() -> String {
    format!("millrace {}", quoted(std::env::args().skip(1).filter(|argument| argument != "--supervised")))
}

pub(super) fn pair(text: &str) -> Result<(String, String), ArgumentError> {
    let expected = || ArgumentError::expected("KEY=VALUE, for example clients=1,50");
    let (key, value) = text.split_once('=').ok_or_else(expected)?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

fn minutes(text: &str) -> Result<Duration, ArgumentError> {
    let minutes: f64 = text.parse().map_err(|_| ArgumentError::expected("a number of minutes, for example 30"))?;
    Ok(Duration::try_from_secs_f64(minutes * 60.0)?)
}
