//! Multiple testing: tests many questions at once, with one false alarm probability for all of them together.
//!
//! With 12 questions at 5 % each, almost every second comparison of equal systems would raise a false alarm. Dividing
//! 5 % among the questions (Bonferroni, Holm) does not help: no rank test of five runs against five goes below
//! p = 2 / 252 = 0.8 %. From seven questions on, no difference could ever be significant.
//!
//! Here the runs are shuffled between the sides at random, in the same way for all questions about the same runs.
//! Each question is compared with the largest statistic of all questions. A difference far beyond chance stays
//! significant, regardless of the number of questions.
//!
//! Source: P. H. Westfall, S. S. Young, "Resampling-Based Multiple Testing", 1993, algorithm 4.1 (step-down maxT); Y.
//! Ge, S. Dudoit, T. P. Speed, "Resampling-based multiple testing for microarray data analysis", TEST 12(1), 2003,
//! box 2.

use super::{bootstrap::Resampler, pairs};

/// Number of shuffles. With this number, a p-value of 5 % is accurate to 0.4 %.
const SHUFFLES: usize = 10_000;
/// Value added to the standard deviation. A spread of runs below one thousandth is luck, and must not make a tiny
/// difference significant.
///
/// Source: V. G. Tusher, R. Tibshirani, G. Chu, "Significance analysis of microarrays", PNAS 98(9), 2001.
const STD_DEV_OFFSET: f64 = 0.001;

/// Question: do the runs of `a` and `b` differ in this metric?
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Group of the question. Questions of one group are about the same runs in the same order, so they are shuffled
    /// together.
    pub group: usize,
    /// `a[i]` and `b[i]` are a pair ([`pairs`]), and swap sides only with each other. The value is equal in all
    /// questions of a group.
    pub in_turns: bool,
    /// Values of the runs. They must be above zero, because ratios are compared.
    pub a: Vec<f64>,
    pub b: Vec<f64>,
}

/// Returns the p-value of each question, adjusted for all questions together.
///
/// If no true difference exists and all questions with `p <= alpha` are reported, the probability of any false alarm
/// is below `alpha`. The only assumption is that runs of equal systems could have come in any order.
///
/// Cost: questions x runs x 10,000.
pub fn adjusted_p(questions: &[Question], seed: u64) -> Vec<f64> {
    let data: Vec<Logs> = questions.iter().map(Logs::of).collect();
    let groups = questions.iter().map(|question| question.group + 1).max().unwrap_or(0);
    let mut places: Vec<Vec<usize>> = vec![Vec::new(); groups];
    let mut shuffle = vec![Shuffle::Pairs(0); groups];
    for question in questions {
        places[question.group] = (0..question.a.len() + question.b.len()).collect();
        shuffle[question.group] =
            if question.in_turns { Shuffle::Pairs(question.a.len()) } else { Shuffle::All(question.a.len()) };
    }
    let mut buffer = Vec::new();
    let mut statistic = |index: usize, places: &[Vec<usize>]| {
        let question = &questions[index];
        data[index].statistic(question, &places[question.group], &mut buffer)
    };
    let seen: Vec<f64> = (0..questions.len()).map(|index| statistic(index, &places)).collect();
    // From the least to the most significant question: each is compared with the largest statistic so far.
    let mut order: Vec<usize> = (0..questions.len()).collect();
    order.sort_by(|a, b| seen[*a].total_cmp(&seen[*b]));
    let mut reached = vec![0usize; questions.len()];
    let mut again = Resampler::new(seed);
    for _ in 0..SHUFFLES {
        for (places, shuffle) in places.iter_mut().zip(&shuffle) {
            match *shuffle {
                // A random half is enough: the order within a side does not matter.
                Shuffle::All(a) => {
                    let count = places.len();
                    (0..a).for_each(|at| places.swap(at, at + again.index(count - at)));
                }
                Shuffle::Pairs(pairs) => {
                    (0..pairs).filter(|_| again.index(2) == 1).for_each(|pair| places.swap(pair, pair + pairs));
                }
            }
        }
        let mut largest = 0.0f64;
        for &index in &order {
            largest = largest.max(statistic(index, &places));
            // The same sum in another order may differ in its last digits.
            reached[index] += usize::from(largest >= seen[index] * (1.0 - 1e-7));
        }
    }
    let p = |index: usize| (reached[index] + 1) as f64 / (SHUFFLES + 1) as f64;
    let mut adjusted = vec![1.0; questions.len()];
    let mut most = 0.0f64;
    for &index in order.iter().rev() {
        most = most.max(p(index));
        adjusted[index] = most;
    }
    adjusted
}

/// How the runs of a group are shuffled between the sides.
#[derive(Clone, Copy)]
enum Shuffle {
    /// Any of them can be on side `a`, which has this many.
    All(usize),
    /// This many pairs swap sides.
    Pairs(usize),
}

/// Logarithms of the runs of both sides, minus their mean.
struct Logs {
    values: Vec<f64>,
    squares: f64,
}

