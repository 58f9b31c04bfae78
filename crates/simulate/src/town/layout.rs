//! Layout of the town: first the outline and the river, then the roundabout and its avenues, then a boulevard
//! around the old town with the second bridge. Finally, streets halve every block until it is small enough.

use std::f64::consts::{PI, TAU};

use super::geo::{Point, angle_between, area, centroid, perimeter};
use super::names::Names;
use super::plane::{End, FaceId, Ground, Plane};
use super::{Class, Node};
use millrace_client::random::Random;

/// Length of a step in which streets are drawn, in meters, so that they can bend.
const STEP_M: f64 = 28.0;
/// A street that would end within this distance of a crossroads ends at the crossroads.
const SNAP_M: f64 = 24.0;
/// Minimum angle between two streets, in radians.
const CORNER_MIN: f64 = 0.85;
const ROUNDABOUT_RADIUS_M: f64 = 26.0;
const ROUNDABOUT_NODES: usize = 16;
const PARKS_MAX: usize = 8;

/// Named open space.
#[derive(Clone, Debug)]
pub struct Square {
    pub name: String,
    pub ring: Vec<Point>,
}

pub struct Layout {
    pub plane: Plane,
    /// Ring of the river, from beyond the northern edge to beyond the southern edge.
    pub river: Vec<Point>,
    pub roundabout: Point,
    /// Named parks, largest first, except that a park by the river is second if there is one.
    pub parks: Vec<Square>,
}

pub fn lay_out(random: &mut Random) -> Layout {
    let roundabout = Point::new(150.0 + random.between(-30.0, 30.0), 30.0 + random.between(-30.0, 30.0));
    let mut planner = Planner { plane: Plane::new(&outline(random)), random, names: Names::default(), roundabout };
    planner.names.shuffle(planner.random);
    let (river, east) = planner.dig_river();
    let arms = planner.build_roundabout(east);
    planner.build_avenues(&arms);
    planner.build_boulevard();
    let parks = planner.build_streets();
    Layout { plane: planner.plane, river, roundabout, parks }
}

struct Planner<'a> {
    plane: Plane,
    random: &'a mut Random,
    names: Names,
    roundabout: Point,
}

/// Street that is drawn but not yet built.
struct Draft {
    via: Vec<Point>,
    end: End,
    /// Heading of the last piece, in radians.
    heading: f64,
    /// Heading before the end was moved to a nearby crossroads, in radians. The street continues in this direction.
    course: f64,
}

