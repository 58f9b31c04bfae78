//! Plane divided into faces by streets. Every cut connects two borders of a face, so no street is a dead end.

use std::collections::BTreeMap;

use super::geo::{Point, angle_between, area, contains, crossing};
use super::{Class, Node, Street};

pub type FaceId = usize;
pub type StreetId = usize;

/// Type of the area between streets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    Land,
    Water,
    Park,
    /// Island of the roundabout.
    Island,
}

/// Region of the plane. Its ring is counterclockwise and contains every node on its border.
#[derive(Clone, Debug)]
pub struct Face {
    pub ring: Vec<Node>,
    pub ground: Ground,
}

#[derive(Clone, Debug, Default)]
pub struct Plane {
    pub points: Vec<Point>,
    pub faces: Vec<Face>,
    pub streets: Vec<Street>,
    /// Face to the left of each directed side.
    left: BTreeMap<(Node, Node), FaceId>,
    /// Street on each side, keyed by (smaller, larger) node.
    street: BTreeMap<(Node, Node), StreetId>,
}

/// End of a street that is being drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    At(Node),
    /// On the side between two nodes; [`Plane::settle`] creates the node.
    Within(Node, Node, Point),
}

impl Plane {
    /// Creates a plane with one face.
    pub fn new(outline: &[Point]) -> Self {
        let mut plane = Self { points: outline.to_vec(), ..Self::default() };
        plane.add_face((0..outline.len()).collect(), Ground::Land);
        plane
    }

    pub fn ring(&self, face: FaceId) -> Vec<Point> {
        self.faces[face].ring.iter().map(|&node| self.points[node]).collect()
    }

    /// Returns the faces on both sides of a side; `None` is the area outside the plane.
    pub fn beside(&self, a: Node, b: Node) -> [Option<FaceId>; 2] {
        [self.left.get(&(a, b)).copied(), self.left.get(&(b, a)).copied()]
    }

    pub fn street_on(&self, a: Node, b: Node) -> Option<StreetId> {
        self.street.get(&(a.min(b), a.max(b))).copied()
    }

    /// Returns the face that a street leaving `node` along `heading` (radians) enters.
    pub fn face_towards(&self, node: Node, heading: f64) -> Option<FaceId> {
        let probe = self.points[node] + Point::towards(heading) * 2.0;
        (0..self.faces.len()).find(|&face| self.faces[face].ring.contains(&node) && contains(&self.ring(face), probe))
    }

    /// Returns the node of an [`End`], creating it if needed.
    pub fn settle(&mut self, end: End) -> Node {
        let (a, b, point) = match end {
            End::At(node) => return node,
            End::Within(a, b, point) => (a, b, point),
        };
        let node = self.points.len();
        self.points.push(point);
        for (from, to) in [(a, b), (b, a)] {
            if let Some(face) = self.left.remove(&(from, to)) {
                let ring = &mut self.faces[face].ring;
                let at = ring.iter().position(|&n| n == from).expect("the side belongs to the ring");
                ring.insert(at + 1, node);
                self.left.insert((from, node), face);
                self.left.insert((node, to), face);
            }
        }
        if let Some(street) = self.street.remove(&(a.min(b), a.max(b))) {
            let nodes = &mut self.streets[street].nodes;
            let at =
                nodes.windows(2).position(|pair| pair == [a, b] || pair == [b, a]).expect("the side has its street");
            nodes.insert(at + 1, node);
            self.street.insert((a.min(node), a.max(node)), street);
            self.street.insert((b.min(node), b.max(node)), street);
        }
        node
    }

    /// Cuts `face` along `via` from `start` to `end`. Returns the nodes of the cut and the new face, which lies to
    /// its right.
    pub fn cut(&mut self, face: FaceId, start: Node, via: &[Point], end: Node) -> (Vec<Node>, FaceId) {
        let first = self.points.len();
        self.points.extend_from_slice(via);
        let inner: Vec<Node> = (first..self.points.len()).collect();
        let mut ring = std::mem::take(&mut self.faces[face].ring);
        let turn = ring.iter().position(|&n| n == start).expect("a cut starts on the ring");
        ring.rotate_left(turn);
        let split = ring.iter().position(|&n| n == end).expect("a cut ends on the ring");
        let mut right: Vec<Node> = ring[..=split].to_vec();
        right.extend(inner.iter().rev());
        let mut left: Vec<Node> = ring[split..].to_vec();
        left.push(start);
        left.extend(inner.iter());
        self.faces[face].ring = left;
        self.claim(face);
        let ground = self.faces[face].ground;
        let right = self.add_face(right, ground);
        (std::iter::once(start).chain(inner).chain([end]).collect(), right)
    }

    pub fn lay_street(&mut self, class: Class, name: &str, nodes: &[Node]) {
        let id = self.streets.len();
        for pair in nodes.windows(2) {
            self.street.insert((pair[0].min(pair[1]), pair[0].max(pair[1])), id);
        }
        self.streets.push(Street { class, name: name.to_owned(), nodes: nodes.to_vec() });
    }

