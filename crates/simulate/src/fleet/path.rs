//! Line that a car drives along its route, with the maximum speed at each place.

use crate::town::geo::{Point, angle_between};
use crate::town::{Class, Graph, RoadId};
use millrace_client::random::Random;

use super::Driver;

/// Distance of the lane from the middle of a street; cars drive on the right.
const LANE_M: f64 = 1.75;
/// Maximum distance between a rounded corner and the original corner.
const ROUNDING_M: f64 = 2.2;
/// The same for a driver who takes a bend without slowing down, and the lateral acceleration of that, m/s2.
const DARING_ROUNDING_M: f64 = 4.0;
const DARING: (f64, f64) = (4.9, 6.3);
/// Minimum speed in a bend that is taken this way, m/s.
const DARING_MPS: f64 = 8.9;
/// Maximum turn between two pieces of an arc, in radians: small enough that the turn of a car is smooth.
const ARC_PIECE: f64 = 0.03;
/// Speed over a junction of streets, and speed when yielding to an avenue, m/s.
const CROSS_MPS: f64 = 7.5;
const GIVE_WAY_MPS: f64 = 4.5;

#[derive(Clone, Debug)]
pub struct Path {
    points: Vec<Point>,
    /// Meters from the start to each point.
    at: Vec<f64>,
    /// Speed limit of the road (`limit`) and of the curve (`bound`) on the piece that starts at each point, m/s.
    limit: Vec<f64>,
    bound: Vec<f64>,
    /// Speed from which normal braking meets every later bound, m/s.
    cap: Vec<f64>,
    /// Braking of the driver, m/s2.
    braking: f64,
    /// Stops in order: place (meters) and duration (seconds). The last one is the end.
    pub stops: Vec<(f64, f64)>,
}

/// Corner of the route before it is rounded.
struct Corner {
    at: Point,
    /// Maximum speed through the corner, m/s.
    pass_mps: f64,
    /// Seconds to wait before the corner.
    wait_s: Option<f64>,
}

impl Path {
    /// Creates the path of a driver from the middle of the first road to the middle of the last.
    pub fn new(graph: &Graph, route: &[RoadId], driver: &Driver, random: &mut Random) -> Self {
        let roads: Vec<_> = route.iter().map(|&road| graph.roads[road]).collect();
        let ends = |i: usize| (graph.points[roads[i].from], graph.points[roads[i].to]);
        let way = |i: usize| (ends(i).1 - ends(i).0).unit();
        let lane = |i: usize| if roads[i].class == Class::Roundabout { 0.0 } else { LANE_M };
        let beside = |i: usize| ends(i).0.mix(ends(i).1, 0.5) - way(i).left() * lane(i);
        let last = roads.len() - 1;

        let mut corners = vec![Corner { at: beside(0), pass_mps: f64::INFINITY, wait_s: None }];
        for i in 0..last {
            let (before, after) = (way(i).left(), way(i + 1).left());
            let shift = lane(i).min(lane(i + 1)) / (1.0 + before.dot(after)).max(0.4);
            let (pass_mps, wait_s) = junction(graph, roads[i], roads[i + 1], random);
            corners.push(Corner { at: ends(i).1 - (before + after) * shift, pass_mps, wait_s });
        }
        corners.push(Corner { at: beside(last), pass_mps: f64::INFINITY, wait_s: None });

        let mut path = Self {
            points: vec![],
            at: vec![],
            limit: vec![],
            bound: vec![],
            cap: vec![],
            braking: driver.braking,
            stops: vec![],
        };
        let mut passes: Vec<(usize, f64)> = Vec::new();
        path.push(corners[0].at, roads[0].limit_mps, f64::INFINITY);
        for i in 1..corners.len() - 1 {
            let limit = roads[i - 1].limit_mps.min(roads[i].limit_mps);
            let around = [corners[i - 1].at, corners[i].at, corners[i + 1].at];
            let dares = corners[i].wait_s.is_none() && random.happens(driver.daring);
            let bold = if dares { bold_bend(around, limit, random) } else { None };
            if bold.is_some() {
                corners[i].pass_mps = f64::INFINITY;
            }
            path.round(around, limit, driver, bold);
            let here = path.points.len() - 1;
            path.limit[here] = roads[i].limit_mps;
            path.bound[here] = f64::INFINITY;
            passes.push((here, corners[i].pass_mps));
            if let Some(wait_s) = corners[i].wait_s {
                let stop = path.at[here] - 9.0;
                if stop > path.stops.last().map_or(5.0, |s| s.0 + 5.0) {
                    path.stops.push((stop, wait_s));
                }
            }
        }
        path.push(corners[corners.len() - 1].at, roads[last].limit_mps, f64::INFINITY);
        let end = path.length();
        path.stops.retain(|stop| stop.0 < end - 5.0);
        path.stops.push((end, random.between(4.0, 18.0)));
        path.plan(&passes);
        path
    }

