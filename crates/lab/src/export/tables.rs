//! The published tables that an export fills, by scenario.
//!
//! To add a table, add its file to `crates/lab/data` and an entry here. If the scenario records a table with the same
//! figures, the entry names the columns; otherwise a function computes the rows.

use super::{
    karadogan, lozano_browsers,
    published::{Column, Only, PublishedTable, Recorded, Source},
    somogyi, thorsen, wire_cost,
};

/// One entry: scenario, file in `crates/lab/data`, unit of the statistics, source, note.
macro_rules! table {
    ($scenario:literal, $name:literal, $unit:literal, $source:expr, $note:expr $(,)?) => {
        PublishedTable {
            scenario: $scenario,
            name: $name,
            csv: include_str!(concat!("../../data/", $name, ".csv")),
            unit: $unit,
            source: $source,
            note: $note,
        }
    };
}

/// All tables, in the order of the theses.
pub static TABLES: &[PublishedTable] = &[
    table!("thorsen-broadcast", "thorsen_idle_averages", "", Source::Computed(thorsen::idle), thorsen::IDLE_NOTE),
    table!("thorsen-chat", "thorsen_idle_averages", "", Source::Computed(thorsen::idle), thorsen::IDLE_NOTE),
    table!(
        "thorsen-broadcast",
        "thorsen_saturation_points",
        "ms",
        Source::Computed(thorsen::saturation_of_broadcast),
        thorsen::SATURATION_NOTE
    ),
    table!(
        "thorsen-chat",
        "thorsen_saturation_points",
        "ms",
        Source::Computed(thorsen::saturation_of_chat),
        thorsen::SATURATION_NOTE
    ),
    table!(
        "karadogan-pairs",
        "karadogan_t2_4_events_case1",
        "events_per_s",
        Source::Computed(karadogan::events),
        "Deliveries in each whole second of the test. n: seconds."
    ),
    table!(
        "karadogan-pairs",
        "karadogan_t2_5_events_case2",
        "events_per_s",
        Source::Unmeasured,
        karadogan::TWO_SERVERS
    ),
    table!(
        "karadogan-pairs",
        "karadogan_t2_6_service_time_case1",
        "ms",
        Source::Computed(karadogan::service_time),
        "From the write to the kernel until the receiver has read the message: more than the time in the server, which the thesis has."
    ),
    table!("karadogan-pairs", "karadogan_t2_7_service_time_case2", "ms", Source::Unmeasured, karadogan::TWO_SERVERS),
    table!(
        "karadogan-pairs",
        "karadogan_t2_8_loop_lag_case1",
        "ms",
        Source::Computed(karadogan::loop_lag),
        "Response time of the server's metrics endpoint, asked once per second: an upper bound of the lag of an event loop. n: seconds with an answer."
    ),
    table!("karadogan-pairs", "karadogan_t2_9_loop_lag_case2", "ms", Source::Unmeasured, karadogan::TWO_SERVERS),
    table!(
        "karadogan-pairs",
        "karadogan_t2_10_response_time_case1",
        "ms",
        Source::Computed(karadogan::response_time),
        "From the due time of a message until its subscriber has read it. Both have a network in it: the thesis one of about 83 ms, ours the path in the last columns."
    ),
    table!("karadogan-pairs", "karadogan_t2_11_response_time_case2", "ms", Source::Unmeasured, karadogan::TWO_SERVERS),
    table!(
        "karadogan-forwarding",
        "karadogan_t3_3_owd_network_layer",
        "ms",
        delay("forwarding-delay", Only::IsNot("forwarding", "gateway"), &["forwarding"]),
        "One line per way to forward packets, and number of peers."
    ),
    table!(
        "karadogan-forwarding",
        "karadogan_t3_4_owd_application_layer",
        "ms",
        delay("forwarding-delay", Only::Is("forwarding", "gateway"), &["forwarding"]),
        "Over two emulated links, through `millrace gateway`."
    ),
    table!(
        "karadogan-forwarding",
        "karadogan_t3_5_throughput_network_layer",
        "bytes_per_s",
        Source::Recorded(Recorded {
            table: "forwarding-throughput",
            only: Only::IsNot("forwarding", "gateway"),
            columns: &[
                ("peers", "peers"),
                ("received_bytes_per_s", "sent by devices"),
                ("stddev_bytes_per_s", "sent by devices, sd"),
            ],
            more_columns: &[],
            renamed: &[],
            series: &["forwarding", "received by servers", "messages sent", "messages received"],
        }),
        "received_bytes_per_s: what the devices sent. The deviation is that of whole seconds."
    ),
    table!(
        "karadogan-forwarding",
        "karadogan_t3_6_throughput_application_layer",
        "bytes_per_s",
        Source::Recorded(Recorded {
            table: "forwarding-throughput",
            only: Only::Is("forwarding", "gateway"),
            columns: &[
                ("peers", "peers"),
                ("received_bytes_per_s", "sent by devices"),
                ("received_stddev_bytes_per_s", "sent by devices, sd"),
                ("sent_bytes_per_s", "received by servers"),
                ("sent_stddev_bytes_per_s", "received by servers, sd"),
            ],
            more_columns: &[],
            renamed: &[],
            series: &["forwarding", "messages sent", "messages received"],
        }),
        "received: what the devices sent; sent: what the servers received. The deviations are those of whole seconds."
    ),
    table!(
        "karadogan-gateway",
        "karadogan_t3_4_owd_application_layer",
        "ms",
        delay("forward-delay", Only::All, GATEWAY_SERIES),
        "Over loopback, or over the path in the parameters. The thesis has Wi-Fi, a phone and 3G in it."
    ),
    table!(
        "karadogan-gateway",
        "karadogan_t3_6_throughput_application_layer",
        "bytes_per_s",
        Source::Recorded(Recorded {
            table: "forward-throughput",
            only: Only::All,
            columns: &[
                ("peers", "peers"),
                ("received_bytes_per_s", "received"),
                ("received_stddev_bytes_per_s", "received, sd"),
                ("sent_bytes_per_s", "sent"),
                ("sent_stddev_bytes_per_s", "sent, sd"),
            ],
            more_columns: &[],
            renamed: &[],
            series: &["messages received"],
        }),
        "The deviations are those of whole seconds."
    ),
    table!(
        "karadogan-gateway",
        "karadogan_t3_7_mux_delay",
        "ms",
        delay("multiplex-delay", Only::All, GATEWAY_SERIES),
        "Without the window of 250 ms, as in the thesis. Ours also has the network path and the timer of the window."
    ),
    table!("karadogan-gateway", "karadogan_t3_8_mux_cpu", "percent", cpu("multiplex-cpu"), CPU_NOTE),
    table!("karadogan-gateway", "karadogan_t3_9_mux_power", "mw", Source::Unmeasured, POWER_NOTE),
    table!(
        "karadogan-gateway",
        "karadogan_t3_10_demux_delay",
        "ms",
        delay("demultiplex-delay", Only::All, GATEWAY_SERIES),
        "From the due time of a bundle to the arrival of each part, with the network path."
    ),
    table!("karadogan-gateway", "karadogan_t3_11_demux_cpu", "percent", cpu("demultiplex-cpu"), CPU_NOTE),
    table!("karadogan-gateway", "karadogan_t3_12_demux_power", "mw", Source::Unmeasured, POWER_NOTE),
    table!(
        "carcare-latency",
        "somogyi_t09_latency",
        "ms",
        Source::Computed(somogyi::latency),
        "client_polling_request: the lab does not measure a poll apart from its connection. websocket_ping: the probe, which receives its own publication. Other transports have their own names."
    ),
    table!(
        "carcare-latency",
        "somogyi_first_message_latency",
        "ms",
        Source::Computed(somogyi::first_message),
        "first_message_ms: mean of the connection plus mean of the first second with a delivery. avg_in_text_ms: mean of all messages. The statistics are those of the first second, without the connection."
    ),
    table!(
        "carcare-reliability",
        "somogyi_t08_idle_drop_times",
        // A unit would make a statistic `max_minutes`, which is a column of the thesis.
        "",
        Source::Recorded(Recorded {
            table: "networks",
            only: Only::All,
            columns: &[("network", "network"), ("min_minutes", "survived, scaled"), ("max_minutes", "died, scaled"),],
            more_columns: &[],
            renamed: &[
                ("LTE", "lte"),
                ("Wi-Fi at home", "home_wifi"),
                ("enterprise Wi-Fi with proxy", "enterprise_wifi_with_proxy"),
                ("local network", "local_network"),
            ],
            series: &["thesis", "NAT here", "survived", "died", "heartbeat"],
        }),
        "min_minutes: the longest silence that a connection survived, max_minutes: the shortest that dropped it, both in the scale of the thesis. One line per timeout of the emulated NAT."
    ),
    table!(
        "somogyi-tls",
        "somogyi_t11_tls_latency",
        "ms",
        Source::Computed(somogyi::tls_latency),
        "The part `latency`; over loopback, without the 48 ms of the thesis."
    ),
    table!(
        "carcare-wire",
        "somogyi_message_sizes",
        "bytes",
        Source::Computed(wire_cost::message_sizes),
        wire_cost::ETHERNET_NOTE
    ),
    table!(
        "carcare-wire",
        "somogyi_t05_ten_minutes_no_data",
        "bytes",
        Source::Computed(wire_cost::ten_minutes),
        wire_cost::ETHERNET_NOTE
    ),
    table!(
        "carcare-wire",
        "somogyi_t10_tls_size",
        "bytes",
        Source::Computed(wire_cost::tls_sizes),
        wire_cost::ETHERNET_NOTE
    ),
    table!(
        "carcare-wire",
        "somogyi_t12_client_polling_24h",
        "bytes",
        Source::Computed(wire_cost::polling_day),
        wire_cost::ETHERNET_NOTE
    ),
    table!(
        "carcare-wire",
        "somogyi_t13_long_polling_24h",
        "bytes",
        Source::Computed(wire_cost::long_polling_day),
        wire_cost::ETHERNET_NOTE
    ),
    table!(
        "carcare-wire",
        "somogyi_t14_websocket_24h",
        "bytes",
        Source::Computed(wire_cost::websocket_day),
        wire_cost::ETHERNET_NOTE
    ),
    table!(
        "carcare-wire",
        "thorsen_message_sizes",
        "bytes",
        Source::Computed(wire_cost::update_sizes),
        "Bytes above TCP of a message of 58 bytes: the framing as measured, which includes the position."
    ),
    table!(
        "carcare-wire",
        "muller_fig1_6_tls_overhead",
        "bytes",
        Source::Unmeasured,
        "The lab sends these eight messages without TLS only."
    ),
    table!(
        "carcare-wire",
        "muller_fig1_7_tcp_overhead",
        "bytes",
        Source::Computed(wire_cost::eight_messages),
        "Eight messages of 13 bytes, one by one and in one segment. Ours has 12 bytes of TCP timestamps in each segment."
    ),
    table!(
        "lozano-paths",
        "lozano_t02_latency",
        "ms",
        calls(
            "paths",
            Only::Is("test", "latency"),
            &[("path_latency_ms", "latency"), MACHINE],
            ROUND_TRIP_TIME,
            CALL_SERIES
        ),
        CALL_NOTE
    ),
    table!(
        "lozano-paths",
        "lozano_t03_loss",
        "ms",
        calls(
            "paths",
            Only::Is("test", "loss"),
            &[("configured_loss_percent", "loss"), MACHINE],
            ONE_WAY_DELAY,
            CALL_SERIES
        ),
        CALL_NOTE
    ),
    table!(
        "lozano-paths",
        "lozano_t04_loss_and_latency",
        "ms",
        calls(
            "paths",
            Only::Is("test", "loss and latency"),
            &[("path_latency_ms", "latency"), MACHINE],
            ROUND_TRIP_TIME,
            CALL_SERIES
        ),
        CALL_NOTE
    ),
    table!(
        "lozano-queues",
        "lozano_t05_queue_500kbit",
        "ms",
        calls(
            "queues",
            Only::Is("bandwidth", "500kbit/s"),
            &[("queue_ms", "queue"), MACHINE],
            ONE_WAY_DELAY,
            CALL_SERIES
        ),
        CALL_NOTE
    ),
    table!(
        "lozano-queues",
        "lozano_t06_queue_1mbit",
        "ms",
        calls(
            "queues",
            Only::Is("bandwidth", "1Mbit/s"),
            &[("queue_ms", "queue"), MACHINE],
            ONE_WAY_DELAY,
            CALL_SERIES
        ),
        CALL_NOTE
    ),
    table!(
        "lozano-queues",
        "lozano_t07_queue_5mbit",
        "ms",
        calls(
            "queues",
            Only::Is("bandwidth", "5Mbit/s"),
            &[("queue_ms", "queue"), MACHINE],
            ONE_WAY_DELAY,
            CALL_SERIES
        ),
        CALL_NOTE
    ),
    table!(
        "lozano-free",
        "lozano_t08_unconstrained",
        "ms",
        calls(
            "free",
            Only::All,
            &[
                ("constraint", "constraint"),
                MACHINE,
                ("setup_time_ms", "set-up"),
                ("setup_time_stddev_ms", "set-up sd")
            ],
            ONE_WAY_DELAY,
            &["calls"]
        ),
        "Real time, over loopback. Without a round-trip time: the client does not report one. The statistics are those of the one-way delay."
    ),
    table!(
        "lozano-tcp",
        "lozano_t09_tcp_cross_traffic",
        "ms",
        calls(
            "tcp",
            Only::All,
            &[("bottleneck_down_up_mbit_s", "bottleneck"), ("path_latency_ms", "latency"), MACHINE],
            ONE_WAY_DELAY,
            &["controller", "flows per direction", "goodput", "calls"]
        ),
        "Virtual time. The row 10/10 of the thesis is a copy of another one. The statistics are those of the one-way delay."
    ),
    table!(
        "lozano-parallel",
        "lozano_t10_two_parallel_calls",
        "ms",
        calls(
            "parallel",
            Only::Is("test", "2 at once"),
            &[("bottleneck_mbit_s", "bottleneck"), MACHINE],
            ONE_WAY_DELAY,
            CALL_SERIES
        ),
        CALL_NOTE
    ),
    table!(
        "lozano-parallel",
        "lozano_t11_three_parallel_calls",
        "ms",
        calls(
            "parallel",
            Only::Is("test", "3 at once"),
            &[("constraint", "bottleneck"), MACHINE],
            ONE_WAY_DELAY,
            CALL_SERIES
        ),
        CALL_NOTE
    ),
    table!(
        "lozano-parallel",
        "lozano_t12_three_shifted_calls",
        "ms",
        calls(
            "parallel",
            Only::Is("test", "3, 30 s apart"),
            &[("constraint", "bottleneck"), MACHINE],
            ONE_WAY_DELAY,
            CALL_SERIES
        ),
        CALL_NOTE
    ),
    table!(
        "lozano-multiparty",
        "lozano_t13_mesh_three_peers",
        "ms",
        calls(
            "multiparty",
            Only::Is("topology", "mesh"),
            &[("topology", "topology"), ("machine", "receivers")],
            ONE_WAY_DELAY,
            MULTIPARTY_SERIES
        ),
        MULTIPARTY_NOTE
    ),
    table!(
        "lozano-multiparty",
        "lozano_t14_switching_mcu_three_peers",
        "ms",
        calls(
            "multiparty",
            Only::Is("topology", "unit"),
            &[("topology", "topology"), ("machine", "receivers")],
            ONE_WAY_DELAY,
            MULTIPARTY_SERIES
        ),
        MULTIPARTY_NOTE
    ),
    lozano_browsers::LATENCY,
    lozano_browsers::LOSSES,
    lozano_browsers::LOSS_AND_LATENCY,
    lozano_browsers::QUEUE,
    lozano_browsers::FREE,
    lozano_browsers::TCP,
    lozano_browsers::MESH,
];

