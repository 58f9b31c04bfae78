//! Parameters, and the conditions that follow from them.

use std::time::Duration;

use anyhow::{Context, ensure};
use humantime_serde::Serde;
use millrace_call::y4m::Size;
use millrace_link::{Config, PipeConfig, Probability, QueueLimit, Rate};
use serde::Deserialize;
use serde_json::{Value, json};

use super::browser::{self, Browser};
use crate::{path::PathSettings, scenarios::lozano::published};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    pub targets: Vec<String>,
    pub browsers: Vec<String>,
    pub latencies: Vec<Serde<Duration>>,
    pub losses: Vec<Probability>,
    pub queues: Vec<Queue>,
    pub tcp: Vec<Access>,
    pub tcp_flows: usize,
    pub tcp_queue: QueueLimit,
    #[serde(with = "humantime_serde")]
    pub tcp_start: Duration,
    pub path: PathSettings,
    pub parallel: Vec<Parallel>,
    pub meshes: Vec<String>,
    pub size: String,
    pub small_size: String,
    pub ceiling: Rate,
    #[serde(with = "humantime_serde")]
    pub patience: Duration,
    #[serde(with = "humantime_serde")]
    pub test: Duration,
    pub repeats: u32,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    pub rate: Rate,
    #[serde(with = "humantime_serde")]
    pub queue: Duration,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    pub down: Rate,
    pub up: Rate,
    #[serde(with = "humantime_serde")]
    pub latency: Duration,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parallel {
    pub calls: usize,
    pub bottleneck: String,
    #[serde(with = "humantime_serde")]
    pub offset: Duration,
}

/// Tests of the thesis, as the first column names them.
pub const LATENCY: &str = "latency";
pub const LOSS: &str = "loss";
pub const BOTH: &str = "loss and latency";
pub const FREE: &str = "none";
pub const QUEUE: &str = "queue";
pub const TCP: &str = "TCP";
pub const MOBILE: &str = "mobile";
pub const MESH: &str = "mesh";

pub const NONE: &str = "none";

const ENDS_MAX: usize = 4;
const CALLS_MAX: usize = 4;
/// Queue in front of a bottleneck that parallel calls share.
const PARALLEL_QUEUE: Duration = Duration::from_millis(500);
const LATENCY_MAX: Duration = Duration::from_secs(10);
/// Conditions of a call.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Values of [`super::tables::KEYS`], without the browsers.
    pub key: Vec<Value>,
    pub browsers: Vec<Browser>,
    pub links: Vec<Config>,
    pub size: Size,
    /// Calls of each two participants, and the time between their starts.
    pub calls: usize,
    pub offset: Duration,
    pub flows: usize,
    /// Rate of the thesis in kbit/s, if it has this condition.
    pub thesis_kbit_s: Option<f64>,
    /// Rate that a stream could have, in kbit/s.
    pub capacity_kbit_s: Option<f64>,
}

impl Choice {
    pub fn read(parameters: &toml::Table) -> anyhow::Result<Choice> {
        let choice: Choice = parameters.clone().try_into()?;
        ensure!(choice.targets == ["millrace"], "targets: millrace alone, whose relay all media pass");
        let latencies = choice.latencies.iter().map(|latency| **latency);
        let latencies = latencies.chain(choice.tcp.iter().map(|access| access.latency));
        ensure!(latencies.into_iter().all(|latency| latency <= LATENCY_MAX), "latencies, tcp: at most 10s");
        ensure!(choice.queues.iter().all(|queue| !queue.queue.is_zero()), "queues: longer than 0");
        ensure!((1..=20).contains(&choice.tcp_flows), "tcp_flows: 1 to 20");
        ensure!((Duration::from_secs(5)..=Duration::from_secs(3600)).contains(&choice.test), "test: 5s to 1h");
        let tcp_end = choice.tcp_start + Duration::from_secs(5);
        ensure!(choice.tcp.is_empty() || tcp_end <= choice.test, "tcp_start: at least 5 s before the end");
        let patience = Duration::from_secs(1)..=Duration::from_secs(600);
        ensure!(patience.contains(&choice.patience), "patience: 1s to 10min");
        ensure!((1..=100).contains(&choice.repeats), "repeats: 1 to 100");
        for Parallel { calls, offset, .. } in &choice.parallel {
            ensure!((2..=CALLS_MAX).contains(calls), "parallel: 2 to {CALLS_MAX} calls");
            let last = *offset * (*calls as u32 - 1);
            ensure!(last + Duration::from_secs(5) <= choice.test, "parallel: the last call starts 5 s before the end");
        }
        let cells = choice.cells()?;
        ensure!(!cells.is_empty(), "latencies and losses, queues, tcp, path, parallel, meshes: at least one condition");
        Ok(choice)
    }

