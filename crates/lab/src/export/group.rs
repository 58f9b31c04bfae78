//! Repeats of one measurement, combined.

use crate::{
    histogram::Histogram,
    recording::{Phase, PhaseName, Recording, Run},
};

use super::sheet::Row;

/// Name of the path of a run without an emulated link.
pub const LOOPBACK: &str = "loopback";
/// Columns that identify the series within a file, in their order.
pub const COLUMNS: [&str; 11] = [
    "part",
    "target",
    "transport",
    "path",
    "clients",
    "publishers",
    "each_per_s",
    "bytes",
    "server_cpus",
    "runs",
    "runs_valid",
];

/// All runs with the same part, target, transport, path and factors.
pub struct Group<'a> {
    pub first: &'a Run,
    /// The valid runs. If no run is valid: all.
    pub used: Vec<&'a Run>,
    all: usize,
    valid: usize,
}

pub fn path(run: &Run) -> &str {
    run.link.as_ref().map_or(LOOPBACK, |link| &link.path)
}

/// Returns the groups by part, target, transport and path, and then by rising load.
pub fn groups(recording: &Recording) -> Vec<Group<'_>> {
    let is_same = |a: &Run, b: &Run| {
        (&a.part, &a.target, &a.transport, path(a), a.factors) == (&b.part, &b.target, &b.transport, path(b), b.factors)
    };
    let mut groups: Vec<Vec<&Run>> = Vec::new();
    for run in &recording.runs {
        match groups.iter_mut().find(|group| is_same(group[0], run)) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups.sort_by(|a, b| {
        let key = |run: &&Run| (run.part.clone(), run.target.clone(), run.transport.clone(), path(run).to_owned());
        key(&a[0]).cmp(&key(&b[0])).then(a[0].load.value.total_cmp(&b[0].load.value))
    });
    groups.into_iter().map(Group::of).collect()
}

impl<'a> Group<'a> {
    fn of(all: Vec<&'a Run>) -> Group<'a> {
        let valid: Vec<&Run> = all.iter().copied().filter(|run| run.is_valid()).collect();
        let counts = (all.len(), valid.len());
        let used = if valid.is_empty() { all } else { valid };
        Group { first: used[0], used, all: counts.0, valid: counts.1 }
    }

    /// Returns all durations of all runs.
    pub fn pooled(&self, phase: PhaseName, of: impl Fn(&Phase) -> &Histogram) -> Histogram {
        let mut all = Histogram::default();
        self.used.iter().filter_map(|run| run.phase(phase)).for_each(|phase| all.add(of(phase)));
        all
    }

    /// Returns one value per run, of those that have it.
    pub fn values(&self, of: impl Fn(&Run) -> Option<f64>) -> Vec<f64> {
        self.used.iter().filter_map(|run| of(run)).collect()
    }

    /// Returns the cells that identify this group.
    pub fn row(&self) -> Row {
        let Run { part, target, transport, factors, .. } = self.first;
        let cells = [
            part.as_str().into(),
            target.as_str().into(),
            transport.as_str().into(),
            path(self.first).into(),
            factors.clients.into(),
            factors.publishers.into(),
            factors.each_per_s.into(),
            factors.bytes.into(),
            factors.server_cpus.into(),
            self.all.into(),
            self.valid.into(),
        ];
        COLUMNS.map(Into::into).into_iter().zip(cells).collect()
    }
}
