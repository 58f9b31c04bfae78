use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// The only source of randomness of one run, from one seed.
pub struct Dice(Pcg64Mcg);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high)
    }

    /// Returns an index into a collection of `len` items.
    pub fn index(&mut self, len: usize) -> usize {
        self.0.random_range(0..len)
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())]
    }

    pub fn percent(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }
}