    pub fn length(&self) -> f64 {
        self.at[self.at.len() - 1]
    }

    /// Returns the place and the direction (unit vector) at `metres`.
    pub fn place(&self, metres: f64) -> (Point, Point) {
        let i = self.piece(metres);
        let (a, b) = (self.points[i], self.points[i + 1]);
        let t = (metres - self.at[i]) / (self.at[i + 1] - self.at[i]);
        (a.mix(b, t.clamp(0.0, 1.0)), (b - a).unit())
    }

    /// Returns the highest speed at `metres` from which normal braking meets every bound ahead. Stops are not
    /// included.
    pub fn cap(&self, metres: f64) -> f64 {
        let i = self.piece(metres);
        let ahead = (self.at[i + 1] - metres).max(0.0);
        let braking = (self.cap[i + 1].powi(2) + 2.0 * self.braking * ahead).sqrt();
        braking.min(self.limit[i]).min(self.bound[i])
    }

    /// Returns the speed limit of the road at `metres`.
    pub fn limit(&self, metres: f64) -> f64 {
        self.limit[self.piece(metres)]
    }

    fn piece(&self, metres: f64) -> usize {
        self.at.partition_point(|&at| at <= metres).clamp(1, self.at.len() - 1) - 1
    }

    fn push(&mut self, point: Point, limit: f64, bound: f64) {
        let step = self.points.last().map_or(0.0, |last| last.distance(point));
        if step < 0.01 && !self.points.is_empty() {
            return;
        }
        self.at.push(self.at.last().map_or(0.0, |at| at + step));
        self.points.push(point);
        self.limit.push(limit);
        self.bound.push(bound);
    }

    /// Adds the arc that rounds the corner `b` between `a` and `c`. `bold`: its radius and speed, if the driver takes
    /// it without slowing down.
    fn round(&mut self, [a, b, c]: [Point; 3], limit: f64, driver: &Driver, bold: Option<(f64, f64)>) {
        let turn = angle_between(b - a, c - b);
        if turn < 0.01 {
            return self.push(b, limit, f64::INFINITY);
        }
        let half_tan = (turn / 2.0).tan();
        let (radius, bound) = bold.unwrap_or_else(|| {
            let radius = radius(a, b, c, ROUNDING_M);
            (radius, (driver.sideways * radius).sqrt())
        });
        let start = b - (b - a).unit() * (radius * half_tan);
        let side = if (b - a).cross(c - b) > 0.0 { 1.0 } else { -1.0 };
        let spoke = (b - a).unit().left() * -side;
        let centre = start - spoke * radius;
        let pieces = (turn / ARC_PIECE).ceil().max(1.0);
        for piece in 0..=pieces as usize {
            let angle = spoke.angle() + side * turn * piece as f64 / pieces;
            self.push(centre + Point::towards(angle) * radius, limit, bound);
        }
    }

    /// Computes `cap` from the end of the path to its start.
    fn plan(&mut self, passes: &[(usize, f64)]) {
        let count = self.points.len();
        self.cap = (0..count)
            .map(|i| {
                self.limit[i.saturating_sub(1)]
                    .min(self.bound[i.saturating_sub(1)])
                    .min(self.limit[i])
                    .min(self.bound[i])
            })
            .collect();
        for &(point, pass_mps) in passes {
            self.cap[point] = self.cap[point].min(pass_mps);
        }
        for i in (0..count - 1).rev() {
            let braking = (self.cap[i + 1].powi(2) + 2.0 * self.braking * (self.at[i + 1] - self.at[i])).sqrt();
            self.cap[i] = self.cap[i].min(braking);
        }
    }
}

