use crate::{Time, clock::Periods, time::Ticks};

const TAIFG: u16 = 0x0001;
const TAIE: u16 = 0x0002;
const TACLR: u16 = 0x0004;
const CCIFG: u16 = 0x0001;
const CCIE: u16 = 0x0010;
const CAP: u16 = 0x0100;

/// Offsets of the registers from TAxCTL. TAxIV has an address of its own.
mod register {
    pub const CTL: u16 = 0x00;
    pub const CCTL: [u16; 3] = [0x02, 0x04, 0x06];
    pub const R: u16 = 0x10;
    pub const CCR: [u16; 3] = [0x12, 0x14, 0x16];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Stop,
    Up,
    Continuous,
    UpDown,
}

/// Timer_A with three compare registers.
///
/// Not supported: capture, the output units, and the external clocks TACLK and INCLK.
/// Source: SLAU144K, chapter 12.
#[derive(Clone, Debug, Default)]
pub struct TimerA {
    control: u16,
    count: u16,
    down: bool,
    compare_control: [u16; 3],
    compare: [u16; 3],
    ticks: Ticks,
}

impl TimerA {
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Reads a register by its offset from TAxCTL; `None` if there is no register.
    pub fn read(&mut self, now: Time, offset: u16) -> Option<u16> {
        self.advance(now);
        let index = |table: [u16; 3]| table.iter().position(|one| *one == offset);
        match offset {
            register::CTL => Some(self.control),
            register::R => Some(self.count),
            _ => index(register::CCTL)
                .map(|one| self.compare_control[one])
                .or_else(|| index(register::CCR).map(|one| self.compare[one])),
        }
    }

    /// Writes a register by its offset from TAxCTL. Returns `false` if there is no register.
    pub fn write(&mut self, now: Time, offset: u16, value: u16, periods: &Periods) -> bool {
        self.advance(now);
        let index = |table: [u16; 3]| table.iter().position(|one| *one == offset);
        if offset == register::CTL {
            let was_stopped = self.mode() == Mode::Stop;
            self.control = value & !TACLR;
            if value & TACLR != 0 {
                (self.count, self.down) = (0, false);
            }
            self.set_periods(now, periods);
            if value & TACLR != 0 || was_stopped {
                self.ticks.restart(now);
            }
        } else if offset == register::R {
            self.count = value;
        } else if let Some(one) = index(register::CCTL) {
            self.compare_control[one] = value;
        } else if let Some(one) = index(register::CCR) {
            self.compare[one] = value;
        } else {
            return false;
        }
        true
    }

    /// Reads TAxIV: the number of the highest enabled request, which is cleared.
    pub fn read_vector(&mut self, now: Time) -> u16 {
        self.advance(now);
        for (one, number) in [(1, 2), (2, 4)] {
            if self.requests(one) {
                self.compare_control[one] &= !CCIFG;
                return number;
            }
        }
        if self.overflow_requests() {
            self.control &= !TAIFG;
            return 10;
        }
        0
    }

    /// Follows a change of the clocks or of the low-power mode.
    pub fn set_periods(&mut self, now: Time, periods: &Periods) {
        self.advance(now);
        let source = match self.control >> 8 & 3 {
            1 => periods.aclk,
            2 => periods.smclk,
            _ => None,
        };
        self.ticks.set_period(now, source.map(|period| period << (self.control >> 6 & 3)));
    }

    /// Returns whether CCR0 requests an interrupt. Its flag is reset when the interrupt is accepted.
    pub fn compare_0_pending(&self) -> bool {
        self.requests(0)
    }

    pub fn accept_compare_0(&mut self) {
        self.compare_control[0] &= !CCIFG;
    }

    /// Returns whether one of the requests of TAxIV is pending.
    pub fn vector_pending(&self) -> bool {
        self.requests(1) || self.requests(2) || self.overflow_requests()
    }

    /// Returns the time of the next flag that requests an interrupt.
    pub fn poll_timeout(&self) -> Option<Time> {
        if !self.is_counting() {
            return None;
        }
        let compare = (0..3)
            .filter(|one| self.compare_control[*one] & (CCIE | CCIFG | CAP) == CCIE)
            .filter_map(|one| self.ticks_until(self.compare[one]));
        let overflow = (self.control & (TAIE | TAIFG) == TAIE).then(|| self.ticks_until_overflow());
        compare.chain(overflow).min().and_then(|ticks| self.ticks.time_of(ticks))
    }

