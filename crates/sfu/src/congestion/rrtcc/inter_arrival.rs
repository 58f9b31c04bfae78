use super::remote::Usage;

/// Filter of inter-arrival times: estimates how fast the queuing delay grows, and compares it with a threshold.
///
/// The delay variation between two groups of packets is `d = (t2 - t1) - (T2 - T1)`, with arrival times `t` and send
/// times `T` (equation 5). It has two causes: the difference of the sizes over the capacity, and the queue (equations 6
/// and 7): `d = (size2 - size1) / C + m + noise`. A Kalman filter estimates `1 / C` and `m`.
///
/// Source: Lozano 2013, equations 5 to 7; draft-alvestrand-rtcweb-congestion-03, section 3.
#[derive(Debug)]
pub struct InterArrival {
    current: Option<Group>,
    before: Option<Group>,
    /// Estimates: the inverse of the capacity in ms per byte, and the growth of the queuing delay in ms per group.
    inverse_capacity: f64,
    growth: f64,
    /// Covariance of the two estimates.
    covariance: [[f64; 2]; 2],
    noise_variance: f64,
    group_count: u32,
    over_ms: f64,
    over_count: u32,
    before_growth: f64,
    usage: Usage,
}

/// Group of packets with about the same send time: the packets of a frame.
#[derive(Clone, Copy, Debug)]
struct Group {
    first_sent_us: i64,
    sent_us: i64,
    arrived_us: i64,
    bytes: usize,
}

/// Packets that were sent within this time of the first of a group belong to the group.
const GROUP_US: i64 = 5000;
/// Groups that are further apart than this are not compared: a clock has jumped, or sending was paused.
const PAUSE_US: i64 = 3_000_000;
/// Initial estimate of the inverse of the capacity: 512 kbit/s.
const INVERSE_CAPACITY: f64 = 8.0 / 512.0;
const COVARIANCE: [[f64; 2]; 2] = [[100.0, 0.0], [0.0, 0.1]];
/// Variance by which each estimate may change from group to group.
const PROCESS_NOISE: [f64; 2] = [1e-13, 1e-3];
const NOISE_VARIANCE: f64 = 50.0;
/// Weight of a new value in the variance of the noise.
const NOISE_WEIGHT: f64 = 0.01;
/// A value further from the estimate than this number of standard deviations counts as that far.
const OUTLIER_DEVIATIONS: f64 = 3.0;
/// The growth per group is multiplied by the number of groups, up to this number.
const GROUP_COUNT_MAX: u32 = 60;
/// Threshold of the multiplied growth in ms, and the time for which it must be exceeded. The draft leaves both to the
/// implementation. The threshold does not adapt: this is the largest difference to later versions of the algorithm.
const THRESHOLD_MS: f64 = 25.0;
const OVER_MS: f64 = 100.0;

impl InterArrival {
    pub fn new() -> Self {
        Self {
            current: None,
            before: None,
            inverse_capacity: INVERSE_CAPACITY,
            growth: 0.0,
            covariance: COVARIANCE,
            noise_variance: NOISE_VARIANCE,
            group_count: 0,
            over_ms: 0.0,
            over_count: 0,
            before_growth: 0.0,
            usage: Usage::Normal,
        }
    }

    /// Returns the usage after the last complete group.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Processes a packet. Packets that were sent before the current group are ignored.
    pub fn update(&mut self, arrived_us: i64, sent_us: i64, bytes: usize) {
        let next = Group { first_sent_us: sent_us, sent_us, arrived_us, bytes };
        let Some(current) = &mut self.current else {
            self.current = Some(next);
            return;
        };
        let since = sent_us.saturating_sub(current.first_sent_us);
        if (0..=GROUP_US).contains(&since) {
            current.sent_us = current.sent_us.max(sent_us);
            current.arrived_us = current.arrived_us.max(arrived_us);
            current.bytes = current.bytes.saturating_add(bytes);
            return;
        }
        let arrived_after = arrived_us.saturating_sub(current.arrived_us);
        if since.unsigned_abs() > PAUSE_US as u64 || arrived_after.unsigned_abs() > PAUSE_US as u64 {
            *self = Self { current: Some(next), ..Self::new() };
            return;
        }
        if since < 0 {
            return;
        }
        let done = *current;
        if let Some(before) = self.before {
            let sent_ms = done.sent_us.saturating_sub(before.sent_us) as f64 / 1000.0;
            let arrived_ms = done.arrived_us.saturating_sub(before.arrived_us) as f64 / 1000.0;
            if arrived_ms >= 0.0 {
                self.filter(arrived_ms - sent_ms, done.bytes as f64 - before.bytes as f64);
                self.detect(sent_ms);
            }
        }
        (self.before, self.current) = (Some(done), Some(next));
    }

    /// Updates both estimates with the delay variation between two groups, in ms, and the difference of their sizes.
    fn filter(&mut self, variation_ms: f64, size_difference: f64) {
        self.group_count = (self.group_count + 1).min(GROUP_COUNT_MAX);
        let mut covariance = self.covariance;
        covariance[0][0] += PROCESS_NOISE[0];
        covariance[1][1] += PROCESS_NOISE[1];
        let residual = variation_ms - size_difference * self.inverse_capacity - self.growth;
        let limit = OUTLIER_DEVIATIONS * self.noise_variance.sqrt();
        let residual = residual.clamp(-limit, limit);
        let input = [size_difference, 1.0];
        let row = |i: usize| covariance[i][0] * input[0] + covariance[i][1] * input[1];
        let (first, second) = (row(0), row(1));
        let total = self.noise_variance + input[0] * first + input[1] * second;
        let gain = [first / total, second / total];
        self.noise_variance =
            ((1.0 - NOISE_WEIGHT) * self.noise_variance + NOISE_WEIGHT * residual * residual).max(1.0);
        self.inverse_capacity += gain[0] * residual;
        self.growth += gain[1] * residual;
        // (I - gain * input) * covariance
        let [[a, b], [c, d]] = covariance;
        let keep = [[1.0 - gain[0] * input[0], -gain[0]], [-gain[1] * input[0], 1.0 - gain[1]]];
        let next = [
            [keep[0][0] * a + keep[0][1] * c, keep[0][0] * b + keep[0][1] * d],
            [keep[1][0] * a + keep[1][1] * c, keep[1][0] * b + keep[1][1] * d],
        ];
        let is_valid = next[0][0] >= 0.0 && next[1][1] >= 0.0 && next[0][0] + next[1][1] < 1e12;
        self.covariance = if is_valid { next } else { COVARIANCE };
    }

    fn detect(&mut self, sent_ms: f64) {
        let growth_ms = f64::from(self.group_count) * self.growth;
        if growth_ms > THRESHOLD_MS {
            self.over_ms += if self.over_count == 0 { sent_ms / 2.0 } else { sent_ms };
            self.over_count += 1;
            if self.over_ms > OVER_MS && self.over_count > 1 && self.growth >= self.before_growth {
                (self.over_ms, self.over_count) = (0.0, 0);
                self.usage = Usage::Over;
            }
        } else {
            (self.over_ms, self.over_count) = (0.0, 0);
            self.usage = if growth_ms < -THRESHOLD_MS { Usage::Under } else { Usage::Normal };
        }
        self.before_growth = self.growth;
    }
}
