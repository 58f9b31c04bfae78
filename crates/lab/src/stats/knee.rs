//! Where a server is saturated: the load from which on it does not deliver what is offered, or not in time.

use serde::{Deserialize, Serialize};

/// Less of the offered rate than this, and the server falls behind: what is missing queues up or is lost.
pub const DELIVERED_MIN: f64 = 0.98;

/// What was seen at one load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Clients, publishers, messages per second: whatever was stepped.
    pub load: f64,
    /// Deliveries per second that should have been, and were.
    pub offered_per_s: f64,
    pub delivered_per_s: f64,
    pub p99_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    /// The highest load that was carried below every one that was not; none if the lowest was too much already.
    pub carried: Option<f64>,
    /// The lowest load that was too much.
    pub saturated: f64,
    pub why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// Less than [`DELIVERED_MIN`] of what was offered arrived.
    Undelivered,
    /// The p99 was above the objective.
    Late,
}

/// The first load at which less than [`DELIVERED_MIN`] was delivered or the p99 was above `p99_max_s`; none if all were carried. The true
/// limit is between [`Knee::carried`] and [`Knee::saturated`].
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

/// How a rising curve bends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bend {
    /// It flattens, as throughput does.
    Down,
    /// It steepens, as latency does.
    Up,
}

/// A curve that is everywhere closer than this to its chord (in the unit square) is a line.
const LINE: f64 = 0.1;

/// Where a rising curve `(load, value)` bends most: the point farthest from the line between its ends, with both axes scaled to 0..1.
/// None if it hardly bends. Shows where to look without any objective; [`saturation`] is what a promise rests on.
///
/// Source: V. Satopaa, J. Albrecht, D. Irwin, B. Raghavan, "Finding a 'Kneedle' in a Haystack", ICDCS Workshops 2011, for whole curves
/// without smoothing.
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
    fn the_first_load_that_is_not_delivered_is_too_much() {
        let points =
            [point(400.0, 0.70, 9.0), point(100.0, 1.0, 0.01), point(200.0, 0.999, 0.02), point(300.0, 0.97, 0.5)];
        let knee = Knee { carried: Some(200.0), saturated: 300.0, why: Why::Undelivered };
        assert_eq!(saturation(&points, 1.0), Some(knee));
    }

    #[test]
    fn what_comes_late_is_too_much() {
        let points = [point(100.0, 1.0, 0.01), point(200.0, 1.0, 0.11), point(300.0, 1.0, 0.09)];
        let knee = Knee { carried: Some(100.0), saturated: 200.0, why: Why::Late };
        assert_eq!(saturation(&points, 0.1), Some(knee));
        assert_eq!(saturation(&points[1..], 0.1).unwrap().carried, None);
    }

    #[test]
    fn what_carries_all_has_no_knee() {
        assert_eq!(saturation(&[point(1.0, 1.0, 0.01), point(2.0, 0.981, 0.02)], 0.1), None);
        assert_eq!(saturation(&[], 0.1), None);
    }

    /// The example of the paper (figure 2): y = -1 / (x + 0.1) + 5 at ten points of 0..1 has its knee at 0.22.
    #[test]
    fn the_knee_of_the_paper() {
        let curve: Vec<_> = (0..10).map(|i| f64::from(i) / 9.0).map(|x| (x, -1.0 / (x + 0.1) + 5.0)).collect();
        assert!((kneedle(&curve, Bend::Down).unwrap() - 2.0 / 9.0).abs() < 1e-12);
    }

    /// Latency of M/M/1 with service in one unit, 1 / (1 - rho): in the unit square the distance from the chord is largest where the slope is
    /// that of the chord. Between 0 and 0.96 the chord rises 24 over 0.96 = 25, and 1 / (1 - rho)^2 = 25 at rho = 0.8.
    #[test]
    fn the_knee_of_a_queue() {
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
