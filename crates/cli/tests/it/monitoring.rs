//! The dashboards, the alerts and the reference page of the metrics agree with a running server. If Prometheus is
//! installed, Prometheus itself checks them, too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    metrics::{Family, parse},
    support::{Answer, Process, Server, ask, file, millrace, repository, run},
};

/// Maximum time until Prometheus has read the metrics of the server.
const BOUND: Duration = Duration::from_secs(60);
/// Reference page that lists every metric.
const PAGE: &str = "docs/reference/metrics.md";
const GUIDE: &str = "docs/how-to/watch-a-server.md";

/// Metrics of servers with other settings, and the file that names each.
const OPTIONAL: &[(&str, &str, &str)] = &[
    ("millrace_acme_certificates_total", "millrace_acme_certificates_total", "crates/server/src/pages.rs"),
    ("millrace_acme_errors_total", "millrace_acme_errors_total", "crates/server/src/pages.rs"),
    ("millrace_acme_expires_seconds", "millrace_acme_expires_seconds", "crates/server/src/pages.rs"),
    ("millrace_engine_failures_total", "failures", "crates/engine/src/remote/mod.rs"),
    ("millrace_engine_losses_total", "losses", "crates/engine/src/remote/mod.rs"),
    ("millrace_engine_repairs_total", "repairs", "crates/engine/src/remote/mod.rs"),
    ("millrace_engine_requests_total", "requests", "crates/engine/src/remote/mod.rs"),
    ("millrace_engine_retries_total", "retries", "crates/engine/src/remote/mod.rs"),
    ("millrace_spans_total", "millrace_spans_total", "crates/server/src/traces.rs"),
];

/// Starts a server with hooks, driving feedback and Web Push, and returns it with its metrics.
fn server() -> (Server, BTreeMap<String, Family>) {
    static KEY: LazyLock<String> = LazyLock::new(|| {
        let path = file("monitoring-push.pem", "");
        fs::remove_file(&path).expect("it was written");
        let created = run(&["token", "key", "--alg", "ES256", "--out", &path]);
        assert_eq!(created.code, Some(0), "{created:?}");
        path
    });
    let config = format!(
        "[hooks]\nsecrets = [\"0123456789abcdef0123456789abcdef\"]\nrpc = \"http://127.0.0.1:1/hooks\"\n\
        [carcare]\nfeedback = true\n[push]\nkey = \"{}\"\ncontact = \"mailto:ops@example.org\"\n",
        *KEY
    );
    let config = file("monitoring.toml", &config);
    let mut command = millrace(&["serve", "--listen", "127.0.0.1:0", "--udp", "127.0.0.1:0", "--config", &config]);
    let server = Server::start_from(&mut command);
    let metrics = parse(&server.get("/metrics").body);
    (server, metrics)
}

/// Returns the dashboards by file name.
fn dashboards() -> Vec<(String, Value)> {
    let files = fs::read_dir(repository("deploy/grafana")).expect("the folder exists");
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|kind| kind == "json"));
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a readable file");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let dashboard = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, dashboard)
    };
    paths.into_iter().map(read).collect()
}

/// Returns the queries of a dashboard with the titles of their panels.
fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let panels = dashboard["panels"].as_array().expect("panels");
    let of_panel = |panel: &Value| {
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets.iter().map(|target| (text(&panel["title"]), text(&target["expr"]))).collect::<Vec<_>>()
    };
    let annotations = dashboard["annotations"]["list"].as_array().expect("annotations");
    let annotations = annotations.iter().map(|one| (text(&one["name"]), text(&one["expr"])));
    panels.iter().flat_map(of_panel).chain(annotations).collect()
}

/// Returns the alerts: name, expression, and the lines of each.
fn alerts() -> Vec<(String, String, String)> {
    let text = fs::read_to_string(repository("deploy/prometheus/alerts.yml")).expect("the alerts");
    let mut alerts = Vec::new();
    for part in text.split("- alert: ").skip(1) {
        let name = part.lines().next().unwrap_or_default().trim().to_owned();
        let (_, expression) = part.split_once("expr: ").expect("an expression");
        let (expression, _) = expression.split_once("for: ").expect("a duration");
        let expression = expression.trim_start_matches(">-").split_whitespace().collect::<Vec<_>>().join(" ");
        alerts.push((name, expression, part.to_owned()));
    }
    alerts
}

/// Returns the names of metrics in a query.
fn names(query: &str) -> BTreeSet<&str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("millrace_") || word.starts_with("process_")).collect()
}

/// Returns the labels of a metric.
fn labels<'a>(name: &str, family: &'a Family) -> Vec<&'a str> {
    match name {
        // No library has reported anything yet.
        "millrace_library_reports_total" => vec!["library", "level"],
        _ => family.labels(),
    }
}

