//! Pass or fail checks for results that are not series of runs: the byte model of a wire cost report, and promised
//! checks in tables.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{recording::Table, wire_cost::WireCostReport};

/// Maximum difference between measured bytes and the model of a wire cost report, in percent.
pub const MODEL_PERCENT_MAX: f64 = 1.0;
/// A table with both columns is checked: each row with `yes` in the column `promised` must have `yes` in the column
/// `passed`.
pub const PROMISED: &str = "promised";
pub const PASSED: &str = "passed";

/// Result of one group of checks: the number of checks, and those that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// Description of the checks that did not fail, such as `promised checks passed`.
    pub what: String,
    pub total: u32,
    /// One sentence for each failed check.
    pub failed: Vec<String>,
}

/// Evaluates the wire cost report and the tables of a recording. Returns an empty list for a scenario that has only
/// runs.
pub fn judged(wire_cost: Option<&WireCostReport>, tables: &[Table]) -> Vec<Judged> {
    wire_cost.map(model).into_iter().chain(tables.iter().filter_map(promises)).collect()
}

fn model(wire_cost: &WireCostReport) -> Judged {
    let off = wire_cost.lines.iter().filter(|line| line.difference_percent.abs() >= MODEL_PERCENT_MAX);
    Judged {
        what: format!("figures differ from the model by less than {MODEL_PERCENT_MAX} %"),
        total: wire_cost.lines.len() as u32,
        failed: off.map(|line| format!("{line}: {:+.2} %", line.difference_percent)).collect(),
    }
}

fn promises(table: &Table) -> Option<Judged> {
    let column = |name: &str| table.columns.iter().position(|column| column.name == name);
    let (promised, passed) = (column(PROMISED)?, column(PASSED)?);
    let is_yes = |row: &[Value], column: usize| row.get(column).and_then(Value::as_str) == Some("yes");
    let judged = || table.rows.iter().filter(|row| is_yes(row, promised));
    // The columns before `promised` and `passed` name the check.
    let name = |row: &Vec<Value>| {
        let words = row.iter().take(promised.min(passed)).filter_map(Value::as_str);
        words.collect::<Vec<_>>().join(", ")
    };
    Some(Judged {
        what: "promised checks passed".into(),
        total: judged().count() as u32,
        failed: judged().filter(|row| !is_yes(row, passed)).map(name).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Column;

    #[test]
    fn only_promised_checks_can_fail() {
        let column = |name: &str| Column { name: name.into(), unit: String::new() };
        let row = |cells: [&str; 4]| cells.map(Value::from).to_vec();
        let mut table = Table {
            columns: ["check", "transport", PROMISED, PASSED].map(column).to_vec(),
            rows: vec![
                row(["NAT", "sse", "yes", "yes"]),
                row(["NAT", "stream", "yes", "no"]),
                row(["NAT", "websocket", "no", "no"]),
                // A row with missing cells.
                vec![Value::from("NAT")],
            ],
            ..Table::default()
        };
        let judged = promises(&table).unwrap();
        assert_eq!((judged.total, judged.failed), (2, vec!["NAT, stream".to_owned()]));
        table.columns.remove(2);
        assert_eq!(promises(&table), None);
    }
}
