//! The lab page: runs scenarios of `millrace lab` in a child process, and keeps their reports.
//!
//! The server never links the lab. It starts its own program, `millrace lab run --supervised`, and reads its events and
//! answers as JSON. One run at a time; its processes are limited, and end with the run, an operator's stop, or the
//! server.
//!
//! - [`request`]: bodies of operators, strictly checked
//! - [`child`]: processes, their limits and their end
//! - [`run`]: one run from its start to its result
//! - [`reports`]: the folder of the reports
//!
//! Source: docs/reference/admin.md, "Lab".

mod child;
mod config;
mod reports;
mod request;
mod run;

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError, Sender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use millrace_engine::Engine;
use millrace_protocol::{Code, Error};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex as AsyncMutex, Semaphore},
    task::spawn_blocking,
};

pub use config::Config;
pub use request::Start;

use child::{Program, unavailable};
use reports::{EVENTS, Head, Outcome, Reports};
use run::Run;

/// Time from a start to the first event of a run.
const BEGIN_MAX: Duration = Duration::from_secs(30);
/// Time for which the list of scenarios is reused. A rival that is installed meanwhile appears later.
const CATALOGUE_FRESH: Duration = Duration::from_secs(60);

/// The lab of a server.
pub struct Lab {
    program: Program,
    reports: Reports,
    engine: Arc<dyn Engine>,
    run_max: Duration,
    state: Mutex<State>,
    catalogue: AsyncMutex<Option<(Instant, Value)>>,
    /// One question to the lab at a time: its processes are as costly as a run.
    asking: Semaphore,
}

#[derive(Default)]
struct State {
    is_starting: bool,
    run: Option<Running>,
    /// Thread of the newest run.
    thread: Option<JoinHandle<()>>,
    /// True once the server drains.
    is_closed: bool,
}

/// The run in progress.
struct Running {
    id: String,
    head: Head,
    orders: Sender<()>,
    is_stopping: bool,
}

