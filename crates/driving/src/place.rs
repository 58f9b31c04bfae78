use serde::{Deserialize, Serialize};

/// Meters per degree of latitude on a sphere with the mean radius of the Earth (6,371,008.8 m).
const METERS_PER_DEGREE: f64 = 111_195.08;

/// Position in degrees, WGS 84.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    pub lat: f64,
    pub lon: f64,
}

impl Place {
    /// Returns the distance in meters on a sphere. Accurate to 0.5 %.
    pub fn distance_m(self, other: Self) -> f64 {
        let (a, b) = (self.lat.to_radians(), other.lat.to_radians());
        let half = |angle: f64| (angle / 2.0).sin().powi(2);
        let chord = half(b - a) + a.cos() * b.cos() * half((other.lon - self.lon).to_radians());
        2.0 * METERS_PER_DEGREE.to_degrees() * chord.sqrt().min(1.0).asin()
    }

    /// Returns the meters east and north of `origin` in a plane that touches the sphere there. Use it for distances
    /// of up to about 100 km.
    pub fn plane_m(self, origin: Self) -> (f64, f64) {
        let east = (self.lon - origin.lon + 540.0).rem_euclid(360.0) - 180.0;
        (east * METERS_PER_DEGREE * origin.lat.to_radians().cos(), (self.lat - origin.lat) * METERS_PER_DEGREE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_agree_with_known_ones() {
        let budapest = Place { lat: 47.4979, lon: 19.0402 };
        let vienna = Place { lat: 48.2082, lon: 16.3738 };
        assert!((budapest.distance_m(vienna) - 214_000.0).abs() < 1500.0, "{}", budapest.distance_m(vienna));
        let near = Place { lat: 47.4989, lon: 19.0402 };
        assert!((budapest.distance_m(near) - 111.2).abs() < 0.1);
        let (east, north) = Place { lat: 10.0, lon: -179.999 }.plane_m(Place { lat: 10.0, lon: 179.999 });
        assert!((east - 219.0).abs() < 1.0 && north == 0.0, "the date line is crossed: {east}");
    }
}
