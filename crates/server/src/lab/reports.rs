//! The folder of the reports: one folder per run, with `run.json` of this module and the files of the lab.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use millrace_protocol::{Code, Error};
use serde::{Deserialize, Serialize};

use super::{
    child::unavailable,
    request::{Form, Start, check_id},
};
use crate::tls::storage::make_private_dir;

const HEAD: &str = "run.json";
const RECORDING: &str = "recording.json";
/// Events of the run, one per line, in the order in which they were published.
pub const EVENTS: &str = "events.jsonl";
/// Standard error of the lab.
pub const LOG: &str = "log.txt";
const PAGE: &str = "report.html";
/// Maximum size of a file that an answer contains.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Number of ids that are tried for one second.
const IDS_MAX: u32 = 100;

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Running,
    Passed,
    /// A service level was missed, or a check failed.
    Missed,
    /// A run is invalid.
    Invalid,
    /// An operator, the end of the server or the time limit has stopped the run.
    Stopped,
    Failed,
    /// The server ended before it could note the result.
    Interrupted,
}

/// A run, as the server notes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Head {
    pub scenario: String,
    pub form: Form,
    pub set: BTreeMap<String, String>,
    /// Version of the server, which is that of the lab.
    pub version: String,
    pub started_ms: u64,
    pub ended_ms: Option<u64>,
    pub outcome: Outcome,
    /// Reason of a failure, or of an early end.
    pub detail: Option<String>,
}

impl Head {
    pub fn new(start: &Start, started_ms: u64) -> Self {
        let Start { scenario, form, set } = start.clone();
        let (version, outcome) = (env!("CARGO_PKG_VERSION").into(), Outcome::Running);
        Self { scenario, form, set, version, started_ms, ended_ms: None, outcome, detail: None }
    }
}

/// A report as a list shows it.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    pub id: String,
    #[serde(flatten)]
    pub head: Head,
    pub bytes: u64,
    /// Whether the run has recorded anything.
    pub has_recording: bool,
}

/// The reports below a folder.
pub struct Reports {
    pub directory: PathBuf,
    pub count_max: usize,
    pub bytes_max: u64,
}

impl Reports {
    /// Returns all reports, newest first. `running` is the id of the run in progress.
    pub fn list(&self, running: Option<&str>) -> Vec<Entry> {
        let folders = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut entries: Vec<Entry> = folders
            .filter(|folder| folder.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|folder| {
                let id = folder.file_name().into_string().ok().filter(|id| check_id(id).is_ok())?;
                let mut head: Head = serde_json::from_slice(&fs::read(folder.path().join(HEAD)).ok()?).ok()?;
                if head.outcome == Outcome::Running && running != Some(&id) {
                    head.outcome = Outcome::Interrupted;
                }
                let has_recording = folder.path().join(RECORDING).is_file();
                Some(Entry { bytes: size(&folder.path()), id, head, has_recording })
            })
            .collect();
        entries.sort_by(|a, b| (b.head.started_ms, &b.id).cmp(&(a.head.started_ms, &a.id)));
        entries
    }

