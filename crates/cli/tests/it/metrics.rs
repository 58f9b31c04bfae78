//! Checks `/metrics`: the text is valid, each metric has a help text and a type, and no name has changed.

use std::collections::BTreeMap;

use crate::support::Server;

/// Metrics of an open server with the engine `memory`, on which operators' dashboards and alerts depend.
const NAMES: &[&str] = &[
    "millrace_build_info gauge",
    "millrace_channels_open gauge",
    "millrace_composite_frames_skipped_total counter",
    "millrace_composite_frames_total counter",
    "millrace_composite_units_dropped_total counter",
    "millrace_connections gauge",
    "millrace_connections_total counter",
    "millrace_device_requests_total counter",
    "millrace_engine_channels gauge",
    "millrace_engine_up gauge",
    "millrace_gaps_total counter",
    "millrace_history_retries_total counter",
    "millrace_http_errors_total counter",
    "millrace_http_requests_total counter",
    "millrace_ingest_points_total counter",
    "millrace_ingest_requests_total counter",
    "millrace_library_reports_total counter",
    "millrace_loop_lag_seconds histogram",
    "millrace_memory_bytes gauge",
    "millrace_memory_pressure gauge",
    "millrace_namespace_deliveries_total counter",
    "millrace_namespace_publications_total counter",
    "millrace_namespace_readers gauge",
    "millrace_namespace_refused_total counter",
    "millrace_pending_bytes gauge",
    "millrace_publications_refused_total counter",
    "millrace_publications_total counter",
    "millrace_publish_to_write_seconds histogram",
    "millrace_published_bytes_total counter",
    "millrace_publishers_paused_total counter",
    "millrace_ready gauge",
    "millrace_received_bytes_total counter",
    "millrace_refused_total counter",
    "millrace_room_link_bytes_per_second gauge",
    "millrace_room_link_layers gauge",
    "millrace_room_links gauge",
    "millrace_room_owner_changes_total counter",
    "millrace_rtc_dropped_total counter",
    "millrace_rtc_failed_total counter",
    "millrace_rtc_panicked_total counter",
    "millrace_rtc_peers gauge",
    "millrace_rtc_received_total counter",
    "millrace_rtc_streams gauge",
    "millrace_sent_bytes_total counter",
    "millrace_shard_connections gauge",
    "millrace_shard_cpu_seconds_total counter",
    "millrace_shard_deliveries_total counter",
    "millrace_shard_messages_total counter",
    "millrace_shard_pings_total counter",
    "millrace_shard_publications_total counter",
    "millrace_sockets_open gauge",
    "millrace_tls_failed_total counter",
    "millrace_tls_handshakes_total counter",
    "millrace_tls_refused_total counter",
    "millrace_tls_resumed_total counter",
    "millrace_turn_allocated_total counter",
    "millrace_turn_allocations gauge",
    "millrace_turn_bytes_total counter",
    "millrace_turn_datagrams_total counter",
    "millrace_turn_dropped_total counter",
    "millrace_turn_forbidden_total counter",
    "millrace_turn_over_quota_total counter",
    "millrace_turn_refused_total counter",
    "millrace_turn_seconds histogram",
    "millrace_turn_unauthorized_total counter",
    "millrace_turns_total counter",
    "millrace_udp_dropped_total counter",
    "millrace_udp_received_total counter",
    "millrace_uptime_seconds gauge",
    "millrace_writes_total counter",
    "process_cpu_seconds_total counter",
    "process_max_fds gauge",
    "process_resident_memory_bytes gauge",
];

/// Samples of one metric.
pub struct Family {
    pub kind: String,
    pub help: String,
    /// Labels with their braces, or an empty text, and the value. A sample of a histogram begins with `_bucket`, `_sum`
    /// or `_count`.
    pub samples: Vec<(String, f64)>,
}

impl Family {
    /// Returns the names of the labels, in order.
    pub fn labels(&self) -> Vec<&str> {
        let labels = self.samples.iter().flat_map(|(labels, _)| {
            let (_, labels) = labels.split_once('{').unwrap_or_default();
            labels.split(',').filter_map(|pair| Some(pair.split_once('=')?.0))
        });
        let mut names = Vec::new();
        labels.filter(|name| *name != "le").for_each(|name| {
            if !names.contains(&name) {
                names.push(name);
            }
        });
        names
    }
}

