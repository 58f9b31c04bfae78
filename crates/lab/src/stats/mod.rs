//! Statistics about the figures of runs. Pure functions: no I/O, no clock, and randomness only from a seed.
//!
//! The unit of replication is the run, not the message. Messages of one run wait in the same queues, so a million
//! messages are not a million independent observations. The tests here take one value per run, such as its p99.

pub mod bootstrap;
pub mod compare;
pub mod fairness;
pub mod knee;
pub mod line;
pub mod little;
pub mod mann_whitney;
pub mod max_t;
pub mod pairs;
pub mod usl;

/// Returns the middle value, or the mean of the two middle values. Returns `NaN` without values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    median_of(&mut sorted)
}

/// Returns the same as [`median`] without a copy. Sorts `values`.
fn median_of(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_handles_odd_even_and_empty_input() {
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(&[9.0, 1.0, 5.0, 6.0]), 5.5);
        assert!(median(&[]).is_nan());
    }
}
