use millrace_lab::stats::usl::Usl;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

fn near(fitted: f64, known: f64) -> bool {
    (fitted - known).abs() < 1e-9 * known.abs().max(1.0)
}

#[test]
fn a_known_curve_is_recovered() {
    let known = Usl { lambda: 1.7e6, sigma: 0.03, kappa: 0.002 };
    let points: Vec<_> = (1..=6).map(|n| (f64::from(n), known.at(f64::from(n)))).collect();
    let fitted = Usl::fit(&points).unwrap();
    assert!(near(fitted.lambda / known.lambda, 1.0), "{fitted:?}");
    assert!(near(fitted.sigma, known.sigma) && near(fitted.kappa, known.kappa), "{fitted:?}");
    // sqrt(0.97 / 0.002)
    assert!((fitted.peak().unwrap() - 22.022_715).abs() < 1e-4, "{fitted:?}");
}

#[test]
fn one_percent_noise_changes_the_fit_little() {
    let known = Usl { lambda: 100.0, sigma: 0.1, kappa: 0.01 };
    let noise = [1.01, 0.99, 0.99, 1.01, 1.0, 1.0];
    let points: Vec<_> = (1..=12).map(|n| (f64::from(n), known.at(f64::from(n)) * noise[n as usize % 6])).collect();
    let fitted = Usl::fit(&points).unwrap();
    assert!((fitted.sigma - 0.1).abs() < 0.02 && (fitted.kappa - 0.01).abs() < 0.002, "{fitted:?}");
    assert!((fitted.lambda - 100.0).abs() < 2.0, "{fitted:?}");
}

#[test]
fn growing_curve_has_no_peak() {
    let points: Vec<_> = (1..=4).map(|n| (f64::from(n), 5.0 * f64::from(n))).collect();
    let fitted = Usl::fit(&points).unwrap();
    assert!(near(fitted.lambda, 5.0) && near(fitted.sigma, 0.0) && near(fitted.kappa, 0.0), "{fitted:?}");
    assert_eq!(Usl { kappa: 0.0, ..fitted }.peak(), None);
}

#[test]
fn two_points_give_no_fit() {
    assert_eq!(Usl::fit(&[(1.0, 10.0), (2.0, 19.0), (2.0, 19.1), (1.0, 10.1)]), None);
}

/// Returns points of a known curve with noise of 2 %, seeded; three per size.
fn noisy(known: Usl, seed: u64) -> Vec<(f64, f64)> {
    let mut chance = Pcg64Mcg::seed_from_u64(seed);
    // Uniform within sqrt(3) standard deviations.
    let mut noise = || 1.0 + 0.02 * 3f64.sqrt() * (2.0 * (chance.next_u64() >> 11) as f64 / (1u64 << 53) as f64 - 1.0);
    let sizes = [1, 2, 3, 4, 6, 8].map(f64::from);
    (0..3).flat_map(|_| sizes).map(|n| (n, known.at(n) * noise())).collect()
}

#[test]
fn intervals_cover_true_values_at_stated_rate() {
    let known = Usl { lambda: 1000.0, sigma: 0.05, kappa: 0.01 };
    let tries = 40;
    let held: Vec<[bool; 4]> = (0..tries)
        .map(|seed| {
            let fit = Usl::fit_with_intervals(&noisy(known, seed), seed).unwrap();
            [
                fit.lambda.contains(known.lambda),
                fit.sigma.contains(known.sigma),
                fit.kappa.contains(known.kappa),
                fit.peak.contains(known.peak().unwrap()),
            ]
        })
        .collect();
    for which in 0..4 {
        let times = held.iter().filter(|held| held[which]).count();
        assert!(times >= 34, "value {which}: {times} of {tries} at 95 %");
    }
}

#[test]
fn residuals_are_relative_deviations_from_the_curve() {
    let known = Usl { lambda: 100.0, sigma: 0.1, kappa: 0.01 };
    assert!(near(known.residuals(&[(4.0, known.at(4.0) * 1.02)])[0], 0.02));
    let fit = Usl::fit_with_intervals(&noisy(known, 1), 1).unwrap();
    assert!(fit.residuals.len() == 18 && fit.residuals.iter().all(|off| off.abs() < 0.06), "{fit:?}");
    assert!(fit.sigma.low < fit.sigma.estimate && fit.sigma.estimate < fit.sigma.high);
}

#[test]
fn peak_of_a_nearly_linear_curve_is_unbounded() {
    let straight = Usl { lambda: 100.0, sigma: 0.02, kappa: 0.0 };
    let fit = Usl::fit_with_intervals(&noisy(straight, 2), 2).unwrap();
    assert_eq!(fit.peak.high, f64::INFINITY);
}

#[test]
fn three_points_give_no_intervals() {
    assert!(Usl::fit_with_intervals(&[(1.0, 10.0), (2.0, 19.0), (3.0, 26.0)], 1).is_none());
}
