//! Simulated prices of a few symbols, as the ticker of the thesis publishes them.
//!
//! Source: Thorsen 2015, the stock update with type, price and time.

use millrace_client::random::Random;
use serde::Serialize;

/// Symbols with their first prices. The companies are invented.
const SYMBOLS: [(&str, f64); 6] =
    [("MILL", 128.40), ("RACE", 64.25), ("WEIR", 311.90), ("LOCK", 42.75), ("DAM", 187.10), ("FLUME", 96.60)];
/// Standard deviation of one change, relative to the price.
const CHANGE: f64 = 0.0012;
/// Share of the distance to the first price by which a price returns with each change, so that it stays plausible.
const RETURN: f64 = 0.002;

/// A new price of one symbol.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tick {
    pub symbol: &'static str,
    /// Price in units with two decimals.
    pub price: f64,
    /// Time of publication by the publisher's clock, in milliseconds since 1970.
    pub time: u64,
    /// Number of the tick over all symbols; increases by 1, so that a reader can prove that it missed nothing.
    pub seq: u64,
}

/// A market whose prices change one at a time.
pub struct Market {
    random: Random,
    prices: [f64; SYMBOLS.len()],
    seq: u64,
}

impl Market {
    pub fn new(seed: u64) -> Self {
        Self { random: Random::from_seed(seed), prices: SYMBOLS.map(|(_, price)| price), seq: 0 }
    }

    /// Returns the next tick. The first ticks are one of each symbol, in their order; then symbols are random.
    pub fn next(&mut self, now_ms: u64) -> Tick {
        let count = SYMBOLS.len();
        let index = if self.seq < count as u64 { self.seq as usize } else { self.random.index(count) };
        let (symbol, first) = SYMBOLS[index];
        // Sum of four uniform numbers: nearly normal, with a standard deviation of 1 / sqrt(3).
        let normal = (0..4).map(|_| self.random.between(-0.5, 0.5)).sum::<f64>() * 3f64.sqrt();
        let price = &mut self.prices[index];
        *price += *price * CHANGE * normal + (first - *price) * RETURN;
        self.seq += 1;
        Tick { symbol, price: (*price * 100.0).round() / 100.0, time: now_ms, seq: self.seq }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn same_seed_gives_the_same_ticks_without_gaps() {
        let (mut one, mut other) = (Market::new(7), Market::new(7));
        for seq in 1..=1000 {
            let tick = one.next(seq);
            assert_eq!((tick.seq, tick.time), (seq, seq));
            assert_eq!(tick, other.next(seq));
        }
        assert_ne!(Market::new(8).next(0).price, Market::new(7).next(0).price);
        let first: Vec<_> = { (0..6).scan(Market::new(1), |market, _| Some(market.next(0).symbol)).collect() };
        assert_eq!(first, SYMBOLS.map(|(symbol, _)| symbol));
    }

    #[test]
    fn prices_change_often_and_stay_plausible_for_a_day() {
        let mut market = Market::new(3);
        let mut ranges: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        let mut changes = 0;
        let mut last = BTreeMap::new();
        for seq in 0..864_000 {
            let tick = market.next(seq);
            changes += usize::from(last.insert(tick.symbol, tick.price) != Some(tick.price));
            let range = ranges.entry(tick.symbol).or_insert((f64::MAX, f64::MIN));
            *range = (range.0.min(tick.price), range.1.max(tick.price));
        }
        assert!(changes > 800_000, "{changes}");
        for (symbol, first) in SYMBOLS {
            let (low, high) = ranges[symbol];
            assert!(low > first * 0.8 && high < first * 1.2 && high > first * 1.02, "{symbol}: {low} to {high}");
        }
    }

    #[test]
    fn tick_is_a_short_json_object() {
        let json = serde_json::to_string(&Market::new(7).next(1_795_600_000_000)).unwrap();
        assert!(json.starts_with(r#"{"symbol":"MILL","price":128."#) && json.ends_with(r#","seq":1}"#), "{json}");
        assert!(json.len() < 80, "{}", json.len());
    }
}