    /// Counts up to `now` and sets the flags of the values that were reached.
    pub fn advance(&mut self, now: Time) {
        let mut left = self.ticks.take(now);
        if !self.is_counting() {
            return;
        }
        while left > 0 {
            let steps = left.min(u64::from(self.steps_to_stop()));
            self.step(steps as u16);
            left -= steps;
        }
    }

    fn requests(&self, one: usize) -> bool {
        self.compare_control[one] & (CCIE | CCIFG) == CCIE | CCIFG
    }

    fn overflow_requests(&self) -> bool {
        self.control & (TAIE | TAIFG) == TAIE | TAIFG
    }

    fn mode(&self) -> Mode {
        [Mode::Stop, Mode::Up, Mode::Continuous, Mode::UpDown][usize::from(self.control >> 4 & 3)]
    }

    /// Returns whether the counter moves. In up mode and in up/down mode, a CCR0 of 0 stops the timer.
    fn is_counting(&self) -> bool {
        match self.mode() {
            Mode::Stop => false,
            Mode::Continuous => true,
            Mode::Up | Mode::UpDown => self.compare[0] != 0,
        }
    }

    fn top(&self) -> u16 {
        if self.mode() == Mode::Continuous { 0xffff } else { self.compare[0] }
    }

    fn counts_down(&self) -> bool {
        self.mode() == Mode::UpDown && (self.down && self.count > 0 || self.count >= self.top())
    }

    /// Returns the ticks to the next value at which a flag or the direction can change; at least 1.
    fn steps_to_stop(&self) -> u16 {
        let count = self.count;
        if self.counts_down() {
            let below = self.compare.iter().filter(|value| **value < count).max();
            return count - below.copied().unwrap_or(0);
        }
        if count >= self.top() {
            return 1;
        }
        let stops = self.compare.iter().copied().chain([self.top()]).filter(|value| *value > count);
        stops.min().map_or(1, |next| next.min(self.top()) - count)
    }

    /// Moves the counter by `steps`, at most [`Self::steps_to_stop`].
    fn step(&mut self, steps: u16) {
        if self.counts_down() {
            self.down = true;
            self.count -= steps;
            if self.count == 0 {
                self.down = false;
                self.control |= TAIFG;
            }
        } else if self.count >= self.top() {
            self.count = 0;
            self.control |= TAIFG;
        } else {
            self.down = false;
            self.count += steps;
        }
        for (control, value) in self.compare_control.iter_mut().zip(self.compare) {
            if value == self.count && *control & CAP == 0 {
                *control |= CCIFG;
            }
        }
    }

    /// Returns the ticks until the counter reaches a value; `None` if the counter never does.
    fn ticks_until(&self, value: u16) -> Option<u64> {
        let (count, top, value) = (u64::from(self.count), u64::from(self.top()), u64::from(value));
        if value > top {
            return None;
        }
        Some(match (self.mode() == Mode::UpDown, self.counts_down()) {
            (true, true) if value < count => count - value,
            (true, true) => count + value,
            (true, false) if value > count => value - count,
            (true, false) => 2 * top - count - value,
            (false, _) if value > count => value - count,
            (false, _) => top.saturating_sub(count) + 1 + value,
        })
    }

