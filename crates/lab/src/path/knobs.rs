//! Settings of a link that change while the link runs.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use millrace_link::{Config, PipeConfig, QueueLimit, Repeated, Traces};
use serde::Deserialize;

use super::PathSettings;

/// Limits of one command.
const COMMAND_BYTES_MAX: usize = 8 * 1024;
const CHANGES_MAX: usize = 50;
const CHANGE_BYTES_MAX: usize = 200;
const ID_BYTES_MAX: usize = 64;
/// Largest delay and queue that a command can set. All packets on the link are in the memory of this process.
const DELAY_MAX: Duration = Duration::from_secs(60);
const QUEUE_PACKETS_MAX: u64 = 100_000;
const QUEUE_BYTES_MAX: u64 = 150_000_000;

/// Settings in force, and the commands that change them.
pub struct Knobs {
    run: String,
    settings: PathSettings,
    /// The link of `settings`.
    config: Config,
    traces: Traces,
    /// Names of the traces, up and down.
    trace_names: [Option<String>; 2],
    /// True while no packet enters the link, whatever the settings are.
    is_out: bool,
}

/// A command from the page, as JSON. `set` contains `KEY=VALUE` with the keys of `millrace lab link run --set`, or
/// `path=PROFILE`.
#[derive(Deserialize)]
struct Command {
    run: String,
    id: String,
    #[serde(default)]
    set: Vec<String>,
    outage: Option<bool>,
}

/// Result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Identifies the command.
    pub id: String,
    /// Reason why nothing has changed.
    pub error: Option<String>,
}

impl Knobs {
    /// `run` names this link, so that it ignores commands for others. `traces` are those that the settings name.
    ///
    /// Errors: the settings are no link.
    pub fn new(run: String, settings: PathSettings, traces: Traces) -> anyhow::Result<Self> {
        let config = settings.config()?.unwrap_or_default();
        let trace_names = [config.up.trace.clone(), config.down.trace.clone()];
        Ok(Self { run, settings, config, traces, trace_names, is_out: false })
    }

    pub fn run(&self) -> &str {
        &self.run
    }

    pub fn settings(&self) -> &PathSettings {
        &self.settings
    }

    /// Returns the link of the settings, without the outage of a command.
    pub fn set_config(&self) -> &Config {
        &self.config
    }

    pub fn is_out(&self) -> bool {
        self.is_out
    }

    /// Returns the link in force.
    pub fn config(&self) -> Config {
        let always = Repeated { at: Duration::ZERO, lasts: Duration::MAX, every: None };
        let outage = if self.is_out { Some(always) } else { self.config.outage };
        Config { outage, ..self.config.clone() }
    }

    pub fn traces(&self) -> &Traces {
        &self.traces
    }

    /// Changes the settings, all or nothing. Returns `None` for a command that is too long, is not valid JSON, or is
    /// for another run: it cannot be answered.
    pub fn handle(&mut self, command: &str) -> Option<Answer> {
        let short = Some(command).filter(|command| command.len() <= COMMAND_BYTES_MAX)?;
        let command: Command = serde_json::from_str(short).ok()?;
        if command.run != self.run || command.id.len() > ID_BYTES_MAX {
            return None;
        }
        let outcome = self.change(&command);
        let error = outcome.err().map(|error| format!("{error:#}").trim_start_matches("path: ").to_owned());
        Some(Answer { id: command.id, error })
    }

    fn change(&mut self, command: &Command) -> anyhow::Result<()> {
        ensure!(command.set.len() <= CHANGES_MAX, "too many changes: expected at most {CHANGES_MAX}");
        let mut settings = self.settings.clone();
        for change in &command.set {
            ensure!(change.len() <= CHANGE_BYTES_MAX, "a change has more than {CHANGE_BYTES_MAX} bytes");
            match change.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
                Some(("path", profile)) => settings.set("", profile)?,
                Some((key @ "", _)) | Some((key, "")) => {
                    bail!("`{change}`: expected KEY=VALUE with a {}", if key.is_empty() { "key" } else { "value" })
                }
                Some((key, value)) => settings.set(key, value)?,
                None => bail!("`{change}`: expected KEY=VALUE, for example down.loss=1%"),
            }
        }
        let config = settings.config()?.unwrap_or_default();
        let pipes = [("up", &config.up, &self.config.up), ("down", &config.down, &self.config.down)];
        for ((name, pipe, old), loaded) in pipes.into_iter().zip(&self.trace_names) {
            check(pipe, old).context(name)?;
            if let Some(trace) = pipe.trace.as_ref().filter(|trace| Some(*trace) != loaded.as_ref()) {
                bail!("{name}.trace: {trace} is not loaded; a running link has only the traces of its command line");
            }
        }
        (self.settings, self.config) = (settings, config);
        self.is_out = command.outage.unwrap_or(self.is_out);
        Ok(())
    }
}

