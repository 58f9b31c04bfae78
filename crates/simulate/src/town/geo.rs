//! Plane geometry in meters, and its conversion to latitude and longitude.

use std::ops::{Add, Mul, Sub};

/// Center of the town, in degrees.
pub const CENTRE: LatLon = LatLon { lat: 47.534, lon: 19.080 };
/// Meters per degree of latitude on a sphere with the mean radius of the Earth (6,371,008.8 m).
const METRES_PER_DEGREE: f64 = 111_195.08;

/// Place in the town: meters east (`x`) and north (`y`) of [`CENTRE`]. Also used as a vector.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
}

/// Latitude and longitude in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatLon {
    pub lat: f64,
    pub lon: f64,
}

impl Point {
    pub const fn new(x: f64, y: f64) -> Self {
        Self { x, y }
    }

    /// Returns the unit vector at `angle` radians, counterclockwise from east.
    pub fn towards(angle: f64) -> Self {
        Self::new(angle.cos(), angle.sin())
    }

    pub fn angle(self) -> f64 {
        self.y.atan2(self.x)
    }

    pub fn length(self) -> f64 {
        self.x.hypot(self.y)
    }

    pub fn distance(self, other: Self) -> f64 {
        (self - other).length()
    }

    /// Returns the vector scaled to unit length; the null vector stays null.
    pub fn unit(self) -> Self {
        let length = self.length();
        if length == 0.0 { self } else { self * (1.0 / length) }
    }

    /// Returns the vector turned by 90 degrees counterclockwise.
    pub fn left(self) -> Self {
        Self::new(-self.y, self.x)
    }

    pub fn dot(self, other: Self) -> f64 {
        self.x * other.x + self.y * other.y
    }

    /// Returns the cross product: above 0 if `other` lies to the left of `self`.
    pub fn cross(self, other: Self) -> f64 {
        self.x * other.y - self.y * other.x
    }

    pub fn mix(self, other: Self, t: f64) -> Self {
        self + (other - self) * t
    }

    pub fn lat_lon(self) -> LatLon {
        let metres_per_degree_lon = METRES_PER_DEGREE * CENTRE.lat.to_radians().cos();
        LatLon { lat: CENTRE.lat + self.y / METRES_PER_DEGREE, lon: CENTRE.lon + self.x / metres_per_degree_lon }
    }
}

impl LatLon {
    pub fn point(self) -> Point {
        let metres_per_degree_lon = METRES_PER_DEGREE * CENTRE.lat.to_radians().cos();
        Point::new((self.lon - CENTRE.lon) * metres_per_degree_lon, (self.lat - CENTRE.lat) * METRES_PER_DEGREE)
    }

    /// Rounds both values to 6 decimals: about 0.1 m.
    pub fn rounded(self) -> Self {
        Self { lat: round_to(self.lat, 6), lon: round_to(self.lon, 6) }
    }
}

pub fn round_to(value: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (value * scale).round() / scale
}

impl Add for Point {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self::new(self.x + other.x, self.y + other.y)
    }
}

impl Sub for Point {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self::new(self.x - other.x, self.y - other.y)
    }
}

impl Mul<f64> for Point {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self::new(self.x * factor, self.y * factor)
    }
}

/// Returns the angle between two directions, in radians in `[0, pi]`.
pub fn angle_between(a: Point, b: Point) -> f64 {
    a.cross(b).abs().atan2(a.dot(b))
}

/// Returns where `a1..a2` meets `b1..b2`: the fractions `(t, u)` of the length along each, both in `[0, 1]`.
/// Returns `None` for parallel lines.
pub fn crossing(a1: Point, a2: Point, b1: Point, b2: Point) -> Option<(f64, f64)> {
    let (a, b) = (a2 - a1, b2 - b1);
    let denominator = a.cross(b);
    if denominator.abs() < 1e-12 {
        return None;
    }
    let t = (b1 - a1).cross(b) / denominator;
    let u = (b1 - a1).cross(a) / denominator;
    ((0.0..=1.0).contains(&t) && (0.0..=1.0).contains(&u)).then_some((t, u))
}

/// Returns the meters from `point` to the segment `a..b`.
pub fn distance_to_segment(point: Point, a: Point, b: Point) -> f64 {
    let along = b - a;
    let t = ((point - a).dot(along) / along.dot(along).max(1e-12)).clamp(0.0, 1.0);
    point.distance(a.mix(b, t))
}

/// Returns the area in square meters; above 0 for a counterclockwise ring. The ring does not repeat its first
/// point.
pub fn area(ring: &[Point]) -> f64 {
    sides(ring).map(|(a, b)| a.cross(b)).sum::<f64>() / 2.0
}

pub fn perimeter(ring: &[Point]) -> f64 {
    sides(ring).map(|(a, b)| a.distance(b)).sum()
}

pub fn contains(ring: &[Point], point: Point) -> bool {
    let mut inside = false;
    for (a, b) in sides(ring) {
        if (a.y > point.y) != (b.y > point.y) && point.x < a.x + (point.y - a.y) / (b.y - a.y) * (b.x - a.x) {
            inside = !inside;
        }
    }
    inside
}

/// Returns the meters from `point` to the nearest side of the ring.
pub fn distance_to_ring(point: Point, ring: &[Point]) -> f64 {
    sides(ring).map(|(a, b)| distance_to_segment(point, a, b)).fold(f64::INFINITY, f64::min)
}

pub fn centroid(ring: &[Point]) -> Point {
    let sum = sides(ring).fold(Point::default(), |sum, (a, b)| sum + (a + b) * a.cross(b));
    sum * (1.0 / (6.0 * area(ring)))
}

/// Returns the sides of a closed ring, each as its two ends.
pub fn sides(ring: &[Point]) -> impl Iterator<Item = (Point, Point)> + '_ {
    ring.iter().copied().zip(ring.iter().copied().cycle().skip(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SQUARE: [Point; 4] =
        [Point::new(0.0, 0.0), Point::new(10.0, 0.0), Point::new(10.0, 10.0), Point::new(0.0, 10.0)];

    #[test]
    fn a_square_has_its_area_centroid_and_inside() {
        assert_eq!(area(&SQUARE), 100.0);
        assert_eq!(perimeter(&SQUARE), 40.0);
        assert_eq!(centroid(&SQUARE), Point::new(5.0, 5.0));
        assert!(contains(&SQUARE, Point::new(1.0, 9.0)));
        assert!(!contains(&SQUARE, Point::new(-1.0, 5.0)));
        assert_eq!(distance_to_ring(Point::new(5.0, 2.0), &SQUARE), 2.0);
    }

    #[test]
    fn crossing_gives_both_shares() {
        let cross = crossing(Point::new(0.0, 0.0), Point::new(10.0, 0.0), Point::new(5.0, -5.0), Point::new(5.0, 15.0));
        assert_eq!(cross, Some((0.5, 0.25)));
    }

    #[test]
    fn degrees_and_metres_round_trip() {
        let point = Point::new(1234.5, -678.9);
        assert!(point.lat_lon().point().distance(point) < 1e-6);
        assert!(point.lat_lon().rounded().point().distance(point) < 0.1);
        // One kilometer north is 0.008993 degrees.
        assert!((Point::new(0.0, 1000.0).lat_lon().lat - 47.542993).abs() < 1e-6);
    }
}
