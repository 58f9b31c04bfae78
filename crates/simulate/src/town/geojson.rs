//! Map as GeoJSON (RFC 7946): longitude first, outer rings counterclockwise, all rings closed, 6 decimals.

use std::fmt::Write;

use super::geo::{Point, area, contains};
use super::{Class, Town};

pub fn write(town: &Town) -> String {
    let mut features: Vec<String> = Vec::new();
    for water in &town.waters {
        features.push(feature("water", &water.name, "Polygon", &polygon(&water.ring)));
    }
    for park in &town.parks {
        // A pond is a hole in its park, so that the order in which a map draws the two does not matter.
        let pond = town.waters.iter().find(|water| contains(&park.ring, water.ring[0]));
        let rings = std::iter::once(closed(&park.ring, true)).chain(pond.map(|pond| closed(&pond.ring, false)));
        let rings: Vec<String> = rings.map(|ring| positions(&ring)).collect();
        features.push(feature("park", &park.name, "Polygon", &format!("[{}]", rings.join(","))));
    }
    for block in town.blocks.iter().filter(|block| !block.is_empty()) {
        let houses: Vec<String> = block.iter().map(|house| polygon(house)).collect();
        features.push(feature("building", "", "MultiPolygon", &format!("[{}]", houses.join(","))));
    }
    // Wide roads come last, because a map draws them over the narrow ones.
    for class in [Class::Street, Class::Avenue, Class::Roundabout, Class::Bridge] {
        for street in town.streets.iter().filter(|s| s.class == class) {
            let line: Vec<Point> = street.nodes.iter().map(|&node| town.points[node]).collect();
            features.push(feature(kind(class), &street.name, "LineString", &positions(&line)));
        }
    }
    for place in &town.places {
        features.push(feature("place", place.name, "Point", &position(place.at)));
    }
    format!("{{\"type\":\"FeatureCollection\",\"features\":[\n{}\n]}}\n", features.join(",\n"))
}

fn kind(class: Class) -> &'static str {
    match class {
        Class::Street => "street",
        Class::Avenue => "avenue",
        Class::Bridge => "bridge",
        Class::Roundabout => "roundabout",
    }
}

/// Returns one feature. `name` comes from this crate and has only letters, digits and spaces, so it needs no
/// escaping. An empty name is omitted.
fn feature(kind: &str, name: &str, geometry: &str, coordinates: &str) -> String {
    let name = if name.is_empty() { String::new() } else { format!(",\"name\":\"{name}\"") };
    format!(
        "{{\"type\":\"Feature\",\"properties\":{{\"kind\":\"{kind}\"{name}}},\
         \"geometry\":{{\"type\":\"{geometry}\",\"coordinates\":{coordinates}}}}}"
    )
}

fn polygon(ring: &[Point]) -> String {
    format!("[{}]", positions(&closed(ring, true)))
}

fn closed(ring: &[Point], anticlockwise: bool) -> Vec<Point> {
    let mut closed = ring.to_vec();
    if (area(ring) > 0.0) != anticlockwise {
        closed.reverse();
    }
    closed.push(closed[0]);
    closed
}

fn positions(line: &[Point]) -> String {
    let mut text = String::from("[");
    for (index, &point) in line.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(text, "{comma}{}", position(point)).expect("a string takes all");
    }
    text + "]"
}

fn position(point: Point) -> String {
    let at = point.lat_lon().rounded();
    format!("[{},{}]", at.lon, at.lat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_is_small_valid_and_complete() {
        let text = Town::default().to_geojson();
        assert!(text.len() < 400_000, "{} bytes", text.len());
        let map: serde_json::Value = serde_json::from_str(&text).expect("GeoJSON is JSON");
        let features = map["features"].as_array().expect("features");
        for kind in ["water", "park", "building", "street", "avenue", "roundabout", "bridge", "place"] {
            let of_kind: Vec<_> = features.iter().filter(|f| f["properties"]["kind"] == kind).collect();
            assert!(!of_kind.is_empty(), "no {kind}");
            let named = kind != "building";
            assert!(of_kind.iter().all(|f| f["properties"]["name"].is_string() == named), "{kind}");
        }
    }

    #[test]
    fn rings_are_closed_and_anticlockwise() {
        let clockwise = [Point::new(0.0, 0.0), Point::new(0.0, 10.0), Point::new(10.0, 0.0)];
        let ring: Vec<Vec<[f64; 2]>> = serde_json::from_str(&polygon(&clockwise)).expect("JSON");
        assert_eq!(ring[0].first(), ring[0].last());
        let signed: f64 = ring[0].windows(2).map(|p| p[0][0] * p[1][1] - p[1][0] * p[0][1]).sum();
        assert!(signed > 0.0);
        assert_eq!(position(Point::default()), "[19.08,47.534]");
    }
}