impl Logs {
    fn of(question: &Question) -> Self {
        let logs: Vec<f64> = question.a.iter().chain(&question.b).map(|run| run.ln()).collect();
        let mean = logs.iter().sum::<f64>() / logs.len() as f64;
        let values: Vec<f64> = logs.iter().map(|log| log - mean).collect();
        Self { squares: values.iter().map(|value| value * value).sum(), values }
    }

    /// Returns the statistic if the runs at the first `places` are those of side `a`.
    fn statistic(&self, question: &Question, places: &[usize], buffer: &mut Vec<f64>) -> f64 {
        let a = question.a.len();
        if question.in_turns {
            buffer.clear();
            buffer.extend(places.iter().map(|place| self.values[*place]));
            return pairs::statistic(buffer, a, STD_DEV_OFFSET);
        }
        self.distance(places[..a].iter().map(|place| self.values[*place]).sum(), a)
    }

    /// Returns the distance between the means of the sides in standard errors. `sum`: of the values of side `a`. All
    /// values together have the sum 0.
    fn distance(&self, sum: f64, a: usize) -> f64 {
        let (count, of_a, of_b) = (self.values.len() as f64, a as f64, (self.values.len() - a) as f64);
        let within = self.squares - sum * sum / of_a - sum * sum / of_b;
        // A rest that rounding has left.
        let within = if within < self.squares * 1e-12 { 0.0 } else { within };
        let deviation = (within / (count - 2.0).max(1.0)).sqrt();
        let size = (1.0 / of_a + 1.0 / of_b).sqrt();
        (sum / of_a + sum / of_b).abs() / ((deviation + STD_DEV_OFFSET) * size)
    }
}

#[cfg(test)]
mod tests {
    use rand_pcg::Pcg64Mcg;
    use rand_pcg::rand_core::{Rng, SeedableRng};

    use super::*;

    struct Chance(Pcg64Mcg);

    impl Chance {
        fn normal(&mut self) -> f64 {
            let mut unit = || (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            (-2.0 * (1.0 - unit()).ln()).sqrt() * (std::f64::consts::TAU * unit()).cos()
        }

        fn question(&mut self, group: usize, sd: f64, factor: f64) -> Question {
            let mut runs = |mean: f64| (0..5).map(|_| mean * (sd * self.normal()).exp()).collect();
            Question { group, in_turns: false, a: runs(10.0), b: runs(10.0 * factor) }
        }
    }

    #[test]
    fn twenty_tests_keep_five_percent_false_alarms() {
        let mut chance = Chance(Pcg64Mcg::seed_from_u64(5));
        let mut alarms = 0;
        for seed in 0..400 {
            let questions: Vec<_> = (0..20).map(|group| chance.question(group, 0.05, 1.0)).collect();
            alarms += usize::from(adjusted_p(&questions, seed).iter().any(|p| *p <= 0.05));
        }
        // 20 alarms are expected. Chance alone brings more than 33 in one of 400 such experiments.
        assert!((8..=33).contains(&alarms), "{alarms} of 400");
    }

    #[test]
    fn one_real_difference_among_twenty_is_found() {
        let mut chance = Chance(Pcg64Mcg::seed_from_u64(6));
        let (mut found, mut wrong) = (0, 0);
        for seed in 0..100 {
            let questions: Vec<_> =
                (0..20).map(|group| chance.question(group, 0.02, if group == 7 { 1.1 } else { 1.0 })).collect();
            let p = adjusted_p(&questions, seed);
            found += usize::from(p[7] <= 0.05);
            wrong += usize::from((0..20).any(|index| index != 7 && p[index] <= 0.05));
        }
        assert!(found >= 95 && wrong <= 12, "{found} found, {wrong} false alarms, of 100");
    }

    /// A single question is the plain permutation test: complete separation of 5 and 5 runs is 2 of 252 ways.
    #[test]
    fn single_comparison_equals_permutation_test() {
        let question =
            Question { group: 0, in_turns: false, a: vec![1.0, 1.1, 1.2, 1.3, 1.4], b: vec![2.0, 2.1, 2.2, 2.3, 2.4] };
        let p = adjusted_p(&[question], 1)[0];
        assert!((p - 2.0 / 252.0).abs() < 0.003, "{p}");
    }

    #[test]
    fn duplicate_comparison_keeps_the_p_value() {
        let mut chance = Chance(Pcg64Mcg::seed_from_u64(8));
        let question = chance.question(0, 0.05, 1.05);
        let once = adjusted_p(std::slice::from_ref(&question), 3)[0];
        assert_eq!(adjusted_p(&vec![question; 10], 3), vec![once; 10]);
    }

    #[test]
    fn equal_runs_do_not_differ() {
        let same = Question { group: 0, in_turns: false, a: vec![3.0; 5], b: vec![3.0; 5] };
        assert_eq!(adjusted_p(&[same], 1), [1.0]);
        assert!(adjusted_p(&[], 1).is_empty());
    }
}
