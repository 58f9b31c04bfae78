//! The frames of an encoder without an encoder: their sizes, their keyframes, and how they follow a target rate.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::scene::Scene;

pub const FRAMES_PER_S: u32 = 30;
/// Units of an RTP timestamp per second of video.
pub const CLOCK_HZ: u32 = 90_000;

/// Limits of a source.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Rate that the encoder does not exceed, in bit/s of payload.
    pub ceiling_bits_per_s: u64,
    /// Rate below which the encoder cannot go, in bit/s of payload.
    pub minimum_bits_per_s: u64,
    pub seed: u64,
}

impl Default for Config {
    /// Video of 640x480 pixels at 30 frames per second.
    fn default() -> Self {
        Self { ceiling_bits_per_s: 2_000_000, minimum_bits_per_s: 60_000, seed: 1 }
    }
}

/// One encoded frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// RTP timestamp.
    pub time: u32,
    pub is_key: bool,
    /// First byte: 0 for a keyframe, 1 otherwise, as in VP8. The rest is random.
    pub payload: Arc<[u8]>,
}

/// Source of the frames of one video. [`Source::timeout`] returns when the next frame is due.
#[derive(Clone, Debug)]
pub struct Source {
    config: Config,
    scene: Scene,
    target_bits_per_s: f64,
    /// Bits that the frames so far have exceeded their share by. The next frames are smaller.
    debt_bits: f64,
    next_at: Instant,
    frames: u64,
    wants_key: bool,
    /// Random bytes, from which frames take a part.
    noise: Arc<[u8]>,
}

/// Size of a keyframe, as a multiple of the mean frame.
const KEY_FACTOR: f64 = 4.0;
/// Number of frames in which the encoder pays back what a large frame has exceeded.
const PAYBACK_FRAMES: f64 = 12.0;
/// Limits of a frame, as multiples of the mean frame.
const FRAME_RANGE: (f64, f64) = (0.2, 3.0);
const FRAME_BYTES_MIN: usize = 30;
const NOISE_BYTES: usize = 1 << 16;

impl Source {
    /// The first frame is due at `now`, and is a keyframe.
    pub fn new(config: Config, now: Instant) -> Self {
        let mut scene = Scene::new(config.seed);
        let noise = (0..NOISE_BYTES).map(|_| (scene.unit() * 256.0) as u8).collect();
        Self {
            config,
            scene,
            target_bits_per_s: config.ceiling_bits_per_s as f64,
            debt_bits: 0.0,
            next_at: now,
            frames: 0,
            wants_key: true,
            noise,
        }
    }

    /// Sets the target rate in bit/s of payload. The encoder applies its own limits.
    pub fn set_target(&mut self, bits_per_s: u64) {
        let Config { minimum_bits_per_s, ceiling_bits_per_s, .. } = self.config;
        self.target_bits_per_s = bits_per_s.min(ceiling_bits_per_s).max(minimum_bits_per_s) as f64;
    }

    /// Returns the target rate within the limits of the encoder, in bit/s.
    pub fn bits_per_s(&self) -> u64 {
        self.target_bits_per_s as u64
    }

    /// Makes the next frame a keyframe.
    pub fn request_keyframe(&mut self) {
        self.wants_key = true;
    }

    /// Returns when the next frame is due.
    pub fn timeout(&self) -> Instant {
        self.next_at
    }

