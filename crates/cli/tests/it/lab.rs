//! Tests `millrace lab` end to end: the smallest possible runs against a real server.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use millrace_lab::{
    recording::{PhaseName, Recording},
    sweep::Store,
};
use rustix::process::Signal;

use crate::support::{Process, file, millrace, repository, run};

/// 200 publications to 5 readers.
const TINY: [&str; 11] = [
    "lab",
    "run",
    "thorsen-broadcast",
    "--quick",
    "--set",
    "clients=5",
    "--set",
    "test=1s",
    "--set",
    "idle=100ms",
    "--transports",
];

/// Returns the path of a folder that does not exist yet.
fn fresh(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lab-{name}"));
    let _ = fs::remove_dir_all(&folder);
    folder
}

/// Writes a program that replaces the target's binary.
fn program(name: &str, script: &str) -> String {
    let path = file(name, &format!("#!/bin/sh\n{script}\n"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    format!("millrace={path}")
}

fn text(folder: &Path) -> &str {
    folder.to_str().expect("a path of ours")
}

fn read(folder: &Path) -> Recording {
    Store::read(folder).expect("a recording")
}

#[test]
fn a_scenario_is_run_and_recorded() {
    let folder = fresh("run");
    let ended = run(&[&TINY[..], &["websocket,sse", "--slo", "p50<10s", "--live", "--out", text(&folder)]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.out.trim(), text(&folder));
    assert!(ended.err.contains("live: http://127.0.0.1:"), "the page has a server of its own: {ended:?}");
    let recording = read(&folder);
    assert_eq!((recording.planned, recording.slo.as_deref(), recording.seed), (2, Some("p50<10s"), 1));
    assert!(recording.command.starts_with("millrace lab run thorsen-broadcast --quick"), "{}", recording.command);
    let transports: BTreeSet<&str> = recording.runs.iter().map(|run| run.transport.as_str()).collect();
    assert_eq!(transports, BTreeSet::from(["sse", "websocket"]));
    for run in &recording.runs {
        let test = run.phase(PhaseName::Test).expect("a test");
        assert_eq!((test.counts.sent, test.counts.delivered, test.counts.lost), (200, 1000, 0), "{:?}", run.validity);
        assert_eq!((run.factors.clients, run.factors.publishers, run.load.value), (5, 1, 5.0));
        assert!(run.target_version.starts_with("millrace-cli ") && run.is_valid(), "{:?}", run.validity);
        let names: Vec<PhaseName> = run.phases.iter().map(|phase| phase.name).collect();
        assert_eq!(names, [PhaseName::Connect, PhaseName::Idle, PhaseName::Test, PhaseName::After]);
        let watched = test.watched.as_ref().expect("somebody watched");
        let cpu_s = watched.cpu_user_s + watched.cpu_system_s;
        assert!(cpu_s > 0.0 && watched.rss_bytes > 1 << 20 && watched.descriptors > 7, "{watched:?}");
        // Samples may be late when other processes use the CPU. Then the first and last sample cover less of the
        // test.
        let lasted = test.drained_s - test.start_s;
        let missing = if watched.others_cores > 0.1 { lasted / 2.0 } else { 0.2 };
        assert!((lasted - missing..lasted + 0.2).contains(&watched.seconds), "{lasted} s, {watched:?}");
        let seconds = run.seconds.iter().filter_map(|second| second.watched.as_ref()?.metrics);
        assert!(seconds.map(|metrics| metrics.publications).sum::<u64>() >= 100, "what the server says of itself");
    }
    let again = run(&[&TINY[..], &["sse", "--out", text(&folder)]].concat());
    assert!(again.code == Some(3) && again.err.contains("--resume"), "{again:?}");
}

#[test]
fn a_missed_service_level_is_code_1() {
    let folder = fresh("missed");
    let ended = run(&[&TINY[..], &["websocket", "--slo", "p99<1us", "--out", text(&folder)]].concat());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("MISSED p99"), "{ended:?}");
    assert_eq!(read(&folder).runs.len(), 1);
}

#[test]
fn server_death_is_code_2_and_keeps_results() {
    let folder = fresh("died");
    let bin = env!("CARGO_BIN_EXE_millrace");
    let mortal = program("mortal.sh", &format!("exec timeout --signal=KILL 3 {bin} \"$@\""));
    let args = [&TINY[..], &["websocket", "--set", "test=60s", "--targets", &mortal, "--out", text(&folder)]].concat();
    let ended = run(&args);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let recording = read(&folder);
    let [run] = &recording.runs[..] else { panic!("{ended:?}") };
    let died = run.validity.iter().find(|finding| finding.code == "server_died").expect("it was seen");
    assert!(died.invalidates && died.detail.contains("listening on"), "with its log: {died:?}");
    let delivered = run.phase(PhaseName::Test).expect("it had begun").counts.delivered;
    let by_second: u64 = run.seconds.iter().map(|second| second.counts.delivered).sum();
    assert!(delivered > 100 && delivered == by_second, "{delivered}, by second {by_second}");
}

#[test]
fn a_target_that_does_not_start_is_code_3_with_its_log() {
    let folder = fresh("broken");
    let script = "[ \"$1\" = --version ] && echo 'millrace-cli 0' && exit\necho 'no luck today' >&2\nexit 7";
    let broken = program("broken.sh", script);
    let ended = run(&[&TINY[..], &["websocket", "--targets", &broken, "--out", text(&folder)]].concat());
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.err.contains("no luck today") && ended.err.contains("target millrace does not start"), "{ended:?}");
}

#[test]
fn unknown_name_is_code_3_with_a_suggestion() {
    for (args, says) in [
        (&["thorsen-brodcast"][..], "did you mean thorsen-broadcast?"),
        (&["thorsen-chat", "--targets", "mosquito"], "did you mean mosquitto?"),
        (&["thorsen-chat", "--targets", "foo"], "millrace: no target foo; there are millrace, ws"),
        (&["thorsen-chat", "--transports", "websockets"], "did you mean websocket?"),
        (&["thorsen-chat", "--set", "client=1"], "did you mean clients?"),
        (&["thorsen-chat", "--slo", "p99"], "p99.9<1s"),
        (&["thorsen-chat", "--sed", "1"], "--seed"),
        (&["--resume", "/nowhere"], "no recording"),
        (&["storm", "--budget", "0.1"], "minutes"),
        (&["storm", "--live=127.0.0.1:1"], "http://127.0.0.1:8080"),
        (
            &["storm", "--live=http://127.0.0.1:1"],
            "--live --to http://127.0.0.1:1: the server does not take the progress",
        ),
        (&["storm", "--live", "--to", "http://127.0.0.1:1"], "--live --to http://127.0.0.1:1: the server does not"),
        (&["storm", "--live=http://127.0.0.1:1", "--to", "http://127.0.0.1:2"], "leave one of them out"),
        (&["storm", "--to", "http://127.0.0.1:2"], "--live"),
    ] {
        let ended = run(&[&["lab", "run"][..], args].concat());
        assert!(ended.code == Some(3) && ended.err.contains(says), "{args:?}: {ended:?}");
    }
}

/// A supervisor that ends without a signal closes the input.
#[test]
fn supervised_run_prints_events_and_stops_with_its_input() {
    let folder = fresh("supervised");
    let args = [&TINY[..], &["websocket,sse", "--repeats", "9", "--supervised", "--out", text(&folder)]].concat();
    let mut command = millrace(&args);
    command.stdin(std::process::Stdio::piped());
    let mut process = Process::start_with_input(&mut command);
    let first: serde_json::Value = serde_json::from_str(&process.out.next().expect("an event")).expect("JSON");
    let command = first["command"].as_str().unwrap();
    assert!(
        first["is"] == "announced" && first["scenario"] == "thorsen-broadcast" && first["form"] == "quick",
        "{first}"
    );
    assert!(!command.contains("--supervised") && command.contains("--repeats 9"), "{command}");
    process.out.wait_for("\"is\":\"ended\"");
    process.close_input();
    let ended = process.finish();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(ended.out.trim_end().ends_with("{\"is\":\"finished\"}"), "{ended:?}");
    assert!((1..18).contains(&read(&folder).runs.len()));
}

#[test]
fn list_is_also_json() {
    let listed: serde_json::Value = serde_json::from_str(&run(&["lab", "list", "--json"]).out).expect("JSON");
    let (scenarios, targets) = (&listed["scenarios"], &listed["targets"]);
    let networks = scenarios.as_array().unwrap().iter().find(|one| one["name"] == "networks").unwrap();
    assert!(networks["needs"][0]["need"].as_str().unwrap().starts_with("root"), "{networks}");
    assert!(networks["forms"][1]["estimate_s"].as_f64() > networks["forms"][0]["estimate_s"].as_f64());
    assert!(targets[0]["name"] == "millrace" && targets[0]["missing"].is_null(), "{targets}");
}

#[test]
fn interrupted_sweep_resumes() {
    let folder = fresh("interrupted");
    let args = [&TINY[..], &["websocket,sse", "--repeats", "2", "--seed", "5", "--out", text(&folder)]].concat();
    let mut process = Process::start(&mut millrace(&args));
    process.err.wait_for("  1 millrace");
    process.signal(Signal::INT);
    let ended = process.finish();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    let before = read(&folder);
    assert!((1..4).contains(&before.runs.len()) && before.planned == 4, "{} runs", before.runs.len());

    let other = run(&["lab", "run", "--resume", text(&folder), "--quick", "--repeats", "3"]);
    assert!(other.code == Some(3) && other.err.contains("parameters"), "{other:?}");
    let resumed = run(&["lab", "run", "--resume", text(&folder)]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    assert!(resumed.err.contains("recorded before"), "{resumed:?}");
    let after = read(&folder);
    assert_eq!(after.runs[..before.runs.len()], before.runs, "what was there stays");
    let which: BTreeSet<_> = after.runs.iter().map(|run| (run.transport.as_str(), run.repeat)).collect();
    assert_eq!((after.runs.len(), which.len()), (4, 4), "each once: {which:?}");
    assert!(after.runs[..2].iter().all(|run| run.repeat == 0), "the order is that of the seed");
}

#[test]
fn capacity_lies_between_kept_and_missed() {
    let folder = fresh("capacity");
    let args =
        ["lab", "capacity", "thorsen-broadcast", "--quick", "--transports", "polling", "--slo", "p50<1us", "--set"];
    let rest = ["test=1s", "--set", "clients=2", "--set", "poll_every=100ms", "--out", text(&folder)];
    let ended = run(&[&args[..], &rest].concat());
    assert_eq!(ended.code, Some(1), "not even the lowest is kept: {ended:?}");
    let recording = read(&folder);
    assert_eq!((recording.runs.len(), recording.tables.len()), (2, 1), "two runs agree");
    assert_eq!(recording.tables[0].rows[0][4], 2.0, "{:?}", recording.tables);
}

#[test]
fn doctor_reports_limits_and_fixes() {
    let ended = run(&["lab", "doctor", "--connections", "9999999"]);
    assert!(ended.code == Some(1) && ended.out.contains("SHORT") && ended.out.contains("$ sudo"), "{ended:?}");
    let one = run(&["lab", "doctor", "--connections", "1", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&one.out).expect("JSON");
    assert_eq!(json["connections"], 1);
}

#[test]
fn list_has_scenarios_and_targets() {
    let ended = run(&["lab", "list"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for name in ["thorsen-broadcast", "muller-pingpong", "millrace", "mosquitto", "long-polling"] {
        assert!(ended.out.contains(name), "{name}: {ended:?}");
    }
}

#[test]
fn profiles_of_links_are_listed_with_their_source() {
    let listed = run(&["lab", "link", "list"]);
    assert_eq!(listed.code, Some(0));
    let line = listed.out.lines().find(|line| line.starts_with("3g ")).expect("the profile 3g");
    assert!(line.contains("1.6Mbit/s, 75 ms") && line.contains("sitespeed.io"), "{line}");
}

#[test]
fn wrong_links_are_errors_that_name_the_setting() {
    for (arguments, needle) in [
        (&["--path", "3gg"][..], "3g"),
        (&["--set", "down.loss=120%"], "down.loss"),
        (&["--set", "down.queue=1MB"], "down.queue"),
        (&["--set", "down.rate"], "KEY=VALUE"),
        (&["--set", "down.trace=/does/not/exist"], "/does/not/exist"),
    ] {
        let ended = run(&[&["lab", "link", "run"], arguments, &["--", "true"]].concat());
        assert_ne!(ended.code, Some(0), "{arguments:?}");
        assert!(ended.err.contains(needle), "{arguments:?}: {}", ended.err);
    }
    for (scenario, set, needle) in [
        ("thorsen-broadcast", "path.down.los=1%", "los"),
        ("networks", "radio=5g", "no radio 5g; there are lte, 3g, wifi"),
        ("thorsen-chat", "publisher=server", "publish themselves"),
        ("networks", "publisher=sever", "sever"),
        ("networks", "only=3h", "only: no part 3h: did you mean 3g?"),
        ("networks", "lte.clients=3", "part lte is not run here; --set only=lte chooses it"),
    ] {
        let ended = run(&["lab", "run", scenario, "--quick", "--set", set]);
        assert_ne!(ended.code, Some(0), "{set}");
        assert!(ended.err.contains(needle), "{set}: {}", ended.err);
    }
    let folder = fresh("congestion");
    let ended = run(&["lab", "run", "networks", "--quick", "--set", "congestion=cubik", "--out", text(&folder)]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.err.contains("congestion = \"cubik\": this kernel has"), "{}", ended.err);
}

#[test]
fn run_over_a_path_has_its_delay_and_records_its_link() {
    if let Err(error) = millrace_lab::path::TunCable::check() {
        eprintln!("SKIPPED: no link between namespaces here: {error:#}");
        return;
    }
    let folder = fresh("path");
    let path = ["--set", "path.up.delay=20ms", "--set", "path.down.delay=20ms"];
    let ended = run(&[&TINY[..], &["websocket"], &path, &["--out", text(&folder)]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let recording = read(&folder);
    let [run] = &recording.runs[..] else { panic!("one run: {:?}", recording.runs.len()) };
    let link = run.link.as_ref().expect("a link");
    assert_eq!((link.path.as_str(), link.kernel_drops), ("own", 0));
    assert!(link.up.received > 50 && link.down.received > 200, "{link:?}");
    let median = run.phase(PhaseName::Test).expect("a test").latency_us.quantile_us(0.5).expect("deliveries");
    assert!((40_000..80_000).contains(&median), "{median} us");
    // The lab asks for metrics beside the link.
    let mut seconds = run.seconds.iter().filter_map(|second| second.watched.as_ref());
    assert!(seconds.any(|watched| watched.metrics.is_some()), "the server answers requests for metrics");
}

/// All topologies of the arm-probe, over a short link where there are links. The scenario has a former name.
#[test]
fn arm_probe_waits_for_the_window_unless_urgent() {
    let folder = fresh("arm-probe");
    let path = ["--set", "path=", "--set", "path.up.delay=10ms", "--set", "path.down.delay=10ms"];
    let sets = ["--set", "clients=3", "--set", "test=1s", "--out", text(&folder)];
    let ended = run(&[&["lab", "run", "karadogan-topologies", "--quick"], &path[..], &sets].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains("warning: karadogan-topologies is a former name of"), "{}", ended.err);
    let recording = read(&folder);
    assert_eq!(recording.scenario, "karadogan-arm-probe");
    let [delay, deliveries, _] = &recording.tables[..] else { panic!("three tables: {:?}", recording.tables) };
    let cell = |row: &[serde_json::Value], at: usize| row[at].as_str().unwrap_or("-").to_owned();
    let names: Vec<String> = delay.rows.iter().map(|row| [0, 1, 2].map(|at| cell(row, at)).join(" ")).collect();
    assert_eq!(
        names,
        [
            "mesh data-channel -",
            "star data-channel -",
            "server data-channel -",
            "server session -",
            "relay data-channel on",
            "relay data-channel off"
        ]
    );
    // Movements, deliveries to two others, felt, lost, duplicated, reordered.
    assert!(deliveries.rows.iter().all(|row| row[3..9] == [4, 8, 8, 0, 0, 0]), "{:?}", deliveries.rows);
    let column = |at: usize| delay.rows.iter().map(|row| row[at].as_f64().expect("deliveries")).collect::<Vec<_>>();
    let (medians, longest) = (column(3), column(6));
    assert!(longest[5] >= 250.0 && medians[..5].iter().all(|ms| *ms < 125.0), "{medians:?} {longest:?}");
}

/// Signaling of a data channel uses TCP. Everything else is in datagrams to the address that the server announces.
#[test]
fn data_channels_and_polls_pass_an_emulated_network() {
    if let Err(error) = millrace_lab::path::TunCable::check() {
        eprintln!("SKIPPED: no link between namespaces here: {error:#}");
        return;
    }
    let folder = fresh("networks");
    let short =
        ["--set", "only=3g", "--set", "3g.path.down.loss=0%", "--set", "3g.path.up.loss=0%", "--set", "test=1s"];
    let transports = ["--transports", "data-channel,polling", "--out", text(&folder)];
    let ended = run(&[&["lab", "run", "networks", "--quick"][..], &short, &transports].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let recording = read(&folder);
    assert_eq!(recording.runs.len(), 2, "{ended:?}");
    for run in &recording.runs {
        let test = run.phase(PhaseName::Test).expect("a test");
        assert_eq!((test.counts.scheduled, test.counts.delivered), (4, 20), "{} {:?}", run.transport, run.validity);
        // One way of 75 ms: publications do not pass the link.
        let fastest = test.latency_us.quantile_us(0.0).expect("deliveries");
        assert!(fastest >= 75_000, "{}: {fastest} us", run.transport);
        let link = run.link.as_ref().expect("a link");
        let readers = link.readers.as_ref().expect("the traffic of the readers");
        assert!(readers.readers == 5 && readers.down_bytes > 20 * 200, "{readers:?}");
        let energy = readers.energy.as_ref().expect("a radio");
        assert!(energy.radio == "3g" && energy.joules > 0.0, "{energy:?}");
        assert!(!link.congestion.is_empty(), "{link:?}");
        // Neither publications nor metrics pass the link: five connections, and four messages to each.
        assert!(link.down.delivered_bytes < 100_000, "{link:?}");
    }
    let fastest = |transport: &str| {
        let run = recording.runs.iter().find(|run| run.transport == transport).expect("it was run");
        run.phase(PhaseName::Test).and_then(|test| test.latency_us.quantile_us(0.5)).expect("deliveries")
    };
    assert!(fastest("data-channel") < 150_000 && fastest("polling") > 150_000, "a push has one way, a poll waits");
    let names: Vec<_> = recording.tables.iter().map(|table| table.name.as_str()).collect();
    assert_eq!(names, ["recommended", "networks"]);
    assert!(ended.err.contains("path 3g, changed: the emulator used"), "{}", ended.err);
}

/// Returns a folder with this recording, as `millrace lab run` leaves it.
fn with_recording(name: &str, recording: &str) -> PathBuf {
    let folder = fresh(name);
    fs::create_dir_all(&folder).expect("it is ours");
    fs::write(folder.join("recording.json"), recording).expect("it is ours");
    folder
}

fn fixture(name: &str) -> String {
    fs::read_to_string(repository(&format!("crates/lab/tests/fixtures/{name}.json"))).expect("a recording")
}

#[test]
fn export_has_the_columns_of_the_thesis() {
    for scenario in ["karadogan-pairs", "karadogan-gateway", "carcare-latency", "somogyi-tls", "thorsen-broadcast"] {
        let folder = with_recording(&format!("export-{scenario}"), &fixture(scenario));
        let ended = run(&["lab", "export", text(&folder)]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let out = PathBuf::from(ended.out.trim());
        assert_eq!(out, folder.join("csv"));
        let head = |path: &Path| {
            let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            text.lines().next().expect("a head").to_owned()
        };
        let mut tables = 0;
        for table in millrace_lab::export::tables::of(scenario) {
            let name = format!("{}.csv", table.name);
            let thesis = head(&repository(&format!("crates/lab/data/{name}")).canonicalize().expect("its file"));
            let ours = head(&out.join(&name));
            assert!(ours.starts_with(&format!("{thesis},")), "{name}: {ours}");
            tables += 1;
        }
        assert!(tables > 0, "{scenario}");
        let runs = fs::read_to_string(out.join("runs.csv")).expect("runs");
        assert!(runs.starts_with("part,target,target_version,transport,path,"), "{runs}");
        assert_eq!(runs.lines().count(), 1 + read(&folder).runs.len());
    }
}

#[test]
fn export_of_an_interrupted_run_says_so() {
    let folder = with_recording("export-interrupted", &fixture("carcare-latency"));
    let out = fresh("export-interrupted-out");
    let ended = run(&["lab", "export", text(&folder), "--out", text(&out)]);
    assert_eq!((ended.code, ended.out.trim()), (Some(0), text(&out)), "{ended:?}");
    assert!(ended.err.contains("interrupted: it has 3 of 5 runs") && ended.err.contains("--resume"), "{ended:?}");
    assert!(out.join("somogyi_t09_latency.csv").exists() && !folder.join("csv").exists());
    let again = run(&["lab", "export", text(&folder), "--out", text(&out)]);
    assert_eq!(again.code, Some(0), "its own files are replaced: {again:?}");
}

#[test]
fn export_refuses_what_is_no_recording_and_foreign_folders() {
    let empty = fresh("export-empty");
    let refused = run(&["lab", "export", text(&empty)]);
    assert!(refused.code == Some(3) && refused.err.contains("no recording"), "{refused:?}");
    let broken = with_recording("export-broken", "{\"format\": 1");
    let refused = run(&["lab", "export", text(&broken)]);
    assert!(refused.code == Some(3) && refused.err.contains("recording.json"), "{refused:?}");
    let other = fixture("karadogan-pairs").replacen("\"format\":1", "\"format\":99", 1);
    let newer = with_recording("export-newer", &other);
    let refused = run(&["lab", "export", text(&newer)]);
    assert!(refused.code == Some(3) && refused.err.contains("format 99, this program reads 1"), "{refused:?}");

    let folder = with_recording("export-foreign", &fixture("karadogan-pairs"));
    let refused = run(&["lab", "export", text(&folder), "--out", text(&folder)]);
    assert!(refused.code == Some(3) && refused.err.contains("files that no export wrote"), "{refused:?}");
    assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 1, "nothing was written");
}
