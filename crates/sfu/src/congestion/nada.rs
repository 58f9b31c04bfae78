//! Network-Assisted Dynamic Adaptation. Source: RFC 8698.
//!
//! ```text
//!   delay above its minimum, losses ─► congestion signal x ─┬─ no congestion for 500 ms ─► ramp-up: received rate + γ
//!                                                           └─ otherwise ─► gradual update: towards x = XREF RMAX / r
//! ```

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{CongestionController, RATE_MIN, Report, USABLE_MIN, throughput::Throughput, within_limits};

/// NADA of one network path. Explicit congestion notification is not supported.
#[derive(Debug)]
pub struct Nada {
    rate: f64,
    /// Highest usable rate (RMAX).
    rate_max: f64,
    born: Instant,
    updated: Instant,
    base: BaseDelay,
    /// Queuing delay of the newest packets in ms, for a minimum filter.
    delays_ms: VecDeque<f64>,
    throughput: Throughput,
    losses: Losses,
    /// Newest time at which a packet was lost or its queuing delay exceeded `RAMP_UP_DELAY_MS`.
    congested: Option<Instant>,
    /// Congestion signal of the last update in ms.
    signal_ms: f64,
}

/// Congestion signal in ms at which a flow with the maximum rate is in balance (XREF).
const REFERENCE_SIGNAL_MS: f64 = 10.0;
/// Scaling of the gradual update (KAPPA, ETA), and the upper bound of the round-trip time in it (TAU).
const KAPPA: f64 = 0.5;
const ETA: f64 = 2.0;
const TAU_MS: f64 = 500.0;
/// Time window for losses, for the received rate and for the choice between the two updates (LOGWIN).
const WINDOW: Duration = Duration::from_millis(500);
/// Ramp-up: maximum queuing delay (QEPS), maximum growth (GAMMA_MAX), queuing delay that it may cause (QBOUND), and
/// interval of reports and time of filtering (DELTA, DFILT).
const RAMP_UP_DELAY_MS: f64 = 10.0;
const GROWTH_MAX: f64 = 0.5;
const GROWTH_DELAY_MS: f64 = 50.0;
const REPORT_MS: f64 = 100.0;
const FILTER_MS: f64 = 120.0;
/// Packets of the minimum filter.
const DELAYS: usize = 15;
/// With recent losses, a longer delay than QTH counts less, because the queue belongs to flows that fill it (LAMBDA).
const WARP_DELAY_MS: f64 = 50.0;
const WARP_EXPONENT: f64 = 0.5;
/// Losses are recent for this number of mean loss intervals (MULTILOSS).
const RECENT_LOSS_INTERVALS: f64 = 7.0;
/// Delay that counts for the reference loss ratio (DLOSS, PLRREF).
const LOSS_MS: f64 = 10.0;
const LOSS_REFERENCE: f64 = 0.01;
/// Weight of a new value in the loss ratio (ALPHA).
const LOSS_WEIGHT: f64 = 0.1;
/// Maximum of the congestion signal. Not in the RFC: a larger one changes no rate by more than the limits allow.
const SIGNAL_MAX_MS: f64 = 500.0;

impl Nada {
    pub fn new(first_bits_per_s: f64, now: Instant) -> Self {
        let rate = within_limits(first_bits_per_s);
        Self {
            rate,
            rate_max: USABLE_MIN.max(rate),
            born: now,
            updated: now,
            base: BaseDelay::default(),
            delays_ms: VecDeque::with_capacity(DELAYS),
            throughput: Throughput::default(),
            losses: Losses::default(),
            congested: None,
            signal_ms: 0.0,
        }
    }

