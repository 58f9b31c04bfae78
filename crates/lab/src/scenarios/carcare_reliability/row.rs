use crate::targets::Transport;

/// Results of a check with one transport: one row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Name of the check.
    pub check: String,
    /// Condition under which the check passes.
    pub criterion: &'static str,
    pub transport: Transport,
    /// True if Millrace promises that this check passes. The other rows show what happens without the feature.
    pub promised: bool,
    /// Seconds within which the ends must notice, if this is the criterion.
    pub limit_s: Option<f64>,
    /// One per repeat.
    pub outcomes: Vec<Outcome>,
}

/// Result of one check.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    pub passed: bool,
    /// Seconds from the first packet that the network discarded until the client noticed; `None` if it did not. After a
    /// change of network: seconds until the client has received all missed messages.
    pub client_s: Option<f64>,
    /// Seconds from the first discarded packet until the server noticed; `None` if it did not.
    pub server_s: Option<f64>,
    pub stale: u64,
    pub lost: u64,
    pub again: u64,
}

impl Row {
    /// Adds the outcomes of rows to those of the same check and transport.
    pub fn merge(into: &mut Vec<Row>, rows: Vec<Row>) {
        for row in rows {
            match into.iter_mut().find(|known| known.check == row.check && known.transport == row.transport) {
                Some(known) => known.outcomes.extend(row.outcomes),
                None => into.push(row),
            }
        }
    }

    /// True if the check passed in all repeats.
    pub fn passed(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.passed)
    }

    /// Returns a sum over all repeats.
    pub fn sum(&self, of: fn(&Outcome) -> u64) -> u64 {
        self.outcomes.iter().map(of).sum()
    }

    /// Returns the median and the maximum of a time over the repeats in which it was measured.
    pub fn times(&self, of: fn(&Outcome) -> Option<f64>) -> Option<(f64, f64)> {
        let mut times: Vec<f64> = self.outcomes.iter().filter_map(of).collect();
        times.sort_by(f64::total_cmp);
        // With an even number, the larger one of the two in the middle.
        Some((*times.get(times.len() / 2)?, *times.last()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(transport: Transport, passed: bool, client_s: Option<f64>, lost: u64) -> Row {
        let outcomes = vec![Outcome { passed, client_s, lost, ..Outcome::default() }];
        Row { check: "x".into(), criterion: "y", transport, promised: true, limit_s: None, outcomes }
    }

    #[test]
    fn repeats_are_one_row_which_passes_if_all_do() {
        let mut rows = Vec::new();
        for (passed, client_s, lost) in
            [(true, Some(3.0), 0), (false, None, 2), (true, Some(1.0), 1), (true, Some(2.0), 0)]
        {
            Row::merge(
                &mut rows,
                vec![row(Transport::Sse, passed, client_s, lost), row(Transport::Stream, true, None, 0)],
            );
        }
        assert_eq!(rows.len(), 2);
        assert!(!rows[0].passed() && rows[1].passed());
        assert_eq!(rows[0].sum(|outcome| outcome.lost), 3);
        assert_eq!(rows[0].times(|outcome| outcome.client_s), Some((2.0, 3.0)));
        assert_eq!(rows[1].times(|outcome| outcome.client_s), None);
    }
}
