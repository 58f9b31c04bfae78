//! Send rules of a device: send every measurement, or only the events.

use std::collections::HashMap;

use crate::record::Record;

/// Condition under which a device sends a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Send a record every interval.
    Continuous,
    /// Send only records with an [`crate::record::Event`].
    Event,
}

/// Applies a rule to the records of many cars and numbers the records that are sent. `seq` increases by 1 per car,
/// so a reader can verify that no record is missing.
#[derive(Debug)]
pub struct Sender {
    rule: Rule,
    sent: HashMap<u32, u64>,
}

impl Sender {
    pub fn new(rule: Rule) -> Self {
        Self { rule, sent: HashMap::new() }
    }

    /// Returns the records to send, in their order.
    pub fn select(&mut self, records: Vec<Record>) -> Vec<Record> {
        let wanted = |record: &Record| self.rule == Rule::Continuous || record.event.is_some();
        let mut chosen: Vec<Record> = records.into_iter().filter(wanted).collect();
        for record in &mut chosen {
            let sent = self.sent.entry(record.car_id).or_default();
            *sent += 1;
            record.seq = Some(*sent);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{fleet::Fleet, town::Town};

    #[test]
    fn event_rule_sends_and_numbers_only_events() {
        let mut fleet = Fleet::new(Town::default(), 6, 7);
        let (mut continuous, mut by_event) = (Sender::new(Rule::Continuous), Sender::new(Rule::Event));
        let (mut all, mut events) = (Vec::new(), Vec::new());
        for second in 0..900 {
            let records = fleet.step(second * 1000, Duration::from_secs(1));
            all.extend(continuous.select(records.clone()));
            events.extend(by_event.select(records));
        }
        assert_eq!(all.len(), 5400);
        assert!(!events.is_empty() && events.len() < all.len() / 20, "{} events", events.len());
        assert!(events.iter().all(|record| record.event.is_some()));
        assert_eq!(events.len(), all.iter().filter(|record| record.event.is_some()).count());
        for car in 1..=6 {
            let seqs: Vec<u64> = events.iter().filter(|r| r.car_id == car).filter_map(|r| r.seq).collect();
            assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
        }
    }
}
