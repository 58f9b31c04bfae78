use serde_json::Value;

use crate::recording::{Column, Table};

/// Notes of a table that has none.
pub const NO_NOTES: [&str; 0] = [];

/// Returns a table. `columns`: names and units.
pub fn table(
    name: &str,
    title: &str,
    columns: &[(&str, &str)],
    rows: Vec<Vec<Value>>,
    notes: impl IntoIterator<Item = impl AsRef<str>>,
) -> Table {
    Table {
        name: name.into(),
        title: title.into(),
        columns: columns.iter().map(|(name, unit)| Column { name: (*name).into(), unit: (*unit).into() }).collect(),
        rows,
        notes: notes.into_iter().map(|note| note.as_ref().to_owned()).collect(),
        validity: Vec::new(),
    }
}