    /// Creates the folder of a new report, and returns its id. Deletes the oldest reports above the limits.
    ///
    /// Errors: `unavailable` if the folder cannot be written.
    pub fn create(&self, head: &Head, time: &str) -> Result<String, Error> {
        make_private_dir(&self.directory).map_err(|error| unavailable(format!("`lab.directory`: {error:#}")))?;
        self.make_room();
        for number in 1..=IDS_MAX {
            let suffix = if number > 1 { format!("-{number}") } else { String::new() };
            let id = format!("{}-{time}{suffix}", head.scenario);
            match fs::create_dir(self.directory.join(&id)) {
                Ok(()) => {
                    self.write(&id, head).inspect_err(|_| self.remove(&id))?;
                    return Ok(id);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(self.unwritable(&error)),
            }
        }
        Err(Error::new(Code::TooMany, "too many runs were started in this second; try again"))
    }

    /// Deletes the oldest reports until there is room for one more.
    fn make_room(&self) {
        let mut entries = self.list(None);
        let mut bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
        while entries.len() >= self.count_max || bytes > self.bytes_max {
            let Some(oldest) = entries.pop() else { return };
            bytes -= oldest.bytes;
            tracing::info!(id = oldest.id, "deleted the oldest report of the lab to make room");
            self.remove(&oldest.id);
        }
    }

    /// Writes the head of a report.
    ///
    /// Errors: `unavailable` if the folder cannot be written.
    pub fn write(&self, id: &str, head: &Head) -> Result<(), Error> {
        let path = self.directory.join(id).join(HEAD);
        let aside = path.with_extension("part");
        let text = serde_json::to_vec(head).expect("texts and numbers");
        fs::write(&aside, text).and_then(|()| fs::rename(&aside, &path)).map_err(|error| self.unwritable(&error))
    }

    fn unwritable(&self, error: &io::Error) -> Error {
        unavailable(format!("`lab.directory` {} cannot be written: {error}", self.directory.display()))
    }

    /// Returns the folder of a report.
    ///
    /// Errors: `bad_request` for a malformed id, `not_found`.
    pub fn folder(&self, id: &str) -> Result<PathBuf, Error> {
        check_id(id)?;
        let folder = self.directory.join(id);
        let is_folder = fs::symlink_metadata(&folder).is_ok_and(|found| found.is_dir());
        match is_folder && folder.join(HEAD).is_file() {
            true => Ok(folder),
            false => Err(Error::new(Code::NotFound, format!("there is no report {id}; it may have been deleted"))),
        }
    }

    /// Returns the page of a report.
    ///
    /// Errors: as [`Reports::folder`]; `not_found` if the run has no page.
    pub fn page(&self, id: &str) -> Result<String, Error> {
        self.read(id, PAGE).map_err(|error| match error.code {
            Code::NotFound => {
                Error::new(Code::NotFound, format!("the report {id} has no page: the run was not finished"))
            }
            _ => error,
        })
    }

    /// Returns the text of a file of a report.
    ///
    /// Errors: as [`Reports::folder`]; `not_found` without the file; `too_large`.
    pub fn read(&self, id: &str, name: &str) -> Result<String, Error> {
        let path = self.folder(id)?.join(name);
        let missing = |_| Error::new(Code::NotFound, format!("the report {id} has no {name}"));
        if fs::metadata(&path).map_err(missing)?.len() > ANSWER_BYTES_MAX {
            return Err(Error::new(Code::TooLarge, format!("{name} of the report {id} is too large")));
        }
        fs::read_to_string(path).map_err(missing)
    }

    /// Deletes a report.
    pub fn remove(&self, id: &str) {
        if let Err(error) = fs::remove_dir_all(self.directory.join(id)) {
            tracing::warn!(id, %error, "a report of the lab cannot be deleted; check lab.directory");
        }
    }
}

/// Returns the size of all files of a folder. The lab makes no folders in it.
fn size(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(directory: &Path, count_max: usize, bytes_max: u64) -> Reports {
        Reports { directory: directory.into(), count_max, bytes_max }
    }

    fn head(started_ms: u64) -> Head {
        let start = Start { scenario: "storm".into(), form: Form::Quick, set: BTreeMap::new() };
        Head { outcome: Outcome::Passed, ..Head::new(&start, started_ms) }
    }

    fn ids(reports: &Reports) -> Vec<String> {
        reports.list(None).into_iter().map(|entry| entry.id).collect()
    }

    #[test]
    fn oldest_reports_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let few = reports(folder.path(), 2, 1 << 20);
        for time in 1..=4 {
            few.create(&head(time), &format!("T{time}")).unwrap();
        }
        assert_eq!(ids(&few), ["storm-T4", "storm-T3"]);
        fs::write(folder.path().join("storm-T4/recording.json"), [b'x'; 5000]).unwrap();
        let small = reports(folder.path(), 10, 4000);
        small.create(&head(5), "T5").unwrap();
        assert_eq!(ids(&small), ["storm-T5"], "reports above the limit of bytes are deleted");
    }

    #[test]
    fn two_runs_in_one_second_have_two_ids() {
        let folder = tempfile::tempdir().unwrap();
        let reports = reports(folder.path(), 10, 1 << 20);
        let both = [1, 2].map(|time| reports.create(&head(time), "T1").unwrap());
        assert_eq!(both, ["storm-T1", "storm-T1-2"]);
    }

    #[test]
    fn run_without_a_result_was_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        let reports = reports(folder.path(), 10, 1 << 20);
        let id = reports.create(&Head { outcome: Outcome::Running, ..head(1) }, "T1").unwrap();
        assert_eq!(reports.list(Some(&id))[0].head.outcome, Outcome::Running);
        assert_eq!(reports.list(None)[0].head.outcome, Outcome::Interrupted);
    }

    #[test]
    fn only_reports_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let reports = reports(&folder.path().join("lab"), 10, 1 << 20);
        let id = reports.create(&head(1), "T1").unwrap();
        fs::create_dir(folder.path().join("lab/other")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("lab").join(&id), folder.path().join("lab/link")).unwrap();
        assert!(reports.folder(&id).is_ok());
        for id in ["other", "link", "missing"] {
            assert_eq!(reports.folder(id).unwrap_err().code, Code::NotFound, "{id}");
        }
        assert_eq!(reports.folder("..").unwrap_err().code, Code::BadRequest);
        assert_eq!(reports.page(&id).unwrap_err().code, Code::NotFound);
    }

    #[test]
    fn folder_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let error = reports(&folder.path().join("file"), 10, 1 << 20).create(&head(1), "T1").unwrap_err();
        assert!(error.code == Code::Unavailable && error.detail.contains("lab.directory"), "{}", error.detail);
    }
}