impl Planner<'_> {
    /// Cuts the river out of the plane and adds quays along it. Returns the river's ring and the land to its east.
    fn dig_river(&mut self) -> (Vec<Point>, FaceId) {
        let (phase, swell) = (self.random.between(0.0, TAU), self.random.between(0.0, TAU));
        let middle = |y: f64| -440.0 + 135.0 * (y / 470.0 + phase).sin() + 40.0 * (y / 190.0 + swell).sin();
        let half_width = |y: f64| 47.0 + 9.0 * (y / 260.0 + swell).sin();
        let reach: Vec<f64> = (0..=80).map(|i| 1600.0 - 40.0 * f64::from(i)).collect();
        let west_bank: Vec<Point> = reach.iter().map(|&y| Point::new(middle(y) - half_width(y), y)).collect();
        let east_bank: Vec<Point> = reach.iter().map(|&y| Point::new(middle(y) + half_width(y), y)).collect();
        let (west_quay, west) = self.carve(0, &west_bank);
        let (east_quay, water) = self.carve(0, &east_bank);
        self.plane.faces[water].ground = Ground::Water;
        self.plane.lay_street(Class::Street, "West Quay", &west_quay);
        self.plane.lay_street(Class::Street, "East Quay", &east_quay);
        for (face, name) in [(west, "Western Ring"), (0, "Eastern Ring")] {
            let border = self.outer_border(face);
            self.plane.lay_street(Class::Avenue, name, &border);
        }
        (east_bank.into_iter().chain(west_bank.into_iter().rev()).collect(), 0)
    }

    /// Cuts `face` along a line that starts and ends outside it. Returns the cut and the face to its right.
    fn carve(&mut self, face: FaceId, line: &[Point]) -> (Vec<Node>, FaceId) {
        let mut hits = line.windows(2).enumerate().filter_map(|(i, pair)| {
            let hit = self.plane.cast(face, pair[0], pair[1], None)?;
            Some((i, hit))
        });
        let (enter, start) = hits.next().expect("the line enters the town");
        let (leave, end) = hits.next().expect("the line leaves the town");
        drop(hits);
        let far =
            |p: &Point| p.distance(self.plane.end_point(start)) > 8.0 && p.distance(self.plane.end_point(end)) > 8.0;
        let via: Vec<Point> = line[enter + 1..=leave].iter().copied().filter(far).collect();
        let (start, end) = (self.plane.settle(start), self.plane.settle(end));
        self.plane.cut(face, start, &via, end)
    }

    /// Returns the part of a ring that has no face beyond it.
    fn outer_border(&self, face: FaceId) -> Vec<Node> {
        let ring = &self.plane.faces[face].ring;
        let side = |i: usize| (ring[i % ring.len()], ring[(i + 1) % ring.len()]);
        let outer = |i: usize| {
            let (a, b) = side(i);
            self.plane.beside(a, b)[1].is_none()
        };
        let first = (1..=ring.len()).find(|&i| outer(i) && !outer(i - 1)).expect("the river cuts the outline");
        let count = (0..ring.len()).take_while(|&i| outer(first + i)).count();
        (0..=count).map(|i| ring[(first + i) % ring.len()]).collect()
    }

    /// Builds the roundabout on the avenue that leads east. Returns its nodes, counterclockwise from east.
    fn build_roundabout(&mut self, east: FaceId) -> Vec<Node> {
        let at =
            |k: usize| self.roundabout + Point::towards(TAU * k as f64 / ROUNDABOUT_NODES as f64) * ROUNDABOUT_RADIUS_M;
        let half = ROUNDABOUT_NODES / 2;
        let bend = self.random.between(0.0001, 0.0003);
        let westward = self.draft(east, at(half), None, PI, |_| bend).expect("the roundabout has a river to its west");
        let eastward = self.draft(east, at(0), None, 0.0, |_| bend).expect("the roundabout has land to its east");
        let west_count = westward.via.len();
        let upper: Vec<Point> = (0..=half).rev().map(at).collect();
        let lower: Vec<Point> = (half + 1..ROUNDABOUT_NODES).map(at).collect();
        let via: Vec<Point> = westward.via.into_iter().rev().chain(upper).chain(eastward.via).collect();
        let (start, end) = (self.plane.settle(westward.end), self.plane.settle(eastward.end));
        let (nodes, south) = self.plane.cut(east, start, &via, end);
        let (ring_from, ring_to) = (west_count + 1, west_count + 1 + half);
        let (lower_nodes, _) = self.plane.cut(south, nodes[ring_from], &lower, nodes[ring_to]);
        self.plane.faces[south].ground = Ground::Island;
        self.plane.lay_street(Class::Avenue, "Bridge Avenue", &nodes[..=ring_from]);
        self.plane.lay_street(Class::Avenue, "Station Avenue", &nodes[ring_to..]);
        let mut ring: Vec<Node> = nodes[ring_from..=ring_to].iter().rev().copied().collect();
        ring.extend(&lower_nodes[1..lower_nodes.len() - 1]);
        let closed: Vec<Node> = ring.iter().copied().chain([ring[0]]).collect();
        self.plane.lay_street(Class::Roundabout, "Market Circus", &closed);
        self.run(start, PI + bend, |_| 0.0002, "Bridge Avenue", "Old Bridge");
        ring
    }

    fn build_avenues(&mut self, ring: &[Node]) {
        for (arm, name) in [(3, "Garden Avenue"), (6, "Castle Avenue"), (11, "Harbour Avenue"), (14, "Mill Avenue")] {
            let heading = TAU * arm as f64 / ROUNDABOUT_NODES as f64;
            let bend = self.random.between(-0.00035, 0.00035);
            self.run(ring[arm], heading, |_| bend, name, "");
        }
    }

    /// Builds the boulevard from the east quay around the old town, back to the river and over the second bridge.
    fn build_boulevard(&mut self) {
        let radius = 540.0 + self.random.between(-20.0, 20.0);
        let middle = self.roundabout.x;
        let north = self.roundabout + Point::new(-60.0, radius);
        let Some(face) = (0..self.plane.faces.len()).find(|&f| super::geo::contains(&self.plane.ring(f), north)) else {
            return;
        };
        let Some(quay) = self.plane.cast(face, north, north - Point::new(900.0, 0.0), None) else { return };
        let quay = self.plane.settle(quay);
        // A half circle east of the market, with gentle curves before and after it.
        let bend = move |at: Point| if at.x > middle { -1.0 / radius } else { 0.0005 * ((at.x - middle) / 90.0).sin() };
        self.run(quay, 0.0, bend, "Linden Boulevard", "Weir Bridge");
    }

    /// Extends a street through one face after another until it reaches the edge of the town, or water if `bridge`
    /// is empty.
    fn run(&mut self, from: Node, heading: f64, bend: impl Fn(Point) -> f64, name: &str, bridge: &str) {
        let (mut node, mut heading) = (from, heading);
        let mut dry = vec![from];
        while let Some(face) = self.plane.face_towards(node, heading) {
            let wet = self.plane.faces[face].ground == Ground::Water;
            if wet && bridge.is_empty() {
                break;
            }
            let curve = |at: Point| if wet { 0.0 } else { bend(at) };
            let Some(draft) = self.draft(face, self.plane.points[node], Some(node), heading, curve) else { break };
            let end = self.plane.settle(draft.end);
            if end == node {
                break;
            }
            let (nodes, _) = self.plane.cut(face, node, &draft.via, end);
            if wet {
                self.lay(Class::Avenue, name, &dry);
                self.lay(Class::Bridge, bridge, &nodes);
                dry = vec![end];
            } else {
                dry.extend(&nodes[1..]);
            }
            (node, heading) = (end, draft.course);
        }
        self.lay(Class::Avenue, name, &dry);
    }

    fn lay(&mut self, class: Class, name: &str, nodes: &[Node]) {
        if nodes.len() > 1 {
            self.plane.lay_street(class, name, nodes);
        }
    }

    /// Draws a street from a place in `face`, or from a node on its ring, until the street meets a border.
    ///
    /// Units: `heading` in radians, `bend` in radians per meter at a place. Returns `None` if the street would meet
    /// a roundabout or run in circles.
    fn draft(
        &self,
        face: FaceId,
        from: Point,
        node: Option<Node>,
        mut heading: f64,
        bend: impl Fn(Point) -> f64,
    ) -> Option<Draft> {
        let (mut via, mut here, mut except) = (Vec::new(), from, node);
        for _ in 0..160 {
            let there = here + Point::towards(heading) * STEP_M;
            if let Some(hit) = self.plane.cast(face, here, there, except) {
                let end = self.plane.snap(hit, SNAP_M);
                if let End::Within(a, b, _) = hit
                    && let Some(street) = self.plane.street_on(a, b)
                    && self.plane.streets[street].class == Class::Roundabout
                {
                    return None;
                }
                let arrival = self.plane.end_point(end);
                if via.last().is_some_and(|p: &Point| p.distance(arrival) < 0.6 * STEP_M) {
                    via.pop();
                }
                let last = via.last().copied().unwrap_or(from);
                return Some(Draft { via, end, heading: (arrival - last).angle(), course: heading });
            }
            via.push(there);
            (here, except) = (there, None);
            heading += bend(there) * STEP_M;
        }
        None
    }

    /// Halves every block until it is small enough, and keeps some blocks as parks. Returns the parks, largest
    /// first, except that the second one lies by the river if possible.
    fn build_streets(&mut self) -> Vec<Square> {
        let mut parks: Vec<FaceId> = Vec::new();
        let mut blocks: Vec<FaceId> = (0..self.plane.faces.len()).collect();
        while let Some(face) = blocks.pop() {
            if self.plane.faces[face].ground != Ground::Land {
                continue;
            }
            let ring = self.plane.ring(face);
            let size = area(&ring);
            let outwards = (centroid(&ring).distance(self.roundabout) / 1250.0).min(1.0);
            let enough = (15_000.0 + 24_000.0 * outwards * outwards) * self.random.between(0.75, 1.3);
            let compact = 4.0 * PI * size / perimeter(&ring).powi(2);
            let far = |other: &FaceId| centroid(&self.plane.ring(*other)).distance(centroid(&ring)) > 480.0;
            if (26_000.0..95_000.0).contains(&size)
                && compact > 0.45
                && parks.len() < PARKS_MAX
                && parks.iter().all(far)
                && self.random.happens(0.3)
            {
                self.plane.faces[face].ground = Ground::Park;
                parks.push(face);
            } else if size > enough
                && let Some(other) = self.halve(face)
            {
                blocks.extend([face, other]);
            }
        }
        parks.sort_by(|&a, &b| self.plane.face_area(b).total_cmp(&self.plane.face_area(a)));
        // The second name is River Park, so it is given to a park by the river.
        let dry = |face: FaceId| !self.plane.faces[face].ring.iter().any(|&node| self.by_the_river(node));
        if let Some(second) = (1..parks.len()).find(|&i| !dry(parks[i])) {
            parks.swap(1, second);
        }
        let named = parks.iter().zip(super::names::PARKS);
        named.map(|(&face, name)| Square { name: name.to_owned(), ring: self.plane.ring(face) }).collect()
    }

    fn by_the_river(&self, node: Node) -> bool {
        self.plane.faces.iter().any(|face| face.ground == Ground::Water && face.ring.contains(&node))
    }

    /// Adds one street across the longer axis of a block. Returns `None` if no street fits.
    fn halve(&mut self, face: FaceId) -> Option<FaceId> {
        let ring = self.plane.ring(face);
        let (middle, axis, length) = long_axis(&ring);
        for attempt in 0..14 {
            let slack = 0.12 + 0.02 * f64::from(attempt);
            let through = middle + axis * (length * self.random.between(-slack, slack));
            let mut heading = axis.left().angle() + self.random.between(-slack, slack);
            if self.random.happens(0.5) {
                heading += PI;
            }
            let behind = through - Point::towards(heading) * 2000.0;
            let Some(back) = self.plane.cast(face, through, behind, None) else { continue };
            let start = self.plane.snap(back, SNAP_M);
            let from = self.plane.end_point(start);
            if let End::At(_) = start {
                heading = (through - from).angle();
            }
            let bend = self.random.between(-0.0011, 0.0011);
            let except = if let End::At(node) = start { Some(node) } else { None };
            // A street that starts on a side begins slightly inside the block, or it would meet that side at once.
            let inside = if except.is_none() { from + Point::towards(heading) * 0.01 } else { from };
            let Some(draft) = self.draft(face, inside, except, heading, |_| bend) else { continue };
            if self.fits(face, &ring, start, heading, &draft) {
                return Some(self.build(face, start, heading, draft));
            }
        }
        None
    }

    fn fits(&self, face: FaceId, ring: &[Point], start: End, heading: f64, draft: &Draft) -> bool {
        let (from, to) = (self.plane.end_point(start), self.plane.end_point(draft.end));
        let on_roundabout = |end: End| match end {
            End::At(node) => {
                let streets = self.plane.streets.iter().filter(|s| s.class == Class::Roundabout);
                streets.into_iter().any(|s| s.nodes.contains(&node))
            }
            End::Within(a, b, _) => {
                self.plane.street_on(a, b).is_some_and(|s| self.plane.streets[s].class == Class::Roundabout)
            }
        };
        let mut path = vec![from];
        path.extend(&draft.via);
        path.push(to);
        let inside = path.windows(2).all(|pair| super::geo::contains(ring, pair[0].mix(pair[1], 0.5)));
        let apart = draft.via.iter().all(|&p| super::geo::distance_to_ring(p, ring) > 14.0);
        from.distance(to) > 45.0
            && inside
            && apart
            && !on_roundabout(start)
            && !on_roundabout(draft.end)
            && self.plane.clearance(face, start, heading) > CORNER_MIN
            && self.plane.clearance(face, draft.end, draft.heading + PI) > CORNER_MIN
    }

    fn build(&mut self, face: FaceId, start: End, heading: f64, draft: Draft) -> FaceId {
        let start = self.plane.settle(start);
        // Both ends may lie on the same side: find again which part of it holds the far end.
        let end = match draft.end {
            End::Within(a, b, point) if self.plane.beside(a, b) == [None, None] => {
                let nearer = |x: Node, y: Node| End::Within(x, y, point);
                if self.plane.points[a].distance(point) < self.plane.points[a].distance(self.plane.points[start]) {
                    nearer(a, start)
                } else {
                    nearer(start, b)
                }
            }
            end => end,
        };
        let end = self.plane.settle(end);
        let name = self
            .goes_on(start, heading)
            .or_else(|| self.goes_on(end, draft.heading + PI))
            .unwrap_or_else(|| self.names.next_street());
        let (nodes, other) = self.plane.cut(face, start, &draft.via, end);
        self.plane.lay_street(Class::Street, &name, &nodes);
        other
    }

    /// Returns the name of the street that a new street, leaving `node` along `heading`, continues.
    fn goes_on(&self, node: Node, heading: f64) -> Option<String> {
        let way = Point::towards(heading);
        let streets = self.plane.streets.iter().filter(|s| s.class == Class::Street);
        for street in streets {
            let end = match street.nodes.as_slice() {
                [first, second, ..] if *first == node => *second,
                [.., second, last] if *last == node => *second,
                _ => continue,
            };
            if angle_between(way, self.plane.points[node] - self.plane.points[end]) < 0.5 {
                return Some(street.name.clone());
            }
        }
        None
    }
}

