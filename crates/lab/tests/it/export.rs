//! Exports recordings of real runs, and reads the files with another CSV reader configuration than the writer's.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    path::{Path, PathBuf},
};

use millrace_lab::{
    export::{
        Exported, export,
        tables::{self, TABLES},
    },
    recording::{Column, Finding, Recording, Table},
};
use serde_json::json;

const FIXTURES: [&str; 16] = [
    "carcare-latency",
    "carcare-reliability",
    "carcare-wire",
    "karadogan-forwarding",
    "karadogan-gateway",
    "karadogan-pairs",
    "lozano-browsers",
    "lozano-free",
    "lozano-multiparty",
    "lozano-parallel",
    "lozano-paths",
    "lozano-queues",
    "lozano-tcp",
    "somogyi-tls",
    "thorsen-broadcast",
    "thorsen-chat",
];
/// Statistics behind the columns of the thesis, without their unit.
const STATISTICS: [&str; 7] = ["mean", "sd", "median", "p95", "p99", "max", "n"];

/// Returns the recording of a scenario. That of the chat has the runs of the broadcast.
fn fixture(name: &str) -> Recording {
    if name == "thorsen-chat" {
        return Recording { scenario: name.into(), ..fixture("thorsen-broadcast") };
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.json"));
    let text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// One exported file.
struct Csv {
    columns: Vec<String>,
    rows: Vec<BTreeMap<String, String>>,
}

fn read(path: &Path) -> Csv {
    let mut reader = csv::Reader::from_path(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let columns: Vec<String> = reader.headers().expect("a head").iter().map(str::to_owned).collect();
    let row = |record: Result<csv::StringRecord, csv::Error>| {
        columns.iter().cloned().zip(record.expect("as many cells as columns").iter().map(str::to_owned)).collect()
    };
    let rows = reader.records().map(row).collect();
    Csv { columns, rows }
}

impl Csv {
    fn find(&self, column: &str, value: &str) -> &BTreeMap<String, String> {
        let row = self.rows.iter().find(|row| row[column] == value);
        row.unwrap_or_else(|| panic!("no row with {column} = {value}: {:?}", self.rows))
    }
}

fn number(row: &BTreeMap<String, String>, column: &str) -> f64 {
    row[column].parse().unwrap_or_else(|_| panic!("{column}: {row:?}"))
}

fn exported(recording: &Recording) -> (tempfile::TempDir, Exported) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let exported = export(recording, &folder.path().join("csv")).expect("it is exported");
    (folder, exported)
}

fn file(folder: &tempfile::TempDir, name: &str) -> Csv {
    read(&folder.path().join("csv").join(name))
}

fn head_of_the_thesis(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("data/{name}.csv"));
    let text = fs::read_to_string(&path).expect("the file of the thesis");
    text.lines().next().expect("a head").split(',').map(str::to_owned).collect()
}

#[test]
fn published_tables_begin_with_the_columns_of_the_thesis() {
    let mut seen = HashSet::new();
    for name in FIXTURES {
        let recording = fixture(name);
        let (folder, list) = exported(&recording);
        for table in tables::of(&recording.scenario) {
            seen.insert((table.scenario, table.name));
            let csv = file(&folder, &format!("{}.csv", table.name));
            let thesis = head_of_the_thesis(table.name);
            assert_eq!(csv.columns[..thesis.len()], thesis, "{}", table.name);
            let statistics = |column: &&String| {
                STATISTICS.iter().any(|name| column.as_str() == *name || column.starts_with(&format!("{name}_")))
            };
            let found = csv.columns.iter().filter(statistics).count();
            assert!(found >= STATISTICS.len(), "{}: {:?}", table.name, csv.columns);
            let unique: HashSet<&String> = csv.columns.iter().collect();
            assert_eq!(unique.len(), csv.columns.len(), "{}: {:?}", table.name, csv.columns);
            let listed = list.files.iter().find(|file| file.name == format!("{}.csv", table.name)).expect("listed");
            assert_eq!(listed.rows, csv.rows.len());
        }
    }
    let missing: Vec<_> =
        TABLES.iter().map(|table| (table.scenario, table.name)).filter(|table| !seen.contains(table)).collect();
    assert!(missing.is_empty(), "no fixture for {missing:?}");
}

#[test]
fn every_scenario_has_runs_and_its_recorded_tables() {
    for name in FIXTURES {
        let recording = fixture(name);
        let (folder, _) = exported(&recording);
        assert_eq!(file(&folder, "runs.csv").rows.len(), recording.runs.len(), "{name}");
        for table in &recording.tables {
            let csv = file(&folder, &format!("{}.csv", table.name));
            assert_eq!((csv.columns.len(), csv.rows.len()), (table.columns.len(), table.rows.len()), "{}", table.name);
        }
    }
}

#[test]
fn latencies_of_pairs_are_those_of_the_recording() {
    let recording = fixture("karadogan-pairs");
    let (folder, _) = exported(&recording);
    let csv = file(&folder, "karadogan_t2_10_response_time_case1.csv");
    assert_eq!(csv.rows.len(), 2, "one line per number of publishers: {:?}", csv.rows);
    let row = csv.find("publishers", "200");
    let run = recording.runs.iter().find(|run| run.factors.publishers == 200).expect("a run");
    let latency = &run.phase(millrace_lab::recording::PhaseName::Test).expect("a test").latency_us;
    assert_eq!(row["n"], latency.count().to_string());
    for (column, us) in [
        ("avg_ms", latency.mean_us().expect("a mean")),
        ("mean_ms", latency.mean_us().expect("a mean")),
        ("stddev_ms", latency.sd_us().expect("a deviation")),
        ("median_ms", latency.quantile_us(0.5).expect("a median") as f64),
        ("p95_ms", latency.quantile_us(0.95).expect("a percentile") as f64),
        ("max_ms", latency.max_us().expect("a maximum") as f64),
    ] {
        assert!((number(row, column) * 1000.0 / us - 1.0).abs() < 1e-6, "{column}: {} {us}", row[column]);
    }
    assert_eq!(
        (row["target"].as_str(), row["transport"].as_str(), row["path"].as_str()),
        ("millrace", "websocket", "loopback")
    );
    let events = file(&folder, "karadogan_t2_4_events_case1.csv");
    let row = events.find("publishers", "200");
    assert_eq!(row["expected_events_per_s"], "800");
    assert!((number(row, "actual_events_per_s") - 800.0).abs() < 8.0, "{row:?}");
    assert!(number(file(&folder, "karadogan_t2_8_loop_lag_case1.csv").find("publishers", "200"), "avg_ms") > 0.0);
    assert!(file(&folder, "karadogan_t2_11_response_time_case2.csv").rows.is_empty(), "nothing was measured");
}

#[test]
fn latency_over_a_path_names_the_path_and_has_link_bytes() {
    let recording = fixture("carcare-latency");
    let (folder, list) = exported(&recording);
    let csv = file(&folder, "somogyi_t09_latency.csv");
    let row = csv.find("measurement", "websocket_message");
    assert_eq!(row["path"], "carcare-48ms");
    assert!((24.0..60.0).contains(&number(row, "avg_ms")), "one way or a little more: {row:?}");
    assert!((48.0..60.0).contains(&number(csv.find("measurement", "websocket_ping"), "avg_ms")));
    assert!(number(csv.find("measurement", "client_polling_data"), "avg_ms") > 300.0);
    let request = csv.find("measurement", "client_polling_request");
    assert_eq!((request["avg_ms"].as_str(), request["n"].as_str()), ("", ""), "unknown, and not 0");
    let first = file(&folder, "somogyi_first_message_latency.csv");
    let row = first.find("technology", "websocket");
    let sum = number(row, "connect_mean_ms") + number(row, "mean_ms");
    assert!((number(row, "first_message_ms") - sum).abs() < 1e-6, "{row:?}");
    let runs = file(&folder, "runs.csv");
    assert!(runs.rows.iter().all(|row| number(row, "link_down_delivered_bytes") > 1000.0 && row["valid"] == "yes"));
    assert!(list.notes.iter().any(|note| note.contains("3 of 5 runs")), "it was interrupted: {:?}", list.notes);
}

#[test]
fn tls_has_names_of_its_own() {
    let (folder, _) = exported(&fixture("somogyi-tls"));
    let csv = file(&folder, "somogyi_t11_tls_latency.csv");
    for technology in ["long_polling", "long_polling_tls", "websocket", "websocket_tls"] {
        assert!(number(csv.find("technology", technology), "avg_ms") > 0.0);
    }
}

#[test]
fn versions_of_tls_are_different_lines() {
    let mut recording = fixture("somogyi-tls");
    let secured = recording.runs.iter_mut().filter(|run| run.target == "millrace-tls");
    secured.for_each(|run| run.target = "millrace-tls12".into());
    let csv = file(&exported(&recording).0, "somogyi_t11_tls_latency.csv");
    assert!(number(csv.find("technology", "websocket_tls12"), "avg_ms") > 0.0);
    assert!(csv.rows.iter().all(|row| row["technology"] != "websocket_tls"), "it is not TLS 1.3");
}

#[test]
fn thorsens_averages_and_saturation_are_computed() {
    let (folder, _) = exported(&fixture("thorsen-broadcast"));
    let idle = file(&folder, "thorsen_idle_averages.csv");
    for (metric, unit, most) in [("cpu", "percent", 50.0), ("memory", "MB", 500.0), ("response_time", "ms", 50.0)] {
        let row = idle.find("metric", metric);
        assert_eq!(row["unit"], unit);
        assert!(number(row, "published_avg") > 0.0 && number(row, "published_avg") < most, "{row:?}");
        assert_eq!((row["n"].as_str(), row["recomputed_stddev"].as_str()), ("1", ""), "one run has no deviation");
    }
    let saturation = file(&folder, "thorsen_saturation_points.csv");
    let row = saturation.find("transport", "websocket");
    assert_eq!((row["scenario"].as_str(), row["cpu_max_at_clients"].as_str()), ("1", "500"));
    assert!(number(row, "cpu_max_percent") > number(row, "cpu_at_1_client_percent"));
    assert!(number(row, "memory_after_500_clients_mb") > 1.0);
    assert_eq!(row["response_at_500_clients_ms"], row["mean_ms"]);
    let (folder, _) = exported(&fixture("thorsen-chat"));
    let chat = file(&folder, "thorsen_saturation_points.csv");
    let message = chat.find("transport", "websocket");
    assert_eq!(message["scenario"], "2");
    assert!(number(message, "n") > number(row, "n"), "messages, not pings of the probe: {message:?}");
}

#[test]
fn gateway_and_forwarding_fill_the_tables_of_chapter_3() {
    let (folder, _) = exported(&fixture("karadogan-gateway"));
    for name in ["t3_4_owd_application_layer", "t3_7_mux_delay", "t3_8_mux_cpu", "t3_10_demux_delay", "t3_11_demux_cpu"]
    {
        let csv = file(&folder, &format!("karadogan_{name}.csv"));
        let row = csv.find("peers", "25");
        let unknown: Vec<&String> = csv.columns.iter().filter(|column| row[*column].is_empty()).collect();
        assert!(unknown.is_empty(), "{name}: {unknown:?}");
    }
    let throughput = file(&folder, "karadogan_t3_6_throughput_application_layer.csv");
    assert!(number(throughput.find("peers", "25"), "sent_bytes_per_s") > 10_000.0);
    assert!(number(throughput.find("peers", "25"), "sent_stddev_bytes_per_s") > 0.0);
    assert!(file(&folder, "karadogan_t3_9_mux_power.csv").rows.is_empty());

    let (folder, _) = exported(&fixture("karadogan-forwarding"));
    let layers = ["karadogan_t3_3_owd_network_layer.csv", "karadogan_t3_4_owd_application_layer.csv"];
    let [network, application] = layers.map(|name| file(&folder, name));
    assert!(network.rows.iter().all(|row| row["forwarding"] != "gateway") && network.rows.len() > 2);
    assert!(application.rows.iter().all(|row| row["forwarding"] == "gateway") && !application.rows.is_empty());
    let bytes = file(&folder, "karadogan_t3_5_throughput_network_layer.csv");
    assert!(number(bytes.find("peers", "15"), "received_bytes_per_s") > 10_000.0);
}

#[test]
fn calls_between_browsers_fill_the_tables_of_their_conditions() {
    let (folder, _) = exported(&fixture("lozano-browsers"));
    let csv = file(&folder, "lozano_t04_loss_and_latency.csv");
    let row = csv.find("machine", "overall");
    assert_eq!((row["path_latency_ms"].as_str(), row["browsers"].as_str()), ("50", "chromium-chromium"));
    assert!(number(row, "rate_kbit_s") > 100.0 && number(row, "rtt_ms") >= 100.0, "{row:?}");
    assert!(number(row, "packet_loss_percent") > number(row, "residual_loss_percent"), "{row:?}");
    assert!(file(&folder, "lozano_t02_latency.csv").rows.is_empty(), "there was loss");
}

#[test]
fn bytes_on_the_wire_are_counted_as_in_the_thesis() {
    let recording = fixture("carcare-wire");
    let (folder, _) = exported(&recording);
    let sizes = file(&folder, "somogyi_message_sizes.csv");
    // 134 + 4 of the frame + 20 IP + 20 TCP + 12 of timestamps + 14 Ethernet.
    assert_eq!(sizes.find("message", "websocket text message with 134-byte json")["bytes"], "204");
    assert_eq!(file(&folder, "thorsen_message_sizes.csv").find("transport", "websocket")["total_bytes"], "60");
    let ours = |item: &str| {
        let rows = &recording.wire_cost.as_ref().expect("a report").published;
        rows.iter().find(|row| row.item == item).and_then(|row| row.ours).expect("our figure")
    };
    for (name, row, item) in [
        ("somogyi_t12_client_polling_24h", "total", "polling every 4 s"),
        ("somogyi_t13_long_polling_24h", "total", "long polling, held 30 s"),
    ] {
        let total = number(file(&folder, &format!("{name}.csv")).find("item", row), "printed_kib");
        // The report counts a request and its answer together.
        assert!((total / ours(item) - 1.0).abs() < 0.1, "{name}: {total} {}", ours(item));
    }
    let day = file(&folder, "somogyi_t14_websocket_24h.csv");
    let total = number(day.find("item", "sum_24h"), "recomputed_kib");
    assert!((total / ours("WebSocket, ping every 5 min") - 1.0).abs() < 0.1, "{total}");
    assert!(file(&folder, "wire-bytes.csv").rows.len() > 10);
    assert!(file(&folder, "wire-published.csv").rows.len() > 10);
}

#[test]
fn missing_table_is_a_head_with_a_reason() {
    let (folder, list) = exported(&fixture("carcare-reliability"));
    assert!(file(&folder, "somogyi_t08_idle_drop_times.csv").rows.is_empty());
    let listed = list.files.iter().find(|file| file.name == "somogyi_t08_idle_drop_times.csv").expect("listed");
    assert!(listed.note.starts_with("The recording has no table networks."), "{}", listed.note);
}

#[test]
fn drop_times_are_in_minutes_of_the_thesis() {
    let mut recording = fixture("carcare-reliability");
    let column = |(name, unit): (&str, &str)| Column { name: name.into(), unit: unit.into() };
    let columns = [("network", ""), ("survived, scaled", "min"), ("died, scaled", "min"), ("heartbeat", "s")];
    recording.tables.push(Table {
        name: "networks".into(),
        columns: columns.map(column).to_vec(),
        rows: vec![
            vec![json!("LTE"), json!(7.8), json!(8.2), json!(3.1)],
            vec![json!("local network"), json!(180.0), json!(null), json!(null)],
        ],
        ..Table::default()
    });
    let (folder, _) = exported(&recording);
    let csv = file(&folder, "somogyi_t08_idle_drop_times.csv");
    let lte = csv.find("network", "lte");
    assert_eq!(
        (lte["min_minutes"].as_str(), lte["max_minutes"].as_str(), lte["heartbeat_s"].as_str()),
        ("7.8", "8.2", "3.1")
    );
    assert_eq!(csv.find("network", "local_network")["max_minutes"], "", "never dropped");
    recording.tables[1].validity =
        vec![Finding { code: "no_link".into(), detail: "over loopback".into(), invalidates: true }];
    let (_, list) = exported(&recording);
    assert_eq!(list.notes, ["The table networks is not valid: over loopback"]);
}

/// Names and texts of a recording come from elsewhere. They must not become paths or formulas.
#[test]
fn hostile_tables_stay_in_the_folder_and_are_text() {
    let mut recording = fixture("carcare-reliability");
    let table = |name: &str| Table {
        name: name.into(),
        columns: ["=1+1", "=1+1"].map(|name| Column { name: name.into(), unit: String::new() }).to_vec(),
        rows: vec![
            vec![json!("=cmd|' /C calc'!A0"), json!(-1.5)],
            vec![json!("@x")],
            vec![json!(1), json!([2]), json!(3)],
        ],
        ..Table::default()
    };
    let long = "x".repeat(5000);
    let names = ["../../etc/passwd", "runs", "RUNS", "", ".hidden", "a b\u{1f600}", &long];
    recording.tables = names.map(table).to_vec();
    let (folder, list) = exported(&recording);
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder.path()).expect("the folder") {
        found.push(entry.expect("an entry").path());
    }
    assert_eq!(found, [folder.path().join("csv")], "nothing beside the folder");
    let there: HashSet<String> = list.files.iter().map(|file| file.name.to_lowercase()).collect();
    assert_eq!(there.len(), list.files.len(), "each name once: {:?}", list.files);
    assert!(list.files.iter().all(|file| file.name.len() < 200 && !file.name.starts_with('.')), "{:?}", list.files);
    assert!(file(&folder, "runs.csv").columns.contains(&"latency_p99_ms".to_owned()), "ours keeps its name");
    let csv = file(&folder, "runs-2.csv");
    assert_eq!(csv.columns, ["1_1", "1_1_2"]);
    assert_eq!((csv.rows[0]["1_1"].as_str(), csv.rows[0]["1_1_2"].as_str()), ("'=cmd|' /C calc'!A0", "-1.5"));
    assert_eq!((csv.rows[1]["1_1"].as_str(), csv.rows[1]["1_1_2"].as_str()), ("'@x", ""));
    assert_eq!(csv.rows[2]["1_1_2"], "[2]");
}

