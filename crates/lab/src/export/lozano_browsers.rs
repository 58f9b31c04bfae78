//! The tables of Lozano's thesis, filled with calls between browsers.

use super::published::{Only, PublishedTable, Recorded, Source};

const SCENARIO: &str = "lozano-browsers";
const NOTE: &str = "Browsers, in real time. One line per pair of browsers. The statistics are those of the one-way delay. docs/lab has the errata of the thesis.";
const SERIES: &[&str] = &["browsers", "RTT", "goodput", "frames", "calls", "failed"];
const MACHINE: (&str, &str) = ("machine", "machine");
const RATE: (&str, &str) = ("rate_kbit_s", "rate");
const RATE_SD: (&str, &str) = ("rate_stddev_kbit_s", "rate sd");
const RTT: (&str, &str) = ("rtt_ms", "RTT");
const RTT_SD: (&str, &str) = ("rtt_stddev_ms", "RTT sd");
const DELAY: (&str, &str) = ("owd_ms", "mean");
const DELAY_SD: (&str, &str) = ("owd_stddev_ms", "sd");
const RESIDUAL: (&str, &str) = ("residual_loss_percent", "residual loss");
const LOSS: (&str, &str) = ("packet_loss_percent", "packet loss");
const TEST: &str = "test";

const fn recorded(only: Only, columns: &'static [(&'static str, &'static str)]) -> Source {
    Source::Recorded(Recorded { table: "browsers", only, columns, more_columns: &[], renamed: &[], series: SERIES })
}

macro_rules! table {
    ($name:literal, $only:expr, $columns:expr) => {
        PublishedTable {
            scenario: SCENARIO,
            name: $name,
            csv: include_str!(concat!("../../data/", $name, ".csv")),
            unit: "ms",
            source: recorded($only, $columns),
            note: NOTE,
        }
    };
}

pub const LATENCY: PublishedTable = table!(
    "lozano_t02_latency",
    Only::Is(TEST, "latency"),
    &[("path_latency_ms", "latency"), MACHINE, RATE, RATE_SD, RTT, RTT_SD, RESIDUAL, LOSS]
);
pub const LOSSES: PublishedTable = table!(
    "lozano_t03_loss",
    Only::Is(TEST, "loss"),
    &[("configured_loss_percent", "loss"), MACHINE, RATE, RATE_SD, DELAY, DELAY_SD, RESIDUAL, LOSS]
);
pub const LOSS_AND_LATENCY: PublishedTable = table!(
    "lozano_t04_loss_and_latency",
    Only::Is(TEST, "loss and latency"),
    &[("path_latency_ms", "latency"), MACHINE, RATE, RATE_SD, RTT, RTT_SD, RESIDUAL, LOSS]
);
pub const QUEUE: PublishedTable = table!(
    "lozano_t06_queue_1mbit",
    Only::Is("bottleneck", "1"),
    &[("queue_ms", "queue"), MACHINE, RATE, RATE_SD, DELAY, DELAY_SD, RESIDUAL, LOSS]
);
pub const FREE: PublishedTable = table!(
    "lozano_t08_unconstrained",
    Only::Is(TEST, "none"),
    &[
        ("constraint", "test"),
        MACHINE,
        RATE,
        RATE_SD,
        RTT,
        RTT_SD,
        DELAY,
        DELAY_SD,
        RESIDUAL,
        LOSS,
        ("setup_time_ms", "set-up"),
        ("setup_time_stddev_ms", "set-up sd"),
    ]
);
pub const TCP: PublishedTable = table!(
    "lozano_t09_tcp_cross_traffic",
    Only::Is(TEST, "TCP"),
    &[
        ("bottleneck_down_up_mbit_s", "bottleneck"),
        ("path_latency_ms", "latency"),
        MACHINE,
        RATE,
        RATE_SD,
        DELAY,
        DELAY_SD,
        RESIDUAL,
        LOSS,
    ]
);
pub const MESH: PublishedTable = table!(
    "lozano_t13_mesh_three_peers",
    Only::Is(TEST, "mesh"),
    &[("topology", "test"), MACHINE, RATE, RATE_SD, DELAY, DELAY_SD, RESIDUAL, LOSS]
);
