//! All cells of a scenario with all controllers.

use millrace_sfu::congestion::Algorithm;
use serde_json::Value;

use super::{
    calls::{RunFigures, Settings, Setup, measure},
    choice::Common,
    tables,
};
use crate::{recording::Table, sweep::Bench};

/// Conditions of a call.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// Values of the key columns.
    pub key: Vec<Value>,
    pub setup: Setup,
    /// Rate of the thesis in kbit/s, if it has this cell and the value is not in doubt.
    pub thesis_kbit_s: Option<f64>,
    /// Rate that a stream could have, in kbit/s: that of the bottleneck or of the encoder.
    pub capacity_kbit_s: Option<f64>,
}

/// Conditions of a scenario, and the names of its tables.
#[derive(Clone, Debug, Default)]
pub struct Study {
    /// Name of the main table, and begin of the names of the others.
    pub name: &'static str,
    pub title: &'static str,
    /// Columns that identify a cell, and their units.
    pub keys: Vec<(&'static str, &'static str)>,
    pub cells: Vec<Cell>,
    /// Notes below the main table.
    pub notes: Vec<String>,
}

/// Figures of one cell with one controller.
#[derive(Clone, Debug)]
pub struct Measured {
    pub cell: usize,
    pub algorithm: Algorithm,
    pub run: RunFigures,
}

/// Calls of one cell and one controller, over all repeats.
pub struct Point<'a> {
    pub cell: &'a Cell,
    pub algorithm: Algorithm,
    pub runs: Vec<&'a RunFigures>,
}

/// Measures all cells, and records the tables that all scenarios have and those that `own` makes. Does nothing if the
/// recording has them already.
///
/// Errors: the user has stopped the run, or a link is invalid.
pub fn run(
    study: &Study,
    common: &Common,
    bench: &mut Bench<'_>,
    own: impl FnOnce(&[Point<'_>], &[Measured]) -> Vec<Table>,
) -> anyhow::Result<()> {
    if bench.has_table(study.name) {
        return Ok(());
    }
    let seed = bench.seed;
    let each = |one: &Measured| {
        bench.note(&tables::describe(study, one));
        bench.go_on()
    };
    let measured = measure_all(study, common, seed, each)?;
    let mut all = tables::tables(study, common, &measured)?;
    all.extend(own(&points(study, &common.algorithms()?, &measured), &measured));
    all.into_iter().try_for_each(|table| bench.table(table))
}

/// Measures all cells with all controllers and repeats. `each` receives each result, and ends everything by an error.
pub fn measure_all(
    study: &Study,
    common: &Common,
    seed: u64,
    mut each: impl FnMut(&Measured) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Measured>> {
    let mut measured = Vec::new();
    for repeat in 0..common.repeats {
        for (cell, of) in study.cells.iter().enumerate() {
            for algorithm in common.algorithms()? {
                let settings = Settings::new(common, algorithm, seed.wrapping_add(u64::from(repeat)));
                let one = Measured { cell, algorithm, run: measure(&of.setup, &settings)? };
                each(&one)?;
                measured.push(one);
            }
        }
    }
    Ok(measured)
}

/// Returns the points in the order of the cells.
pub fn points<'a>(study: &'a Study, algorithms: &[Algorithm], measured: &'a [Measured]) -> Vec<Point<'a>> {
    let point = |cell: usize, algorithm: Algorithm| {
        let of = |one: &&Measured| one.cell == cell && one.algorithm == algorithm;
        let runs = measured.iter().filter(of).map(|one| &one.run).collect();
        Point { cell: &study.cells[cell], algorithm, runs }
    };
    let cells = 0..study.cells.len();
    cells
        .flat_map(|cell| algorithms.iter().map(move |algorithm| (cell, *algorithm)))
        .map(|(cell, algorithm)| point(cell, algorithm))
        .collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::scenarios::lozano::tables::Check;

    /// Measures all cells, and prints one line for each.
    fn measured(study: &Study, common: &Common) -> Vec<Measured> {
        let each = |one: &Measured| {
            println!("{}", tables::describe(study, one));
            Ok(())
        };
        measure_all(study, common, 1, each).expect("valid links")
    }

    /// Measures all cells, and checks that the promises of `checks` are kept and that each row has all columns.
    pub fn assert_promises(
        study: &Study,
        common: &Common,
        checks: impl FnOnce(&[Point<'_>], &[Measured]) -> Vec<Check>,
    ) {
        let measured = measured(study, common);
        let points = points(study, &common.algorithms().expect("valid names"), &measured);
        assert_kept(&checks(&points, &measured));
        let tables = tables::tables(study, common, &measured).expect("valid names");
        assert!(tables.iter().all(|table| table.rows.iter().all(|row| row.len() == table.columns.len())));
    }

    /// Checks that no promise is broken.
    pub fn assert_kept(checks: &[Check]) {
        assert!(checks.iter().any(|check| check.is_promised));
        for Check { of, check, is_promised, passed, found } in checks {
            println!("{of}: {check}: {found}: {passed}");
            assert!(*passed || !is_promised, "{of}: {check}: {found}");
        }
    }
}
