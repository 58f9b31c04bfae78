//! Tables of the theses: the columns of the thesis, filled with our figures.

use crate::recording::{Recording, Table};

use super::{
    sheet::{Cell, Row, Sheet, column_name},
    statistics,
};

/// A published table, and where our figures for it come from.
pub struct PublishedTable {
    pub scenario: &'static str,
    /// Name of the file in `crates/lab/data`, without its extension. The exported file has the same name.
    pub name: &'static str,
    /// Text of that file. Its head has the columns.
    pub csv: &'static str,
    /// Unit of the statistics behind the columns of the thesis, such as `ms`. Empty if it differs between rows.
    pub unit: &'static str,
    pub source: Source,
    /// Difference between the figures of the thesis and ours, or the reason why we have none.
    pub note: &'static str,
}

/// Where the rows come from.
pub enum Source {
    /// A recorded table whose columns are renamed.
    Recorded(Recorded),
    /// A function of the recording, mostly of its runs.
    Computed(fn(&Recording) -> Vec<Row>),
    /// The lab does not measure this. The file has a head and no rows.
    Unmeasured,
}

/// A recorded table as the source. Its columns `mean`, `sd`, `median`, `p95`, `p99`, `max` and `n` become the
/// statistics.
pub struct Recorded {
    pub table: &'static str,
    /// Only the rows with this text in this column, or those without it.
    pub only: Only,
    pub columns: &'static [Column],
    /// Columns that other tables have, too.
    pub more_columns: &'static [Column],
    /// Text as recorded, and as in the thesis.
    pub renamed: &'static [(&'static str, &'static str)],
    /// Recorded columns that follow behind the statistics.
    pub series: &'static [&'static str],
}

/// Column of the thesis, and column of the recorded table.
pub type Column = (&'static str, &'static str);

/// Rows of a recorded table.
pub enum Only {
    All,
    Is(&'static str, &'static str),
    IsNot(&'static str, &'static str),
}

impl PublishedTable {
    /// Returns the columns of the thesis.
    pub fn columns(&self) -> Vec<String> {
        let mut reader = csv::Reader::from_reader(self.csv.as_bytes());
        reader.headers().expect("each file is read by a test").iter().map(str::to_owned).collect()
    }

    pub fn sheet(&self, recording: &Recording) -> Sheet {
        let mut note = self.note.to_owned();
        let rows = match &self.source {
            Source::Recorded(source) => match recording.tables.iter().find(|table| table.name == source.table) {
                Some(table) => source.rows(table, self.unit),
                None => {
                    note = format!("The recording has no table {}. {note}", source.table);
                    Vec::new()
                }
            },
            Source::Computed(rows) => rows(recording),
            Source::Unmeasured => Vec::new(),
        };
        let thesis = self.columns();
        // All other cells identify the series.
        let statistics = statistics::columns(self.unit);
        let rest = rows.iter().flatten().map(|(name, _)| name.to_string());
        let columns = thesis.into_iter().chain(statistics).chain(rest);
        Sheet::of(self.name, columns, &rows, &note)
    }
}

impl Recorded {
    pub fn columns(&self) -> impl Iterator<Item = &Column> {
        self.columns.iter().chain(self.more_columns)
    }

    fn rows(&self, table: &Table, unit: &str) -> Vec<Row> {
        let place = |name: &str| table.columns.iter().position(|column| column.name == name);
        let cell = |row: &[serde_json::Value], name: &str| {
            let found = place(name).and_then(|place| row.get(place)).map(Cell::from).unwrap_or_default();
            match &found {
                Cell::Text(text) => {
                    let renamed = self.renamed.iter().find(|(recorded, _)| recorded == text);
                    renamed.map_or(found, |(_, thesis)| (*thesis).into())
                }
                _ => found,
            }
        };
        let is_wanted = |row: &&Vec<serde_json::Value>| {
            let text = |column| place(column).and_then(|place| row.get(place)).and_then(serde_json::Value::as_str);
            match self.only {
                Only::All => true,
                Only::Is(column, wanted) => text(column) == Some(wanted),
                Only::IsNot(column, other) => text(column) != Some(other),
            }
        };
        let row = |row: &Vec<serde_json::Value>| -> Row {
            let thesis = self.columns().map(|(thesis, ours)| ((*thesis).into(), cell(row, ours)));
            let statistics = statistics::NAMES.into_iter().zip(statistics::columns(unit));
            let statistics = statistics.map(|(name, column)| (column.into(), cell(row, name)));
            let series = self.series.iter().map(|name| {
                let unit = place(name).map_or("", |place| table.columns[place].unit.as_str());
                (column_name(name, unit).into(), cell(row, name))
            });
            thesis.chain(statistics).chain(series).collect()
        };
        table.rows.iter().filter(is_wanted).map(row).collect()
    }
}
