//! Tests the lab of a server end to end: real runs in child processes, their ends, and what is refused.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{Answer, BOUND, Process, Server, millrace};

/// A lab with a folder of its own, on an open server.
struct Lab {
    server: Server,
    folder: PathBuf,
}

impl Lab {
    fn start(name: &str, settings: &[&str]) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lab-page-{name}"));
        let _ = fs::remove_dir_all(&folder);
        let directory = format!("lab.directory={}", folder.display());
        let settings = settings.iter().flat_map(|setting| ["--set", *setting]);
        let args: Vec<&str> = ["--set", directory.as_str()].into_iter().chain(settings).collect();
        Self { server: Server::start(&args), folder }
    }

    /// Sends a request as the page of this server does.
    fn get(&self, path: &str) -> Answer {
        let host = format!("Host: {}", self.server.address);
        self.server.ask("GET", &format!("/v1/admin/lab{path}"), &[&host, "Sec-Fetch-Site: same-origin"], "")
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        let (host, origin) = (format!("Host: {}", self.server.address), format!("Origin: {}", self.server.url));
        self.server.ask("POST", &format!("/v1/admin/lab/{path}"), &[&host, &origin], &body.to_string())
    }

    /// Starts a run with one client for each test; `test` is its duration.
    fn begin(&self, test: &str) -> Answer {
        let set = json!({ "clients": "5", "test": test, "idle": "100ms", "transports": "sse" });
        self.post("start", &json!({ "scenario": "thorsen-broadcast", "set": set }))
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.get("").body).expect("JSON")
    }

    /// Waits until no run is in progress, and returns the newest report.
    fn ended(&self) -> Value {
        let deadline = Instant::now() + BOUND;
        loop {
            let status = self.status();
            if status["run"].is_null() {
                return status["reports"][0].clone();
            }
            assert!(Instant::now() < deadline, "{status}");
        }
    }

    /// Returns the processes of the run: the lab, and the server that it measures.
    fn processes(&self) -> Vec<i32> {
        let deadline = Instant::now() + BOUND;
        loop {
            let lab = children(self.server.process.id() as i32);
            let measured: Vec<i32> = lab.iter().flat_map(|pid| children(*pid)).collect();
            if !measured.is_empty() {
                return [lab, measured].concat();
            }
            assert!(Instant::now() < deadline, "the lab starts a server");
        }
    }
}

