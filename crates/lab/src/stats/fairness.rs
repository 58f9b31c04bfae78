//! Measures how evenly a resource is shared: deliveries among readers, connections or CPU among shards.

/// Returns Jain's index: 1 if all shares are equal, 1/n if one has everything. Returns `None` without values or if
/// all shares are zero.
///
/// Source: R. Jain, D. Chiu, W. Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984.
pub fn jain(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// Returns the largest share divided by the mean: 1 if all shares are equal, n if one has everything. Returns `None`
/// if the sum is not positive.
pub fn imbalance(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let busiest = shares.iter().copied().fold(0.0, f64::max);
    (sum > 0.0).then(|| busiest * shares.len() as f64 / sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_are_fair() {
        assert_eq!(jain(&[7.0; 5]), Some(1.0));
        assert_eq!(imbalance(&[7.0; 5]), Some(1.0));
    }

    #[test]
    fn single_receiver_is_least_fair() {
        assert_eq!(jain(&[0.0, 0.0, 3.0, 0.0]), Some(0.25));
        assert_eq!(imbalance(&[0.0, 0.0, 3.0, 0.0]), Some(4.0));
    }

    /// The report's interpretation of the index (section 4): if 20 % of the users share equally and the others get
    /// nothing, the index is 0.2.
    #[test]
    fn index_is_the_share_of_served_clients() {
        assert_eq!(jain(&[1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), Some(0.2));
    }

    #[test]
    fn unequal_shares_match_a_hand_calculation() {
        // (1 + 2 + 3)^2 / (3 * 14)
        assert!((jain(&[1.0, 2.0, 3.0]).unwrap() - 36.0 / 42.0).abs() < 1e-12);
        assert_eq!(imbalance(&[1.0, 2.0, 3.0]), Some(1.5));
    }

    #[test]
    fn no_shares_have_no_index() {
        assert_eq!((jain(&[]), jain(&[0.0])), (None, None));
        assert_eq!((imbalance(&[]), imbalance(&[0.0, 0.0])), (None, None));
    }
}