/// Panics if the query has a metric or a label that the server does not have.
fn check(place: &str, query: &str, metrics: &BTreeMap<String, Family>) {
    assert!(!query.is_empty(), "{place}: no query");
    for name in names(query) {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|part| {
            let family = metrics.get(name.strip_suffix(part)?)?;
            (family.kind == "histogram").then_some(family)
        });
        let plain = metrics.get(name).filter(|family| family.kind != "histogram");
        let is_optional = OPTIONAL.iter().any(|(optional, ..)| *optional == name);
        assert!(is_optional || histogram.or(plain).is_some(), "{place}: the server has no metric {name}");
    }
    let of_all = metrics.iter().flat_map(|(name, family)| labels(name, family));
    let all: BTreeSet<&str> = of_all.chain(["instance", "job", "le"]).collect();
    let lists = ["by (", "on ("].into_iter().flat_map(|begin| query.split(begin).skip(1));
    for (list, _) in lists.filter_map(|rest| rest.split_once(')')) {
        let missing = list.split(',').map(str::trim).find(|label| !all.contains(label));
        assert_eq!(missing, None, "{place}: no metric has such a label");
    }
}

#[test]
fn dashboards_and_alerts_use_existing_metrics() {
    let (_server, metrics) = server();
    for (name, expected, path) in OPTIONAL {
        let source = fs::read_to_string(repository(path)).expect("a source file");
        assert!(source.contains(&format!("\"{expected}\"")), "{path} does not name {name}");
    }
    let mut shown = BTreeSet::new();
    for (name, dashboard) in dashboards() {
        assert!(dashboard["uid"].as_str().is_some_and(|uid| uid.starts_with("millrace-")), "{name} has no uid");
        for (title, query) in queries(&dashboard) {
            check(&format!("{name}, panel `{title}`"), &query, &metrics);
            shown.extend(names(&query).into_iter().map(str::to_owned));
        }
    }
    for (name, expression, _) in alerts() {
        check(&format!("alert {name}"), &expression, &metrics);
    }
    // A dashboard shows each metric.
    for (name, family) in &metrics {
        let shown_as = if family.kind == "histogram" { format!("{name}_bucket") } else { name.clone() };
        let has_panel = shown.contains(&shown_as) || UNSHOWN.contains(&name.as_str());
        assert!(has_panel, "no dashboard shows {name}");
    }
}

/// Metrics without a panel of their own.
const UNSHOWN: &[&str] = &[
    // Readers opened; the panels show the open ones.
    "millrace_connections_total",
    "millrace_published_bytes_total",
    // The annotations of the dashboards use it.
    "millrace_uptime_seconds",
];

#[test]
fn alerts_say_what_to_do() {
    let guide = fs::read_to_string(repository(GUIDE)).expect("the guide");
    let alerts = alerts();
    assert!(!alerts.is_empty());
    for (name, _, text) in &alerts {
        for part in ["severity: ", "summary: ", "description: "] {
            assert!(text.contains(part), "{name} has no {part}");
        }
        let anchor = format!("runbook_url: {GUIDE}#{}", name.to_lowercase());
        assert!(text.contains(&anchor), "{name} has no {anchor}");
        assert!(guide.lines().any(|line| line == format!("### {name}")), "{GUIDE} has no heading {name}");
    }
    let headings = guide.lines().filter_map(|line| line.strip_prefix("### Millrace"));
    headings.for_each(|name| assert!(alerts.iter().any(|alert| alert.0 == format!("Millrace{name}")), "{name}"));
}

#[test]
fn reference_page_lists_every_metric() {
    let (_server, metrics) = server();
    let mut table = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for (name, family) in &metrics {
        let labels = labels(name, family).iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        let help = family.help.replace('|', "\\|");
        let _ = writeln!(table, "| `{name}` | {} | {labels} | {help} |", family.kind);
    }
    let (begin, end) = ("<!-- metrics: begin -->\n", "<!-- metrics: end -->");
    let path = repository(PAGE);
    let page = fs::read_to_string(&path).expect("the page");
    let (before, rest) = page.split_once(begin).expect("the begin of the table");
    let (listed, after) = rest.split_once(end).expect("the end of the table");
    if std::env::var_os("MILLRACE_WRITE_METRICS").is_some() {
        fs::write(&path, format!("{before}{begin}\n{table}\n{end}{after}")).expect("the page is writable");
        return;
    }
    let hint = "MILLRACE_WRITE_METRICS=1 cargo test -p millrace-cli --test it reference_page_lists writes the table";
    assert_eq!(listed.trim(), table.trim(), "{PAGE} differs from the server; {hint}");
    for (name, ..) in OPTIONAL {
        assert!(after.contains(&format!("| `{name}` |")), "{PAGE} does not list {name}");
    }
}