#[test]
fn only_files_of_an_export_are_replaced() {
    let recording = fixture("carcare-reliability");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path();
    fs::write(path.join("mine.txt"), "mine").expect("it is ours");
    let error = export(&recording, path).expect_err("files of somebody else").to_string();
    assert!(error.contains("no export wrote") && error.contains("--out"), "{error}");
    assert_eq!(fs::read_dir(path).expect("the folder").count(), 1, "nothing was written");

    let out = path.join("csv");
    let first = export(&recording, &out).expect("a new folder");
    assert!(out.join("reliability.csv").exists());
    // Another recording replaces the files, and removes those that it does not have.
    export(&fixture("karadogan-pairs"), &out).expect("its own folder");
    assert!(!out.join("reliability.csv").exists() && out.join("karadogan_t2_4_events_case1.csv").exists());
    assert_eq!(export(&recording, &out).expect("and back"), first);

    // A file that appeared meanwhile is not ours.
    fs::write(out.join("karadogan_t2_4_events_case1.csv"), "mine").expect("it is ours");
    let error = export(&fixture("karadogan-pairs"), &out).expect_err("a foreign file").to_string();
    assert!(error.contains("karadogan_t2_4_events_case1.csv: no export wrote this file"), "{error}");
    assert!(out.join("reliability.csv").exists(), "nothing was removed");
    fs::remove_file(out.join("karadogan_t2_4_events_case1.csv")).expect("it is there");

    // A changed list does not lead elsewhere.
    let mut list: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("export.json")).expect("the list")).expect("JSON");
    list["files"].as_array_mut().expect("a list").push(json!({"name": "../mine.csv", "rows": 0, "note": ""}));
    fs::write(out.join("export.json"), list.to_string()).expect("it is ours");
    fs::write(path.join("mine.csv"), "mine").expect("it is ours");
    export(&recording, &out).expect("it is exported");
    assert!(path.join("mine.csv").exists());

    for (list, says) in
        [("{}", "not the list of an export"), ("[1", "not the list"), (&" ".repeat(1 << 21), "larger than")]
    {
        fs::write(out.join("export.json"), list).expect("it is ours");
        let error = format!("{:#}", export(&recording, &out).expect_err("not a list"));
        assert!(error.contains(says), "{error}");
    }
}
