//! Calls of real browsers through our relay over emulated links, smaller than the native scenarios, and a recorder of
//! RTP heads beside `getStats` (rows L-04, L-05, L-07 to L-12 and L-15).
//!
//! Each participant is a browser in a network namespace of its own. Its only network is an emulated link to this
//! machine with the server, whose relay all media pass: browser - link - relay - link - browser, as in the thesis. The
//! recorders are at the browsers' ends of the links.
//!
//! - this file: repeats; [`conditions`]: parameters, conditions
//! - [`call`]: one call; [`browser`]: programs and flags; [`flows`]: TCP of the kernel; `call.html`: the page
//! - [`figures`]: streams, captures beside statistics
//! - [`tables`], [`series`], [`shares`], [`checks`]: figures of calls, over time, of competing flows; promises

mod browser;
mod call;
mod checks;
mod conditions;
mod figures;
mod flows;
mod series;
mod shares;
mod tables;

use std::{fs::File, io::Write, path::Path};

use anyhow::{Context, ensure};
use millrace_call::y4m::{Size, Y4m};

use self::conditions::{Cell, Choice};
use crate::{
    path::TunCable,
    recording::{Form, Table},
    sweep::{Bench, Experiment},
};

/// Entry in the list of scenarios.
pub struct LozanoBrowsers;

/// Estimated time to start the browsers and to set up a call, and to end it, in seconds.
const START_S: f64 = 12.0;
/// Length of the video in front of the cameras, which repeats it.
const CAMERA_S: u64 = 5;

impl Experiment for LozanoBrowsers {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        let of = |choice: Choice| {
            let calls = choice.cells().map_or(0, |cells| cells.len()) as f64 * f64::from(choice.repeats);
            calls * (choice.test.as_secs_f64() + START_S)
        };
        Choice::read(parameters).map_or(0.0, of)
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let choice = Choice::read(parameters)?;
        if bench.has_table(tables::MAIN) {
            return Ok(());
        }
        let cells = choice.cells()?;
        if let Err(error) = can_run(&cells) {
            ensure!(bench.form == Form::Quick, "no calls between browsers on this machine: {error:#}");
            bench.note(&format!("skipped: lozano-browsers: {error:#}"));
            return Ok(());
        }
        let folder = tempfile::tempdir()?;
        let cameras = cameras(&cells, folder.path(), bench.seed)?;
        let mut calls = Vec::new();
        for repeat in 0..choice.repeats {
            for (n, cell) in cells.iter().enumerate() {
                bench.go_on()?;
                let camera = cameras.iter().find(|(size, _)| *size == cell.size).map(|(_, path)| path);
                let plan = call::Plan {
                    browsers: &cell.browsers,
                    links: &cell.links,
                    size: cell.size,
                    calls: cell.calls,
                    offset: cell.offset,
                    max_bits_per_s: choice.ceiling.bits_per_s(),
                    flows: cell.flows,
                    tcp_start: choice.tcp_start,
                    test: choice.test,
                    patience: choice.patience,
                    camera: camera.context("each size has a video")?,
                    seed: bench.seed.wrapping_add(u64::from(repeat)),
                };
                let go_on = bench.go_on_elsewhere();
                let outcome = call::run(&plan, &bench.options("millrace", &[]), &go_on)?;
                drop(go_on);
                let call = tables::Call::of(n, cell.calls, repeat, outcome);
                bench.note(&tables::describe(cell, &call));
                calls.push(call);
            }
        }
        all_tables(&choice, &cells, &calls, bench.form).into_iter().try_for_each(|table| bench.table(table))
    }
}

fn all_tables(choice: &Choice, cells: &[Cell], calls: &[tables::Call], form: Form) -> Vec<Table> {
    let mut all = tables::tables(choice, cells, calls);
    all.extend(series::tables(cells, calls));
    all.extend(shares::tables(choice, cells, calls));
    all.push(checks::table(cells, calls, form));
    all
}

/// Checks whether this machine has links and browsers.
fn can_run(cells: &[Cell]) -> anyhow::Result<()> {
    TunCable::check()?;
    cells.iter().flat_map(|cell| &cell.browsers).try_for_each(|browser| browser.program().map(drop))
}

/// Writes the video of each size, and returns its file.
fn cameras(cells: &[Cell], folder: &Path, seed: u64) -> anyhow::Result<Vec<(Size, std::path::PathBuf)>> {
    let mut cameras: Vec<(Size, std::path::PathBuf)> = Vec::new();
    for Cell { size, .. } in cells {
        if cameras.iter().any(|(other, _)| other == size) {
            continue;
        }
        let path = folder.join(format!("{}x{}.y4m", size.width(), size.height()));
        let mut file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let frames = CAMERA_S * u64::from(millrace_call::source::FRAMES_PER_S);
        Y4m::new(*size, frames, seed).try_for_each(|piece| file.write_all(&piece))?;
        cameras.push((*size, path));
    }
    Ok(cameras)
}
