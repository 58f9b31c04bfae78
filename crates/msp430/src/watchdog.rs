use crate::{
    Time,
    clock::Periods,
    sfr::{Sfr, bit1},
    time::Ticks,
};

/// Effect of the end of an interval on the chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchdogEvent {
    /// The interval passed; WDTIFG is set and an interrupt can follow.
    Interval,
    /// Watchdog mode: the chip resets (PUC).
    Reset,
}

/// The watchdog timer+: a counter that resets the chip, or a timer of fixed intervals.
///
/// In watchdog mode its clock runs in every low-power mode.
/// Source: SLAU144K, chapter 10.
#[derive(Clone, Debug, Default)]
pub struct Watchdog {
    control: u8,
    count: u64,
    ticks: Ticks,
}

impl Watchdog {
    const PASSWORD: u16 = 0x5a00;
    const PASSWORD_READ: u16 = 0x6900;
    const SSEL: u8 = 0x04;
    const CNTCL: u8 = 0x08;
    const TMSEL: u8 = 0x10;
    const HOLD: u8 = 0x80;

    /// Starts the watchdog as after a PUC: watchdog mode, SMCLK, 32768 cycles.
    pub fn reset(&mut self, now: Time, periods: &Periods) {
        *self = Self::default();
        self.set_periods(now, periods);
        self.ticks.restart(now);
    }

    pub fn read(&self) -> u16 {
        Self::PASSWORD_READ | u16::from(self.control)
    }

    /// Writes WDTCTL. Returns `false` after a wrong password: the chip resets (PUC).
    #[must_use]
    pub fn write(&mut self, now: Time, value: u16, periods: &Periods) -> bool {
        if value & 0xff00 != Self::PASSWORD {
            return false;
        }
        self.count += self.ticks.take(now);
        let value = value as u8;
        self.control = value & !Self::CNTCL;
        if value & Self::CNTCL != 0 {
            self.count = 0;
            self.ticks.restart(now);
        }
        self.set_periods(now, periods);
        true
    }

    /// Follows a change of the clocks or of the low-power mode.
    pub fn set_periods(&mut self, now: Time, periods: &Periods) {
        self.count += self.ticks.take(now);
        let from_aclk = self.control & Self::SSEL != 0;
        let in_watchdog_mode = self.control & Self::TMSEL == 0;
        let period = match (from_aclk, in_watchdog_mode) {
            _ if self.control & Self::HOLD != 0 => None,
            // The fail-safe clock: a watchdog without ACLK runs from MCLK.
            (true, true) => Some(periods.aclk_on_request.unwrap_or(periods.mclk)),
            (false, true) => Some(periods.smclk_on_request),
            (true, false) => periods.aclk,
            (false, false) => periods.smclk,
        };
        self.ticks.set_period(now, period);
    }

    /// Returns the time at which the interval ends.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.ticks.time_of(self.interval().saturating_sub(self.count))
    }

    /// Handles the end of an interval at or before `now`.
    pub fn handle_timeout(&mut self, now: Time, sfr: &mut Sfr) -> Option<WatchdogEvent> {
        self.count += self.ticks.take(now);
        if self.count < self.interval() {
            return None;
        }
        self.count %= self.interval();
        sfr.ifg1 |= bit1::WDT;
        Some(if self.control & Self::TMSEL != 0 { WatchdogEvent::Interval } else { WatchdogEvent::Reset })
    }

    /// Returns whether WDTIFG can request an interrupt: only in interval mode.
    pub fn is_interval_timer(&self) -> bool {
        self.control & Self::TMSEL != 0
    }

    fn interval(&self) -> u64 {
        [32_768, 8_192, 512, 64][usize::from(self.control & 3)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    fn watchdog() -> (Watchdog, Periods) {
        let periods = Periods { mclk: 10, smclk: Some(10), smclk_on_request: 10, ..Clock::default().periods(0) };
        let mut watchdog = Watchdog::default();
        watchdog.reset(Time::ZERO, &periods);
        (watchdog, periods)
    }

    #[test]
    fn watchdog_expires_after_32768_cycles() {
        let (mut watchdog, _) = watchdog();
        let mut sfr = Sfr::default();
        let end = Time::from_ps(327_680);
        assert_eq!(watchdog.poll_timeout(), Some(end));
        assert_eq!(watchdog.handle_timeout(end - Time::from_ps(1), &mut sfr), None);
        assert_eq!(watchdog.handle_timeout(end, &mut sfr), Some(WatchdogEvent::Reset));
        assert_eq!(sfr.ifg1 & bit1::WDT, bit1::WDT);
    }

    #[test]
    fn hold_keeps_the_count_and_clear_restarts() {
        let (mut watchdog, periods) = watchdog();
        assert!(watchdog.write(Time::from_ps(1000), 0x5a80, &periods));
        assert_eq!(watchdog.poll_timeout(), None);
        assert!(watchdog.write(Time::from_ps(5000), 0x5a00, &periods));
        assert_eq!(watchdog.poll_timeout(), Some(Time::from_ps(5000 + 327_680 - 1000)));
        assert!(watchdog.write(Time::from_ps(6000), 0x5a0b, &periods));
        assert_eq!(watchdog.poll_timeout(), Some(Time::from_ps(6000 + 640)));
        assert_eq!(watchdog.read(), 0x6903);
    }

    #[test]
    fn wrong_password_is_refused() {
        let (mut watchdog, periods) = watchdog();
        assert!(!watchdog.write(Time::ZERO, 0x0080, &periods));
        assert!(!watchdog.write(Time::ZERO, 0x6980, &periods));
    }

    #[test]
    fn interval_mode_repeats() {
        let (mut watchdog, periods) = watchdog();
        let mut sfr = Sfr::default();
        assert!(watchdog.write(Time::ZERO, 0x5a1b, &periods));
        assert_eq!(watchdog.handle_timeout(Time::from_ps(645), &mut sfr), Some(WatchdogEvent::Interval));
        assert_eq!(watchdog.poll_timeout(), Some(Time::from_ps(1280)));
    }

    #[test]
    fn watchdog_mode_runs_in_deep_sleep() {
        let (mut watchdog, periods) = watchdog();
        let asleep = Periods { smclk: None, ..periods };
        watchdog.set_periods(Time::from_ps(100), &asleep);
        assert_eq!(watchdog.poll_timeout(), Some(Time::from_ps(327_680)));
        assert!(watchdog.write(Time::from_ps(100), 0x5a18, &asleep));
        assert_eq!(watchdog.poll_timeout(), None);
    }
}
