//! `recording.json`: after each run, the whole file is written beside the old one and then renamed. A readable file
//! therefore always exists.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use serde_json::value::RawValue;

use crate::{
    host::provenance::{Provenance, differs},
    recording::{FORMAT, Recording, Run, Table},
    wire_cost::WireCostReport,
};

pub const FILE: &str = "recording.json";

pub struct Store {
    path: PathBuf,
    /// Recording with serialized runs, so that each histogram is packed only once.
    recording: Recording<Box<RawValue>>,
    /// Keys of the recorded runs.
    there: Vec<Key>,
}

type Key = (String, String, String, u64, u32);

fn key(run: &Run) -> Key {
    let factors = serde_json::to_string(&run.factors).expect("numbers");
    let hash = factors
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    (run.part.clone(), run.target.clone(), run.transport.clone(), hash, run.repeat)
}

impl Store {
    /// Errors: a recording already exists, or the folder cannot be written.
    pub fn create(folder: &Path, head: Recording) -> anyhow::Result<Store> {
        let path = folder.join(FILE);
        ensure!(
            !path.exists(),
            "{} is there: go on with it by --resume {}, or choose another --out",
            path.display(),
            folder.display()
        );
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let store = Store { path, recording: with_runs(head, Vec::new()), there: Vec::new() };
        store.save()?;
        Ok(store)
    }

    /// Continues an existing recording.
    ///
    /// Errors: there is no recording; or its scenario, parameters, seed, machine or build differ. The error lists the
    /// differences.
    pub fn resume(folder: &Path, head: Recording) -> anyhow::Result<Store> {
        let path = folder.join(FILE);
        let old = Store::read(folder)?;
        let mut differences = Vec::new();
        let mut same = |what: &str, old: String, new: String| {
            if old != new {
                differences.push(format!("{what} was {old} and is {new}"));
            }
        };
        same("format", old.format.to_string(), head.format.to_string());
        same("scenario", old.scenario.clone(), head.scenario.clone());
        same("form", old.form.name().into(), head.form.name().into());
        same("seed", old.seed.to_string(), head.seed.to_string());
        same("service level", format!("{:?}", old.slo), format!("{:?}", head.slo));
        same("parameters", old.parameters.to_string(), head.parameters.to_string());
        same("planned runs", old.planned.to_string(), head.planned.to_string());
        let provenance = |json: &serde_json::Value| serde_json::from_value::<Provenance>(json.clone());
        for difference in differs(&provenance(&old.provenance)?, &provenance(&head.provenance)?) {
            same(&difference.what, difference.a, difference.b);
        }
        ensure!(differences.is_empty(), "{} cannot be resumed: {}", path.display(), differences.join("; "));
        let there = old.runs.iter().map(key).collect();
        let runs = old.runs.iter().map(serde_json::value::to_raw_value).collect::<Result<_, _>>()?;
        Ok(Store { path, recording: with_runs(old, runs), there })
    }

    /// Returns the recording in a folder.
    ///
    /// Errors: there is no recording, or it cannot be read.
    pub fn read(folder: &Path) -> anyhow::Result<Recording> {
        let path = folder.join(FILE);
        let text = fs::read(&path).with_context(|| format!("no recording: {}", path.display()))?;
        let recording: Recording = serde_json::from_slice(&text).with_context(|| format!("{}", path.display()))?;
        if recording.format != FORMAT {
            bail!("{}: format {}, this program reads {FORMAT}", path.display(), recording.format);
        }
        Ok(recording)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if a run with the same part, target, transport, factors and repeat is recorded.
    pub fn has(&self, run: &Run) -> bool {
        self.there.contains(&key(run))
    }

    pub fn tables(&self) -> &[Table] {
        &self.recording.tables
    }

    pub fn runs(&self) -> u32 {
        self.recording.runs.len() as u32
    }

    pub fn add_run(&mut self, run: &Run) -> anyhow::Result<()> {
        self.recording.runs.push(serde_json::value::to_raw_value(run)?);
        self.there.push(key(run));
        self.save()
    }

    /// Adds a table, replacing one with the same name.
    pub fn add_table(&mut self, table: Table) -> anyhow::Result<()> {
        self.recording.tables.retain(|old| old.name != table.name);
        self.recording.tables.push(table);
        self.save()
    }

    pub fn wire_cost(&self) -> Option<&WireCostReport> {
        self.recording.wire_cost.as_ref()
    }

    pub fn set_wire_cost(&mut self, wire_cost: WireCostReport) -> anyhow::Result<()> {
        self.recording.wire_cost = Some(wire_cost);
        self.save()
    }

    fn save(&self) -> anyhow::Result<()> {
        let aside = self.path.with_extension("json.part");
        let write = || -> anyhow::Result<()> {
            fs::write(&aside, serde_json::to_vec(&self.recording)?)?;
            Ok(fs::rename(&aside, &self.path)?)
        };
        write().with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn with_runs<A, B>(old: Recording<A>, runs: Vec<B>) -> Recording<B> {
    let Recording {
        format,
        scenario,
        form,
        parameters,
        seed,
        started,
        provenance,
        command,
        slo,
        planned,
        tables,
        wire_cost,
        ..
    } = old;
    Recording {
        format,
        scenario,
        form,
        parameters,
        seed,
        started,
        provenance,
        command,
        slo,
        planned,
        tables,
        wire_cost,
        runs,
    }
}