/// Returns a program of Prometheus, or `None` if it is not installed.
fn program(name: &str) -> Option<Command> {
    let is_there = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    is_there.is_ok().then(|| Command::new(name))
}

#[test]
fn promtool_accepts_alerts_and_metrics() {
    let Some(mut rules) = program("promtool") else {
        eprintln!("skipped: promtool is not installed (Debian: apt-get install prometheus)");
        return;
    };
    let folder = repository("deploy/prometheus");
    let mut run = |arguments: &[&str]| {
        let output = rules.current_dir(&folder).args(arguments).output().expect("promtool starts");
        rules = program("promtool").expect("it has just run");
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success(), "promtool {arguments:?}: {text}");
    };
    run(&["check", "config", "prometheus.yml"]);
    run(&["test", "rules", "alerts_test.yml"]);
    let (server, _metrics) = server();
    let text = file("metrics.txt", &server.get("/metrics").body);
    let mut check = program("promtool").expect("it has just run");
    let input = fs::File::open(text).expect("the file");
    let output = check.args(["check", "metrics"]).stdin(input).output().expect("promtool starts");
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "promtool check metrics: {text}");
}

/// Sends a request to Prometheus until the answer is as wanted.
fn until(address: &str, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + BOUND;
    loop {
        let answer = ask(address, "GET", path, &[], "");
        let value: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        if wanted(&value) {
            return value;
        }
        assert!(Instant::now() < deadline, "not in time: {path}: {answer:?}");
    }
}

/// Returns a query as it is sent for a panel, with the variables replaced.
fn replaced(query: &str) -> String {
    let values = [("$job", "millrace"), ("$instance", ".*"), ("$__rate_interval", "1m")];
    let query = values.iter().fold(query.to_owned(), |query, (variable, value)| query.replace(variable, value));
    let escaped = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    query.bytes().map(escaped).collect()
}

#[test]
fn prometheus_evaluates_every_query() {
    let Some(mut prometheus) = program("prometheus") else {
        eprintln!("skipped: Prometheus is not installed (Debian: apt-get install prometheus)");
        return;
    };
    let (server, _metrics) = server();
    let rules = repository("deploy/prometheus/alerts.yml").canonicalize().expect("the alerts");
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [\"{}\"]\nscrape_configs:\n  \
        - job_name: millrace\n    static_configs: [{{ targets: [\"{}\"] }}]\n",
        rules.display(),
        server.address
    );
    let config = file("prometheus.yml", &config);
    let data = tempfile::tempdir().expect("a folder");
    let process = Process::start(prometheus.args([
        &format!("--config.file={config}"),
        &format!("--storage.tsdb.path={}", data.path().display()),
        "--web.listen-address=127.0.0.1:0",
        "--log.format=logfmt",
    ]));
    let address = listening(process.id());
    let up = until(&address, "/api/v1/query?query=up", |answer| answer["data"]["result"][0]["value"][1] == "1");
    assert_eq!(up["status"], "success");
    let evaluated = |rule: &Value| rule["health"] == "ok";
    let all = |answer: &Value| {
        let rules = answer["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
        rules.len() == alerts().len() && rules.iter().all(evaluated)
    };
    until(&address, "/api/v1/rules", all);
    for (name, dashboard) in dashboards() {
        for (title, query) in queries(&dashboard) {
            let path = format!("/api/v1/query?query={}", replaced(&query));
            let answer: Answer = ask(&address, "GET", &path, &[], "");
            assert_eq!(answer.status, 200, "{name}, panel `{title}`: {query}: {}", answer.body);
        }
    }
    let firing = until(&address, "/api/v1/alerts", |answer| answer["status"] == "success");
    let firing = firing["data"]["alerts"].as_array().cloned().unwrap_or_default();
    assert!(firing.iter().all(|alert| alert["state"] != "firing"), "an idle server needs nobody: {firing:?}");
}

/// Returns the address at which a process listens, as soon as it listens.
fn listening(process: u32) -> String {
    let deadline = Instant::now() + BOUND;
    loop {
        let inodes: Vec<String> = fs::read_dir(format!("/proc/{process}/fd"))
            .expect("the process runs")
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
            .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_owned()))
            .collect();
        let table = fs::read_to_string("/proc/net/tcp").expect("the table of sockets");
        let port = table.lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let is_listening =
                fields.get(3) == Some(&"0A") && inodes.iter().any(|inode| fields.get(9) == Some(&&**inode));
            let port = fields.get(1)?.rsplit(':').next()?;
            is_listening.then(|| u16::from_str_radix(port, 16).ok()).flatten()
        });
        if let Some(port) = port {
            return format!("127.0.0.1:{port}");
        }
        assert!(Instant::now() < deadline, "Prometheus does not listen");
    }
}
