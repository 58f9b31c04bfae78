use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng, SeedableRng},
};

/// Random numbers of one cell. Each cell has a stream of its own, derived from the seed of the link.
#[derive(Clone, Debug)]
pub(crate) struct Random(Pcg64Mcg);

impl Random {
    /// `cell` names the stream: the same seed with another name gives independent numbers.
    pub fn new(seed: u64, cell: &str) -> Self {
        // FNV-1a, 64 bits.
        let name = cell
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        Self(Pcg64Mcg::seed_from_u64(seed ^ name))
    }

    /// Returns a number uniform in `[0, 1)`, made of 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number uniform in `(0, 1]`, for logarithms.
    pub fn positive(&mut self) -> f64 {
        1.0 - self.unit()
    }

    /// Returns an index uniform in `0..count`.
    pub fn index(&mut self, count: usize) -> usize {
        ((self.unit() * count as f64) as usize).min(count.saturating_sub(1))
    }
}
