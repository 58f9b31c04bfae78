use std::time::{Duration, Instant};

/// Smoothed loudness of a track in decibels above silence, 0 to 127.
#[derive(Debug, Default)]
pub struct Loudness {
    level: f32,
    heard: Option<Instant>,
}

/// Half-life of the smoothing: half of a change in level takes effect after this time.
const HALF: Duration = Duration::from_millis(200);
/// Maximum gap between audio packets, which normally arrive every 20 ms. After this gap the loudness decays.
const GAP_MAX: Duration = Duration::from_millis(60);
const SILENCE: f32 = -127.0;

impl Loudness {
    /// Records the audio level of a packet. `level`: decibels relative to the maximum, -127 to 0. Source: RFC 6464,
    /// section 3.
    pub fn update(&mut self, level: i8, now: Instant) {
        let louder = f32::from(level).clamp(SILENCE, 0.0) - SILENCE;
        let since = now.saturating_duration_since(self.heard.unwrap_or(now));
        self.level = louder + (self.level - louder) * faded(since);
        self.heard = Some(now);
    }

    pub fn now(&self, now: Instant) -> f32 {
        let since = now.saturating_duration_since(self.heard.unwrap_or(now));
        self.level * faded(since.saturating_sub(GAP_MAX))
    }
}

/// Returns the share of a level difference that remains after this time.
fn faded(after: Duration) -> f32 {
    0.5_f32.powf(after.as_secs_f32() / HALF.as_secs_f32())
}
