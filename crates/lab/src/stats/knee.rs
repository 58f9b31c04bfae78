//! Finds the load at which a server is saturated: it no longer delivers the offered messages, or delivers them too
//! late.

use serde::{Deserialize, Serialize};

/// Minimum delivered share of the offered rate. Below it the server falls behind: messages queue up or are lost.
pub const DELIVERED_MIN: f64 = 0.98;

/// Measurement at one load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Load in the varied unit: clients, publishers or messages per second.
    pub load: f64,
    /// Expected deliveries per second; `delivered_per_s` is the actual number.
    pub offered_per_s: f64,
    pub delivered_per_s: f64,
    pub p99_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    /// Highest load below the lowest saturated load. `None` if the lowest load was already too much.
    pub carried: Option<f64>,
    /// Lowest load at which the server is saturated.
    pub saturated: f64,
    pub why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// Less than [`DELIVERED_MIN`] of the offered messages arrived.
    Undelivered,
    /// The p99 was above the limit.
    Late,
}

/// Returns the first load at which less than [`DELIVERED_MIN`] was delivered or the p99 was above `p99_max_s`.
/// Returns `None` if the server carried all loads. The true limit is between [`Knee::carried`] and
/// [`Knee::saturated`].
pub fn saturation(points: &[Point], p99_max_s: f64) -> Option<Knee> {
    let mut points = points.to_vec();
    points.sort_by(|a, b| a.load.total_cmp(&b.load));
    let why = |point: &Point| match point {
        _ if point.delivered_per_s < DELIVERED_MIN * point.offered_per_s => Some(Why::Undelivered),
        _ if point.p99_s > p99_max_s => Some(Why::Late),
        _ => None,
    };
    let (index, why) = points.iter().enumerate().find_map(|(index, point)| Some((index, why(point)?)))?;
    Some(Knee { carried: index.checked_sub(1).map(|index| points[index].load), saturated: points[index].load, why })
}

/// Direction in which a rising curve bends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bend {
    /// The curve flattens, as throughput does.
    Down,
    /// The curve becomes steeper, as latency does.
    Up,
}

/// Maximum distance from the chord, in the unit square, for a curve that counts as a line.
const LINE: f64 = 0.1;

/// Returns the load at which a rising curve `(load, value)` bends most: the point farthest from the line between its
/// ends, with both axes scaled to 0..1. Returns `None` if the curve is nearly a line.
///
/// The result needs no latency limit and is only a hint. Use [`saturation`] for a verdict.
/// Source: V. Satopaa, J. Albrecht, D. Irwin, B. Raghavan, "Finding a 'Kneedle' in a Haystack", ICDCS Workshops 2011,
/// for complete curves without smoothing.
pub fn kneedle(points: &[(f64, f64)], bend: Bend) -> Option<f64> {
    let mut points = points.to_vec();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (first, last) = (points.first()?, points.last()?);
    let low = points.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let high = points.iter().map(|point| point.1).fold(f64::NEG_INFINITY, f64::max);
    let (width, height) = (last.0 - first.0, high - low);
    if width <= 0.0 || height <= 0.0 {
        return None;
    }
    let above = |point: &(f64, f64)| (point.1 - low) / height - (point.0 - first.0) / width;
    let away = |point: &(f64, f64)| if bend == Bend::Down { above(point) } else { -above(point) };
    let knee = points.iter().max_by(|a, b| away(a).total_cmp(&away(b)))?;
    (away(knee) > LINE).then_some(knee.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(load: f64, delivered: f64, p99_s: f64) -> Point {
        Point { load, offered_per_s: 200.0 * load, delivered_per_s: 200.0 * load * delivered, p99_s }
    }

    #[test]
    fn first_undelivered_load_is_the_knee() {
        let points =
            [point(400.0, 0.70, 9.0), point(100.0, 1.0, 0.01), point(200.0, 0.999, 0.02), point(300.0, 0.97, 0.5)];
        let knee = Knee { carried: Some(200.0), saturated: 300.0, why: Why::Undelivered };
        assert_eq!(saturation(&points, 1.0), Some(knee));
    }

    #[test]
    fn late_delivery_is_overload() {
        let points = [point(100.0, 1.0, 0.01), point(200.0, 1.0, 0.11), point(300.0, 1.0, 0.09)];
        let knee = Knee { carried: Some(100.0), saturated: 200.0, why: Why::Late };
        assert_eq!(saturation(&points, 0.1), Some(knee));
        assert_eq!(saturation(&points[1..], 0.1).unwrap().carried, None);
    }

    #[test]
    fn no_knee_without_overload() {
        assert_eq!(saturation(&[point(1.0, 1.0, 0.01), point(2.0, 0.981, 0.02)], 0.1), None);
        assert_eq!(saturation(&[], 0.1), None);
    }

    /// Example of the paper (figure 2): y = -1 / (x + 0.1) + 5 at ten points of 0..1 has its knee at 0.22.
    #[test]
    fn knee_matches_the_example_of_the_paper() {
        let curve: Vec<_> = (0..10).map(|i| f64::from(i) / 9.0).map(|x| (x, -1.0 / (x + 0.1) + 5.0)).collect();
        assert!((kneedle(&curve, Bend::Down).unwrap() - 2.0 / 9.0).abs() < 1e-12);
    }

    /// Latency of an M/M/1 queue with service time 1: 1 / (1 - rho). In the unit square, the distance from the chord
    /// is largest where the slope equals the slope of the chord. From 0 to 0.96 the chord has the slope 24 / 0.96 =
    /// 25, and 1 / (1 - rho)^2 = 25 at rho = 0.8.
    #[test]
    fn knee_of_a_queueing_curve_is_found() {
        let curve: Vec<_> = (0..=96).map(|i| f64::from(i) / 100.0).map(|rho| (rho, 1.0 / (1.0 - rho))).collect();
        assert!((kneedle(&curve, Bend::Up).unwrap() - 0.8).abs() < 1e-12);
    }

    #[test]
    fn a_line_has_no_knee() {
        let line: Vec<_> = (0..10).map(|i| (f64::from(i), 3.0 * f64::from(i) + f64::from(i % 2) * 0.5)).collect();
        assert_eq!(kneedle(&line, Bend::Down), None);
        assert_eq!(kneedle(&line, Bend::Up), None);
        assert_eq!(kneedle(&[(1.0, 2.0), (2.0, 2.0)], Bend::Up), None);
    }
}
