//! Two tables: the transport to use on each network; age, completeness, bytes and joules of all.

mod rule;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    histogram::Histogram,
    path::PathSettings,
    recording::{Column, LinkRun, PhaseName, ReaderEnergy, ReaderTraffic, Recording, Run, Table},
    targets::Transport,
};
use rule::{Candidate, Decision};

/// Share of the deliveries that a quantile needs beyond it.
const BEYOND_MIN: u64 = 10;

/// One network at one rate of publications.
struct Network<'a> {
    part: &'a str,
    per_s: f64,
    lines: Vec<Line<'a>>,
}

/// All valid runs of one transport on one network.
struct Line<'a> {
    target: &'a str,
    transport: &'a str,
    age: Histogram,
    expected: u64,
    delivered: u64,
    duplicated: u64,
    /// Sum over the runs; `None` if a run has no figures.
    traffic: Option<ReaderTraffic>,
    links: Vec<&'a LinkRun>,
}

pub fn tables(recording: &Recording) -> Vec<Table> {
    let networks = networks(&recording.runs);
    let decisions: Vec<Vec<Decision>> = networks.iter().map(Network::decisions).collect();
    vec![recommendations(&networks, &decisions, recording), figures(&networks, &decisions, recording)]
}

fn networks(runs: &[Run]) -> Vec<Network<'_>> {
    let mut networks: Vec<Network<'_>> = Vec::new();
    for run in runs {
        let per_s = run.factors.each_per_s;
        let known = networks.iter().position(|network| network.part == run.part && network.per_s == per_s);
        let at = known.unwrap_or_else(|| {
            networks.push(Network { part: &run.part, per_s, lines: Vec::new() });
            networks.len() - 1
        });
        networks[at].add(run);
    }
    networks.sort_by(|a, b| a.part.cmp(b.part).then(b.per_s.total_cmp(&a.per_s)));
    let place = |line: &Line<'_>| Transport::ALL.iter().position(|transport| transport.name() == line.transport);
    networks.iter_mut().for_each(|network| network.lines.sort_by_key(|line| (line.target, place(line))));
    networks
}

impl<'a> Network<'a> {
    fn add(&mut self, run: &'a Run) {
        let known = self.lines.iter().position(|line| line.target == run.target && line.transport == run.transport);
        let at = known.unwrap_or_else(|| {
            self.lines.push(Line {
                target: &run.target,
                transport: &run.transport,
                age: Histogram::default(),
                expected: 0,
                delivered: 0,
                duplicated: 0,
                traffic: Some(ReaderTraffic::default()),
                links: Vec::new(),
            });
            self.lines.len() - 1
        });
        if let Some(test) = run.phase(PhaseName::Test).filter(|_| run.is_valid()) {
            let line = &mut self.lines[at];
            line.age.add(&test.latency_us);
            line.expected += test.counts.scheduled * run.factors.clients;
            line.delivered += test.counts.delivered;
            line.duplicated += test.counts.duplicated;
            line.links.extend(&run.link);
            let readers = run.link.as_ref().and_then(|link| link.readers.as_ref());
            line.traffic = line.traffic.take().zip(readers).map(|(sum, one)| added(sum, one));
        }
    }

    fn decisions(&self) -> Vec<Decision> {
        rule::decide(&self.lines.iter().map(Line::candidate).collect::<Vec<_>>())
    }
}

/// Adds the traffic of a run. The seconds become those of all readers together.
fn added(mut sum: ReaderTraffic, run: &ReaderTraffic) -> ReaderTraffic {
    let is_first = sum.readers == 0;
    sum.readers += run.readers;
    sum.seconds += run.seconds * run.readers as f64;
    for (sum, one) in [
        (&mut sum.up_packets, run.up_packets),
        (&mut sum.up_bytes, run.up_bytes),
        (&mut sum.down_packets, run.down_packets),
        (&mut sum.down_bytes, run.down_bytes),
    ] {
        *sum += one;
    }
    let reader_s = |energy: &ReaderEnergy| energy.seconds * run.readers as f64;
    sum.energy = match (sum.energy, &run.energy) {
        (None, Some(one)) if is_first => Some(ReaderEnergy { seconds: reader_s(one), ..one.clone() }),
        (Some(mut energy), Some(one)) => {
            energy.seconds += reader_s(one);
            energy.joules += one.joules;
            energy.promotions += one.promotions;
            Some(energy)
        }
        _ => None,
    };
    sum
}

