//! One CSV file: its columns, rows and cells (RFC 4180).

use std::borrow::Cow;

use csv::{Terminator, WriterBuilder};
use serde_json::Value;

/// Significant digits of a number that is not whole.
const DIGITS: usize = 9;

/// A value in a file. An unknown value is [`Cell::Empty`], never 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Cell {
    #[default]
    Empty,
    Number(f64),
    Count(u64),
    Text(String),
}

/// Cells by the names of their columns. If a name occurs twice, the first one counts.
pub type Row = Vec<(Cow<'static, str>, Cell)>;

/// Content of one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sheet {
    /// Name of the file without its extension.
    pub name: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
    /// How the figures were obtained, or why there are none.
    pub note: String,
}

impl Sheet {
    /// Returns a sheet with these columns, and the cells of the rows in their order. Repeated columns occur once.
    pub fn of(name: &str, columns: impl IntoIterator<Item = String>, rows: &[Row], note: &str) -> Sheet {
        let mut unique: Vec<String> = Vec::new();
        for column in columns {
            if !unique.contains(&column) {
                unique.push(column);
            }
        }
        let cell = |row: &Row, column: &String| {
            row.iter().find(|(name, _)| name == column).map(|(_, cell)| cell.clone()).unwrap_or_default()
        };
        let rows = rows.iter().map(|row| unique.iter().map(|column| cell(row, column)).collect()).collect();
        Sheet { name: name.into(), columns: unique, rows, note: note.into() }
    }

    /// Returns a sheet whose columns are those of the first row.
    pub fn of_rows(name: &str, rows: &[Row], note: &str) -> Sheet {
        let columns = rows.first().into_iter().flatten().map(|(name, _)| name.to_string());
        Sheet::of(name, columns, rows, note)
    }

    /// Returns the text of the file: CSV with a head and CRLF.
    ///
    /// Errors: a row has another number of cells than the head.
    pub fn csv(&self) -> anyhow::Result<Vec<u8>> {
        let mut writer = WriterBuilder::new().terminator(Terminator::CRLF).from_writer(Vec::new());
        writer.write_record(self.columns.iter().map(|name| without_formula(name)))?;
        for row in &self.rows {
            writer.write_record(row.iter().map(Cell::text))?;
        }
        Ok(writer.into_inner()?)
    }
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Cell::Empty => String::new(),
            Cell::Number(value) => number(*value),
            Cell::Count(count) => count.to_string(),
            Cell::Text(text) => without_formula(text),
        }
    }

    /// Returns the number multiplied by a factor.
    pub fn times(self, factor: f64) -> Cell {
        match self {
            Cell::Number(value) => Cell::Number(value * factor),
            Cell::Count(count) => Cell::Number(count as f64 * factor),
            other => other,
        }
    }
}

impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Cell::Number(value)
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Self {
        Cell::Count(count)
    }
}

impl From<usize> for Cell {
    fn from(count: usize) -> Self {
        Cell::Count(count as u64)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Cell::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell::Text(text)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Cell::Empty, Into::into)
    }
}

impl From<&Value> for Cell {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Cell::Empty,
            Value::Number(number) => number.as_u64().map_or_else(|| number.as_f64().into(), Cell::Count),
            Value::String(text) => Cell::Text(text.clone()),
            other => Cell::Text(other.to_string()),
        }
    }
}

/// Formats a number without an exponent, with a decimal point. A value that is not finite is empty.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return String::new();
    }
    let rounded: f64 = format!("{value:.*e}", DIGITS - 1).parse().unwrap_or(value);
    let is_whole = value == value.trunc() && value.abs() < 1e15;
    // Zero has no sign: `-0` is no figure.
    format!("{}", if is_whole { value } else { rounded } + 0.0)
}

/// Prevents formulas in spreadsheets, with the rule of `web/src/pages/rooms/run.ts`.
fn without_formula(text: &str) -> String {
    match text.starts_with(['=', '+', '-', '@', '\t']) {
        true => format!("'{text}"),
        false => text.to_owned(),
    }
}

/// Returns the name of a column: `CPU of the emulator` in `us/packet` becomes `cpu_of_the_emulator_us_per_packet`.
pub fn column_name(name: &str, unit: &str) -> String {
    let unit = match unit {
        "%" => "percent",
        "B" => "bytes",
        "B/s" => "bytes_per_s",
        "1/s" => "per_s",
        "µs" => "us",
        "min" => "minutes",
        unit => unit,
    };
    [name, &unit.replace('/', " per ")]
        .map(snake)
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("_")
}

/// Returns lower-case words with `_` between them.
fn snake(text: &str) -> String {
    let lower = text.to_lowercase();
    let words = lower.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(cells: Vec<Cell>) -> String {
        let columns = (0..cells.len()).map(|n| format!("c{n}")).collect();
        let sheet = Sheet { columns, rows: vec![cells], ..Sheet::default() };
        let csv = String::from_utf8(sheet.csv().unwrap()).unwrap();
        csv.split_once("\r\n").unwrap().1.to_owned()
    }

    #[test]
    fn numbers_have_a_point_and_no_exponent() {
        for (value, shown) in [
            (0.0, "0"),
            (-0.0, "0"),
            (0.1 + 0.2, "0.3"),
            (1e-7, "0.0000001"),
            (123_456_789_012.0, "123456789012"),
            (1.0 / 3.0, "0.333333333"),
            (-2.5, "-2.5"),
            (f64::NAN, ""),
            (f64::INFINITY, ""),
        ] {
            assert_eq!(number(value), shown);
        }
        assert_eq!(text(vec![Cell::Empty, 0.5.into(), 7u64.into()]), ",0.5,7\r\n");
    }

    #[test]
    fn text_is_quoted_and_never_a_formula() {
        let cells = ["a,b", "say \"x\"", "two\nlines", "=1+1", "+1", "-1", "@x", "\tx", "plain"];
        assert_eq!(
            text(cells.map(Cell::from).to_vec()),
            "\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",'=1+1,'+1,'-1,'@x,'\tx,plain\r\n"
        );
        let sheet = Sheet { columns: vec!["=x".into()], ..Sheet::default() };
        assert_eq!(sheet.csv().unwrap(), b"'=x\r\n");
    }

    #[test]
    fn repeated_column_occurs_once_with_its_first_cell() {
        let row: Row = vec![("a".into(), 1u64.into()), ("b".into(), 2u64.into()), ("a".into(), 3u64.into())];
        let sheet = Sheet::of("x", ["a", "b", "a", "c"].map(str::to_owned), &[row], "");
        assert_eq!(
            (sheet.columns, sheet.rows),
            (["a", "b", "c"].map(str::to_owned).to_vec(), vec![vec![Cell::Count(1), Cell::Count(2), Cell::Empty]])
        );
    }

    #[test]
    fn column_names_carry_their_unit() {
        for (name, unit, expected) in [
            ("mean", "ms", "mean_ms"),
            ("p99.9", "µs", "p99_9_us"),
            ("CPU of the emulator", "us/packet", "cpu_of_the_emulator_us_per_packet"),
            ("handshakes per second of CPU", "1/s", "handshakes_per_second_of_cpu_per_s"),
            ("sent", "B/s", "sent_bytes_per_s"),
            ("late, p99", "", "late_p99"),
            ("=1+1", "%", "1_1_percent"),
        ] {
            assert_eq!(column_name(name, unit), expected);
        }
    }
}
