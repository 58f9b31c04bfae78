//! Houses along the sides of a block: rows near the old town, villas with gardens further out.

use super::geo::{Point, contains, distance_to_ring, distance_to_segment, sides};
use millrace_client::random::Random;

/// Returns the footprints of one block as rings. `outwards` is 0 at the old town and 1 at the edge.
pub fn build(block: &[Point], outwards: f64, random: &mut Random) -> Vec<Vec<Point>> {
    let block = simplified(block);
    let mut houses: Vec<Vec<Point>> = Vec::new();
    let dense = outwards < 0.5;
    let setback = if dense { 9.0 } else { random.between(11.0, 15.0) };
    for (a, b) in sides(&block) {
        let along = (b - a).unit();
        let length = a.distance(b);
        let mut at = random.between(0.3, 0.7) * setback + 4.0;
        while at < length - 14.0 {
            let width = if dense { random.between(20.0, 44.0) } else { random.between(15.0, 28.0) };
            let depth = if dense { random.between(12.0, 17.0) } else { random.between(11.0, 16.0) };
            let front = setback + if dense { 0.0 } else { random.between(0.0, 5.0) };
            let corner = a + along * at + along.left() * front;
            let house = footprint(corner, along, width, depth, random);
            let free = |h: &Vec<Point>| {
                let clear = |&p: &Point| contains(&block, p) && distance_to_ring(p, &block) >= setback - 0.6;
                h.iter().all(clear) && houses.iter().all(|other| gap(h, other) > 0.4)
            };
            let kept = !random.happens(if dense { 0.06 } else { 0.08 + 0.12 * outwards });
            if kept && free(&house) {
                houses.push(house);
            }
            at += width + if dense && random.happens(0.7) { 0.5 } else { random.between(5.0, 12.0 + 14.0 * outwards) };
        }
    }
    houses
}

/// Returns a rectangle, or an L shape with a wing towards the yard.
fn footprint(corner: Point, along: Point, width: f64, depth: f64, random: &mut Random) -> Vec<Point> {
    let at = |x: f64, y: f64| corner + along * x + along.left() * y;
    let mut ring = vec![at(0.0, 0.0), at(width, 0.0), at(width, depth), at(0.0, depth)];
    if width > 24.0 && random.happens(0.4) {
        let (wing, reach) = (width * random.between(0.3, 0.45), depth + random.between(6.0, 13.0));
        ring.truncate(2);
        if random.happens(0.5) {
            ring.extend([at(width, reach), at(width - wing, reach), at(width - wing, depth), at(0.0, depth)]);
        } else {
            ring.extend([at(width, depth), at(wing, depth), at(wing, reach), at(0.0, reach)]);
        }
    }
    ring
}

/// Returns the meters between two footprints; 0 if they overlap.
fn gap(a: &[Point], b: &[Point]) -> f64 {
    if a.iter().any(|&p| contains(b, p)) || b.iter().any(|&p| contains(a, p)) {
        return 0.0;
    }
    let mut least = f64::INFINITY;
    for (a1, a2) in sides(a) {
        for (b1, b2) in sides(b) {
            if super::geo::crossing(a1, a2, b1, b2).is_some() {
                return 0.0;
            }
            least = least.min(distance_to_segment(a1, b1, b2)).min(distance_to_segment(b1, a1, a2));
        }
    }
    least
}

/// Returns the ring without corners that hardly turn, so that a bent street still has one long front.
fn simplified(ring: &[Point]) -> Vec<Point> {
    let mut kept: Vec<Point> = Vec::new();
    for (index, &p) in ring.iter().enumerate() {
        let next = ring[(index + 1) % ring.len()];
        let previous = *kept.last().unwrap_or(&ring[ring.len() - 1]);
        if distance_to_segment(p, previous, next) > 2.0 {
            kept.push(p);
        }
    }
    if kept.len() < 3 { ring.to_vec() } else { kept }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn houses_line_a_block_without_overlap() {
        let block = [Point::new(0.0, 0.0), Point::new(140.0, 0.0), Point::new(140.0, 100.0), Point::new(0.0, 100.0)];
        for outwards in [0.1, 0.9] {
            let houses = build(&block, outwards, &mut Random::from_seed(2));
            assert!(houses.len() >= 5, "{} houses", houses.len());
            for (index, house) in houses.iter().enumerate() {
                assert!(house.iter().all(|&p| distance_to_ring(p, &block) > 8.0));
                assert!(houses[..index].iter().all(|other| gap(house, other) > 0.0));
            }
        }
    }
}
