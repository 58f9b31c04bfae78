//! Figures that the theses published for the experiments that the lab repeats, converted to our units, with known
//! doubts.
//!
//! The original figures are in `crates/lab/data`. Only units are converted: 98 % of a CPU becomes 0.98 cores, 1.445
//! ms becomes 1,445 us.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::recording::{Column, Table};

macro_rules! data {
    ($name:literal) => {
        Rows::read(include_str!(concat!("../../data/", $name, ".csv")))
    };
}

/// Published results of a thesis for one scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// Name of the thesis: `Thorsen (Oslo, 2015)`. Empty if no thesis has this experiment.
    pub thesis: String,
    /// Machines, versions and conditions of the original measurement.
    pub conditions: String,
    pub figures: Vec<Figure>,
    /// Results that are not curves. Their notes give the source and known doubts.
    pub tables: Vec<Table>,
}

/// Chart of a thesis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub title: String,
    /// Our value shown beside it: `PHASE.FIELD` of a phase, such as `idle.probe_p50_us`, or a metric of a point.
    pub ours: String,
    /// Name of the `x` axis.
    pub x_name: String,
    pub unit: Unit,
    pub series: Vec<Series>,
    /// Place in the thesis.
    pub source: String,
    /// Known errors, and reasons why a value is not comparable.
    pub doubts: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Us,
    Bytes,
    Cores,
    PerS,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name in the thesis: `WebSocket, two servers`.
    pub name: String,
    /// Name of our transport.
    pub transport: String,
    /// False: single values from the text, with no known values between them.
    pub is_curve: bool,
    pub points: Vec<Point>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    pub is: Relation,
    /// Standard deviation, if it is published.
    pub deviation: Option<f64>,
}

/// Precision of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    Equal,
    About,
    Below,
    Above,
}

/// Returns the published figures for a scenario of the lab, by its name.
pub fn of(scenario: &str) -> Published {
    match scenario {
        "thorsen-broadcast" => thorsen_broadcast(),
        "thorsen-chat" => thorsen_chat(),
        "karadogan-pairs" => karadogan_pairs(),
        // carcare-wire is absent here: its wire cost report already shows the published values beside its own figures.
        "carcare-latency" => carcare_latency(),
        "carcare-reliability" => carcare_reliability(),
        "muller-pingpong" | "connections" => muller(),
        _ => Published::default(),
    }
}

const THORSEN: &str = "Thorsen (Oslo, 2015)";
const THORSEN_MACHINE: &str = "Server: MacBook Air 2013, one core for the single-threaded server, Node.js 0.10.35, ws 0.4.32; clients on another \
    machine over wired 1 Gbit/s; ten runs per point.";
const TRANSPORTS: [(&str, &str, &str); 3] = [
    ("long_polling", "Long polling", "long-polling"),
    ("sse", "Server-sent events", "sse"),
    ("websocket", "WebSocket", "websocket"),
];

