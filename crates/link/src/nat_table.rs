//! The connections that a NAT knows.

use std::{collections::HashMap, time::Duration};

use crate::{Config, Direction, Flow, OnIdle, Time};

/// Decision of a NAT about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Swallow,
    Reset,
}

/// Connections of the client, with the time of their last packet.
#[derive(Clone, Debug, Default)]
pub(crate) struct NatTable {
    entries: HashMap<Flow, Time>,
    /// Number of changes of address that have happened.
    changes: usize,
    /// Time of the last cleaning.
    cleaned: Time,
}

impl NatTable {
    /// Decides whether a packet passes. Packets from the network never make an entry.
    pub fn check(
        &mut self,
        config: &Config,
        flow: Option<Flow>,
        is_opening: bool,
        direction: Direction,
        now: Time,
    ) -> Verdict {
        let Some(flow) = flow else { return Verdict::Pass };
        let changes = config.address_changes.iter().filter(|at| Time::ZERO + ***at <= now).count();
        if changes > self.changes {
            // Packets of the old address have no way back, and those of the client leave from another address.
            self.changes = changes;
            self.entries.clear();
        }
        let idle = config.nat.map_or(Duration::MAX, |nat| nat.idle);
        self.clean(idle, now);
        let is_known = self.entries.get(&flow).is_some_and(|last| now.since(*last) < idle);
        if is_known || (is_opening && direction == Direction::Up) {
            self.entries.insert(flow, now);
            return Verdict::Pass;
        }
        match config.nat.map(|nat| nat.on_idle) {
            Some(OnIdle::Reset) => Verdict::Reset,
            _ => Verdict::Swallow,
        }
    }

    /// Removes forgotten entries now and then, so that the table does not grow.
    fn clean(&mut self, idle: Duration, now: Time) {
        if now.since(self.cleaned) >= idle {
            self.entries.retain(|_, last| now.since(*last) < idle);
            self.cleaned = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nat;

    const FLOW: Option<Flow> = Some(Flow(7));

    fn at(s: u64) -> Time {
        Time::ZERO + Duration::from_secs(s)
    }

    #[test]
    fn silent_connections_are_forgotten_in_both_directions() {
        for (on_idle, verdict) in [(OnIdle::Swallow, Verdict::Swallow), (OnIdle::Reset, Verdict::Reset)] {
            let nat = Nat { idle: Duration::from_secs(60), on_idle };
            let config = Config { nat: Some(nat), ..Config::default() };
            let mut table = NatTable::default();
            let mut check = |opening, direction, s| table.check(&config, FLOW, opening, direction, at(s));
            assert_eq!(check(true, Direction::Down, 0), verdict, "the network cannot open a connection");
            assert_eq!(check(true, Direction::Up, 0), Verdict::Pass);
            assert_eq!(check(false, Direction::Down, 59), Verdict::Pass);
            assert_eq!(check(false, Direction::Up, 118), Verdict::Pass, "each packet begins the time again");
            assert_eq!(check(false, Direction::Down, 178), verdict);
            assert_eq!(check(false, Direction::Up, 179), verdict, "only a new connection is let through");
            assert_eq!(check(true, Direction::Up, 180), Verdict::Pass);
        }
    }

    #[test]
    fn change_of_address_ends_all_connections() {
        let mut table = NatTable::default();
        let address_changes = vec![Duration::from_secs(10).into()];
        let config = Config { address_changes, ..Config::default() };
        let mut check = |opening, direction, s| table.check(&config, FLOW, opening, direction, at(s));
        assert_eq!(check(true, Direction::Up, 1), Verdict::Pass);
        assert_eq!(check(false, Direction::Down, 9), Verdict::Pass);
        assert_eq!(check(false, Direction::Down, 10), Verdict::Swallow);
        assert_eq!(check(false, Direction::Up, 11), Verdict::Swallow);
        assert_eq!(check(true, Direction::Up, 12), Verdict::Pass);
        assert_eq!(check(false, Direction::Down, 13), Verdict::Pass);
    }
}