    pub fn cells(&self) -> anyhow::Result<Vec<Cell>> {
        let parse = |names: &String| -> anyhow::Result<Vec<Browser>> {
            let browsers = browser::parse(names).with_context(|| format!("browsers {names:?}"))?;
            ensure!((2..=ENDS_MAX).contains(&browsers.len()), "{names}: 2 to {ENDS_MAX} browsers");
            Ok(browsers)
        };
        let size: Size = self.size.parse().context("size")?;
        let small_size: Size = self.small_size.parse().context("small_size")?;
        let mut cells = Vec::new();
        for (n, browsers) in self.browsers.iter().map(parse).enumerate() {
            let browsers = browsers.context("browsers")?;
            let cell = |key: Vec<Value>, link: Config| Cell {
                key,
                links: vec![link; browsers.len()],
                browsers: browsers.clone(),
                size,
                calls: 1,
                offset: Duration::ZERO,
                flows: 0,
                thesis_kbit_s: None,
                capacity_kbit_s: None,
            };
            for latency in self.latencies.iter().map(|latency| **latency) {
                cells.extend(self.losses.iter().map(|loss| path_cell(&cell, latency, *loss)));
            }
            cells.extend(self.queues.iter().map(|queue| self.queue_cell(&cell, queue)));
            cells.extend(self.tcp.iter().map(|access| self.tcp_cell(&cell, access)));
            if let Some(link) = self.path.config_without_trace().context("path")? {
                let key = key(MOBILE, None, None, Some(self.path.name()), None, 0);
                let mut mobile = cell(key, Config::default());
                mobile.links[0] = link;
                cells.push(mobile);
            }
            for parallel in self.parallel.iter().filter(|_| n == 0) {
                cells.push(Cell { size: small_size, ..parallel.cell(&cell)? });
            }
        }
        for browsers in self.meshes.iter().map(parse) {
            let browsers = browsers.context("meshes")?;
            let links = vec![Config::default(); browsers.len()];
            cells.push(Cell {
                key: key(MESH, Some(Duration::ZERO), Some(Probability::ZERO), None, None, 0),
                // The mesh of the thesis had three participants.
                thesis_kbit_s: published::rate_kbit_s(published::MESH, &[]).filter(|_| links.len() == 3),
                links,
                browsers,
                size: small_size,
                calls: 1,
                offset: Duration::ZERO,
                flows: 0,
                capacity_kbit_s: None,
            });
        }
        Ok(cells)
    }

    fn queue_cell(&self, cell: &impl Fn(Vec<Value>, Config) -> Cell, queue: &Queue) -> Cell {
        let up =
            PipeConfig { rate: Some(queue.rate), queue: Some(QueueLimit::Time(queue.queue)), ..PipeConfig::default() };
        let key = key(QUEUE, Some(Duration::ZERO), None, Some(mbit(queue.rate).to_string()), Some(queue.queue), 0);
        let thesis = match queue.rate.bits_per_s() {
            500_000 => Some(0),
            1_000_000 => Some(1),
            _ => None,
        };
        let ms = queue.queue.as_millis().to_string();
        let rate = |table: usize| published::rate_kbit_s(published::QUEUES[table], &[("queue_ms", ms.as_str())]);
        Cell {
            thesis_kbit_s: thesis.and_then(rate),
            capacity_kbit_s: Some(queue.rate.min(self.ceiling).bits_per_s() as f64 / 1000.0),
            ..cell(key, Config { up, ..Config::default() })
        }
    }