    /// Returns the next frame if it is due. `is_skipped`: the sender has a backlog, so the encoder leaves this frame
    /// out.
    pub fn poll_frame(&mut self, now: Instant, is_skipped: bool) -> Option<Frame> {
        if now < self.next_at {
            return None;
        }
        let motion = self.scene.advance();
        let index = self.frames;
        self.frames += 1;
        self.next_at += Duration::from_secs(1) / FRAMES_PER_S;
        let mean = self.target_bits_per_s / f64::from(FRAMES_PER_S);
        if is_skipped {
            self.debt_bits = (self.debt_bits - mean).max(0.0);
            return None;
        }
        let is_key = std::mem::take(&mut self.wants_key);
        let wanted = if is_key { KEY_FACTOR * mean } else { mean * motion - self.debt_bits / PAYBACK_FRAMES };
        let (least, most) = FRAME_RANGE;
        let bits = if is_key { wanted } else { wanted.clamp(least * mean, most * mean) };
        let bytes = ((bits / 8.0) as usize).max(FRAME_BYTES_MIN);
        // A lower target makes an old debt larger in frames. An encoder then does not starve all further frames.
        self.debt_bits =
            (self.debt_bits + bytes as f64 * 8.0 - mean).clamp(-KEY_FACTOR * mean, 2.0 * KEY_FACTOR * mean);
        let time = (index * u64::from(CLOCK_HZ / FRAMES_PER_S)) as u32;
        Some(Frame { time, is_key, payload: self.payload(bytes, is_key) })
    }

    fn payload(&mut self, bytes: usize, is_key: bool) -> Arc<[u8]> {
        let from = (self.scene.unit() * NOISE_BYTES as f64) as usize;
        let noise = self.noise.iter().cycle().skip(from).copied();
        std::iter::once(u8::from(!is_key)).chain(noise).take(bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn start() -> Instant {
        Instant::now()
    }

    /// Returns the frames of some seconds, and the bit rate of each whole second.
    fn film(source: &mut Source, seconds: u32) -> (Vec<Frame>, Vec<f64>) {
        let frames: Vec<Frame> =
            (0..seconds * FRAMES_PER_S).filter_map(|_| source.poll_frame(source.timeout(), false)).collect();
        let rate = |frames: &[Frame]| frames.iter().map(|frame| frame.payload.len() as f64 * 8.0).sum::<f64>();
        let rates = frames.chunks(FRAMES_PER_S as usize).map(rate).collect();
        (frames, rates)
    }

    #[test]
    fn rate_is_within_5_percent_of_the_ceiling() {
        for seed in 0..20 {
            let mut source = Source::new(Config { seed, ..Config::default() }, start());
            let (frames, rates) = film(&mut source, 60);
            let mean = rates.iter().sum::<f64>() / rates.len() as f64;
            assert!((mean / 2e6 - 1.0).abs() < 0.05, "seed {seed}: {mean}");
            assert!(frames[0].is_key && frames[1..].iter().all(|frame| !frame.is_key));
        }
    }

    #[test]
    fn same_seed_gives_the_same_bytes() {
        let frames = |seed| film(&mut Source::new(Config { seed, ..Config::default() }, start()), 3).0;
        assert_eq!(frames(5), frames(5));
        assert_ne!(frames(5), frames(6));
    }

    #[test]
    fn rate_follows_the_target_within_its_limits() {
        let mut source = Source::new(Config::default(), start());
        film(&mut source, 2);
        for (target, expected) in
            [(500_000, 5e5), (1_500_000, 1.5e6), (10_000, 6e4), (0, 6e4), (u64::MAX, 2e6), (300_000, 3e5)]
        {
            source.set_target(target);
            let (_, rates) = film(&mut source, 6);
            // The first second pays back the frames before.
            let mean = rates[1..].iter().sum::<f64>() / 5.0;
            assert!((mean / expected - 1.0).abs() < 0.1, "{target}: {mean}");
        }
    }

    #[test]
    fn keyframe_is_the_next_frame() {
        let mut source = Source::new(Config::default(), start());
        film(&mut source, 1);
        source.request_keyframe();
        let at = source.timeout();
        assert_eq!(source.poll_frame(at - Duration::from_micros(1), false), None);
        let frame = source.poll_frame(at, false).expect("it is due");
        assert!(frame.is_key && frame.payload[0] == 0);
        assert!(!source.poll_frame(source.timeout(), false).expect("a frame").is_key);
    }

    #[test]
    fn skipped_keyframe_comes_later() {
        let mut source = Source::new(Config::default(), start());
        assert_eq!(source.poll_frame(source.timeout(), true), None);
        let frame = source.poll_frame(source.timeout(), false).expect("it is due");
        assert!(frame.is_key && frame.time == CLOCK_HZ / FRAMES_PER_S, "time passes for skipped frames, too");
    }
}
