//! State machine of a radio. The radio falls from one state to the next while it is silent (see `radios.toml`).

use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

const OURS: &str = include_str!("radios.toml");

/// Radios described in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Radios {
    pub radio: Vec<Radio>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Radio {
    pub name: String,
    /// Source of the figures.
    pub source: String,
    /// Energy per megabit sent or received, in addition to the power of the state.
    #[serde(default)]
    pub up_j_per_mbit: f64,
    #[serde(default)]
    pub down_j_per_mbit: f64,
    /// States of the radio, the most active first. The radio stays in the last one without a time limit.
    pub state: Vec<State>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    pub name: String,
    pub power_w: f64,
    /// Silent time after which the next state begins. `None` for the last state.
    pub lasts_s: Option<f64>,
    pub ping: Option<Ping>,
    /// Promotion to the first state. All states except the first have one.
    pub promotion: Option<Promotion>,
    pub carries: Option<Small>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ping {
    pub power_w: f64,
    pub on_s: f64,
    pub every_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Promotion {
    pub power_w: f64,
    pub lasts_s: f64,
}

/// Largest packets that the state carries without a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Small {
    pub up_bytes: u64,
    pub down_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packet {
    pub at_s: f64,
    pub direction: Direction,
    pub bytes: u64,
}

/// Energy of a trace, by use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EnergyUse {
    /// Energy and time per state, in the order of [`Radio::state`].
    pub states_j: Vec<f64>,
    pub states_s: Vec<f64>,
    pub promotion_j: f64,
    pub promotion_s: f64,
    pub transfer_j: f64,
    /// Number of promotions that take time.
    pub promotions: u64,
}

impl EnergyUse {
    pub fn total_j(&self) -> f64 {
        self.states_j.iter().sum::<f64>() + self.promotion_j + self.transfer_j
    }
}

impl State {
    /// Returns the mean power of the state, including its pings.
    pub fn mean_power_w(&self) -> f64 {
        self.power_w + self.ping.map_or(0.0, |ping| (ping.power_w - self.power_w) * ping.on_s / ping.every_s)
    }
}

impl Radios {
    /// Loads the radios of a file, or the built-in ones.
    ///
    /// Errors: the file cannot be read, or it has values that are not valid for a radio.
    pub fn load(file: Option<&Path>) -> anyhow::Result<Radios> {
        match file {
            None => Radios::parse(OURS).context("radios.toml of ours"),
            Some(file) => {
                let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
                Radios::parse(&text).with_context(|| format!("{} describes no radios", file.display()))
            }
        }
    }

    pub fn parse(text: &str) -> anyhow::Result<Radios> {
        let radios: Radios = toml::from_str(text)?;
        ensure!(!radios.radio.is_empty(), "no [[radio]]");
        radios.radio.iter().try_for_each(Radio::check)?;
        Ok(radios)
    }

    pub fn find(&self, name: &str) -> anyhow::Result<&Radio> {
        let names = || self.radio.iter().map(|radio| radio.name.as_str()).collect::<Vec<_>>().join(", ");
        self.radio
            .iter()
            .find(|radio| radio.name == name)
            .with_context(|| format!("no radio {name}; there are {}", names()))
    }
}

impl Radio {
    fn check(&self) -> anyhow::Result<()> {
        let name = &self.name;
        ensure!(self.state.len() >= 2, "{name}: a radio has two states at least");
        let is_amount = |value: f64| value.is_finite() && value >= 0.0;
        ensure!(is_amount(self.up_j_per_mbit) && is_amount(self.down_j_per_mbit), "{name}: joules are 0 or more");
        for (i, state) in self.state.iter().enumerate() {
            let (is_first, is_last) = (i == 0, i + 1 == self.state.len());
            let here = format!("{name}, state {}", state.name);
            ensure!(is_amount(state.power_w), "{here}: power_w is 0 or more");
            ensure!(state.lasts_s.is_none_or(is_amount), "{here}: lasts_s is 0 or more");
            ensure!(state.lasts_s.is_none() == is_last, "{here}: all states but the last have lasts_s");
            ensure!(state.promotion.is_none() == is_first, "{here}: all states but the first have a promotion");
            if let Some(Promotion { power_w, lasts_s }) = state.promotion {
                ensure!(is_amount(power_w) && is_amount(lasts_s), "{here}: a promotion's figures are 0 or more");
            }
            if let Some(Ping { power_w, on_s, every_s }) = state.ping {
                let is_good =
                    is_amount(power_w) && is_amount(on_s) && every_s.is_finite() && on_s <= every_s && every_s > 0.0;
                ensure!(is_good, "{here}: a ping is on_s long, every_s, and not longer than that");
            }
        }
        Ok(())
    }

    /// Returns the energy of these packets from time 0 to `until_s`. The radio starts in its last state.
    ///
    /// Shape: `packets` are sorted by time. A packet takes no time itself, because a message is short compared with
    /// all timers here. An additional packet at the end never saves energy. Between other packets it can, because it
    /// keeps the radio awake for them.
    /// Cost: O(packets).
    ///
    /// ```text
    ///   first ◄──promotion── any other state, unless that state carries the small packet itself
    ///     └─silence─► second ─silence─► .. ─silence─► last
    /// ```
    pub fn spend(&self, packets: impl IntoIterator<Item = Packet>, until_s: f64) -> EnergyUse {
        let mut run = Run::new(self, until_s);
        for packet in packets {
            if packet.at_s >= until_s {
                break;
            }
            run.carry(packet);
        }
        run.advance(until_s);
        run.spent
    }
}

struct Run<'a> {
    radio: &'a Radio,
    until_s: f64,
    /// End of the accounted time. A packet that arrives during a promotion waits until the promotion ends.
    now_s: f64,
    state: usize,
    /// Time at which the current state was entered, or of the last packet.
    since_s: f64,
    spent: EnergyUse,
}

