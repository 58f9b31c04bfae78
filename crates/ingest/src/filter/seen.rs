use std::{
    collections::{HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
};

use crate::reading::Reading;

/// Fingerprints of the points that were accepted, so that a repeated batch publishes nothing again.
pub struct Seen {
    set: HashSet<u64>,
    order: VecDeque<u64>,
    max: usize,
}

impl Seen {
    pub fn new(max: usize) -> Self {
        Self { set: HashSet::new(), order: VecDeque::new(), max: max.max(1) }
    }

    pub fn contains(&self, fingerprint: u64) -> bool {
        self.set.contains(&fingerprint)
    }

    pub fn insert(&mut self, fingerprint: u64) {
        if !self.set.insert(fingerprint) {
            return;
        }
        self.order.push_back(fingerprint);
        if self.order.len() > self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
    }
}

/// Returns a hash of a point: device, time, position and the values that change while a car stands. It is the same on
/// every node, because it is also the idempotency key of the publication.
pub fn fingerprint(device: &str, time_ms: u64, reading: &Reading) -> u64 {
    let bits = |value: Option<f64>| value.map(f64::to_bits);
    let mut hasher = DefaultHasher::new();
    (device, time_ms).hash(&mut hasher);
    (bits(reading.gps_latitude), bits(reading.gps_longitude)).hash(&mut hasher);
    (bits(reading.speed), bits(reading.rpm), bits(reading.coolant_temperature)).hash(&mut hasher);
    (&reading.trouble_codes, reading.attributes.len()).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_the_oldest_is_forgotten() {
        let mut seen = Seen::new(3);
        for fingerprint in [1, 2, 3, 3, 4] {
            seen.insert(fingerprint);
        }
        assert_eq!([1, 2, 3, 4].map(|fingerprint| seen.contains(fingerprint)), [false, true, true, true]);
        assert_eq!((seen.set.len(), seen.order.len()), (3, 3));
    }
}
