//! What is judged of scenarios that are no series of runs: the model of a bill, and promises in tables.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{recording::Table, wire::Bill};

/// How far the model of a bill may be off what was measured.
pub const MODEL_PERCENT_MAX: f64 = 1.0;
/// A table with both columns is judged: each row with `yes` in the first one must have it in the second one, too.
pub const PROMISED: &str = "promised";
pub const PASSED: &str = "passed";

/// So many were judged, and these failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// Of those that did not fail: `promised checks passed`.
    pub what: String,
    pub total: u32,
    /// A sentence each.
    pub failed: Vec<String>,
}

/// Of what a recording holds. Nothing for a scenario that has runs alone.
pub fn judged(bill: Option<&Bill>, tables: &[Table]) -> Vec<Judged> {
    bill.map(model).into_iter().chain(tables.iter().filter_map(promises)).collect()
}

fn model(bill: &Bill) -> Judged {
    let off = bill.lines.iter().filter(|line| line.difference_percent.abs() >= MODEL_PERCENT_MAX);
    Judged {
        what: format!("figures are less than {MODEL_PERCENT_MAX} % off the model"),
        total: bill.lines.len() as u32,
        failed: off.map(|line| format!("{line}: {:+.2} %", line.difference_percent)).collect(),
    }
}

fn promises(table: &Table) -> Option<Judged> {
    let column = |name: &str| table.columns.iter().position(|column| column.name == name);
    let (promised, passed) = (column(PROMISED)?, column(PASSED)?);
    let is_yes = |row: &[Value], column: usize| row.get(column).and_then(Value::as_str) == Some("yes");
    let judged = || table.rows.iter().filter(|row| is_yes(row, promised));
    // Which one it is stands before what became of it.
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
    fn only_what_is_promised_can_fail() {
        let column = |name: &str| Column { name: name.into(), unit: String::new() };
        let row = |cells: [&str; 4]| cells.map(Value::from).to_vec();
        let mut table = Table {
            columns: ["check", "transport", PROMISED, PASSED].map(column).to_vec(),
            rows: vec![
                row(["NAT", "sse", "yes", "yes"]),
                row(["NAT", "ndjson", "yes", "no"]),
                row(["NAT", "websocket", "no", "no"]),
                // Cut short.
                vec![Value::from("NAT")],
            ],
            ..Table::default()
        };
        let judged = promises(&table).unwrap();
        assert_eq!((judged.total, judged.failed), (2, vec!["NAT, ndjson".to_owned()]));
        table.columns.remove(2);
        assert_eq!(promises(&table), None);
    }
}
