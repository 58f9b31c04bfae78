//! One run in a child process: reads its events, stops it, and notes its result.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    process::{ChildStdout, ExitStatus, Stdio},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

use millrace_engine::{Engine, unix_ms};
use millrace_protocol::{ChannelName, Error, Kind, NewPublication};
use serde_json::{Value, json};
use tokio::runtime::Builder;

use super::{
    child::{Group, LOOK_EVERY, Program, detail, tail},
    reports::{EVENTS, Head, LOG, Outcome, Reports},
    request::Start,
};

/// Channel of the progress. Source: `report::live::CHANNEL` of the lab.
const CHANNEL: &str = "lab/live";
/// Time for a run to keep its recording and to end its servers after it was asked to stop; then it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// Maximum length of an event.
const EVENT_BYTES_MAX: u64 = 64 * 1024;
/// Maximum size of the events that are kept with a report.
const EVENTS_BYTES_MAX: usize = 8 << 20;

/// A run that was started.
pub struct Run {
    pub id: String,
    pub head: Head,
    group: Group,
    log: std::path::PathBuf,
}

/// Where the events of a run go.
struct Events {
    id: String,
    engine: Arc<dyn Engine>,
    file: Option<File>,
    bytes: usize,
}

impl Run {
    /// Creates a report and starts its run.
    ///
    /// Errors: `unavailable` if the folder cannot be written, or the process cannot be started.
    pub fn start(start: &Start, program: &Program, reports: &Reports, time: &str) -> Result<Self, Error> {
        let head = Head::new(start, unix_ms());
        let id = reports.create(&head, time)?;
        let folder = reports.directory.join(&id);
        let mut arguments = start.arguments();
        arguments.extend(["--out".into(), id.clone(), "--supervised".into()]);
        let log = folder.join(LOG);
        let begun = File::create(&log)
            .map_err(|error| super::child::unavailable(format!("{} cannot be written: {error}", log.display())))
            .and_then(|log| program.start(&arguments, Stdio::piped(), log.into()));
        let group = begun.inspect_err(|_| reports.remove(&id))?;
        Ok(Self { id, head, group, log })
    }

    /// Supervises the run to its end, and returns its noted result. `begun` is notified by the first event, and dropped
    /// at the end of the events. `orders` asks the run to stop.
    pub fn supervise(
        mut self,
        reports: &Reports,
        engine: Arc<dyn Engine>,
        begun: SyncSender<()>,
        orders: &Receiver<()>,
        run_max: Duration,
    ) -> Head {
        let file = File::create(reports.directory.join(&self.id).join(EVENTS)).ok();
        let events = Events { id: self.id.clone(), engine, file, bytes: 0 };
        let output = self.group.child().stdout.take();
        let reader = thread::Builder::new().name("lab-events".into()).spawn(move || {
            if let Some(output) = output {
                events.read(output, &begun);
            }
        });
        let (status, stopped) = self.wait(orders, run_max);
        // The pipe has no writer any more.
        let _ = reader.map(thread::JoinHandle::join);
        (self.head.outcome, self.head.detail) = result(status, stopped, &tail(&self.log));
        self.head.ended_ms = Some(unix_ms());
        if let Err(error) = reports.write(&self.id, &self.head) {
            tracing::warn!(id = self.id, %error, "the result of a lab run cannot be noted; check lab.directory");
        }
        tracing::info!(id = self.id, outcome = ?self.head.outcome, "a lab run has ended");
        self.head
    }

    /// Waits for the end of the run. Returns its status, and the reason if it was stopped.
    fn wait(&mut self, orders: &Receiver<()>, run_max: Duration) -> (io::Result<ExitStatus>, Option<String>) {
        let started = Instant::now();
        let mut stopped: Option<(Instant, String)> = None;
        while !self.group.has_ended() {
            let reason = match orders.recv_timeout(LOOK_EVERY) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => Some("stopped".to_owned()),
                Err(RecvTimeoutError::Timeout) if started.elapsed() > run_max => {
                    Some(format!("stopped after {} (`lab.run_max`)", humantime::format_duration(run_max)))
                }
                Err(RecvTimeoutError::Timeout) => None,
            };
            match (reason, &stopped) {
                (Some(reason), None) => {
                    // The lab stops at the end of its input.
                    drop(self.group.child().stdin.take());
                    stopped = Some((Instant::now(), reason));
                }
                (_, Some((since, _))) if since.elapsed() > GRACE => self.group.kill(),
                _ => {}
            }
        }
        (self.group.end(), stopped.map(|(_, reason)| reason))
    }
}

