//! `runs.csv`: one line per run, with its factors, validity, counts and figures.

use std::borrow::Cow;

use crate::{
    analysis::{Metric, lasted_s},
    histogram::Histogram,
    recording::{LinkCounts, LoadUnit, Phase, PhaseName, Recording, Run},
};

use super::{
    group::path,
    sheet::{Cell, Row, Sheet},
    statistics::Statistics,
};

pub const NAME: &str = "runs";
const NOTE: &str = "One line per run. Durations in ms, CPU in percent of one core. path: the emulated link, or loopback. Counts and latencies are those of the test phase.";
const WITHOUT_RUNS: &str = "The recording has no runs. Scenarios with code of their own may record tables only.";

/// Durations of a run: name of the columns, phase, and the histogram of that phase.
type Durations = (&'static str, PhaseName, fn(&Phase) -> &Histogram);

pub fn sheet(recording: &Recording) -> Sheet {
    let rows: Vec<Row> = recording.runs.iter().map(row).collect();
    match rows.is_empty() {
        // Without runs, the head is that of an empty run.
        true => Sheet { rows: Vec::new(), ..Sheet::of_rows(NAME, &[row(&Run::default())], WITHOUT_RUNS) },
        false => Sheet::of_rows(NAME, &rows, NOTE),
    }
}

fn row(run: &Run) -> Row {
    let test = run.phase(PhaseName::Test);
    let mut row = factors(run);
    row.extend(phases(run));
    row.extend(counts(run, test));
    let histograms: [Durations; 8] = [
        ("latency", PhaseName::Test, |test| &test.latency_us),
        ("service", PhaseName::Test, |test| &test.service_us),
        ("spread", PhaseName::Test, |test| &test.spread_us),
        ("probe", PhaseName::Test, |test| &test.probe_us),
        ("idle_probe", PhaseName::Idle, |idle| &idle.probe_us),
        ("connect", PhaseName::Connect, |connect| &connect.connect_us),
        ("reconnect", PhaseName::Test, |test| &test.connect_us),
        ("lateness", PhaseName::Test, |test| &test.lateness_us),
    ];
    for (name, phase, of) in histograms {
        let statistics = run.phase(phase).map_or_else(Statistics::default, |phase| Statistics::ms(of(phase)));
        row.extend(statistics.row("ms").into_iter().map(|(column, cell)| (format!("{name}_{column}").into(), cell)));
    }
    row.extend(usage(run, test));
    row.extend(link(run));
    row
}

fn named<const N: usize>(cells: [(&'static str, Cell); N]) -> Row {
    cells.into_iter().map(|(name, cell)| (Cow::from(name), cell)).collect()
}

fn factors(run: &Run) -> Row {
    let unit = match run.load.counts {
        LoadUnit::Clients => "clients",
        LoadUnit::Publishers => "publishers",
        LoadUnit::Connections => "connections",
        LoadUnit::EachPerSecond => "each_per_s",
        LoadUnit::Bytes => "bytes",
        LoadUnit::ServerCpus => "server_cpus",
    };
    let findings = run.validity.iter().map(|finding| format!("{}: {}", finding.code, finding.detail));
    let findings: Vec<String> = findings.collect();
    named([
        ("part", run.part.as_str().into()),
        ("target", run.target.as_str().into()),
        ("target_version", run.target_version.as_str().into()),
        ("transport", run.transport.as_str().into()),
        ("path", path(run).into()),
        ("load", run.load.value.into()),
        ("load_unit", unit.into()),
        ("clients", run.factors.clients.into()),
        ("publishers", run.factors.publishers.into()),
        ("each_per_s", run.factors.each_per_s.into()),
        ("bytes", run.factors.bytes.into()),
        ("server_cpus", run.factors.server_cpus.into()),
        ("repeat", u64::from(run.repeat).into()),
        ("order", u64::from(run.order).into()),
        ("valid", if run.is_valid() { "yes" } else { "no" }.into()),
        ("findings", findings.join("; ").into()),
    ])
}

fn phases(run: &Run) -> Row {
    let lasted = |name| Cell::from(run.phase(name).map(lasted_s));
    named([
        ("connect_s", lasted(PhaseName::Connect)),
        ("idle_s", lasted(PhaseName::Idle)),
        ("test_s", lasted(PhaseName::Test)),
    ])
}

fn counts(run: &Run, test: Option<&Phase>) -> Row {
    let metric = |metric: Metric| Cell::from(metric.of(run));
    let counts = test.map(|test| test.counts);
    // Without publications, such as with idle connections, the counts of deliveries are unknown.
    let publishing = counts.filter(|counts| counts.scheduled > 0);
    let of = |count: fn(crate::recording::Counts) -> u64| Cell::from(publishing.map(count));
    let connected = run.phase(PhaseName::Connect).map(|connect| connect.counts.connected);
    named([
        ("connected", connected.into()),
        ("broken", metric(Metric::Broken)),
        ("scheduled", of(|counts| counts.scheduled)),
        ("sent", of(|counts| counts.sent)),
        ("delivered", of(|counts| counts.delivered)),
        ("lost", of(|counts| counts.lost)),
        ("duplicated", of(|counts| counts.duplicated)),
        ("reordered", of(|counts| counts.reordered)),
        ("corrupt", of(|counts| counts.corrupt)),
        ("gaps", of(|counts| counts.gaps)),
        ("refused", of(|counts| counts.refused)),
        ("offered_per_s", metric(Metric::OfferedPerS)),
        ("deliveries_per_s", metric(Metric::DeliveriesPerS)),
        ("delivered_in_time_percent", metric(Metric::DeliveredShare).times(100.0)),
    ])
}

fn usage(run: &Run, test: Option<&Phase>) -> Row {
    let cpu = |name| Cell::from(run.phase(name).map(|phase| phase.server.cpu_s() / lasted_s(phase) * 100.0));
    let memory = |name| Cell::from(run.phase(name).map(|phase| phase.server.pss_bytes).filter(|bytes| *bytes > 0));
    let server = test.map(|test| test.server);
    let generator = test.map(|test| test.generator.cpu_s() / lasted_s(test) * 100.0);
    named([
        ("server_cpu_idle_percent", cpu(PhaseName::Idle)),
        ("server_cpu_percent", cpu(PhaseName::Test)),
        ("server_cpu_user_s", server.map(|usage| usage.cpu_user_s).into()),
        ("server_cpu_system_s", server.map(|usage| usage.cpu_system_s).into()),
        ("server_cpu_us_per_delivery", Metric::ServerCpuUsPerDelivery.of(run).into()),
        ("server_memory_idle_bytes", memory(PhaseName::Idle)),
        ("server_memory_bytes", memory(PhaseName::Test)),
        ("server_memory_after_bytes", memory(PhaseName::After)),
        ("server_descriptors", server.map(|usage| usage.descriptors).into()),
        ("server_context_switches", server.map(|usage| usage.context_switches).into()),
        ("generator_cpu_percent", generator.into()),
    ])
}

fn link(run: &Run) -> Row {
    let link = run.link.as_ref();
    let direction = |name: &str, of: Option<LinkCounts>| -> Row {
        let cells: [(&str, Cell); 8] = [
            ("received_packets", of.map(|counts| counts.received).into()),
            ("received_bytes", of.map(|counts| counts.received_bytes).into()),
            ("delivered_packets", of.map(|counts| counts.delivered).into()),
            ("delivered_bytes", of.map(|counts| counts.delivered_bytes).into()),
            ("lost_packets", of.map(|counts| counts.lost).into()),
            ("dropped_packets", of.map(|counts| counts.dropped).into()),
            ("queue_packets_max", of.map(|counts| counts.queue_packets_max).into()),
            ("queue_delay_max_ms", of.map(|counts| counts.queue_delay_max_ms).into()),
        ];
        cells.into_iter().map(|(column, cell)| (format!("link_{name}_{column}").into(), cell)).collect()
    };
    let readers = link.and_then(|link| link.readers.as_ref());
    let energy = readers.and_then(|readers| readers.energy.as_ref());
    let congestion = link.map(|link| link.congestion.as_str()).filter(|name| !name.is_empty());
    let mut row = direction("up", link.map(|link| link.up));
    row.extend(direction("down", link.map(|link| link.down)));
    row.extend(named([
        ("link_cpu_us_per_packet", link.map(|link| link.cpu_us_per_packet).into()),
        ("link_late_p50_ms", link.map(|link| link.late_p50_us / 1000.0).into()),
        ("link_late_p99_ms", link.map(|link| link.late_p99_us / 1000.0).into()),
        ("link_kernel_drops", link.map(|link| link.kernel_drops).into()),
        ("link_congestion", congestion.into()),
        ("readers", readers.map(|readers| readers.readers).into()),
        ("readers_up_packets", readers.map(|readers| readers.up_packets).into()),
        ("readers_up_bytes", readers.map(|readers| readers.up_bytes).into()),
        ("readers_down_packets", readers.map(|readers| readers.down_packets).into()),
        ("readers_down_bytes", readers.map(|readers| readers.down_bytes).into()),
        ("readers_radio", energy.map(|energy| energy.radio.as_str()).into()),
        ("readers_energy_j", energy.map(|energy| energy.joules).into()),
        ("readers_energy_s", energy.map(|energy| energy.seconds).into()),
        ("readers_promotions", energy.map(|energy| energy.promotions).into()),
    ]));
    row
}