impl<'a> Run<'a> {
    fn new(radio: &'a Radio, until_s: f64) -> Self {
        let states = radio.state.len();
        let spent = EnergyUse { states_j: vec![0.0; states], states_s: vec![0.0; states], ..EnergyUse::default() };
        Run { radio, until_s, now_s: 0.0, state: states - 1, since_s: 0.0, spent }
    }

    fn carry(&mut self, packet: Packet) {
        self.advance(packet.at_s);
        let state = &self.radio.state[self.state];
        let (largest, j_per_mbit) = match packet.direction {
            Direction::Up => (state.carries.map(|small| small.up_bytes), self.radio.up_j_per_mbit),
            Direction::Down => (state.carries.map(|small| small.down_bytes), self.radio.down_j_per_mbit),
        };
        if let Some(Promotion { power_w, lasts_s }) =
            state.promotion.filter(|_| largest.is_none_or(|largest| packet.bytes > largest))
        {
            let end_s = self.now_s + lasts_s;
            let counted_s = end_s.min(self.until_s) - self.now_s;
            self.spent.promotion_s += counted_s;
            self.spent.promotion_j += power_w * counted_s;
            self.spent.promotions += u64::from(lasts_s > 0.0);
            (self.now_s, self.state) = (end_s, 0);
        }
        self.since_s = self.now_s;
        self.spent.transfer_j += j_per_mbit * packet.bytes as f64 * 8.0 / 1e6;
    }