impl Lab {
    /// Creates the lab. `program`: path of this program. `memory_bytes_max`: for each process of a run.
    pub fn new(config: &Config, program: PathBuf, engine: Arc<dyn Engine>, memory_bytes_max: u64) -> Arc<Self> {
        let (directory, bytes_max) = (config.directory(), config.bytes_max);
        Arc::new(Self {
            program: Program {
                path: program,
                directory: directory.clone(),
                memory_bytes_max,
                file_bytes_max: bytes_max,
            },
            reports: Reports { directory, count_max: config.reports_max, bytes_max },
            engine,
            run_max: config.run_max,
            state: Mutex::default(),
            catalogue: AsyncMutex::default(),
            asking: Semaphore::new(1),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the run in progress and all reports, newest first.
    pub async fn status(self: &Arc<Self>) -> Result<Value, Error> {
        let lab = self.clone();
        blocking(move || Ok(lab.shown())).await
    }

    fn shown(&self) -> Value {
        let run = self.state().run.as_ref().map(|run| {
            let mut shown = json!(run.head);
            (shown["id"], shown["stopping"]) = (run.id.as_str().into(), run.is_stopping.into());
            shown
        });
        let reports = self.reports.list(run.as_ref().and_then(|run| run["id"].as_str()));
        let Reports { count_max, bytes_max, .. } = self.reports;
        let run_max_s = self.run_max.as_secs();
        json!({
            "run": run, "reports": reports, "reports_max": count_max, "bytes_max": bytes_max, "run_max_s": run_max_s,
        })
    }

    /// Returns all scenarios and targets with what this machine lacks for them.
    ///
    /// Errors: those of [`Program::ask`].
    pub async fn catalogue(self: &Arc<Self>) -> Result<Value, Error> {
        let mut known = self.catalogue.lock().await;
        if let Some((since, catalogue)) = known.as_ref()
            && since.elapsed() < CATALOGUE_FRESH
        {
            return Ok(catalogue.clone());
        }
        let catalogue = self.ask(vec!["lab".into(), "list".into(), "--json".into()], &[0]).await?;
        *known = Some((Instant::now(), catalogue.clone()));
        Ok(catalogue)
    }

    /// Starts a run, and returns its id once the lab has accepted all values.
    ///
    /// Errors: `bad_request` with the error of the lab, `conflict` while another run is in progress, `unavailable`.
    pub async fn start(self: &Arc<Self>, start: Start) -> Result<Value, Error> {
        start.check()?;
        let catalogue = self.catalogue().await?;
        let names: Vec<&str> =
            catalogue["scenarios"].as_array().into_iter().flatten().filter_map(|one| one["name"].as_str()).collect();
        if !names.contains(&start.scenario.as_str()) {
            let nearest = names.iter().min_by_key(|name| strsim::damerau_levenshtein(name, &start.scenario));
            let nearest = nearest.map(|name| format!("; the nearest is {name}")).unwrap_or_default();
            let detail = format!("there is no scenario {}{nearest}", start.scenario);
            return Err(Error::new(Code::BadRequest, detail));
        }
        let lab = self.clone();
        blocking(move || lab.begin(&start)).await
    }

    /// Starts a run and waits for its first event. Blocks the thread.
    fn begin(self: &Arc<Self>, start: &Start) -> Result<Value, Error> {
        {
            let mut state = self.state();
            if state.is_closed {
                return Err(unavailable("the server is draining; start the run on its successor"));
            }
            if let Some(run) = &state.run {
                let detail = format!("the run {} is in progress; wait for its end or stop it first", run.id);
                return Err(Error::new(Code::Conflict, detail));
            }
            if std::mem::replace(&mut state.is_starting, true) {
                return Err(Error::new(Code::Conflict, "another run is starting; wait for its end or stop it first"));
            }
        }
        let launched = self.launch(start);
        self.state().is_starting = false;
        let (id, begun, ended) = launched?;
        match begun.recv_timeout(BEGIN_MAX) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {
                tracing::info!(id, "an operator started a lab run");
                Ok(json!({ "id": id }))
            }
            // The process has ended without an event: the lab has refused the values.
            Err(RecvTimeoutError::Disconnected) => {
                let head = ended.recv().map_err(|_| unavailable("the lab has failed"))?;
                self.reports.remove(&id);
                let code = if head.outcome == Outcome::Stopped { Code::Unavailable } else { Code::BadRequest };
                Err(Error::new(code, head.detail.unwrap_or_else(|| "the lab has refused the run".into())))
            }
        }
    }

    /// Starts a run and its thread. Returns its id, a receiver of its first event, and a receiver of its result.
    fn launch(self: &Arc<Self>, start: &Start) -> Result<(String, mpsc::Receiver<()>, mpsc::Receiver<Head>), Error> {
        let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace(['-', ':'], "");
        let run = Run::start(start, &self.program, &self.reports, &time)?;
        let (orders, receiver) = mpsc::channel();
        let ((first, begun), (result, ended)) = (sync_channel(1), sync_channel(1));
        let (id, head) = (run.id.clone(), run.head.clone());
        // The thread takes the state when the run has ended, so the run is in the state by then.
        let mut state = self.state();
        let lab = self.clone();
        let supervise = move || {
            let head = run.supervise(&lab.reports, lab.engine.clone(), first, &receiver, lab.run_max);
            lab.state().run = None;
            // Only a start that waits for the first event receives the result.
            let _ = result.try_send(head);
        };
        let thread = thread::Builder::new().name("lab".into()).spawn(supervise);
        let thread = thread.map_err(|error| unavailable(format!("the lab cannot be observed: {error}")))?;
        if state.is_closed {
            // The server began to drain meanwhile.
            let _ = orders.send(());
        }
        state.run = Some(Running { id: id.clone(), head, orders, is_stopping: false });
        state.thread = Some(thread);
        Ok((id, begun, ended))
    }

    /// Asks the run in progress to stop. It keeps what it has recorded.
    ///
    /// Errors: `not_found` without a run.
    pub fn stop(&self) -> Result<Value, Error> {
        let mut state = self.state();
        let run = state.run.as_mut().ok_or_else(|| Error::new(Code::NotFound, "no run is in progress"))?;
        run.is_stopping = true;
        // Fails if the run has ended just now.
        let _ = run.orders.send(());
        Ok(json!({ "stopping": run.id }))
    }

    /// Returns the data of a report's page.
    ///
    /// Errors: `bad_request` for a malformed id, or with the error of the lab; `not_found`.
    pub async fn report(self: &Arc<Self>, id: &str) -> Result<Value, Error> {
        self.reports.folder(id)?;
        self.ask(["lab", "report", "--data", id].map(str::to_owned).into(), &[0]).await
    }

    /// Returns the HTML page of a report.
    ///
    /// Errors: `bad_request` for a malformed id; `not_found` without a page.
    pub async fn page(self: &Arc<Self>, id: &str) -> Result<Value, Error> {
        let (lab, id) = (self.clone(), id.to_owned());
        blocking(move || Ok(json!({ "html": lab.reports.page(&id)? }))).await
    }

    /// Returns the events of a run, in the order in which they were published.
    ///
    /// Errors: `bad_request` for a malformed id; `not_found`.
    pub async fn events(self: &Arc<Self>, id: &str) -> Result<Value, Error> {
        let (lab, id) = (self.clone(), id.to_owned());
        blocking(move || {
            let text = lab.reports.read(&id, EVENTS)?;
            // The last line of a run in progress may be incomplete.
            let events: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            Ok(json!({ "events": events }))
        })
        .await
    }

    /// Compares report `b` with report `a`. Returns the data of the comparison's page.
    ///
    /// Errors: `bad_request` for a malformed id, or with the error of the lab; `not_found`.
    pub async fn compare(self: &Arc<Self>, a: &str, b: &str) -> Result<Value, Error> {
        self.reports.folder(a)?;
        self.reports.folder(b)?;
        // Codes 1 and 2: a regression, and no verdict.
        self.ask(["lab", "compare", "--data", a, b].map(str::to_owned).into(), &[0, 1, 2]).await
    }

    /// Deletes a report.
    ///
    /// Errors: `bad_request` for a malformed id; `not_found`; `conflict` while its run is in progress.
    pub async fn delete(self: &Arc<Self>, id: &str) -> Result<Value, Error> {
        let (lab, id) = (self.clone(), id.to_owned());
        blocking(move || {
            lab.reports.folder(&id)?;
            if lab.state().run.as_ref().is_some_and(|run| run.id == id) {
                return Err(Error::new(Code::Conflict, "the run is in progress; stop it first"));
            }
            lab.reports.remove(&id);
            Ok(json!({ "deleted": id }))
        })
        .await
    }

    /// Asks the lab a question, and parses its answer.
    async fn ask(self: &Arc<Self>, arguments: Vec<String>, accepts: &'static [i32]) -> Result<Value, Error> {
        let _permit = self.asking.acquire().await;
        let lab = self.clone();
        blocking(move || {
            // The lab is started in the folder of the reports.
            crate::tls::storage::make_private_dir(&lab.reports.directory)
                .map_err(|error| unavailable(format!("`lab.directory`: {error:#}")))?;
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let answer = lab.program.ask(&arguments, accepts)?;
            serde_json::from_slice(&answer)
                .map_err(|error| unavailable(format!("the answer of the lab is incomplete: {error}")))
        })
        .await
    }

    /// Stops the run in progress, and accepts no other one.
    pub fn close(&self) {
        self.state().is_closed = true;
        // There may be no run.
        let _ = self.stop();
    }

    /// Closes the lab, and waits until all its processes have ended.
    pub fn shut_down(&self) {
        self.close();
        let thread = self.state().thread.take();
        // A panic was logged by its thread.
        let _ = thread.map(JoinHandle::join);
    }
}

/// Runs `act` on a thread that may block.
async fn blocking<T: Send + 'static>(act: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    spawn_blocking(act)
        .await
        .unwrap_or_else(|_| Err(unavailable("the request has failed, which is a defect; see the log")))
}
