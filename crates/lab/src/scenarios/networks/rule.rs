//! The rule by which a transport is recommended for a network.

/// Largest age (p95) of a recommended transport, compared with the lowest one.
const AGE_RATIO_MAX: f64 = 1.1;
/// Difference of ages that is always accepted: what a busy machine adds.
const AGE_SLACK_US: f64 = 1000.0;
/// Largest energy of a recommended transport, compared with the lowest one. Smaller differences are chance.
const JOULES_RATIO_MAX: f64 = 1.01;

/// The rule, as reports print it.
pub const RULE: &str = "Recommended: of the transports that delivered everything (or the largest share), those whose \
    p95 is at most 10 % or 1 ms above the lowest one; of these, those with the fewest joules (within 1 %); of these, \
    the one with the fewest bytes.";

/// Figures of one transport on one network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Share of the expected messages that arrived.
    pub complete: f64,
    pub p95_us: f64,
    pub joules: Option<f64>,
    pub bytes: f64,
}

/// Decision about one transport: recommended, or the first step of the rule that it did not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Recommended,
    NoRun,
    Incomplete,
    Older,
    MoreJoules,
    MoreBytes,
}

impl Decision {
    pub fn text(self) -> &'static str {
        match self {
            Decision::Recommended => "recommended",
            Decision::NoRun => "no valid run",
            Decision::Incomplete => "incomplete",
            Decision::Older => "older",
            Decision::MoreJoules => "more joules",
            Decision::MoreBytes => "more bytes",
        }
    }
}

/// Decides about all transports of one network. A transport without a valid run is `None`. Of two equal transports, the
/// first is recommended.
pub fn decide(candidates: &[Option<Candidate>]) -> Vec<Decision> {
    let mut decisions: Vec<Decision> =
        candidates.iter().map(|one| one.map_or(Decision::NoRun, |_| Decision::Recommended)).collect();
    let mut left: Vec<(usize, Candidate)> =
        candidates.iter().enumerate().filter_map(|(index, one)| Some((index, (*one)?))).collect();
    let mut step = |left: &mut Vec<(usize, Candidate)>, fits: &dyn Fn(&Candidate) -> bool, why| {
        left.retain(|(index, candidate)| {
            let stays = fits(candidate);
            if !stays {
                decisions[*index] = why;
            }
            stays
        });
    };
    let lowest = |left: &[(usize, Candidate)], of: &dyn Fn(&Candidate) -> f64| {
        left.iter().map(|(_, candidate)| of(candidate)).fold(f64::INFINITY, f64::min)
    };
    let missing = lowest(&left, &|one| 1.0 - one.complete);
    step(&mut left, &|one| 1.0 - one.complete <= missing, Decision::Incomplete);
    let age = lowest(&left, &|one| one.p95_us);
    step(&mut left, &|one| one.p95_us <= (age * AGE_RATIO_MAX).max(age + AGE_SLACK_US), Decision::Older);
    if left.iter().all(|(_, one)| one.joules.is_some()) {
        let joules = lowest(&left, &|one| one.joules.unwrap_or_default());
        let fits = |one: &Candidate| one.joules.is_some_and(|of| of <= joules * JOULES_RATIO_MAX);
        step(&mut left, &fits, Decision::MoreJoules);
    }
    let bytes = lowest(&left, &|one| one.bytes);
    step(&mut left, &|one| one.bytes <= bytes, Decision::MoreBytes);
    left.iter().skip(1).for_each(|(index, _)| decisions[*index] = Decision::MoreBytes);
    decisions
}

#[cfg(test)]
mod tests {
    use super::*;
    use Decision::*;

    const FIRST: Candidate = Candidate { complete: 1.0, p95_us: 100_000.0, joules: Some(50.0), bytes: 300.0 };

    fn all(others: &[Candidate]) -> Vec<Decision> {
        let candidates: Vec<_> = [FIRST].iter().chain(others).copied().map(Some).collect();
        decide(&candidates)
    }

    #[test]
    fn complete_transport_wins_over_a_younger_one() {
        let lossy = Candidate { complete: 0.999, p95_us: 10_000.0, ..FIRST };
        assert_eq!(all(&[lossy]), [Recommended, Incomplete]);
    }

    #[test]
    fn largest_share_counts_if_nothing_is_complete() {
        let [worse, better] = [0.5, 0.75].map(|complete| Some(Candidate { complete, ..FIRST }));
        assert_eq!(decide(&[worse, better, None]), [Incomplete, Recommended, NoRun]);
    }

    #[test]
    fn ages_within_a_tenth_are_equal_and_joules_decide() {
        let near = Candidate { p95_us: 109_000.0, joules: Some(40.0), ..FIRST };
        let far = Candidate { p95_us: 111_000.0, joules: Some(10.0), ..FIRST };
        assert_eq!(all(&[near, far]), [MoreJoules, Recommended, Older]);
    }

    #[test]
    fn ages_within_a_millisecond_are_equal() {
        let [first, near, far] =
            [3000.0, 3900.0, 4100.0].map(|p95_us| Some(Candidate { p95_us, bytes: 300.0 - p95_us / 100.0, ..FIRST }));
        assert_eq!(decide(&[first, near, far]), [MoreBytes, Recommended, Older]);
    }

    #[test]
    fn bytes_decide_between_equal_joules_and_without_a_radio() {
        let slim = Candidate { joules: Some(50.4), bytes: 299.0, ..FIRST };
        assert_eq!(all(&[slim]), [MoreBytes, Recommended]);
        let [fat, slim] = [300.0, 200.0].map(|bytes| Some(Candidate { joules: None, bytes, ..FIRST }));
        assert_eq!(decide(&[fat, slim]), [MoreBytes, Recommended]);
    }

    #[test]
    fn exactly_one_of_equal_transports_is_recommended() {
        assert_eq!(all(&[FIRST, FIRST]), [Recommended, MoreBytes, MoreBytes]);
        assert_eq!(decide(&[None]), [NoRun]);
        assert_eq!(decide(&[]), []);
    }
}