fn thorsen_broadcast() -> Published {
    let saturation = data!("thorsen_saturation_points");
    let saturation = |transport: &str| saturation.find(&[("scenario", "1"), ("transport", transport)]);
    let per_transport = |of: &dyn Fn(&Row, &str) -> Vec<Point>| {
        let series = |(key, name, transport): (&str, &str, &str)| Series {
            name: name.into(),
            transport: transport.into(),
            is_curve: false,
            points: of(saturation(key), key),
        };
        TRANSPORTS.map(series).to_vec()
    };
    let said = |title: &str, ours: &str, unit, series| Figure {
        title: title.into(),
        ours: ours.into(),
        x_name: "clients".into(),
        unit,
        series,
        source: "sections 4.3 to 4.5 and 5.3 to 5.5, figures 29 to 41: values given in the text".into(),
        doubts: Vec::new(),
    };
    let cpu = per_transport(&|row, _| {
        let maximum = Point::equal(row.number("cpu_max_at_clients"), row.number("cpu_max_percent") / 100.0);
        vec![Point::equal(1.0, row.number("cpu_at_1_client_percent") / 100.0), maximum]
    });
    let response = per_transport(&|row, key| {
        let mut points = match key {
            "long_polling" => vec![Point::equal(200.0, 100_000.0)],
            "sse" => vec![Point::equal(350.0, 1_000_000.0)],
            _ => Vec::new(),
        };
        let ms = row.number("response_at_500_clients_ms");
        points.push(Point { is: row.relation("response_at_500_clients_relation"), ..Point::equal(500.0, ms * 1e3) });
        points
    });
    let memory = per_transport(&|row, _| {
        let mb = row.number("memory_after_500_clients_mb");
        vec![Point { is: row.relation("memory_after_500_clients_relation"), ..Point::equal(500.0, mb * 1e6) }]
    });
    let mut figures = vec![
        said("CPU of the server while publishing", "test.server_cpu_cores", Unit::Cores, cpu),
        said("Response time while publishing", "test.probe_p50_us", Unit::Us, response),
        said("Memory after the test", "after.server_memory_bytes", Unit::Bytes, memory),
    ];
    figures[1].doubts.push(
        "Response time is the echo of a ping client. In the thesis it spoke plain HTTP where the clients had server-sent events or long \
         polling; ours goes over the transport itself."
            .into(),
    );
    figures[2].doubts.push("\"Over 1 GB\" for server-sent events and WebSocket: a lower bound.".into());
    figures.extend(thorsen_idle());
    Published {
        thesis: THORSEN.into(),
        conditions: THORSEN_MACHINE.into(),
        figures,
        tables: vec![table(
            "Bytes of one stock update of 58 bytes",
            data!("thorsen_message_sizes"),
            &[
                "Thorsen (2015), section 2.7.3, computed by the author from example headers.",
                "The printed server-sent event has 72 bytes with LF. An unmasked WebSocket frame of up to 125 bytes has a header of 2 bytes.",
            ],
        )],
    }
}

/// Returns the figures of the idle phase, the only phase with a table in the thesis.
fn thorsen_idle() -> Vec<Figure> {
    let rows = data!("thorsen_idle_averages");
    let figure = |metric: &str, title: &str, ours: &str, unit, factor: f64| Figure {
        title: title.into(),
        ours: ours.into(),
        x_name: "clients".into(),
        unit,
        series: TRANSPORTS
            .map(|(key, name, transport)| Series {
                name: name.into(),
                transport: transport.into(),
                is_curve: true,
                points: rows
                    .all(&[("metric", metric), ("transport", key)])
                    .map(|row| Point {
                        deviation: Some(row.number("recomputed_stddev") * factor),
                        ..Point::equal(row.number("clients"), row.number("published_avg") * factor)
                    })
                    .collect(),
            })
            .to_vec(),
        source: "appendix, averages of ten runs; standard deviations recomputed from the runs".into(),
        doubts: Vec::new(),
    };
    let mut figures = vec![
        figure("cpu", "CPU of the server when idle", "idle.server_cpu_cores", Unit::Cores, 0.01),
        figure("memory", "Memory of the server when idle", "idle.server_memory_bytes", Unit::Bytes, 1e6),
        figure("response_time", "Response time when idle", "idle.probe_p50_us", Unit::Us, 1e3),
    ];
    figures[2].doubts.push(
        "The ping client of the thesis spoke HTTP beside server-sent events and long polling: the idle figures compare HTTP with WebSocket, \
         not the push transports."
            .into(),
    );
    figures
}