    /// Returns the congestion signal in ms. Source: RFC 8698, section 4.2, equations 1 and 2.
    fn signal_ms(&self) -> f64 {
        let queuing_ms = self.delays_ms.iter().copied().fold(f64::INFINITY, f64::min);
        let queuing_ms = if queuing_ms.is_finite() { queuing_ms } else { 0.0 };
        let delay_ms = if queuing_ms > WARP_DELAY_MS && self.losses.are_recent() {
            WARP_DELAY_MS * (-WARP_EXPONENT * (queuing_ms - WARP_DELAY_MS) / WARP_DELAY_MS).exp()
        } else {
            queuing_ms
        };
        (delay_ms + LOSS_MS * (self.losses.ratio / LOSS_REFERENCE).powi(2)).min(SIGNAL_MAX_MS)
    }

    fn is_ramp_up(&self, now: Instant) -> bool {
        self.congested.is_none_or(|at| now.saturating_duration_since(at) > WINDOW)
    }

    /// Source: RFC 8698, section 4.3, equations 3 and 4.
    fn ramp_up(&mut self, rtt: Duration) {
        let Some(received) = self.throughput.bits_per_s() else { return };
        let growth = GROWTH_MAX.min(GROWTH_DELAY_MS / (ms(rtt) + REPORT_MS + FILTER_MS));
        self.rate = self.rate.max((1.0 + growth) * received);
    }

    /// Source: RFC 8698, section 4.3, equations 5 to 7. The priority is 1: weights are up to coupled control.
    fn update_gradually(&mut self, signal_ms: f64, since: Duration) {
        let offset_ms = signal_ms - REFERENCE_SIGNAL_MS * self.rate_max / self.rate;
        let difference_ms = signal_ms - self.signal_ms;
        let by_offset = KAPPA * (ms(since).min(TAU_MS) / TAU_MS) * (offset_ms / TAU_MS);
        let by_difference = KAPPA * ETA * (difference_ms / TAU_MS);
        self.rate -= (by_offset + by_difference) * self.rate;
    }
}

impl CongestionController for Nada {
    fn name(&self) -> &'static str {
        "nada"
    }

    fn bits_per_s(&self) -> u64 {
        self.rate as u64
    }

    fn loss(&self) -> Option<f64> {
        self.losses.measured
    }

    fn allows_probing(&self) -> bool {
        self.is_ramp_up(self.updated)
    }

    fn handle_report(&mut self, report: &Report<'_>) {
        let now = report.now;
        self.losses.update(report.covered, report.lost, now);
        if let (true, Some(estimate)) = (report.arrivals.is_empty(), report.remb_bits_per_s) {
            // The receiver measures the delay.
            self.rate = within_limits(estimate as f64).min(self.rate_max);
            return;
        }
        for arrival in report.arrivals {
            let sent_us = arrival.sent.saturating_duration_since(self.born).as_micros() as i64;
            let queuing_us = self.base.queuing_us(arrival.arrived_us.saturating_sub(sent_us), now);
            self.throughput.update(arrival.arrived_us, arrival.bytes);
            if self.delays_ms.len() == DELAYS {
                self.delays_ms.pop_front();
            }
            let queuing_ms = queuing_us as f64 / 1000.0;
            self.delays_ms.push_back(queuing_ms);
            if queuing_ms > RAMP_UP_DELAY_MS {
                self.congested = Some(now);
            }
        }
        if report.lost > 0 {
            self.congested = Some(now);
        }
        let since = now.saturating_duration_since(self.updated);
        self.updated = self.updated.max(now);
        if report.covered == 0 {
            return;
        }
        let signal_ms = self.signal_ms();
        match self.is_ramp_up(now) {
            true => self.ramp_up(report.rtt),
            false => self.update_gradually(signal_ms, since),
        }
        self.signal_ms = signal_ms;
        self.rate = self.rate.clamp(RATE_MIN, self.rate_max);
    }

    fn raise_to(&mut self, bits_per_s: f64) {
        if bits_per_s > self.rate {
            self.rate = bits_per_s.min(self.rate_max);
        }
    }

    fn set_bits_per_s(&mut self, bits_per_s: f64) {
        self.rate = within_limits(bits_per_s).min(self.rate_max);
    }

    fn set_max(&mut self, bits_per_s: f64) {
        self.rate_max = within_limits(bits_per_s).max(USABLE_MIN);
        self.rate = self.rate.min(self.rate_max);
    }

    fn handle_timeout(&mut self, _: Instant) {}
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Minimum of the one-way delay: the delay without a queue, plus the difference of the two clocks.
#[derive(Debug, Default)]
struct BaseDelay {
    /// Minimum of the current period and of the one before, so that a new route or a drifting clock is followed.
    minimum_us: Option<(i64, i64)>,
    begun: Option<Instant>,
}

