use millrace_lab::stats::usl::Usl;

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
fn noise_of_one_percent_moves_the_curve_little() {
    let known = Usl { lambda: 100.0, sigma: 0.1, kappa: 0.01 };
    let noise = [1.01, 0.99, 0.99, 1.01, 1.0, 1.0];
    let points: Vec<_> = (1..=12).map(|n| (f64::from(n), known.at(f64::from(n)) * noise[n as usize % 6])).collect();
    let fitted = Usl::fit(&points).unwrap();
    assert!((fitted.sigma - 0.1).abs() < 0.02 && (fitted.kappa - 0.01).abs() < 0.002, "{fitted:?}");
    assert!((fitted.lambda - 100.0).abs() < 2.0, "{fitted:?}");
}

#[test]
fn what_only_grows_has_no_peak() {
    let points: Vec<_> = (1..=4).map(|n| (f64::from(n), 5.0 * f64::from(n))).collect();
    let fitted = Usl::fit(&points).unwrap();
    assert!(near(fitted.lambda, 5.0) && near(fitted.sigma, 0.0) && near(fitted.kappa, 0.0), "{fitted:?}");
    assert_eq!(Usl { kappa: 0.0, ..fitted }.peak(), None);
}

#[test]
fn two_sizes_determine_no_curve() {
    assert_eq!(Usl::fit(&[(1.0, 10.0), (2.0, 19.0), (2.0, 19.1), (1.0, 10.1)]), None);
}