impl Line<'_> {
    /// Returns the age that a share of the messages did not exceed, in microseconds.
    fn age_us(&self, share: f64) -> Option<f64> {
        self.age.quantile_us(share).map(|us| us as f64)
    }

    fn complete(&self) -> Option<f64> {
        (self.expected > 0).then(|| self.delivered as f64 / self.expected as f64)
    }

    /// Returns the traffic if messages were delivered, so that figures per message exist.
    fn traffic(&self) -> Option<&ReaderTraffic> {
        self.traffic.as_ref().filter(|traffic| self.delivered > 0 && traffic.readers > 0)
    }

    fn per_message(&self, bytes: impl Fn(&ReaderTraffic) -> u64) -> Option<f64> {
        self.traffic().map(|traffic| bytes(traffic) as f64 / self.delivered as f64)
    }

    fn joules(&self) -> Option<f64> {
        self.traffic()?.energy.as_ref().map(|energy| energy.joules)
    }

    fn joules_per_hour(&self) -> Option<f64> {
        let energy = self.traffic()?.energy.as_ref()?;
        Some(energy.joules / energy.seconds * 3600.0)
    }

    fn candidate(&self) -> Option<Candidate> {
        Some(Candidate {
            complete: self.complete()?,
            p95_us: self.age_us(0.95).unwrap_or(f64::INFINITY),
            joules: self.joules_per_hour(),
            bytes: self.per_message(|traffic| traffic.up_bytes + traffic.down_bytes).unwrap_or(f64::INFINITY),
        })
    }
}