const CALL_SERIES: &[&str] = &["controller", "RTT", "goodput", "calls"];
const CALL_NOTE: &str = "Virtual time. One line per controller. The statistics are those of the one-way delay. docs/lab has the errata of the thesis.";
const MULTIPARTY_SERIES: &[&str] = &["variant", "participants", "controller", "lowest stream", "Jain's index"];
const MULTIPARTY_NOTE: &str = "Virtual time. One line per variant, number of participants and controller. The delay counts from the camera of the sender.";
const GATEWAY_SERIES: &[&str] = &["maximum while peers joined", "sent", "received", "late p99"];
const CPU_NOTE: &str =
    "User and system time of the gateway process, in percent of one core, by sampling interval. n: intervals.";
const POWER_NOTE: &str = "The lab does not measure power.";

const MACHINE: Column = ("machine", "machine");
/// Columns of a table of calls whose delay is the one-way delay.
const ONE_WAY_DELAY: &[Column] = &[
    ("rate_kbit_s", "rate"),
    ("rate_stddev_kbit_s", "rate sd"),
    ("owd_ms", "mean"),
    ("owd_stddev_ms", "sd"),
    ("residual_loss_percent", "residual loss"),
    ("packet_loss_percent", "packet loss"),
];
/// Columns of a table of calls whose delay is the round-trip time.
const ROUND_TRIP_TIME: &[Column] = &[
    ("rate_kbit_s", "rate"),
    ("rate_stddev_kbit_s", "rate sd"),
    ("rtt_ms", "RTT"),
    ("rtt_stddev_ms", "RTT sd"),
    ("residual_loss_percent", "residual loss"),
    ("packet_loss_percent", "packet loss"),
];