#[test]
fn every_metric_has_help_and_type() {
    let server = Server::start(&["--udp", "127.0.0.1:0"]);
    let families = parse(&server.get("/metrics").body);
    let found: Vec<String> = families.iter().map(|(name, family)| format!("{name} {}", family.kind)).collect();
    assert_eq!(found, NAMES);
    for (name, family) in &families {
        assert_eq!(name.ends_with("_total"), family.kind == "counter", "{name}");
        let counts_libraries = name == "millrace_library_reports_total";
        assert!(counts_libraries || !family.samples.is_empty(), "{name} has no sample");
        assert!(family.samples.iter().all(|(_, value)| *value >= 0.0), "{name}");
    }
    let labels = |name: &str| families[name].samples.iter().map(|(labels, _)| labels.clone()).collect::<Vec<_>>();
    let mut transports = labels("millrace_connections");
    transports.sort();
    let expected = ["data_channel", "long_polling", "mqtt", "polling", "sse", "stream", "websocket"];
    assert_eq!(transports, expected.map(|name| format!("{{transport=\"{name}\"}}")));
    let mut memory = labels("millrace_memory_bytes");
    memory.sort();
    let expected = ["connections", "history", "logs", "out", "spare"];
    assert_eq!(memory, expected.map(|kind| format!("{{kind=\"{kind}\"}}")));
}

/// Parses metrics, and panics at the first line that breaks the format.
///
/// Source: Prometheus exposition format 0.0.4.
pub fn parse(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut lines = text.lines().peekable();
    assert!(text.ends_with('\n'), "the last line has an end");
    while let Some(line) = lines.next() {
        let help = line.strip_prefix("# HELP ").unwrap_or_else(|| panic!("expected HELP: {line}"));
        let (name, help) = help.split_once(' ').unwrap_or_else(|| panic!("no help text: {line}"));
        assert!(help.ends_with('.') && help.starts_with(|c: char| c.is_ascii_alphanumeric()), "not a sentence: {line}");
        let is_name = |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        assert!(is_name(name), "{line}");
        let kind = lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {name} ")));
        let kind = kind.unwrap_or_else(|| panic!("no TYPE after {line}"));
        assert!(["counter", "gauge", "histogram"].contains(&kind), "{name}: {kind}");
        let mut family = Family { kind: kind.into(), help: help.into(), samples: Vec::new() };
        while let Some(sample) = lines.next_if(|line| !line.starts_with('#')) {
            let (labels, value) = sample
                .strip_prefix(name)
                .and_then(|rest| rest.rsplit_once(' '))
                .unwrap_or_else(|| panic!("no sample of {name}: {sample}"));
            let part = labels.split('{').next().unwrap_or_default();
            let is_part =
                if kind == "histogram" { ["_bucket", "_sum", "_count"].contains(&part) } else { part.is_empty() };
            assert!(is_part, "{sample}");
            if let Some(pairs) = labels[part.len()..].strip_prefix('{') {
                let pairs = pairs.strip_suffix('}').unwrap_or_else(|| panic!("no closing brace: {sample}"));
                for pair in pairs.split(',') {
                    let (label, value) = pair.split_once('=').unwrap_or_else(|| panic!("no label: {sample}"));
                    let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
                    let is_plain = value.is_some_and(|value| !value.contains(['"', '\\', '\n']));
                    assert!(is_name(label) && is_plain, "{sample}");
                }
            } else {
                assert_eq!(labels, part, "{sample}");
            }
            assert!(family.samples.iter().all(|(other, _)| other != labels), "twice: {sample}");
            family.samples.push((labels.into(), value.parse().expect("a number")));
        }
        if kind == "histogram" {
            check_histogram(name, &family);
        }
        assert!(families.insert(name.into(), family).is_none(), "{name} occurs twice");
    }
    families
}

/// Checks that the buckets of a histogram are cumulated and that the last one is the count.
fn check_histogram(name: &str, family: &Family) {
    let mut last = (String::new(), 0.0);
    for (labels, value) in &family.samples {
        let (part, labels) = labels.split_once('{').unwrap_or((labels, ""));
        let of = labels.split("le=").next().unwrap_or_default().trim_end_matches([',', '}']).to_owned();
        match part {
            "_bucket" if last.0 == of => assert!(*value >= last.1, "{name} {labels}: buckets are not cumulated"),
            "_count" => assert_eq!((&last.0, last.1), (&of, *value), "{name} {labels}"),
            _ => {}
        }
        if part == "_bucket" {
            last = (of, *value);
        }
    }
}