fn figures(networks: &[Network<'_>], decisions: &[Vec<Decision>], recording: &Recording) -> Table {
    let lines = || networks.iter().flat_map(|network| network.lines.iter().map(move |line| (network, line)));
    let has_targets = lines().map(|(_, line)| line.target).collect::<BTreeSet<_>>().len() > 1;
    let has_rates = lines().any(|(network, _)| network.per_s != networks[0].per_s);
    let mut columns = vec![("network", "")];
    columns.extend(has_rates.then_some(("updates", "per s")));
    columns.extend(has_targets.then_some(("server", "")));
    columns.extend([
        ("transport", ""),
        ("decision", ""),
        ("age p50", "ms"),
        ("p95", "ms"),
        ("p99", "ms"),
        ("max", "ms"),
        ("mean", "ms"),
        ("complete", "%"),
        ("duplicates", ""),
        ("sent per message", "bytes"),
        ("received per message", "bytes"),
        ("energy per hour", "J"),
        ("energy per message", "mJ"),
    ]);
    let row = |network: &Network<'_>, line: &Line<'_>, decision: Decision| {
        let mut row = vec![json!(network.part)];
        row.extend(has_rates.then(|| json!(network.per_s)));
        row.extend(has_targets.then(|| json!(line.target)));
        row.push(json!(line.transport));
        row.push(json!(decision.text()));
        row.extend([0.5, 0.95, 0.99].map(|share| ms(line.age_us(share))));
        row.push(ms(line.age.max_us().map(|us| us as f64)));
        row.push(ms(line.age.mean_us()));
        row.push(rounded(line.complete().map(|share| share * 100.0), 4));
        row.push(if line.expected > 0 { json!(line.duplicated) } else { Value::Null });
        row.push(rounded(line.per_message(|traffic| traffic.up_bytes), 3));
        row.push(rounded(line.per_message(|traffic| traffic.down_bytes), 3));
        row.push(rounded(line.joules_per_hour(), 3));
        row.push(rounded(line.joules().map(|joules| joules / line.delivered as f64 * 1000.0), 3));
        row
    };
    let rows = networks.iter().zip(decisions);
    let rows = rows.flat_map(|(network, decisions)| {
        network.lines.iter().zip(decisions).map(|(line, decision)| row(network, line, *decision))
    });
    Table {
        name: "networks".into(),
        title: "Which transport on which network".into(),
        columns: self::columns(&columns),
        rows: rows.collect(),
        notes: notes(networks, recording),
        ..Table::default()
    }
}

fn notes(networks: &[Network<'_>], recording: &Recording) -> Vec<String> {
    let lines = || networks.iter().flat_map(|network| &network.lines);
    let parameters = |key: &str| parts(recording).find_map(|(_, part)| part[key].as_str());
    let way = match parameters("publisher") {
        Some("server") => "The publisher is beside the server, so the age has one way over the network",
        _ => "The publisher is beside the readers, so the age has both ways over the network",
    };
    let polls = parameters("poll_every").unwrap_or("0s");
    let mut notes = vec![
        "Decision: the first step of the rule above that the transport did not pass.".into(),
        format!(
            "Age: from the scheduled publication until the reader has the message, over all valid runs. {way}; with \
             polling, also the wait for the next poll, which follows {polls} after each response."
        ),
        "Complete: messages that arrived until the end of the run, of all scheduled ones. Bytes: IP packets of the \
         readers during the test, divided by the delivered messages."
            .into(),
    ];
    let is_thin = |line: &Line<'_>| line.age.quantile_us(0.99).is_some_and(|us| line.age.beyond(us) < BEYOND_MIN);
    if lines().any(is_thin) {
        notes
            .push(format!("A p99 with fewer than {BEYOND_MIN} messages above it is close to the maximum of few runs."));
    }
    let energy = |line: &Line<'_>| line.traffic().and_then(|traffic| traffic.energy.clone());
    let radios: BTreeSet<String> = lines().filter_map(|line| Some(energy(line)?.radio)).collect();
    if !radios.is_empty() {
        let radios = radios.into_iter().collect::<Vec<_>>().join(", ");
        notes.push(format!(
            "Energy: of the radio of one reader, computed from its packets as if the test never ended, with the state \
             machines of AT&T's Application Resource Optimizer for handsets of 2010 to 2013 ({radios}). Networks \
             without such a model have no energy."
        ));
    }
    let congestion: BTreeSet<&str> = lines()
        .flat_map(|line| &line.links)
        .map(|link| link.congestion.as_str())
        .filter(|name| !name.is_empty())
        .collect();
    if !congestion.is_empty() {
        notes.push(format!("TCP congestion control: {}.", congestion.into_iter().collect::<Vec<_>>().join(", ")));
    }
    let links: Vec<&LinkRun> = lines().flat_map(|line| line.links.iter().copied()).collect();
    let greatest = |of: fn(&LinkRun) -> f64| links.iter().map(|link| of(link)).fold(0.0, f64::max);
    if !links.is_empty() {
        let cpu = links.iter().map(|link| link.cpu_us_per_packet).sum::<f64>() / links.len() as f64;
        let p50 = links.iter().map(|link| link.late_p50_us).sum::<f64>() / links.len() as f64;
        notes.push(format!(
            "The emulator needed {cpu:.1} us of CPU per packet and added {p50:.0} us of delay (means of the runs); in \
             the worst run, {:.0} us at p99.",
            greatest(|link| link.late_p99_us)
        ));
    }
    notes
}

fn recommendations(networks: &[Network<'_>], decisions: &[Vec<Decision>], recording: &Recording) -> Table {
    let config = |name: &str| {
        let (_, part) = parts(recording).find(|(part, _)| *part == name)?;
        serde_json::from_value::<PathSettings>(part["path"].clone()).ok()?.config().ok()?
    };
    let row = |network: &Network<'_>, decisions: &[Decision]| {
        let winner = decisions.iter().position(|decision| *decision == Decision::Recommended);
        let line = winner.map(|index| &network.lines[index]);
        let name = line.map(|line| {
            match networks.iter().flat_map(|network| &network.lines).any(|other| other.target != line.target) {
                true => format!("{}, {}", line.target, line.transport),
                false => line.transport.to_owned(),
            }
        });
        let link = config(network.part);
        let radio = line.and_then(|line| line.traffic()?.energy.as_ref()).map(|energy| energy.radio.clone());
        vec![
            json!(network.part),
            json!(link.as_ref().map(|link| link.down.to_string())),
            json!(link.as_ref().map(|link| link.up.to_string())),
            json!(radio),
            json!(network.per_s),
            json!(name),
            ms(line.and_then(|line| line.age_us(0.95))),
            rounded(line.and_then(Line::joules_per_hour), 3),
            rounded(line.and_then(|line| line.per_message(|traffic| traffic.up_bytes + traffic.down_bytes)), 3),
        ]
    };
    Table {
        name: "recommended".into(),
        title: "The transport to use on each network".into(),
        columns: columns(&[
            ("network", ""),
            ("to the reader", ""),
            ("from the reader", ""),
            ("radio", ""),
            ("updates", "per s"),
            ("recommended", ""),
            ("age p95", "ms"),
            ("energy per hour", "J"),
            ("bytes per message", "bytes"),
        ]),
        rows: networks.iter().zip(decisions).map(|(network, decisions)| row(network, decisions)).collect(),
        notes: vec![rule::RULE.into()],
        ..Table::default()
    }
}

/// Returns the parameters of each part.
fn parts(recording: &Recording) -> impl Iterator<Item = (&str, &Value)> {
    recording.parameters.as_object().into_iter().flatten().map(|(name, part)| (name.as_str(), part))
}

fn columns(of: &[(&str, &str)]) -> Vec<Column> {
    of.iter().map(|(name, unit)| Column { name: (*name).into(), unit: (*unit).into() }).collect()
}

fn ms(us: Option<f64>) -> Value {
    rounded(us.map(|us| us / 1000.0), 3)
}

/// Rounds to significant digits.
fn rounded(value: Option<f64>, digits: i32) -> Value {
    let Some(value) = value.filter(|value| value.is_finite()) else { return Value::Null };
    if value == 0.0 {
        return json!(0.0);
    }
    let places = (digits - 1 - value.abs().log10().floor() as i32).max(0);
    let scale = 10f64.powi(places);
    json!((value * scale).round() / scale)
}

#[cfg(test)]
mod tests;