/// Returns the largest radius of an arc that rounds the corner `b` and stays within `rounding_m` of the corner.
fn radius(a: Point, b: Point, c: Point, rounding_m: f64) -> f64 {
    let turn = angle_between(b - a, c - b);
    let room = 0.45 * a.distance(b).min(b.distance(c));
    (room / (turn / 2.0).tan()).min(rounding_m / (1.0 / (turn / 2.0).cos() - 1.0))
}

/// Returns the radius and the speed of a bend that a driver takes without slowing down. Returns `None` for a bend that
/// is too narrow for this, or so wide that it needs no courage.
fn bold_bend([a, b, c]: [Point; 3], limit: f64, random: &mut Random) -> Option<(f64, f64)> {
    let turn = angle_between(b - a, c - b);
    let radius = radius(a, b, c, DARING_ROUNDING_M);
    let (low, high) = DARING;
    let speed = (random.between(low, high) * radius).sqrt().min(limit);
    let is_bold = turn > 0.5 && speed >= DARING_MPS && speed * speed / radius >= low && radius * turn / speed > 1.3;
    is_bold.then_some((radius, speed))
}

/// Returns the maximum speed from one road to the next, and the waiting time before the junction, in seconds.
fn junction(
    graph: &Graph,
    here: crate::town::Road,
    next: crate::town::Road,
    random: &mut Random,
) -> (f64, Option<f64>) {
    let wide = |class: Class| class != Class::Street;
    if graph.degree(here.to) < 3 || here.class == Class::Roundabout {
        return (f64::INFINITY, None);
    }
    let others = graph.leaving(here.to).filter(|road| road.to != here.from && road.to != next.to);
    let crosses_wide = others.filter(|road| wide(road.class)).count() > 0;
    match (wide(here.class), next.class, crosses_wide) {
        (_, Class::Roundabout, _) => (GIVE_WAY_MPS, random.happens(0.2).then(|| random.between(1.5, 4.0))),
        // Two avenues cross: a traffic light that is red one time in three.
        (true, _, true) => (f64::INFINITY, random.happens(0.33).then(|| random.between(5.0, 20.0))),
        (true, _, false) => (f64::INFINITY, None),
        (false, _, true) => (GIVE_WAY_MPS, random.happens(0.3).then(|| random.between(1.5, 5.0))),
        (false, _, false) => (CROSS_MPS, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fleet::{BRAKING_MAX, Manners},
        town::Town,
    };

    fn path() -> Path {
        let graph = Town::default().graph;
        let route = graph.route(10, graph.roads.len() / 2);
        let driver = Driver::new(Manners::Calm, &mut Random::from_seed(4));
        Path::new(&graph, &route, &driver, &mut Random::from_seed(4))
    }

    #[test]
    fn a_path_is_one_smooth_line() {
        let path = path();
        assert!(path.length() > 300.0);
        let mut before = path.place(0.0);
        for metre in 1..path.length() as usize {
            let here = path.place(metre as f64);
            assert!(here.0.distance(before.0) < 1.01);
            assert!(angle_between(here.1, before.1) < 0.7, "a kink at {metre} m");
            before = here;
        }
        assert_eq!(path.stops.last().expect("an end").0, path.length());
    }

    #[test]
    fn corners_need_only_normal_braking() {
        let path = path();
        let caps: Vec<f64> = (0..path.length() as usize).map(|m| path.cap(m as f64)).collect();
        assert!(caps.iter().copied().fold(f64::INFINITY, f64::min) < 5.0, "no corner on the way");
        assert!(caps.iter().copied().fold(0.0, f64::max) > 10.0, "no open road on the way");
        // `v dv/ds` is the required braking; it never exceeds normal braking.
        let needed = caps.windows(2).map(|p| (p[0].powi(2) - p[1].powi(2)) / 2.0).fold(0.0, f64::max);
        assert!(needed <= BRAKING_MAX + 1e-6, "{needed} m/s2");
    }
}