    fn tcp_cell(&self, cell: &impl Fn(Vec<Value>, Config) -> Cell, access: &Access) -> Cell {
        let pipe =
            |rate, delay| PipeConfig { rate: Some(rate), queue: Some(self.tcp_queue), delay, ..PipeConfig::default() };
        let link = Config {
            up: pipe(access.up, access.latency),
            down: pipe(access.down, Duration::ZERO),
            ..Config::default()
        };
        let bottleneck = format!("{}/{}", mbit(access.down), mbit(access.up));
        let latency = ms(access.latency).to_string();
        let row = [("bottleneck_down_up_mbit_s", "10/1"), ("path_latency_ms", latency.as_str())];
        let share = access.up.min(access.down).bits_per_s() as f64 / 1000.0 / (self.tcp_flows + 1) as f64;
        Cell {
            thesis_kbit_s: published::rate_kbit_s(published::TCP, &row)
                .filter(|_| bottleneck == "10/1" && self.tcp_flows == 1),
            capacity_kbit_s: Some(share.min(self.ceiling.bits_per_s() as f64 / 1000.0)),
            flows: self.tcp_flows,
            ..cell(key(TCP, Some(access.latency), None, Some(bottleneck), None, self.tcp_flows), link)
        }
    }
}

impl Parallel {
    fn cell(&self, cell: &impl Fn(Vec<Value>, Config) -> Cell) -> anyhow::Result<Cell> {
        let rate = match self.bottleneck.as_str() {
            NONE => None,
            rate => Some(rate.parse::<Rate>().context("parallel: bottleneck: `none` or a rate")?),
        };
        let up = PipeConfig { rate, queue: rate.map(|_| QueueLimit::Time(PARALLEL_QUEUE)), ..PipeConfig::default() };
        let bottleneck = rate.map_or(NONE.to_owned(), |rate| mbit(rate).to_string());
        let test = match self.offset.is_zero() {
            true => format!("{} at once", self.calls),
            false => format!("{}, {} s apart", self.calls, self.offset.as_secs_f64()),
        };
        let thesis = match (self.calls, self.offset.as_secs(), rate) {
            (2, 0, _) => published::rate_kbit_s(published::TWO_CALLS, &[("bottleneck_mbit_s", bottleneck.as_str())]),
            (3, 0, None) => published::rate_kbit_s(published::THREE_CALLS, &[]),
            (3, 30, None) => published::rate_kbit_s(published::THREE_SHIFTED_CALLS, &[]),
            _ => None,
        };
        let queue = rate.map(|_| PARALLEL_QUEUE);
        let key = key(&test, Some(Duration::ZERO), None, Some(bottleneck), queue, 0);
        Ok(Cell {
            calls: self.calls,
            offset: self.offset,
            thesis_kbit_s: thesis,
            capacity_kbit_s: rate.map(|rate| rate.bits_per_s() as f64 / 1000.0 / self.calls as f64),
            ..cell(key, Config { up, ..Config::default() })
        })
    }
}

/// A condition of tables 2 to 4. Latency applies once per direction, and loss into the relay and out of it (E-L3,
/// E-L33).
fn path_cell(cell: &impl Fn(Vec<Value>, Config) -> Cell, latency: Duration, loss: Probability) -> Cell {
    let (test, table, column) = match (latency.is_zero(), loss == Probability::ZERO) {
        (true, true) => (FREE, None, ""),
        (false, true) => (LATENCY, Some(published::LATENCY), "path_latency_ms"),
        (true, false) => (LOSS, Some(published::LOSS), "configured_loss_percent"),
        (false, false) => {
            (BOTH, Some(published::LOSS_AND_LATENCY).filter(|_| percent(loss) == 10.0), "path_latency_ms")
        }
    };
    let value = if test == LOSS { percent(loss) } else { ms(latency) }.to_string();
    let link = Config {
        up: PipeConfig { delay: latency, loss, ..PipeConfig::default() },
        down: PipeConfig { loss, ..PipeConfig::default() },
        ..Config::default()
    };
    Cell {
        thesis_kbit_s: table.and_then(|table| published::rate_kbit_s(table, &[(column, value.as_str())])),
        ..cell(key(test, Some(latency), Some(loss), None, None, 0), link)
    }
}