/// Returns a recorded table of calls as the source. `columns`: those besides `measured`.
const fn calls(
    table: &'static str,
    only: Only,
    columns: &'static [Column],
    measured: &'static [Column],
    series: &'static [&'static str],
) -> Source {
    Source::Recorded(Recorded { table, only, columns, more_columns: measured, renamed: &[], series })
}

/// Returns a recorded table of delays by number of peers as the source.
const fn delay(table: &'static str, only: Only, series: &'static [&'static str]) -> Source {
    let columns = &[("peers", "peers"), ("avg_ms", "mean"), ("stddev_ms", "sd"), ("median_ms", "median")];
    Source::Recorded(Recorded { table, only, columns, more_columns: &[], renamed: &[], series })
}

/// Returns a recorded table of CPU usage by number of peers as the source.
const fn cpu(table: &'static str) -> Source {
    let columns =
        &[("peers", "peers"), ("avg_percent", "mean"), ("stddev_percent", "sd"), ("median_percent", "median")];
    Source::Recorded(Recorded {
        table,
        only: Only::All,
        columns,
        more_columns: &[],
        renamed: &[],
        series: &["per message"],
    })
}

/// Returns the tables of a scenario.
pub fn of(scenario: &str) -> impl Iterator<Item = &'static PublishedTable> {
    TABLES.iter().filter(move |table| table.scenario == scenario)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::scenarios;

    #[test]
    fn every_table_has_a_scenario_and_a_head() {
        let mut seen = HashSet::new();
        for table in TABLES {
            assert!(scenarios::find(table.scenario).is_ok(), "{}", table.scenario);
            assert!(seen.insert((table.scenario, table.name)), "{} occurs twice", table.name);
            let columns = table.columns();
            assert!(columns.len() > 1 && !table.note.is_empty(), "{}: {columns:?}", table.name);
            assert_eq!(columns.iter().collect::<HashSet<_>>().len(), columns.len(), "{}: {columns:?}", table.name);
        }
    }

    /// An entry that fills a column which the thesis does not have would be lost.
    #[test]
    fn recorded_sources_fill_columns_of_the_thesis() {
        for table in TABLES {
            let Source::Recorded(source) = &table.source else { continue };
            let columns = table.columns();
            for (thesis, _) in source.columns() {
                assert!(columns.iter().any(|column| column == thesis), "{}: no column {thesis}", table.name);
            }
        }
    }
}
