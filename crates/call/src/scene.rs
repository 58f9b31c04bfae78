//! The scene that the synthetic camera films: a person-sized box that moves before a still background.
//!
//! The source makes large frames where much moves, and [`crate::y4m`] draws the same movement.

use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng, SeedableRng},
};

/// State of the scene at one frame. Deterministic: the same seed gives the same scenes.
#[derive(Clone, Debug)]
pub struct Scene {
    random: Pcg64Mcg,
    /// Center of the box, as shares of width and height.
    x: f64,
    y: f64,
    /// Speed in shares per frame.
    vx: f64,
    vy: f64,
    /// Amount of movement, around 1.
    motion: f64,
    frame: u64,
}

/// Weight of the last value in the motion.
const MEMORY: f64 = 0.95;
const MOTION_RANGE: (f64, f64) = (0.4, 2.5);
const SPEED: f64 = 0.01;
/// Half of the side of the box, as a share of width and height.
const BOX: f64 = 0.2;

impl Scene {
    pub fn new(seed: u64) -> Self {
        Self {
            random: Pcg64Mcg::seed_from_u64(seed),
            x: 0.5,
            y: 0.5,
            vx: SPEED,
            vy: SPEED / 2.0,
            motion: 1.0,
            frame: 0,
        }
    }

    /// Moves on by one frame, and returns the amount of movement: 1 on average.
    pub fn advance(&mut self) -> f64 {
        let change = (self.unit() - 0.5) * 0.4;
        self.motion = (1.0 + MEMORY * (self.motion - 1.0) + change).clamp(MOTION_RANGE.0, MOTION_RANGE.1);
        (self.x, self.vx) = bounce(self.x + self.vx * self.motion, self.vx);
        (self.y, self.vy) = bounce(self.y + self.vy * self.motion, self.vy);
        self.frame += 1;
        self.motion
    }

    /// Returns a number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns the luma of a pixel, 16 to 235: a gradient, a textured box, and noise of a sensor.
    pub fn luma(&self, x: u32, y: u32, (width, height): (u32, u32)) -> u8 {
        let (across, down) = (f64::from(x) / f64::from(width), f64::from(y) / f64::from(height));
        let noise = (self.noise(x, y) & 7) as f64;
        let value = match self.is_in_box(across, down) {
            // Stripes that move with the box.
            true => 60.0 + 130.0 * (0.5 + 0.5 * (60.0 * (across - self.x) + 40.0 * (down - self.y)).sin()),
            false => 40.0 + 120.0 * across + 40.0 * down,
        };
        (value + noise).clamp(16.0, 235.0) as u8
    }

    /// Returns the two chroma values of a block of four pixels, 16 to 240.
    pub fn chroma(&self, x: u32, y: u32, (width, height): (u32, u32)) -> (u8, u8) {
        let (across, down) = (f64::from(x) / f64::from(width), f64::from(y) / f64::from(height));
        if self.is_in_box(across, down) { (100, 160) } else { (140, (110.0 + 30.0 * down) as u8) }
    }

    fn is_in_box(&self, across: f64, down: f64) -> bool {
        (across - self.x).abs() < BOX && (down - self.y).abs() < BOX
    }

    fn noise(&self, x: u32, y: u32) -> u64 {
        let mixed = (u64::from(x) << 32 | u64::from(y)) ^ self.frame.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40
    }
}

/// Turns back at the edges.
fn bounce(at: f64, speed: f64) -> (f64, f64) {
    match at {
        at if at < BOX => (BOX, speed.abs()),
        at if at > 1.0 - BOX => (1.0 - BOX, -speed.abs()),
        at => (at, speed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn motion_is_one_on_average_and_depends_on_the_seed() {
        let motions = |seed| {
            let mut scene = Scene::new(seed);
            (0..9000).map(|_| scene.advance()).collect::<Vec<f64>>()
        };
        let first = motions(1);
        assert_eq!(first, motions(1));
        assert_ne!(first, motions(2));
        let mean = first.iter().sum::<f64>() / first.len() as f64;
        assert!((0.9..1.1).contains(&mean), "{mean}");
    }

    #[test]
    fn box_stays_in_the_picture() {
        let mut scene = Scene::new(3);
        for _ in 0..10_000 {
            scene.advance();
            assert!((BOX..=1.0 - BOX).contains(&scene.x) && (BOX..=1.0 - BOX).contains(&scene.y));
        }
    }
}