fn thorsen_chat() -> Published {
    let saturation = data!("thorsen_saturation_points");
    let series = |(key, name, transport): (&str, &str, &str)| {
        let row = saturation.find(&[("scenario", "2"), ("transport", key)]);
        let ms = row.number("response_at_500_clients_ms");
        let point = Point { is: row.relation("response_at_500_clients_relation"), ..Point::equal(500.0, ms * 1e3) };
        Series { name: name.into(), transport: transport.into(), is_curve: false, points: vec![point] }
    };
    let response = Figure {
        title: "Delivery time of a chat message".into(),
        ours: "latency_p50_us".into(),
        x_name: "clients".into(),
        unit: Unit::Us,
        series: TRANSPORTS.map(series).to_vec(),
        source: "sections 5.3 to 5.5: values given in the text for 500 clients".into(),
        doubts: vec![
            "Deliveries grow with the square of the clients: 500 clients make 83,333 deliveries per second.".into(),
            "The thesis plots means of ten runs; its median was close to the mean.".into(),
        ],
    };
    let mut maximum = saturation;
    maximum.0.retain(|row| row.text("scenario") == "2");
    maximum.1.retain(|name| {
        ["transport", "cpu_max_at_clients", "offered_deliveries_per_s_at_cpu_max"].contains(&name.as_str())
    });
    Published {
        thesis: THORSEN.into(),
        conditions: THORSEN_MACHINE.into(),
        figures: vec![response],
        tables: vec![table(
            "Number of clients at which the server CPU reached its maximum",
            maximum,
            &[
                "Thorsen (2015), sections 4.3 to 4.5. Offered deliveries follow from the parameters: clients squared over three.",
            ],
        )],
    }
}

fn karadogan_pairs() -> Published {
    let one = "one server";
    let two = "two servers behind a balancer";
    let timed = |title: &str, ours: &str, table: &str, cases: [Rows; 2], doubts: &[&str]| {
        let series = |(rows, name): (&Rows, &str)| {
            let line = |column: &str, what: &str| Series {
                name: format!("{what}, {name}"),
                transport: "websocket".into(),
                is_curve: true,
                points: rows
                    .0
                    .iter()
                    .map(|row| Point {
                        deviation: (column == "avg_ms").then(|| row.number("stddev_ms") * 1e3),
                        ..Point::equal(row.number("publishers"), row.number(column) * 1e3)
                    })
                    .collect(),
            };
            [line("avg_ms", "Mean"), line("median_ms", "Median")]
        };
        Figure {
            title: title.into(),
            ours: ours.into(),
            x_name: "publishers".into(),
            unit: Unit::Us,
            series: [(&cases[0], one), (&cases[1], two)].into_iter().flat_map(series).collect(),
            source: table.into(),
            doubts: doubts.iter().map(|doubt| (*doubt).into()).collect(),
        }
    };
    let events = |(rows, name): (Rows, &str)| Series {
        name: name[..1].to_uppercase() + &name[1..],
        transport: "websocket".into(),
        is_curve: true,
        points: (rows.0.iter())
            .map(|row| Point::equal(row.number("publishers"), row.number("actual_events_per_s")))
            .collect(),
    };
    Published {
        thesis: "Karadogan (KTH, 2013)".into(),
        conditions: "Node.js application servers on EC2 m1.large, Redis 2.6.14 between them, load from two machines about 83 ms away; \
            4 messages per second and publisher, 300 s per step, one run per step."
            .into(),
        figures: vec![
            timed(
                "Response time, publisher to subscriber",
                "latency_p50_us",
                "tables 2.10 and 2.11",
                [data!("karadogan_t2_10_response_time_case1"), data!("karadogan_t2_11_response_time_case2")],
                &[
                    "Includes about 83 ms of network delay between the two coasts of the USA. Ours uses loopback.",
                    "The text says that the time is below 1 s up to 1,200 publishers. In the table, 1,000 is the last step below 1 s.",
                ],
            ),
            timed(
                "Time of a message in the server",
                "service_p99_us",
                "tables 2.6 and 2.7",
                [data!("karadogan_t2_6_service_time_case1"), data!("karadogan_t2_7_service_time_case2")],
                &[
                    "The thesis has mean and median. Ours is the p99 from the write to the kernel until the receiver has read the message, which covers more than the server.",
                    "From 1,200 publishers on, the mean loop lag exceeds the mean service time, although the service time includes the lag according to the text.",
                ],
            ),
            Figure {
                title: "Messages handled per second".into(),
                ours: "deliveries_per_s".into(),
                x_name: "publishers".into(),
                unit: Unit::PerS,
                series: [(data!("karadogan_t2_4_events_case1"), one), (data!("karadogan_t2_5_events_case2"), two)]
                    .map(events)
                    .to_vec(),
                source: "tables 2.4 and 2.5".into(),
                doubts: Vec::new(),
            },
        ],
        tables: vec![
            table("Event-loop lag, one server", data!("karadogan_t2_8_loop_lag_case1"), &[
                "Karadogan (2013), table 2.8. The text says that the lag does not grow below 1,000 publishers; the table has the knee at 800.",
            ]),
            table("Event-loop lag, two servers", data!("karadogan_t2_9_loop_lag_case2"), &["Karadogan (2013), table 2.9."]),
        ],
    }
}

