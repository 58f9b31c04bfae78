//! Street graph (directed) and shortest-time routes through it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::geo::{Point, distance_to_segment};
use super::{Class, Node, Street};

pub type RoadId = usize;

/// One direction of one street section between two nodes.
#[derive(Clone, Copy, Debug)]
pub struct Road {
    pub from: Node,
    pub to: Node,
    pub class: Class,
    pub length_m: f64,
    pub limit_mps: f64,
}

#[derive(Clone, Debug)]
pub struct Graph {
    pub points: Vec<Point>,
    pub roads: Vec<Road>,
    /// Roads that leave each node.
    leaving: Vec<Vec<RoadId>>,
}

impl Graph {
    pub(super) fn new(points: &[Point], streets: &[Street]) -> Self {
        let mut graph = Self { points: points.to_vec(), roads: Vec::new(), leaving: vec![Vec::new(); points.len()] };
        for street in streets {
            for pair in street.nodes.windows(2) {
                graph.add(pair[0], pair[1], street.class);
                if street.class != Class::Roundabout {
                    graph.add(pair[1], pair[0], street.class);
                }
            }
        }
        graph
    }

    pub fn leaving(&self, node: Node) -> impl Iterator<Item = Road> + '_ {
        self.leaving[node].iter().map(|&road| self.roads[road])
    }

    /// Returns the number of roads that leave a node: 2 along a street, 3 or more at a junction.
    pub fn degree(&self, node: Node) -> usize {
        self.leaving[node].len()
    }

    /// Returns the node nearest to a place.
    pub fn nearest(&self, place: Point) -> Node {
        let used = (0..self.points.len()).filter(|&node| !self.leaving[node].is_empty());
        used.min_by(|&a, &b| self.points[a].distance(place).total_cmp(&self.points[b].distance(place)))
            .expect("a town has streets")
    }

    /// Returns the meters from a place to the middle of the nearest street.
    pub fn distance(&self, place: Point) -> f64 {
        let to = |road: &Road| distance_to_segment(place, self.points[road.from], self.points[road.to]);
        self.roads.iter().map(to).fold(f64::INFINITY, f64::min)
    }

    /// Returns the fastest route that starts with `first` and ends with `last`, both included, without U-turns.
    ///
    /// Cost: O(roads log roads). Empty if there is no route. Dijkstra over roads in whole milliseconds, so that the
    /// order of additions cannot change the result.
    pub fn route(&self, first: RoadId, last: RoadId) -> Vec<RoadId> {
        let mut before: BTreeMap<RoadId, RoadId> = BTreeMap::new();
        let mut best: Vec<u64> = vec![u64::MAX; self.roads.len()];
        let mut open = BinaryHeap::from([Reverse((0u64, first))]);
        best[first] = 0;
        while let Some(Reverse((cost_ms, road))) = open.pop() {
            if cost_ms > best[road] {
                continue;
            }
            if road == last && cost_ms > 0 {
                break;
            }
            let here = self.roads[road];
            for &next in &self.leaving[here.to] {
                let way = self.roads[next];
                let cost_ms = cost_ms + (way.length_m / way.limit_mps * 1000.0) as u64 + 1;
                if way.to != here.from && cost_ms < best[next] {
                    best[next] = cost_ms;
                    before.insert(next, road);
                    open.push(Reverse((cost_ms, next)));
                }
            }
        }
        let mut route = vec![last];
        while let Some(&road) = before.get(&route[route.len() - 1]) {
            route.push(road);
            if road == first {
                route.reverse();
                return route;
            }
        }
        Vec::new()
    }

    fn add(&mut self, from: Node, to: Node, class: Class) {
        let length_m = self.points[from].distance(self.points[to]);
        self.leaving[from].push(self.roads.len());
        self.roads.push(Road { from, to, class, length_m, limit_mps: class.limit_mps() });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Town;
    use super::*;

    #[test]
    fn every_road_leads_to_every_other() {
        let graph = Town::default().graph;
        let last = graph.roads.len() - 1;
        for road in (0..graph.roads.len()).step_by(37) {
            for (first, last) in [(road, last), (last, road)] {
                if first != last {
                    assert!(!graph.route(first, last).is_empty(), "no way from {first} to {last}");
                }
            }
        }
    }

    #[test]
    fn route_is_connected_without_turning_back() {
        let graph = Town::default().graph;
        let route = graph.route(0, graph.roads.len() / 2);
        assert!(route.len() > 5);
        for pair in route.windows(2) {
            let (here, next) = (graph.roads[pair[0]], graph.roads[pair[1]]);
            assert_eq!(here.to, next.from);
            assert_ne!(here.from, next.to);
        }
    }

    #[test]
    fn the_roundabout_is_one_way() {
        let graph = Town::default().graph;
        let ways: Vec<&Road> = graph.roads.iter().filter(|r| r.class == Class::Roundabout).collect();
        assert_eq!(ways.len(), 16);
        assert!(ways.iter().all(|r| !ways.iter().any(|o| o.from == r.to && o.to == r.from)));
    }
}
