//! Detector of a growing one-way delay: the slope of a regression line through the delays of groups of packets.

use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Usage {
    /// Overuse: the delay grows.
    Over,
    /// Underuse: the delay shrinks because a queue on the path drains.
    Under,
    Normal,
}

/// Detector of a growing one-way delay.
#[derive(Debug)]
pub struct Trend {
    current: Option<Group>,
    before: Option<Group>,
    first_us: i64,
    /// Accumulated delay variation, raw and smoothed, in milliseconds.
    accumulated: f64,
    smoothed: f64,
    /// Arrival time of each group and the smoothed delay at that time, both in milliseconds.
    points: VecDeque<(f64, f64)>,
    group_count: u32,
    slope: f64,
    /// Limit of the trend. It adapts to the observed trend, so that competing flows do not take all of the bandwidth.
    threshold: f64,
    updated_ms: Option<f64>,
    over_ms: f64,
    over_count: u32,
    pub usage: Usage,
}

/// Group of packets that left together.
#[derive(Clone, Copy, Debug)]
struct Group {
    first_sent_us: i64,
    sent_us: i64,
    arrived_us: i64,
}

const GROUP_US: i64 = 5000;
/// Groups that are further apart than this are not compared.
const PAUSE_US: i64 = 3_000_000;
const POINTS: usize = 20;
const SMOOTHING: f64 = 0.9;
const GAIN: f64 = 4.0;
const GROUP_COUNT_MAX: u32 = 60;
const THRESHOLD: f64 = 12.5;
const THRESHOLD_RANGE: (f64, f64) = (6.0, 600.0);
const THRESHOLD_UP: f64 = 0.0087;
const THRESHOLD_DOWN: f64 = 0.039;
/// A trend that exceeds the threshold by more than this does not change the threshold.
const JUMP: f64 = 15.0;
const OVER_MS: f64 = 10.0;

impl Trend {
    pub fn new() -> Self {
        Self {
            current: None,
            before: None,
            first_us: 0,
            accumulated: 0.0,
            smoothed: 0.0,
            points: VecDeque::new(),
            group_count: 0,
            slope: 0.0,
            threshold: THRESHOLD,
            updated_ms: None,
            over_ms: 0.0,
            over_count: 0,
            usage: Usage::Normal,
        }
    }

    pub fn update(&mut self, sent_us: i64, arrived_us: i64) {
        let Some(current) = &mut self.current else {
            self.first_us = arrived_us;
            self.current = Some(Group { first_sent_us: sent_us, sent_us, arrived_us });
            return;
        };
        if sent_us < current.first_sent_us {
            return;
        }
        // Packets that were queued and then arrived in a burst count as sent together.
        let arrived_after = arrived_us.saturating_sub(current.arrived_us);
        let is_burst = arrived_after <= GROUP_US && arrived_after < sent_us - current.sent_us && arrived_after >= 0;
        if sent_us - current.first_sent_us <= GROUP_US || is_burst {
            current.sent_us = current.sent_us.max(sent_us);
            current.arrived_us = current.arrived_us.max(arrived_us);
            return;
        }
        let (done, next) = (*current, Group { first_sent_us: sent_us, sent_us, arrived_us });
        if let Some(before) = self.before {
            let (sent, received) = (done.sent_us - before.sent_us, done.arrived_us.saturating_sub(before.arrived_us));
            if sent > PAUSE_US || received.unsigned_abs() > PAUSE_US as u64 {
                // The receiver's clock has jumped, or sending was paused: start again.
                *self = Self { threshold: self.threshold, first_us: arrived_us, current: Some(next), ..Self::new() };
                return;
            } else if received >= 0 {
                self.compare(sent as f64 / 1000.0, received as f64 / 1000.0, done.arrived_us);
            }
        }
        (self.before, self.current) = (Some(done), Some(next));
    }

    fn compare(&mut self, sent_ms: f64, arrived_ms: f64, at_us: i64) {
        let at_ms = at_us.saturating_sub(self.first_us) as f64 / 1000.0;
        self.group_count = (self.group_count + 1).min(GROUP_COUNT_MAX);
        self.accumulated += arrived_ms - sent_ms;
        self.smoothed = SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * self.accumulated;
        self.points.push_back((at_ms, self.smoothed));
        if self.points.len() > POINTS {
            self.points.pop_front();
        }
        let slope = if self.points.len() == POINTS { slope(&self.points).unwrap_or(self.slope) } else { self.slope };
        self.detect(slope, sent_ms, at_ms);
    }

    fn detect(&mut self, slope: f64, sent_ms: f64, at_ms: f64) {
        let trend = f64::from(self.group_count) * slope * GAIN;
        if trend > self.threshold {
            self.over_ms += if self.over_count == 0 { sent_ms / 2.0 } else { sent_ms };
            self.over_count += 1;
            if self.over_ms > OVER_MS && self.over_count > 1 && slope >= self.slope {
                (self.over_ms, self.over_count) = (0.0, 0);
                self.usage = Usage::Over;
            }
        } else {
            (self.over_ms, self.over_count) = (0.0, 0);
            self.usage = if trend < -self.threshold { Usage::Under } else { Usage::Normal };
        }
        self.slope = slope;
        let since = (at_ms - self.updated_ms.unwrap_or(at_ms)).clamp(0.0, 100.0);
        self.updated_ms = Some(at_ms);
        let beyond = trend.abs() - self.threshold;
        if beyond <= JUMP {
            let speed = if beyond < 0.0 { THRESHOLD_DOWN } else { THRESHOLD_UP };
            let (least, most) = THRESHOLD_RANGE;
            self.threshold = (self.threshold + speed * beyond * since).clamp(least, most);
        }
    }
}

/// Returns the slope of the regression line through the points. `None`: all points have the same time.
fn slope(points: &VecDeque<(f64, f64)>) -> Option<f64> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
    let rise: f64 = points.iter().map(|(x, y)| (x - x_mean) * (y - y_mean)).sum();
    let run: f64 = points.iter().map(|(x, _)| (x - x_mean).powi(2)).sum();
    (run > 0.0).then(|| rise / run)
}