/// Errors: a changed value of one direction is above its limit.
fn check(pipe: &PipeConfig, old: &PipeConfig) -> anyhow::Result<()> {
    let longest = pipe.delay.max(pipe.jitter);
    let is_new = (pipe.delay, pipe.jitter) != (old.delay, old.jitter);
    ensure!(!is_new || longest <= DELAY_MAX, "delay and jitter of a running link can be at most 60s");
    let (packets, bytes) = match (pipe.queue, pipe.rate) {
        (Some(QueueLimit::Packets(packets)), _) => (packets, 0),
        (Some(QueueLimit::Bytes(bytes)), _) => (0, bytes),
        (Some(QueueLimit::Time(time)), Some(rate)) => (QueueLimit::packets_in(rate, time), 0),
        _ => (0, 0),
    };
    let is_new = (pipe.queue, pipe.rate) != (old.queue, old.rate);
    ensure!(
        !is_new || (packets <= QUEUE_PACKETS_MAX && bytes <= QUEUE_BYTES_MAX),
        "the queue of a running link can have at most 100,000 packets or 150 MB"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use millrace_link::{Time, Trace, profiles};
    use serde_json::json;

    use super::*;

    fn knobs(profile: &str) -> Knobs {
        Knobs::new("r1".into(), PathSettings::of(profile), Traces::default()).expect("a profile")
    }

    /// Applies changes and returns the error.
    fn set(knobs: &mut Knobs, changes: &[&str]) -> Option<String> {
        let command = json!({ "run": "r1", "id": "c1", "set": changes }).to_string();
        let answer = knobs.handle(&command).expect("an answer");
        assert_eq!(answer.id, "c1");
        answer.error
    }

    #[test]
    fn commands_change_values_and_the_profile() {
        let mut knobs = knobs("lte");
        assert_eq!(
            set(&mut knobs, &["down.loss=1%", "down.delay = 40ms", "up.rate=none", "down.queue=50 packets"]),
            None
        );
        let config = knobs.config();
        assert_eq!((config.down.loss.get(), config.down.delay), (0.01, Duration::from_millis(40)));
        assert_eq!((config.up.rate, config.down.queue), (None, Some(QueueLimit::Packets(50))));
        assert_eq!(knobs.settings().name(), "lte, changed");
        assert_eq!(set(&mut knobs, &["path=3g"]), None);
        assert_eq!((knobs.config(), knobs.settings().name().as_str()), (profiles()["3g"].config.clone(), "3g"));
        assert_eq!(set(&mut knobs, &["path="]), None);
        assert_eq!(knobs.config(), Config::default());
    }

    #[test]
    fn wrong_command_changes_nothing_and_names_the_setting() {
        let mut knobs = knobs("3g");
        for (changes, needle) in [
            (&["down.delay=1ms", "down.loss=120%"][..], "`120%` is not a probability"),
            (&["down.los=1%"], "los"),
            (&["path=3gg"], "did you mean 3g"),
            (&["down.rate=fast"], "for example 10Mbit/s"),
            (&["down.jitter=5s"], "down.jitter is larger than the delay allows"),
            (&["up.loss=100%"], "up.loss_burst"),
            (&["up.delay="], "expected KEY=VALUE"),
            (&["=1"], "expected KEY=VALUE"),
            (&["up.delay"], "expected KEY=VALUE"),
            (&["up.delay=61s"], "at most 60s"),
            (&["up.queue=100001 packets"], "at most 100,000 packets"),
            (&["up.queue=1h"], "at most 100,000 packets"),
            (&["up.rate=none", "up.trace=/etc/passwd"], "up.trace: /etc/passwd is not loaded"),
            (&[&format!("up.delay={}", "1".repeat(300))], "200 bytes"),
            (&["up.delay=1ms"; 51], "at most 50"),
        ] {
            let error = set(&mut knobs, changes).unwrap_or_else(|| panic!("{changes:?}"));
            assert!(error.contains(needle) && !error.starts_with("path: "), "{changes:?}: {error}");
            assert_eq!(knobs.config(), profiles()["3g"].config, "{changes:?}");
        }
    }

    #[test]
    fn foreign_and_broken_commands_get_no_answer() {
        let mut knobs = knobs("3g");
        let long = json!({ "run": "r1", "id": "c", "set": ["x".repeat(9000)] }).to_string();
        let long_id = json!({ "run": "r1", "id": "c".repeat(65), "set": ["up.delay=1ms"] }).to_string();
        let foreign = r#"{ "run": "r2", "id": "c", "set": ["up.delay=1ms"] }"#;
        for command in [foreign, &long, &long_id, "", "[]", r#"{ "run": "r1" }"#] {
            assert_eq!(knobs.handle(command), None, "{command}");
        }
        assert_eq!(knobs.config(), profiles()["3g"].config);
    }

    #[test]
    fn outage_does_not_change_the_settings() {
        let mut settings = PathSettings::of("3g");
        settings.set("outage", "{ at = \"5s\", for = \"1s\" }").expect("a table");
        let mut knobs = Knobs::new("r1".into(), settings, Traces::default()).expect("a link");
        let before = knobs.config();
        let switch = |knobs: &mut Knobs, on: bool| {
            knobs.handle(&json!({ "run": "r1", "id": "c", "outage": on }).to_string()).expect("an answer").error
        };
        assert_eq!((switch(&mut knobs, true), knobs.is_out()), (None, true));
        let outage = knobs.config().outage.expect("an outage");
        assert!([0, 1, u64::MAX / 2].into_iter().all(|ns| outage.contains(Time::from_ns(ns))));
        assert_eq!(knobs.config().check(), Ok(()));
        assert_eq!((switch(&mut knobs, false), knobs.config()), (None, before));
    }

    #[test]
    fn trace_of_the_command_line_comes_back() {
        let mut settings = PathSettings::default();
        settings.set("down.trace", "att.trace").expect("a text");
        let traces = Traces { up: None, down: Some(Trace::from_mahimahi("1\n2").expect("a trace")) };
        let mut knobs = Knobs::new("r1".into(), settings, traces).expect("a link");
        assert_eq!(set(&mut knobs, &["path=3g"]), None);
        assert_eq!(set(&mut knobs, &["down.rate=none", "down.trace=att.trace"]), None);
        assert!(set(&mut knobs, &["up.rate=none", "up.trace=att.trace"]).expect("an error").contains("not loaded"));
    }
}