fn id(answer: &Answer) -> String {
    let body: Value = serde_json::from_str(&answer.body).expect("JSON");
    body["id"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

/// Returns the state and the parent of a process. Source: proc(5), `/proc/pid/stat`.
fn stat(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn children(parent: i32) -> Vec<i32> {
    let all = fs::read_dir("/proc").expect("a folder").flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.filter(|pid| stat(*pid).is_some_and(|(_, of)| of == parent)).collect()
}

fn runs(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z')
}

fn await_end(processes: &[i32]) {
    let deadline = Instant::now() + BOUND;
    while let Some(pid) = processes.iter().find(|pid| runs(**pid)) {
        assert!(Instant::now() < deadline, "process {pid} still runs");
    }
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).expect("a folder").flatten().map(|file| file.file_name().display().to_string()).collect();
    names.sort();
    names
}

#[test]
fn page_starts_a_scenario_and_keeps_its_report() {
    let lab = Lab::start("keeps", &[]);
    let scenarios: Value = serde_json::from_str(&lab.get("/scenarios").body).expect("JSON");
    let storm = scenarios["scenarios"].as_array().unwrap().iter().find(|one| one["name"] == "storm").unwrap();
    assert!(
        storm["title"] == "All come back at once" && storm["forms"][0]["estimate_s"].as_f64() > Some(1.0),
        "{storm}"
    );

    let ids: Vec<String> = (0..2)
        .map(|_| {
            let begun = lab.begin("1s");
            assert_eq!(begun.status, 200, "{begun:?}");
            let report = lab.ended();
            assert_eq!(report["id"].as_str(), Some(&*id(&begun)));
            // Noise of a busy machine does not invalidate a quick run.
            assert!(report["outcome"] == "passed" && report["has_recording"] == true, "{report}");
            id(&begun)
        })
        .collect();
    let names = ["analysis.json", "events.jsonl", "log.txt", "recording.json"];
    let there = files(&lab.folder.join(&ids[0]));
    assert!(names.iter().all(|name| there.contains(&(*name).to_owned())), "{there:?}");

    let report: Value = serde_json::from_str(&lab.get(&format!("/report?id={}", ids[0])).body).expect("JSON");
    assert_eq!(report["analysis"]["head"]["scenario"], "thorsen-broadcast");
    assert!(!report.to_string().contains("--supervised"), "the command of the report is one to type");
    let compared: Value =
        serde_json::from_str(&lab.get(&format!("/compare?a={}&b={}", ids[0], ids[1])).body).expect("JSON");
    assert_eq!(
        (compared["a"]["label"].as_str(), &compared["outcome"]["verdict"]),
        (Some(&*ids[0]), &json!("no-verdict"))
    );

    // The page reads the same events live, and later.
    let kept: Value = serde_json::from_str(&lab.get(&format!("/events?id={}", ids[1])).body).expect("JSON");
    let kept = kept["events"].as_array().unwrap();
    assert_eq!(
        (&kept[0]["is"], &kept[0]["id"], kept[0]["form"].as_str()),
        (&json!("announced"), &json!(ids[1]), Some("quick"))
    );
    assert_eq!(kept.last().unwrap()["is"], "finished");
    let live = lab.server.get("/v1/channels/lab/live?since=earliest&limit=1000");
    assert!(live.body.contains(&format!("\"id\":\"{}\"", ids[1])), "{live:?}");

    assert_eq!(lab.post("delete", &json!({ "id": ids[0] })).status, 200);
    assert_eq!(lab.get(&format!("/report?id={}", ids[0])).status, 404);
    assert_eq!(files(&lab.folder), [&*ids[1]]);
}

#[test]
fn second_start_is_refused_while_a_run_is_in_progress() {
    let lab = Lab::start("twice", &[]);
    let begun = lab.begin("60s");
    let processes = lab.processes();
    let second = lab.begin("1s");
    assert!(second.status == 409 && second.body.contains(&id(&begun)), "{second:?}");
    assert_eq!(lab.post("delete", &json!({ "id": id(&begun) })).status, 409);
    assert_eq!(lab.status()["run"]["stopping"], false);
    assert_eq!(lab.post("stop", &json!({})).status, 200);
    let report = lab.ended();
    assert!(report["outcome"] == "stopped" && report["detail"] == "stopped", "{report}");
    await_end(&processes);
    // The lab is free again.
    assert_eq!(lab.begin("100ms").status, 200);
    lab.ended();
}

#[test]
fn killed_run_has_failed_and_leaves_no_process() {
    let lab = Lab::start("killed", &[]);
    let begun = lab.begin("60s");
    let processes = lab.processes();
    kill_process(Pid::from_raw(processes[0]).unwrap(), Signal::KILL).unwrap();
    let report = lab.ended();
    assert!(report["outcome"] == "failed" && report["detail"].as_str().unwrap().contains("signal: 9"), "{report}");
    await_end(&processes);
    let kept: Value = serde_json::from_str(&lab.get(&format!("/events?id={}", id(&begun))).body).expect("JSON");
    assert_eq!(kept["events"].as_array().unwrap().last().unwrap()["is"], "finished", "the page learns of the end");
}

#[test]
fn run_ends_with_its_server() {
    // Killed, the server cannot stop the run: the run notices the end of its input.
    let lab = Lab::start("server-killed", &[]);
    lab.begin("60s");
    let processes = lab.processes();
    lab.server.process.signal(Signal::KILL);
    await_end(&processes);
    // A drain stops the run at its beginning.
    let lab = Lab { server: Server::start(&["--set", &format!("lab.directory={}", lab.folder.display())]), ..lab };
    assert_eq!(lab.status()["reports"][0]["outcome"], "interrupted");
    lab.begin("60s");
    let processes = lab.processes();
    lab.server.process.signal(Signal::TERM);
    await_end(&processes);
    assert_eq!(lab.server.process.finish().code, Some(0));
}

#[test]
fn run_is_stopped_at_its_time_limit() {
    let lab = Lab::start("limit", &["lab.run_max=1s"]);
    lab.begin("60s");
    let report = lab.ended();
    assert!(report["outcome"] == "stopped" && report["detail"].as_str().unwrap().contains("lab.run_max"), "{report}");
}

#[test]
fn wrong_requests_say_why() {
    let lab = Lab::start("wrong", &[]);
    let start = |body: Value| lab.post("start", &body);
    for (answer, status, says) in [
        (lab.post("stop", &json!({})), 404, "no run"),
        (lab.post("stop", &json!({ "now": true })), 400, "now"),
        (start(json!({ "scenario": "stormm" })), 400, "the nearest is storm"),
        (start(json!({ "scenario": "<b>storm</b>" })), 400, "name of a scenario"),
        (start(json!({ "scenario": "--help" })), 400, "name of a scenario"),
        (start(json!({ "scenario": "storm", "form": "long" })), 400, "long"),
        (start(json!({ "scenario": "storm", "set": { "client": "1" } })), 400, "did you mean clients?"),
        (start(json!({ "scenario": "storm", "set": { "clients": "many" } })), 400, "not a whole number"),
        (start(json!({ "scenario": "storm", "set": { "clients": "$(id)" } })), 400, "clients"),
        (start(json!({ "scenario": "storm", "set": { "targets": "millrace=/bin/sh" } })), 400, "targets"),
        (start(json!({ "scenario": "storm", "out": "/tmp" })), 400, "out"),
        (start(json!([])), 400, "invalid"),
        (lab.get("/report"), 400, "`id` is missing"),
        (lab.get("/report?id=.."), 400, "letters, digits and -"),
        (lab.get("/report?id=..%2F..%2Fetc"), 400, "letters, digits and -"),
        (lab.get("/report?id=storm-1"), 404, "storm-1"),
        (lab.get("/compare?a=storm-1&b=storm-2"), 404, "storm-1"),
        (lab.post("delete", &json!({ "id": "." })), 400, "letters, digits and -"),
        (lab.post("delete", &json!({ "id": "storm-1" })), 404, "storm-1"),
    ] {
        assert!(answer.status == status && answer.body.contains(says), "{status} {says}: {answer:?}");
    }
    assert_eq!(lab.status()["reports"], json!([]), "a refused start leaves no report");
}

#[test]
fn folder_that_cannot_be_written_refuses_a_start() {
    let lab = Lab::start("unwritable", &[]);
    assert_eq!(lab.get("/scenarios").status, 200);
    fs::remove_dir_all(&lab.folder).unwrap();
    fs::write(&lab.folder, "a file").unwrap();
    let refused = lab.begin("1s");
    assert!(refused.status == 503 && refused.body.contains("lab.directory"), "{refused:?}");
    assert!(lab.status()["run"].is_null());
    fs::remove_file(&lab.folder).unwrap();
}

/// Only the server's own pages and tokens of operators use the lab, and only where the configuration allows it.
#[test]
fn strangers_cannot_use_the_lab() {
    let lab = Lab::start("strangers", &[]);
    let ask = |headers: &[&str]| lab.server.ask("GET", "/v1/admin/lab", headers, "").status;
    let host = format!("Host: {}", lab.server.address);
    assert_eq!(ask(&[&host, "Sec-Fetch-Site: same-origin"]), 200);
    assert_eq!(ask(&[&host]), 401);
    assert_eq!(ask(&[&host, "Sec-Fetch-Site: cross-site"]), 401);
    let body = json!({ "scenario": "storm" }).to_string();
    let foreign = lab.server.ask("POST", "/v1/admin/lab/start", &[&host, "Origin: http://evil.example"], &body);
    assert!([401, 403].contains(&foreign.status), "{foreign:?}");
    let off = Lab::start("off", &["lab.enabled=off"]);
    let answer = off.get("");
    assert!(answer.status == 404 && answer.body.contains("lab.enabled"), "{answer:?}");

    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    let token = |flags: &[&str]| {
        let mut command = millrace(&[&["token", "create", "--sub", "ann"], flags].concat());
        let created = Process::start(command.env("MILLRACE_AUTH__SECRET", SECRET)).finish();
        format!("Authorization: Bearer {}", created.out.trim())
    };
    let (operator, user) = (token(&["--admin"]), token(&["--subscribe", "#", "--publish", "#"]));
    for (enabled, status) in [("auto", 404), ("on", 200)] {
        let folder = lab.folder.join("closed");
        let settings = [format!("lab.enabled={enabled}"), format!("lab.directory={}", folder.display())];
        let [enables, folder] = settings.each_ref().map(String::as_str);
        let args = ["serve", "--listen", "127.0.0.1:0", "--set", enables, "--set", folder];
        let server = Server::start_from(millrace(&args).env("MILLRACE_AUTH__SECRET", SECRET));
        let host = format!("Host: {}", server.address);
        let ask = |header: &str| server.ask("GET", "/v1/admin/lab", &[&host, header], "").status;
        assert_eq!((ask(&operator), ask(&user), ask("Sec-Fetch-Site: same-origin")), (status, 403, 401), "{enabled}");
    }
}

/// The settings of the server would change, and its secrets reach, the servers that the lab starts.
#[test]
fn run_gets_no_settings_of_the_server() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("lab-page-settings");
    let _ = fs::remove_dir_all(&folder);
    let mut command = millrace(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("MILLRACE_LAB__DIRECTORY", &folder).env("MILLRACE_SERVER__SECRET", "sixteen-bytes-or-more");
    let lab = Lab { server: Server::start_from(&mut command), folder };
    assert_eq!(lab.begin("60s").status, 200);
    for pid in lab.processes() {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        assert!(!environment.contains("MILLRACE_"), "{environment}");
        assert_eq!(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim(), "800");
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let size = limits.lines().find(|line| line.starts_with("Max file size")).unwrap();
        assert!(size.contains(&(1u64 << 30).to_string()), "{size}");
    }
    assert_eq!(lab.post("stop", &json!({})).status, 200);
    lab.ended();
}