    fn ticks_until_overflow(&self) -> u64 {
        let (count, top) = (u64::from(self.count), u64::from(self.top()));
        match (self.mode() == Mode::UpDown, self.counts_down()) {
            (true, true) => count,
            (true, false) => 2 * top - count,
            (false, _) => top.saturating_sub(count) + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    const SMCLK: u16 = 0x0200;

    fn periods() -> Periods {
        Periods { smclk: Some(10), ..Clock::default().periods(0) }
    }

    fn timer(control: u16, compare: [u16; 3]) -> TimerA {
        let mut timer = TimerA::default();
        for (one, value) in compare.into_iter().enumerate() {
            assert!(timer.write(Time::ZERO, register::CCR[one], value, &periods()));
            assert!(timer.write(Time::ZERO, register::CCTL[one], CCIE, &periods()));
        }
        assert!(timer.write(Time::ZERO, register::CTL, SMCLK | control, &periods()));
        timer
    }

    fn at(ticks: u64) -> Time {
        Time::from_ps(ticks * 10)
    }

    #[test]
    fn up_mode_has_a_period_of_ccr0_plus_one() {
        let mut timer = timer(0x10, [9, 4, 20]);
        assert_eq!(timer.poll_timeout(), Some(at(4)));
        assert_eq!(timer.read_vector(at(4)), 2);
        assert_eq!(timer.poll_timeout(), Some(at(9)));
        timer.advance(at(9));
        assert!(timer.compare_0_pending() && !timer.vector_pending());
        assert_eq!(timer.control & TAIFG, 0);
        timer.accept_compare_0();
        assert_eq!(timer.read(at(10), register::R), Some(0));
        assert_eq!(timer.control & TAIFG, TAIFG);
        assert_eq!(timer.read(at(10 * 1000 + 7), register::R), Some(7));
    }

    #[test]
    fn continuous_mode_wraps_at_16_bits() {
        let mut timer = timer(0x20 | TAIE, [100, 0, 0xffff]);
        assert_eq!(timer.poll_timeout(), Some(at(100)));
        timer.advance(at(65_535));
        assert_eq!(timer.read_vector(at(65_535)), 4);
        assert_eq!(timer.read_vector(at(65_536)), 2);
        assert_eq!(timer.read_vector(at(65_536)), 10);
        assert_eq!(timer.read_vector(at(65_536)), 0);
    }

    #[test]
    fn up_down_mode_turns_at_ccr0_and_zero() {
        let mut timer = timer(0x30, [10, 3, 99]);
        assert_eq!(timer.read(at(10), register::R), Some(10));
        assert_eq!(timer.read(at(14), register::R), Some(6));
        timer.compare_control = [CCIE; 3];
        assert_eq!(timer.poll_timeout(), Some(at(17)));
        timer.advance(at(20));
        assert_eq!((timer.count, timer.control & TAIFG), (0, TAIFG));
        assert_eq!(timer.read(at(23), register::R), Some(3));
        assert_eq!(timer.read(at(20 * 500 + 12), register::R), Some(8));
    }

    #[test]
    fn divider_and_stop_apply() {
        let mut timer = timer(0x10 | 0xc0, [1000, 0, 0]);
        assert_eq!(timer.read(at(80), register::R), Some(10));
        assert!(timer.write(at(80), register::CTL, SMCLK, &periods()));
        assert_eq!(timer.read(at(800), register::R), Some(10));
        assert!(timer.write(at(800), register::CTL, SMCLK | 0x10 | TACLR, &periods()));
        assert_eq!(timer.read(at(805), register::R), Some(5));
    }

    #[test]
    fn poll_timeout_is_the_first_flag() {
        // Compares the computed time with counting one tick at a time.
        for (control, compare) in [(0x10, [7, 3, 9]), (0x20, [7, 3, 9]), (0x30, [7, 3, 9]), (0x30, [7, 0, 7])] {
            for (start, enable) in (0..16).flat_map(|start| [(start, TAIE), (start, 0)]) {
                let mut timer = timer(control | enable, compare);
                timer.advance(at(start));
                timer.control &= !TAIFG;
                timer.compare_control = [CCIE; 3];
                let expected = timer.poll_timeout().unwrap();
                let mut tick = start;
                while !timer.compare_0_pending() && !timer.vector_pending() {
                    tick += 1;
                    timer.advance(at(tick));
                }
                assert_eq!(expected, at(tick), "mode {control:#x}, start {start}");
            }
        }
    }

    #[test]
    fn lower_ccr0_rolls_the_counter_over() {
        let mut timer = timer(0x10, [1000, 0, 0]);
        timer.advance(at(500));
        assert!(timer.write(at(500), register::CCR[0], 100, &periods()));
        assert_eq!(timer.read(at(501), register::R), Some(0));
    }
}