    fn advance(&mut self, to_s: f64) {
        while self.now_s < to_s {
            let state = &self.radio.state[self.state];
            let end_s = state.lasts_s.map_or(f64::INFINITY, |lasts_s| self.since_s + lasts_s);
            let stop_s = end_s.min(to_s).max(self.now_s);
            self.spent.states_s[self.state] += stop_s - self.now_s;
            self.spent.states_j[self.state] += (stop_s - self.now_s) * state.mean_power_w();
            self.now_s = stop_s;
            if end_s <= to_s {
                self.state += 1;
                self.since_s = end_s;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::*;

    fn radio(name: &str) -> Radio {
        Radios::load(None).unwrap().find(name).unwrap().clone()
    }

    fn up(at_s: f64, bytes: u64) -> Packet {
        Packet { at_s, direction: Direction::Up, bytes }
    }

    fn is(found: f64, by_hand: f64) {
        assert!((found - by_hand).abs() < 1e-9, "{found} J, by hand {by_hand} J");
    }

    #[test]
    fn lte_is_promoted_then_falls_through_drx() {
        let (lte, paging_w) = (radio("lte"), 0.594 * 0.043 / 1.28);
        is(lte.spend([], 100.0).total_j(), 100.0 * paging_w);
        let spent = lte.spend([up(5.0, 1000)], 100.0);
        is(spent.promotion_j, 0.26 * 1.21);
        is(spent.states_j[0], 0.1 * 1.2);
        is(spent.states_j[1], 0.02 * (1.06 + 0.62 * 0.002 / 0.02));
        is(spent.states_j[2], 10.0 * (1.06 + 0.62 * 0.002 / 0.04));
        is(spent.states_j[3], (100.0 - 0.26 - 0.1 - 0.02 - 10.0) * paging_w);
        is(spent.transfer_j, 0.008 * 0.43839);
        assert_eq!(spent.promotions, 1);
        // The sum in lab.md, without pings and paging: 0.26 * 1.21 + 10.12 * 1.06 = 11.0 J.
        assert!((spent.total_j() - spent.states_j[3] - 11.0).abs() < 0.4, "{spent:?}");
    }

    #[test]
    fn lte_that_is_still_connected_needs_no_promotion() {
        let spent = radio("lte").spend([up(0.0, 0), up(5.0, 0)], 5.26);
        assert_eq!(spent.promotions, 1);
        // From 5.0: active again for 0.1 s, then short DRX for 0.02 s, then long DRX.
        is(spent.states_s[0], 0.1 + 0.1);
        is(spent.states_s[1], 0.02 + 0.02);
        is(spent.states_s[2], 5.0 - 0.26 - 0.12 + 0.14);
    }

    #[test]
    fn umts_falls_from_dch_to_fach_to_idle() {
        let spent = radio("3g").spend([up(0.0, 100)], 60.0);
        is(spent.promotion_j, 2.0 * 0.65);
        is(spent.states_j[0], 4.0 * 1.3);
        is(spent.states_j[1], 10.0 * 0.3);
        is(spent.total_j(), 9.5);
    }

    #[test]
    fn umts_is_promoted_when_fach_is_too_small() {
        // At 8 s the radio is in FACH (2 s promotion, 4 s DCH, then 10 s FACH).
        let small = radio("3g").spend([up(0.0, 100), up(8.0, 543)], 60.0);
        is(small.total_j(), 2.0 * 0.65 + 4.0 * 1.3 + (2.0 + 10.0) * 0.3);
        let large = radio("3g").spend([up(0.0, 100), up(8.0, 544)], 60.0);
        is(large.total_j(), 2.0 * 0.65 + 4.0 * 1.3 + 2.0 * 0.3 + 1.5 * 0.8 + 4.0 * 1.3 + 10.0 * 0.3);
        let down = Packet { at_s: 8.0, direction: Direction::Down, bytes: 476 };
        assert_eq!(radio("3g").spend([up(0.0, 100), down], 60.0).promotions, 2);
    }

    #[test]
    fn packet_during_promotion_waits_for_its_end() {
        let spent = radio("3g").spend([up(0.0, 100), up(1.0, 1000)], 60.0);
        assert_eq!(spent.promotions, 1);
        is(spent.total_j(), 9.5);
    }

    #[test]
    fn wifi_has_a_short_tail_and_no_promotion() {
        let spent = radio("wifi").spend([up(0.0, 100), up(0.1, 100)], 10.0);
        is(spent.total_j(), 0.35 * 0.403 + 9.65 * 0.02);
        assert_eq!(spent.promotions, 0);
    }

    #[test]
    fn energy_after_the_end_is_not_counted() {
        is(radio("3g").spend([up(9.0, 100)], 10.0).total_j(), 0.65);
        is(radio("3g").spend([up(10.0, 100)], 10.0).total_j(), 0.0);
        for name in ["lte", "3g", "wifi"] {
            let spent = radio(name).spend((0..50).map(|i| up(f64::from(i) * 1.7, 600)), 60.0);
            is(spent.states_s.iter().sum::<f64>() + spent.promotion_s, 60.0);
        }
    }

    /// Checks that more packets never need less energy. Each packet is added at a random time, or after all others if
    /// `only_behind`.
    fn never_falls(name: &str, only_behind: bool) {
        let (radio, mut rng) = (radio(name), Pcg64Mcg::seed_from_u64(7));
        for _ in 0..300 {
            let (mut packets, mut before): (Vec<Packet>, f64) = (Vec::new(), 0.0);
            for _ in 0..20 {
                let direction = if rng.random() { Direction::Up } else { Direction::Down };
                let last_s = packets.last().map_or(0.0, |packet| packet.at_s);
                let at_s =
                    if only_behind { last_s + rng.random_range(0.0..15.0) } else { rng.random_range(0.0..200.0) };
                let at = packets.partition_point(|other| other.at_s < at_s);
                packets.insert(at, Packet { at_s, direction, bytes: rng.random_range(0..1500) });
                let spent = radio.spend(packets.iter().copied(), 400.0).total_j();
                assert!(spent >= before - 1e-9, "{name}: {spent} J, one packet fewer {before} J: {packets:?}");
                before = spent;
            }
        }
    }

    #[test]
    fn more_traffic_never_costs_less() {
        ["lte", "3g", "wifi"].into_iter().for_each(|name| never_falls(name, true));
        // With a promotion that takes no time, an earlier packet cannot save a later one its promotion energy.
        never_falls("wifi", false);
    }

    #[test]
    fn invalid_radio_files_are_explained() {
        let with = |from: &str, to: &str| Radios::parse(&OURS.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(with("lasts_s = 10.0 ", "#").contains("all states but the last"));
        assert!(with("on_s = 0.043", "on_s = 2.0").contains("a ping"));
        assert!(with("power_w = 1.2 ", "power_w = -1.0 ").contains("power_w is 0 or more"));
        assert!(with("power_w = 1.2 ", "watts = 1.0 ").contains("watts"));
        assert!(Radios::parse("radio = []").is_err());
        let error = Radios::load(Some(Path::new("/nowhere/radios.toml"))).unwrap_err().to_string();
        assert!(error.contains("/nowhere/radios.toml"), "{error}");
        assert!(Radios::load(None).unwrap().find("5g").unwrap_err().to_string().contains("lte, 3g, wifi"));
    }
}