const SOMOGYI: &str = "Somogyi (2014)";
const SOMOGYI_MACHINE: &str = "WildFly 8.0.0 on an EC2 micro instance in Ireland, an Android client in Hungary (ICMP round trip 48 ms), JSON of 134 bytes.";

fn carcare_latency() -> Published {
    Published {
        thesis: SOMOGYI.into(),
        conditions: SOMOGYI_MACHINE.into(),
        figures: Vec::new(),
        tables: vec![
            table(
                "Latency without the first message",
                data!("somogyi_t09_latency"),
                &[
                    "Somogyi (2014), table 9. With client polling, data wait for the next poll: half of 4 s on average, plus one network trip.",
                ],
            ),
            table("Latency of the first message", data!("somogyi_first_message_latency"), &["Somogyi (2014), text."]),
            table(
                "Latency with TLS",
                data!("somogyi_t11_tls_latency"),
                &["Somogyi (2014), table 11. Nothing in the protocol explains the 320 ms of WebSocket over TLS."],
            ),
        ],
    }
}

fn carcare_reliability() -> Published {
    Published {
        thesis: SOMOGYI.into(),
        conditions: SOMOGYI_MACHINE.into(),
        figures: Vec::new(),
        tables: vec![table(
            "Idle time after which connections were dropped silently",
            data!("somogyi_t08_idle_drop_times"),
            &["Somogyi (2014), table 8, minutes."],
        )],
    }
}

fn muller() -> Published {
    Published {
        thesis: "Muller (Cranfield, 2014)".into(),
        conditions: "SocketCluster and engine.io on EC2 m3.2xlarge and c3.8xlarge.".into(),
        figures: Vec::new(),
        tables: vec![
            table(
                "Claims",
                data!("muller_claims"),
                &[
                    "Muller (2014), chapters 3 and 4.",
                    "\"n/2 times engine.io\" is inferred from the number of processes, not measured.",
                ],
            ),
            table(
                "Connections by experiment",
                data!("muller_connection_counts"),
                &["Computed from the parameters of chapter 4; the last row assumes 16 load processes."],
            ),
            table(
                "Experiments",
                data!("muller_experiments"),
                &[
                    "Muller (2014), chapter 4. The text has a ping period of 4 s \"on average\". In the code it is 0 to 5 s: 2.5 s on average.",
                ],
            ),
            table(
                "Bytes of a WebSocket frame header",
                data!("muller_fig1_5_frame_overhead"),
                &["Muller (2014), figure 1.5. Above 64 kB the headers are 14 and 10 bytes (RFC 6455), not 12 and 8."],
            ),
        ],
    }
}

impl Point {
    fn equal(x: f64, y: f64) -> Point {
        Point { x, y, is: Relation::Equal, deviation: None }
    }
}

/// File from `crates/lab/data`: its rows, and the names of its columns.
struct Rows(Vec<Row>, Vec<String>);

struct Row(HashMap<String, String>);

impl Rows {
    fn read(text: &str) -> Rows {
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let names = reader.headers().expect("the file has a head").iter().map(str::to_owned).collect();
        let rows = reader.deserialize().map(|row| Row(row.expect("every row has all columns"))).collect();
        Rows(rows, names)
    }

    fn all<'a>(&'a self, is: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = &'a Row> {
        self.0.iter().filter(|row| is.iter().all(|(column, value)| row.text(column) == *value))
    }

    fn find(&self, is: &[(&str, &str)]) -> &Row {
        self.0.iter().find(|row| is.iter().all(|(column, value)| row.text(column) == *value)).expect("the row is there")
    }
}

impl Row {
    fn text(&self, column: &str) -> &str {
        &self.0[column]
    }

    fn number(&self, column: &str) -> f64 {
        self.text(column).parse().expect("the cell holds a number")
    }

