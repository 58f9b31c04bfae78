//! Seeded random numbers: the same seed gives the same numbers on every machine and with every version of the
//! libraries used here.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// Generator of random numbers that is passed as an input, never global.
#[derive(Clone, Debug)]
pub struct Random(Pcg64Mcg);

impl Random {
    pub fn from_seed(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    /// Creates a generator seeded by the operating system. Use it for jitter and idempotency keys, never for
    /// results that must be reproducible.
    pub fn from_system() -> Self {
        Self(rand::make_rng())
    }

    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number uniform in `[0, 1)`, made of the upper 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number uniform in `[low, high)`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Returns an index uniform in `0..count`; `count` must be above 0.
    pub fn index(&mut self, count: usize) -> usize {
        ((self.unit() * count as f64) as usize).min(count - 1)
    }

    /// Returns true with probability `p`.
    pub fn happens(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers_and_ranges_hold() {
        let (mut a, mut b) = (Random::from_seed(5), Random::from_seed(5));
        for _ in 0..1000 {
            let x = a.between(-2.0, 3.0);
            assert_eq!(x, b.between(-2.0, 3.0));
            assert!((-2.0..3.0).contains(&x));
        }
        assert_ne!(Random::from_seed(5).bits(), Random::from_seed(6).bits());
        assert_ne!(Random::from_system().bits(), Random::from_system().bits());
    }

    #[test]
    fn shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..50).collect();
        Random::from_seed(1).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
