//! Fictional town, generated from a seed around 47.534 N, 19.080 E. It is about 3 by 2.5 km, with a river, two
//! bridges, a roundabout, parks, houses and a street graph. The same seed generates the same town.

mod buildings;
pub mod geo;
mod geojson;
mod graph;
mod layout;
mod names;
mod plane;
mod street;

use geo::Point;
pub use graph::{Graph, Road, RoadId};
pub use layout::Square;
use plane::Ground;
pub use street::{Class, Node, Street};

use millrace_client::random::Random;

/// Seed of the town that the demos and the web map show.
pub const DEFAULT_SEED: u64 = 1;

#[derive(Clone, Debug)]
pub struct Place {
    pub name: &'static str,
    pub at: Point,
}

#[derive(Clone, Debug)]
pub struct Town {
    pub graph: Graph,
    streets: Vec<Street>,
    points: Vec<Point>,
    waters: Vec<Square>,
    parks: Vec<Square>,
    /// Footprints of the houses, grouped by block.
    blocks: Vec<Vec<Vec<Point>>>,
    places: Vec<Place>,
}

impl Town {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::from_seed(seed);
        let layout = layout::lay_out(&mut random);
        let plane = &layout.plane;
        let graph = Graph::new(&plane.points, &plane.streets);
        let blocks: Vec<_> = (0..plane.faces.len())
            .filter(|&face| plane.faces[face].ground == Ground::Land)
            .map(|face| {
                let ring = plane.ring(face);
                let outwards = (geo::centroid(&ring).distance(layout.roundabout) / 1250.0).min(1.0);
                buildings::build(&ring, outwards, &mut random)
            })
            .collect();
        let mut waters = vec![Square { name: "Mill River".into(), ring: layout.river.clone() }];
        if let Some(park) = layout.parks.first() {
            waters.push(Square { name: "Swan Pond".into(), ring: pond(&park.ring, &mut random) });
        }
        let places = places(&layout, &graph);
        let layout::Layout { plane, parks, .. } = layout;
        Self { graph, streets: plane.streets, points: plane.points, waters, parks, blocks, places }
    }

    /// Returns the map as GeoJSON (RFC 7946); `properties.kind` is the type of each feature.
    pub fn to_geojson(&self) -> String {
        geojson::write(self)
    }

    pub fn places(&self) -> &[Place] {
        &self.places
    }
}

impl Default for Town {
    fn default() -> Self {
        Self::new(DEFAULT_SEED)
    }
}

/// Creates a smooth pond in the middle of a park.
fn pond(park: &[Point], random: &mut Random) -> Vec<Point> {
    let middle = geo::centroid(park);
    let radius = 0.42 * geo::distance_to_ring(middle, park);
    let (turn, lobe) = (random.between(0.0, std::f64::consts::TAU), random.between(0.15, 0.3));
    (0..28)
        .map(|i| {
            let angle = std::f64::consts::TAU * f64::from(i) / 28.0;
            let shape = 1.0 + lobe * (2.0 * (angle - turn)).cos() + 0.1 * (3.0 * angle + turn).sin();
            middle + Point::towards(angle) * (radius * shape)
        })
        .collect()
}

fn places(layout: &layout::Layout, graph: &Graph) -> Vec<Place> {
    let old_town = layout.roundabout;
    let near = |offset: Point| graph.points[graph.nearest(old_town + offset)];
    let river_at = |y: f64| {
        let bank = &layout.river[..layout.river.len() / 2];
        *bank.iter().min_by(|a, b| (a.y - y).abs().total_cmp(&(b.y - y).abs())).expect("a river has banks")
    };
    let mut places = vec![
        Place { name: "Market Circus", at: old_town },
        Place { name: "Town Hall", at: near(Point::new(120.0, 190.0)) },
        Place { name: "Central Station", at: near(Point::new(980.0, 60.0)) },
        Place { name: "University", at: near(Point::new(420.0, 620.0)) },
        Place { name: "Hospital", at: near(Point::new(560.0, -560.0)) },
        Place { name: "Castle Hill", at: near(Point::new(-1080.0, 330.0)) },
        Place { name: "Old Mill", at: river_at(-330.0) },
        Place { name: "Harbour", at: river_at(-820.0) },
    ];
    let names = ["Botanic Garden", "River Park"];
    let parks = layout.parks.iter().zip(names);
    places.extend(parks.map(|(park, name)| Place { name, at: geo::centroid(&park.ring) }));
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_grows_the_same_town() {
        assert_eq!(Town::new(3).to_geojson(), Town::new(3).to_geojson());
        assert_ne!(Town::new(3).to_geojson(), Town::new(4).to_geojson());
    }

    #[test]
    fn every_seed_has_bridges_roundabout_and_parks() {
        for seed in 1..=12 {
            let town = Town::new(seed);
            let bridges = town.streets.iter().filter(|s| s.class == Class::Bridge).count();
            let roundabouts = town.streets.iter().filter(|s| s.class == Class::Roundabout).count();
            assert_eq!((bridges, roundabouts), (2, 1), "seed {seed}");
            assert!(town.parks.len() >= 3, "seed {seed}: {} parks", town.parks.len());
            assert!(town.streets.len() > 120, "seed {seed}: {} streets", town.streets.len());
            let houses: usize = town.blocks.iter().map(Vec::len).sum();
            assert!((800..4000).contains(&houses), "seed {seed}: {houses} houses");
        }
    }

    #[test]
    fn houses_overlap_no_street_or_house() {
        let town = Town::default();
        let sides: Vec<(Point, Point)> = town
            .streets
            .iter()
            .flat_map(|s| s.nodes.windows(2).map(|pair| (town.points[pair[0]], town.points[pair[1]])))
            .collect();
        for block in &town.blocks {
            for (index, house) in block.iter().enumerate() {
                let middle = house.iter().fold(Point::default(), |sum, &p| sum + p) * (1.0 / house.len() as f64);
                for &corner in house {
                    let to_street = sides.iter().map(|&(a, b)| geo::distance_to_segment(corner, a, b));
                    assert!(to_street.fold(f64::INFINITY, f64::min) > 5.0);
                }
                assert!(block[..index].iter().all(|other| !geo::contains(other, middle)));
            }
        }
    }
}