const BASE_PERIOD: Duration = Duration::from_secs(300);
/// A delay that differs from the minimum by more is a jump of a clock.
const CLOCK_JUMP_US: u64 = 10_000_000;

impl BaseDelay {
    /// Returns the queuing delay of a packet with this one-way delay.
    fn queuing_us(&mut self, delay_us: i64, now: Instant) -> i64 {
        let (mut current, mut before) = self.minimum_us.unwrap_or((delay_us, delay_us));
        if delay_us.abs_diff(current.min(before)) > CLOCK_JUMP_US {
            (current, before) = (delay_us, delay_us);
        }
        if now.saturating_duration_since(*self.begun.get_or_insert(now)) > BASE_PERIOD {
            (current, before, self.begun) = (delay_us, current, Some(now));
        }
        current = current.min(delay_us);
        self.minimum_us = Some((current, before));
        delay_us - current.min(before)
    }
}

/// Loss ratio, and whether losses are recent.
#[derive(Debug, Default)]
struct Losses {
    /// Reports of the window: time, covered and lost packets.
    reports: VecDeque<(Instant, usize, usize)>,
    /// Smoothed ratio.
    ratio: f64,
    measured: Option<f64>,
    /// Packets since the last loss, and the mean number of packets between losses.
    since_loss: f64,
    interval: Option<f64>,
}

/// Maximum number of reports kept.
const REPORTS_MAX: usize = 1000;

impl Losses {
    fn update(&mut self, covered: usize, lost: usize, now: Instant) {
        let lost = lost.min(covered);
        if covered == 0 {
            return;
        }
        self.reports.push_back((now, covered, lost));
        let is_old = |(at, ..): &(Instant, usize, usize)| now.saturating_duration_since(*at) > WINDOW;
        while self.reports.len() > REPORTS_MAX || self.reports.front().is_some_and(is_old) {
            self.reports.pop_front();
        }
        let (covered_all, lost_all) = self.reports.iter().fold((0, 0), |all, one| (all.0 + one.1, all.1 + one.2));
        let measured = lost_all as f64 / covered_all as f64;
        self.measured = Some(measured);
        self.ratio += LOSS_WEIGHT * (measured - self.ratio);
        self.since_loss += covered as f64;
        if lost > 0 {
            // Losses of one report are one loss event.
            let interval = self.interval.unwrap_or(self.since_loss);
            self.interval = Some(interval + LOSS_WEIGHT * (self.since_loss - interval));
            self.since_loss = 0.0;
        }
    }