/// Returns an oval with a few soft bays, about 2.9 by 2.4 km.
fn outline(random: &mut Random) -> Vec<Point> {
    let phases = [random.between(0.0, TAU), random.between(0.0, TAU), random.between(0.0, TAU)];
    (0..84)
        .map(|i| {
            let angle = TAU * f64::from(i) / 84.0;
            let bays = 0.05 * (2.0 * angle + phases[0]).sin()
                + 0.05 * (3.0 * angle + phases[1]).sin()
                + 0.025 * (5.0 * angle + phases[2]).sin();
            Point::new(1440.0 * angle.cos(), 1190.0 * angle.sin()) * (1.0 + bays)
        })
        .collect()
}

/// Returns the middle, the direction and the length of a block's long axis: of its smallest bounding box aligned
/// with one of its sides.
fn long_axis(ring: &[Point]) -> (Point, Point, f64) {
    let mut best = (f64::INFINITY, Point::default(), Point::default(), 0.0);
    for (a, b) in super::geo::sides(ring) {
        let along = (b - a).unit();
        let across = along.left();
        let span = |way: Point| {
            ring.iter()
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), p| (low.min(p.dot(way)), high.max(p.dot(way))))
        };
        let (u, v) = (span(along), span(across));
        let (long, wide) = (u.1 - u.0, v.1 - v.0);
        if long * wide < best.0 {
            let middle = along * ((u.0 + u.1) / 2.0) + across * ((v.0 + v.1) / 2.0);
            best = (long * wide, middle, if long >= wide { along } else { across }, long.max(wide));
        }
    }
    (best.1, best.2, best.3)
}
