//! CSV files from a recording: the tables of the theses with our figures, all runs, and all recorded tables.
//!
//! - [`tables`]: the list of published tables. A new table is one entry there.
//! - [`lozano_browsers`]: entries of one scenario
//! - [`published`]: how an entry becomes a file
//! - [`karadogan`], [`somogyi`], [`thorsen`], [`wire_cost`]: rows that are computed
//! - [`runs`]: the file `runs.csv`
//! - [`folder`]: which files an export may replace
//! - [`group`], [`statistics`], [`sheet`]: combined repeats, their statistics, and one file

mod folder;
mod group;
mod karadogan;
mod lozano_browsers;
pub mod published;
mod runs;
mod sheet;
mod somogyi;
mod statistics;
pub mod tables;
mod thorsen;
mod wire_cost;

use std::{borrow::Cow, collections::HashSet, path::Path};

use crate::recording::{Recording, Table};

use sheet::{Cell, Row, Sheet, column_name};

pub use folder::{Exported, File};

/// Longest name of a file that is made from the name of a table.
const NAME_MAX: usize = 100;

/// Writes all files of a recording to a folder.
///
/// Errors: the folder has files that no export wrote, or cannot be written.
pub fn export(recording: &Recording, folder: &Path) -> anyhow::Result<Exported> {
    folder::write(recording, &sheets(recording), notes(recording), folder)
}

/// Returns the files: published tables, runs, recorded tables, and the wire cost report.
fn sheets(recording: &Recording) -> Vec<Sheet> {
    let mut sheets: Vec<Sheet> = tables::of(&recording.scenario).map(|table| table.sheet(recording)).collect();
    sheets.push(runs::sheet(recording));
    sheets.extend(recording.tables.iter().map(recorded));
    sheets.extend(recording.wire_cost.iter().flat_map(wire_cost::sheets));
    let mut names = HashSet::new();
    for sheet in &mut sheets {
        let wanted = sheet.name.clone();
        let other = |n: u32| if n == 1 { wanted.clone() } else { format!("{wanted}-{n}") };
        // On some systems, files whose names differ only in case are the same file.
        let free = (1..).map(other).find(|name| names.insert(name.to_lowercase()));
        sheet.name = free.unwrap_or(wanted);
    }
    sheets
}

/// Returns the limits of the figures in all files.
fn notes(recording: &Recording) -> Vec<String> {
    let mut notes = Vec::new();
    let (there, planned) = (recording.runs.len(), recording.planned as usize);
    if there < planned {
        notes.push(format!("The recording was interrupted: it has {there} of {planned} runs."));
    }
    let invalid = recording.runs.iter().filter(|run| !run.is_valid()).count();
    if invalid > 0 {
        notes.push(format!(
            "{invalid} of {there} runs are invalid. A published table uses them only if a load has no valid run (runs_valid is 0)."
        ));
    }
    let against = |table: &Table| {
        let finding = table.validity.iter().find(|finding| finding.invalidates)?;
        Some(format!("The table {} is not valid: {}", table.name, finding.detail))
    };
    notes.extend(recording.tables.iter().filter_map(against));
    let histograms = recording.runs.iter().flat_map(|run| &run.phases).map(|phase| &phase.latency_us);
    if histograms.into_iter().any(|histogram| !histogram.has_sums()) {
        notes.push(
            "An older version made this recording, without exact sums: mean and sd of latencies are within 0.1 %."
                .into(),
        );
    }
    notes
}

/// Returns a recorded table as a file of the same name. Letters that a file name should not have become `_`.
fn recorded(table: &Table) -> Sheet {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let name: String =
        table.name.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).take(NAME_MAX).collect();
    let name =
        if name.starts_with(|first: char| first.is_ascii_alphanumeric()) { name } else { format!("table{name}") };
    let mut columns: Vec<String> = Vec::new();
    for column in &table.columns {
        let wanted = column_name(&column.name, &column.unit);
        let other = |n: usize| if n == 1 { wanted.clone() } else { format!("{wanted}_{n}") };
        let free = (1..).map(other).find(|name| !columns.contains(name));
        columns.extend(free);
    }
    // A row may be shorter than the head, or longer.
    let rows = table.rows.iter().map(|row| -> Row {
        columns.iter().zip(row).map(|(column, value)| (Cow::Owned(column.clone()), Cell::from(value))).collect()
    });
    Sheet::of(&name, columns.clone(), &rows.collect::<Vec<_>>(), &table.title)
}
