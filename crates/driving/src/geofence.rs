use serde::{Deserialize, Serialize};

use crate::Place;

/// Meters that a car must be inside or outside of the border before it has crossed it.
const MARGIN_M: f64 = 15.0;
/// Number of successive positions that must agree.
const AGREE: u8 = 2;
/// Maximum number of corners of a polygon.
const CORNERS_MAX: usize = 200;

/// Area of a geofence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Area {
    Circle {
        center: Place,
        #[serde(rename = "radiusM")]
        radius_m: f64,
    },
    /// Corners in order. The last one is joined to the first.
    Polygon(Vec<Place>),
}

/// Area with a name. A car that crosses its border causes an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Geofence {
    pub name: String,
    pub area: Area,
    /// Groups of cars for which the geofence counts; empty: all cars.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

/// Reasons why a geofence is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeofenceError {
    #[error("the name of a geofence has 1 to 64 characters")]
    Name,
    #[error("a circle has a center in degrees and a radius from 30 to 1000000 m")]
    Circle,
    #[error("a polygon has 3 to {CORNERS_MAX} corners in degrees, and is at most 2 degrees wide and high")]
    Polygon,
}

impl Geofence {
    /// Errors: [`GeofenceError`].
    pub fn check(&self) -> Result<(), GeofenceError> {
        let is_place = |place: &Place| (-89.0..=89.0).contains(&place.lat) && (-180.0..=180.0).contains(&place.lon);
        if self.name.trim().is_empty() || self.name.chars().count() > 64 {
            return Err(GeofenceError::Name);
        }
        match &self.area {
            Area::Circle { center, radius_m } if is_place(center) && (30.0..=1e6).contains(radius_m) => Ok(()),
            Area::Circle { .. } => Err(GeofenceError::Circle),
            Area::Polygon(corners) => {
                let spread = |of: fn(&Place) -> f64| {
                    let (low, high) =
                        corners.iter().map(of).fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
                    high - low
                };
                let is_valid = (3..=CORNERS_MAX).contains(&corners.len())
                    && corners.iter().all(is_place)
                    && spread(|place| place.lat) <= 2.0
                    && spread(|place| place.lon) <= 2.0;
                if is_valid { Ok(()) } else { Err(GeofenceError::Polygon) }
            }
        }
    }

    /// Returns the meters from a place to the border; negative inside.
    pub fn distance_m(&self, place: Place) -> f64 {
        match &self.area {
            Area::Circle { center, radius_m } => center.distance_m(place) - radius_m,
            Area::Polygon(corners) => {
                let flat: Vec<(f64, f64)> = corners.iter().map(|corner| corner.plane_m(place)).collect();
                let sides = flat.iter().zip(flat.iter().cycle().skip(1));
                let mut is_inside = false;
                let mut nearest = f64::INFINITY;
                for (&(ax, ay), &(bx, by)) in sides {
                    // The place is the origin.
                    if (ay > 0.0) != (by > 0.0) && 0.0 < ax - ay / (by - ay) * (bx - ax) {
                        is_inside = !is_inside;
                    }
                    let (dx, dy) = (bx - ax, by - ay);
                    let along = (-(ax * dx + ay * dy) / (dx * dx + dy * dy).max(1e-9)).clamp(0.0, 1.0);
                    nearest = nearest.min((ax + along * dx).hypot(ay + along * dy));
                }
                if is_inside { -nearest } else { nearest }
            }
        }
    }
}

/// Side of the border on which a car is.
///
/// ```text
///   first position: inside or outside, without an event
///   Outside ── AGREE positions deeper inside than the margin ──► Inside   (enter)
///   Inside ── AGREE positions further outside than the margin ─► Outside  (exit)
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Border {
    is_inside: Option<bool>,
    agreeing: u8,
}

impl Border {
    /// Takes a position. Returns `Some(true)` when the car has entered, `Some(false)` when it has left.
    ///
    /// The margin grows with the uncertainty of the position, so that an inaccurate position crosses no border.
    pub fn advance(&mut self, distance_m: f64, accuracy_m: Option<f64>) -> Option<bool> {
        let margin_m = accuracy_m.unwrap_or(0.0).max(MARGIN_M);
        let Some(is_inside) = self.is_inside else {
            self.is_inside = Some(distance_m < 0.0);
            return None;
        };
        let is_other_side = if is_inside { distance_m > margin_m } else { distance_m < -margin_m };
        self.agreeing = if is_other_side { self.agreeing + 1 } else { 0 };
        if self.agreeing < AGREE {
            return None;
        }
        *self = Self { is_inside: Some(!is_inside), agreeing: 0 };
        Some(!is_inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle() -> Geofence {
        let center = Place { lat: 47.534, lon: 19.08 };
        Geofence { name: "Depot".into(), area: Area::Circle { center, radius_m: 100.0 }, groups: Vec::new() }
    }

    fn square() -> Geofence {
        let corner = |lat, lon| Place { lat, lon };
        let corners = vec![corner(47.0, 19.0), corner(47.0, 19.01), corner(47.01, 19.01), corner(47.01, 19.0)];
        Geofence { area: Area::Polygon(corners), ..circle() }
    }

    #[test]
    fn distance_is_negative_inside() {
        assert_eq!(circle().distance_m(Place { lat: 47.534, lon: 19.08 }), -100.0);
        assert!((circle().distance_m(Place { lat: 47.535, lon: 19.08 }) - 11.2).abs() < 0.2);
        let middle = square().distance_m(Place { lat: 47.005, lon: 19.005 });
        assert!((middle + 379.0).abs() < 3.0, "{middle}");
        let beside = square().distance_m(Place { lat: 47.005, lon: 19.011 });
        assert!((beside - 75.8).abs() < 1.0, "{beside}");
    }

    #[test]
    fn border_needs_two_positions_beyond_the_margin() {
        let mut border = Border::default();
        let mut at = |distance_m| border.advance(distance_m, Some(5.0));
        assert_eq!([at(50.0), at(5.0), at(-5.0), at(-14.0)], [None; 4], "the margin");
        assert_eq!([at(-20.0), at(30.0), at(-20.0), at(-20.0)], [None, None, None, Some(true)]);
        assert_eq!([at(-20.0), at(14.0), at(-3.0), at(14.0)], [None; 4], "noise at the border");
        assert_eq!([at(20.0), at(20.0), at(20.0)], [None, Some(false), None]);
    }

    #[test]
    fn first_position_inside_is_no_entry() {
        let mut border = Border::default();
        assert_eq!([border.advance(-50.0, None), border.advance(-50.0, None)], [None, None]);
        assert_eq!([border.advance(50.0, Some(80.0)), border.advance(60.0, Some(80.0))], [None, None], "inaccurate");
    }

    #[test]
    fn invalid_areas_are_refused() {
        assert_eq!(circle().check(), Ok(()));
        assert_eq!(square().check(), Ok(()));
        assert_eq!(Geofence { name: " ".into(), ..circle() }.check(), Err(GeofenceError::Name));
        let center = Place { lat: 0.0, lon: 0.0 };
        let tiny = Geofence { area: Area::Circle { center, radius_m: 5.0 }, ..circle() };
        assert_eq!(tiny.check(), Err(GeofenceError::Circle));
        assert_eq!(Geofence { area: Area::Polygon(vec![center; 2]), ..circle() }.check(), Err(GeofenceError::Polygon));
        let json = r#"{"name":"Depot","area":{"circle":{"center":{"lat":47.534,"lon":19.08},"radiusM":100.0}}}"#;
        assert_eq!(serde_json::to_string(&circle()).expect("JSON"), json);
    }
}