    fn relation(&self, column: &str) -> Relation {
        match self.text(column) {
            "lt" => Relation::Below,
            "gt" => Relation::Above,
            "approx" => Relation::About,
            _ => Relation::Equal,
        }
    }
}

/// Builds a table with readable column names and numeric cells.
fn table(title: &str, Rows(rows, names): Rows, notes: &[&str]) -> Table {
    let (shown, units): (Vec<String>, Vec<&str>) = names.iter().map(|name| readable(name)).unzip();
    let cell = |text: &str| match text.parse::<f64>() {
        _ if text.is_empty() => serde_json::Value::Null,
        Ok(number) => number.into(),
        Err(_) => text.replace('_', " ").into(),
    };
    Table {
        name: title.to_lowercase().replace(' ', "-"),
        title: title.into(),
        columns: shown.into_iter().zip(units).map(|(name, unit)| Column { name, unit: unit.into() }).collect(),
        rows: rows.iter().map(|row| names.iter().map(|name| cell(row.text(name))).collect()).collect(),
        notes: notes.iter().map(|note| (*note).into()).collect(),
        ..Table::default()
    }
}

/// Splits a column name into name and unit: `printed_kib` becomes `printed` in `KiB`.
fn readable(name: &str) -> (String, &'static str) {
    let units = [("_ms", "ms"), ("_kib", "KiB"), ("_bytes", "B"), ("_minutes", "min"), ("_percent", "%"), ("_s", "s")];
    let unit = units.iter().find_map(|(end, unit)| Some((name.strip_suffix(end)?, *unit)));
    // `deliveries_per_s` is not a time.
    let (name, unit) = unit.filter(|(rest, _)| !rest.ends_with("per")).unwrap_or((name, ""));
    (name.replace('_', " "), unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCENARIOS: [&str; 6] = [
        "thorsen-broadcast",
        "thorsen-chat",
        "karadogan-pairs",
        "carcare-latency",
        "carcare-reliability",
        "muller-pingpong",
    ];

    /// Compares with the values printed in the thesis (appendix; sections 4.3 and 5.4).
    #[test]
    fn published_figures_are_converted_to_our_units() {
        let thorsen = of("thorsen-broadcast");
        let figure = |ours: &str| thorsen.figures.iter().find(|figure| figure.ours == ours).unwrap();
        let idle = &figure("idle.probe_p50_us").series[2];
        assert_eq!((idle.name.as_str(), idle.points.len()), ("WebSocket", 11));
        assert_eq!((idle.points[10].x, idle.points[10].y), (500.0, 1445.0));
        let long_polling = &figure("test.server_cpu_cores").series[0];
        assert_eq!([long_polling.points[0].y, long_polling.points[1].x, long_polling.points[1].y], [0.17, 50.0, 0.98]);
        let memory = &figure("after.server_memory_bytes").series;
        assert_eq!((memory[0].points[0].y, memory[0].points[0].is), (97e6, Relation::Equal));
        assert_eq!(memory[1].points[0].is, Relation::Above);
    }

    #[test]
    fn thesis_scenarios_have_sources_and_full_rows() {
        for scenario in SCENARIOS {
            let published = of(scenario);
            assert!(!published.thesis.is_empty() && !published.conditions.is_empty(), "{scenario}");
            assert!(!published.figures.is_empty() || !published.tables.is_empty(), "{scenario}");
            for figure in &published.figures {
                assert!(
                    !figure.source.is_empty() && figure.series.iter().all(|series| !series.points.is_empty()),
                    "{figure:?}"
                );
            }
            for table in &published.tables {
                assert!(
                    !table.notes.is_empty() && table.rows.iter().all(|row| row.len() == table.columns.len()),
                    "{table:?}"
                );
            }
        }
        assert_eq!(of("storm"), Published::default());
    }

    #[test]
    fn columns_are_read_with_their_units() {
        assert_eq!(readable("printed_kib"), ("printed".into(), "KiB"));
        assert_eq!(readable("pings_per_s_at_full_load"), ("pings per s at full load".into(), ""));
        assert_eq!(readable("new_per_s"), ("new per s".into(), ""));
    }
}