impl Events {
    /// Reads all events: keeps and publishes each. The first event gets the id of the report. If the run was killed,
    /// the last event is added, so that readers are notified of the end.
    fn read(mut self, output: ChildStdout, begun: &SyncSender<()>) {
        let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
        let channel = ChannelName::parse(CHANNEL).expect("a channel name");
        let (mut output, mut line) = (BufReader::new(output), Vec::new());
        let id = self.id.clone();
        let mut publish = |event: &Value| {
            let text = event.to_string();
            self.keep(&text);
            let publication = NewPublication::new(Kind::Json, text);
            if let Err(error) = runtime.block_on(self.engine.append(&channel, publication)) {
                tracing::debug!(%error, "the progress of a lab run cannot be published; the page misses this part");
            }
        };
        let (mut has_begun, mut has_finished) = (false, false);
        while let Ok(1..) = output.by_ref().take(EVENT_BYTES_MAX).read_until(b'\n', &mut line) {
            if let Ok(mut event @ Value::Object(_)) = serde_json::from_slice(&line) {
                match event["is"].as_str() {
                    Some("announced") => event["id"] = id.as_str().into(),
                    Some("finished") => has_finished = true,
                    _ => {}
                }
                publish(&event);
                has_begun = true;
                // A full queue has a first event.
                let _ = begun.try_send(());
            }
            line.clear();
        }
        if has_begun && !has_finished {
            publish(&json!({ "is": "finished" }));
        }
    }

    /// Appends an event to the file of the report.
    fn keep(&mut self, line: &str) {
        self.bytes += line.len() + 1;
        let Some(file) = self.file.as_mut().filter(|_| self.bytes <= EVENTS_BYTES_MAX) else { return };
        if let Err(error) = writeln!(file, "{line}") {
            tracing::warn!(%error, "the events of a lab run cannot be kept; check lab.directory");
            self.file = None;
        }
    }
}

/// Returns the result of a run that has ended. Source of the codes: `millrace lab --help`.
fn result(status: io::Result<ExitStatus>, stopped: Option<String>, log: &[u8]) -> (Outcome, Option<String>) {
    let status = match status {
        Ok(status) => status,
        Err(error) => return (Outcome::Failed, Some(format!("the lab cannot be observed: {error}"))),
    };
    match (status.code(), stopped) {
        (Some(0), _) => (Outcome::Passed, None),
        (Some(1), _) => (Outcome::Missed, None),
        (Some(2), None) => (Outcome::Invalid, None),
        (_, Some(reason)) => (Outcome::Stopped, Some(reason)),
        (_, None) => (Outcome::Failed, Some(detail(log, status))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn exit_codes_are_results() {
        let of = |raw, stopped: Option<&str>| {
            result(Ok(ExitStatus::from_raw(raw)), stopped.map(str::to_owned), b"millrace: no disk\n")
        };
        let code = |code: i32| code << 8;
        assert_eq!(of(code(0), None), (Outcome::Passed, None));
        assert_eq!(of(code(1), None), (Outcome::Missed, None));
        assert_eq!(of(code(2), None), (Outcome::Invalid, None));
        assert_eq!(of(code(3), None), (Outcome::Failed, Some("no disk".into())));
        assert_eq!(of(code(130), Some("stopped")), (Outcome::Stopped, Some("stopped".into())));
        assert_eq!(of(9, Some("stopped")).0, Outcome::Stopped);
        assert_eq!(of(9, None).0, Outcome::Failed);
    }
}