    fn are_recent(&self) -> bool {
        self.interval.is_some_and(|interval| self.since_loss < RECENT_LOSS_INTERVALS * interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::Arrival;

    const RTT: Duration = Duration::from_millis(40);

    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn start() -> Instant {
        Instant::now()
    }

    /// Reports every 100 ms for a number of seconds: packets of 1,200 bytes that arrive at a rate, with a queuing
    /// delay. Returns the time of the last report.
    fn report(nada: &mut Nada, from: Instant, seconds: u32, received: f64, queuing_ms: f64, lost: usize) -> Instant {
        let count = ((received / 10.0 / 9600.0) as usize).max(1);
        let mut now = from;
        for _ in 0..10 * seconds {
            let first = now;
            now += Duration::from_millis(100);
            let arrival = |n: usize| {
                let sent = first + Duration::from_secs_f64(0.1 * n as f64 / count as f64);
                let sent_us = sent.saturating_duration_since(nada.born).as_micros() as i64;
                Arrival { sent, arrived_us: sent_us + 7_000_000 + (queuing_ms * 1000.0) as i64, bytes: 1200 }
            };
            let arrivals: Vec<_> = (0..count).map(arrival).collect();
            let covered = count + lost;
            let report = Report { now, arrivals: &arrivals, lost, covered, rtt: RTT, remb_bits_per_s: None };
            nada.handle_report(&report);
        }
        now
    }

    #[test]
    fn ramp_up_grows_with_received_rate() {
        let now = start();
        let mut nada = Nada::new(3e5, now);
        report(&mut nada, now, 2, 5e5, 0.0, 0);
        // γ = min(0.5, 50 / (40 + 100 + 120)) = 0.192
        let expected = 5e5 * (1.0 + 50.0 / 260.0);
        assert!((nada.bits_per_s() as f64 / expected - 1.0).abs() < 0.05, "{} for {expected}", nada.bits_per_s());
        assert!(nada.allows_probing());
    }

    /// The rate settles where the queuing delay is XREF × RMAX / rate. Source: RFC 8698, section 4.3, equation 5.
    #[test]
    fn gradual_update_settles_at_reference_signal() {
        let now = start();
        let mut nada = Nada::new(1e6, now);
        let now = report(&mut nada, now, 2, 1e6, 0.0, 0);
        report(&mut nada, now, 60, 1e6, 20.0, 0);
        let rate = nada.bits_per_s() as f64;
        assert!((0.70e6..0.80e6).contains(&rate), "10 ms × 1.5 Mbit/s / 20 ms: {rate}");
        assert!(!nada.allows_probing());
    }

    #[test]
    fn losses_lower_the_rate() {
        let now = start();
        let mut nada = Nada::new(1.5e6, now);
        let now = report(&mut nada, now, 2, 1.4e6, 0.0, 0);
        let before = nada.bits_per_s();
        let now = report(&mut nada, now, 10, 1.4e6, 0.0, 1);
        assert!(nada.bits_per_s() < before / 2 && nada.loss().is_some_and(|loss| loss > 0.05), "{}", nada.bits_per_s());
        report(&mut nada, now, 30, 1.4e6, 0.0, 0);
        assert_eq!(nada.bits_per_s(), 1_500_000, "without losses, the rate returns to its maximum");
    }

    #[test]
    fn usable_rate_is_the_maximum() {
        let now = start();
        let mut nada = Nada::new(1e6, now);
        nada.raise_to(9e6);
        assert_eq!(nada.bits_per_s(), 1_500_000);
        nada.set_max(4e6);
        nada.raise_to(9e6);
        assert_eq!(nada.bits_per_s(), 4_000_000);
    }

    #[test]
    fn long_delay_counts_less_after_losses() {
        let mut nada = Nada::new(1e6, start());
        nada.delays_ms.extend([150.0; DELAYS]);
        assert_eq!(nada.signal_ms(), 150.0);
        nada.losses.interval = Some(100.0);
        assert!((nada.signal_ms() - 50.0 * (-1.0_f64).exp()).abs() < 1e-9, "{}", nada.signal_ms());
        nada.losses.since_loss = 701.0;
        assert_eq!(nada.signal_ms(), 150.0, "the loss is not recent");
    }

    #[test]
    fn clock_jump_resets_base_delay() {
        let (mut base, now) = (BaseDelay::default(), start());
        assert_eq!([base.queuing_us(5000, now), base.queuing_us(9000, now)], [0, 4000]);
        assert_eq!([base.queuing_us(i64::MAX, now), base.queuing_us(i64::MIN, now)], [0, 0]);
        assert_eq!(base.queuing_us(60_000_000, now), 0);
        // A new route is longer by 20 ms: it is the base after two periods.
        let later = |periods: u32| now + periods * (BASE_PERIOD + Duration::from_secs(1));
        let queuing = [0, 1, 2].map(|periods| base.queuing_us(60_020_000, later(periods)));
        assert_eq!(queuing, [20_000, 20_000, 0]);
    }
}