    /// Returns the first border of `face` on the line `from..to`. Sides that touch the node `except` are ignored.
    pub fn cast(&self, face: FaceId, from: Point, to: Point, except: Option<Node>) -> Option<End> {
        let ring = &self.faces[face].ring;
        let mut nearest: Option<(f64, End)> = None;
        for (index, &a) in ring.iter().enumerate() {
            let b = ring[(index + 1) % ring.len()];
            if except == Some(a) || except == Some(b) {
                continue;
            }
            if let Some((t, u)) = crossing(from, to, self.points[a], self.points[b])
                && nearest.is_none_or(|(best, _)| t < best)
            {
                nearest = Some((t, End::Within(a, b, self.points[a].mix(self.points[b], u))));
            }
        }
        nearest.map(|(_, end)| end)
    }

    pub fn end_point(&self, end: End) -> Point {
        match end {
            End::At(node) => self.points[node],
            End::Within(_, _, point) => point,
        }
    }

    /// Moves an end to a node within `reach` meters, so that streets meet at crossroads and not a few steps apart.
    pub fn snap(&self, end: End, reach: f64) -> End {
        let End::Within(a, b, point) = end else { return end };
        let (to_a, to_b) = (point.distance(self.points[a]), point.distance(self.points[b]));
        match to_a.min(to_b) <= reach {
            true => End::At(if to_a <= to_b { a } else { b }),
            false => end,
        }
    }

    /// Returns the smallest angle (radians) between `heading` at an end and the borders of `face` there.
    pub fn clearance(&self, face: FaceId, end: End, heading: f64) -> f64 {
        let (at, previous, next) = match end {
            End::Within(a, b, point) => (point, a, b),
            End::At(node) => {
                let ring = &self.faces[face].ring;
                let index = ring.iter().position(|&n| n == node).expect("the end is on the ring");
                (self.points[node], ring[(index + ring.len() - 1) % ring.len()], ring[(index + 1) % ring.len()])
            }
        };
        let way = Point::towards(heading);
        angle_between(way, self.points[previous] - at).min(angle_between(way, self.points[next] - at))
    }

    pub fn face_area(&self, face: FaceId) -> f64 {
        area(&self.ring(face))
    }

    fn add_face(&mut self, ring: Vec<Node>, ground: Ground) -> FaceId {
        self.faces.push(Face { ring, ground });
        self.claim(self.faces.len() - 1);
        self.faces.len() - 1
    }

    fn claim(&mut self, face: FaceId) {
        let ring = &self.faces[face].ring;
        for (index, &a) in ring.iter().enumerate() {
            self.left.insert((a, ring[(index + 1) % ring.len()]), face);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn square() -> Plane {
        Plane::new(&[Point::new(0.0, 0.0), Point::new(100.0, 0.0), Point::new(100.0, 100.0), Point::new(0.0, 100.0)])
    }

    #[test]
    fn a_cut_keeps_the_area_and_the_orientation() {
        let mut plane = square();
        let start = plane.settle(End::Within(0, 1, Point::new(40.0, 0.0)));
        let end = plane.settle(End::Within(2, 3, Point::new(40.0, 100.0)));
        let (nodes, right) = plane.cut(0, start, &[Point::new(45.0, 50.0)], end);
        assert_eq!(nodes.len(), 3);
        assert_eq!(plane.face_area(0) + plane.face_area(right), 10_000.0);
        assert!(plane.face_area(0) > 0.0 && plane.face_area(0) < plane.face_area(right));
        assert_eq!(plane.face_towards(start, 0.1), Some(right));
        assert_eq!(plane.face_towards(start, 3.0), Some(0));
    }

    #[test]
    fn a_new_node_stays_on_its_street() {
        let mut plane = square();
        plane.lay_street(Class::Street, "South Row", &[0, 1]);
        let node = plane.settle(End::Within(0, 1, Point::new(40.0, 0.0)));
        assert_eq!(plane.streets[0].nodes, [0, node, 1]);
        assert_eq!(plane.street_on(node, 1), Some(0));
        assert_eq!(plane.street_on(0, 1), None);
    }

    #[test]
    fn ray_meets_nearest_border_and_snaps_to_corners() {
        let plane = square();
        let hit = plane.cast(0, Point::new(50.0, 50.0), Point::new(250.0, 140.0), None).expect("a hit");
        assert_eq!(hit, End::Within(1, 2, Point::new(100.0, 72.5)));
        assert_eq!(plane.snap(hit, 10.0), hit);
        assert_eq!(plane.snap(hit, 30.0), End::At(2));
        assert!((plane.clearance(0, hit, std::f64::consts::PI) - std::f64::consts::FRAC_PI_2).abs() < 1e-9);
    }
}