fn key(
    test: &str,
    latency: Option<Duration>,
    loss: Option<Probability>,
    bottleneck: Option<String>,
    queue: Option<Duration>,
    flows: usize,
) -> Vec<Value> {
    let queue_ms = queue.map(|queue| queue.as_millis() as u64);
    vec![
        json!(test),
        json!(latency.map(ms)),
        json!(loss.map(percent)),
        json!(bottleneck),
        json!(queue_ms),
        json!(flows),
    ]
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn percent(loss: Probability) -> f64 {
    (loss.get() * 1e5).round() / 1e3
}

fn mbit(rate: Rate) -> f64 {
    rate.bits_per_s() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::{super::tables, *};

    fn read(text: &str) -> anyhow::Result<Choice> {
        let file: toml::Table = include_str!("scenario.toml").parse().expect("a table");
        let mut all = file["parameters"].as_table().expect("parameters").clone();
        all.extend(text.parse::<toml::Table>().expect("a table"));
        Choice::read(&all)
    }

    #[test]
    fn cells_have_the_figures_of_the_thesis() {
        let cells = read("").expect("valid").cells().expect("cells");
        // Nine paths, a queue, TCP and a mobile network for two pairs of browsers; parallel calls with the first one; a
        // mesh.
        assert_eq!(cells.len(), 2 * 12 + 3 + 1);
        let rates: Vec<(String, f64)> = cells
            .iter()
            .take(15)
            .chain(cells.last())
            .filter_map(|cell| Some((cell.key[0].as_str()?.to_owned(), cell.thesis_kbit_s?.round())))
            .collect();
        let expected = [
            (LOSS, 1569.0),
            (LOSS, 1141.0),
            (LATENCY, 1914.0),
            (BOTH, 55.0),
            (LATENCY, 1485.0),
            (BOTH, 64.0),
            (QUEUE, 304.0),
            (TCP, 84.0),
            ("2 at once", 469.0),
            (MESH, 363.0),
        ];
        assert_eq!(rates, expected.map(|(test, rate)| (test.to_owned(), rate)));
        assert!(cells.iter().all(|cell| cell.key.len() + 1 == tables::KEYS.len()));
        assert!(cells.iter().all(|cell| cell.links.iter().all(|link| link.check().is_ok())));
    }

    #[test]
    fn invalid_parameters_are_refused() {
        for refused in [
            "targets = [\"ws\"]",
            "browsers = [\"chromium\"]",
            "browsers = [\"chromium-lynx\"]",
            "latencies = [\"1h\"]",
            "losses = [\"101%\"]",
            "size = \"641x480\"",
            "queues = [{ rate = \"1Mbit/s\", queue = \"0s\" }]",
            "tcp_start = \"58s\"",
            "tcp_flows = 0",
            "path = \"3gg\"",
            "parallel = [{ calls = 1, bottleneck = \"none\", offset = \"0s\" }]",
            "parallel = [{ calls = 2, bottleneck = \"wide\", offset = \"0s\" }]",
            "parallel = [{ calls = 3, bottleneck = \"none\", offset = \"29s\" }]",
            "meshes = [\"chromium-chromium-chromium-chromium-chromium\"]",
            "latencies = []\nqueues = []\ntcp = []\npath = \"\"\nparallel = []\nmeshes = []",
            "test = \"1s\"",
            "repeats = 0",
            "other = 1",
        ] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }
}
