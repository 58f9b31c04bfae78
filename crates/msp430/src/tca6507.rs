use crate::{Time, bus::I2cSlave};

/// Number of outputs, P0 to P6.
pub const PORTS: usize = 7;
/// Highest brightness level.
pub const LEVEL_MAX: u8 = 15;
/// Number of registers, 0x00 to 0x0a.
pub const REGISTERS: usize = 11;

/// Time codes of the registers 0x03 to 0x07 in milliseconds (data sheet, table 7).
const TIMES_MS: [u64; 16] = [0, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 5760, 8128, 16320];

/// Registers after power-on, and while EN is low. 0x0a has no content.
const DEFAULTS: [u8; REGISTERS] = [0, 0, 0, 0x44, 0x44, 0x44, 0x44, 0x44, 0xff, 0x0f, 0];

const FADE_ON: usize = 3;
const FULLY_ON: usize = 4;
const FADE_OFF: usize = 5;
const FIRST_OFF: usize = 6;
const SECOND_OFF: usize = 7;
const MAX_INTENSITY: usize = 8;
const MASTER: usize = 9;
const INITIALIZATION: usize = 10;

/// State of an output, from the bits of the three select registers (data sheet, table 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    Off,
    /// Steady at the maximum intensity of a bank.
    Level(Bank),
    FullyOn,
    /// Steady at the master intensity.
    Master,
    /// Blinks and fades with the times of a bank.
    Blink(Bank),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bank {
    Pwm0,
    Pwm1,
}

impl Bank {
    fn index(self) -> usize {
        self as usize
    }

    /// Returns the bank's half of a register: PWM0 has the low nibble.
    fn nibble(self, register: u8) -> u8 {
        register >> (4 * self.index()) & 15
    }
}

/// The LED driver TCA6507: registers, I2C protocol, and the light of its outputs over time.
///
/// Where the data sheet is unclear, the model does the following; tests of these points say "ambiguous":
/// - The cycle of a bank starts at power-on, when one of the bank's time codes changes, and when bit 3 (BANK0) or bit 7
///   (BANK1) of the initialization register is written as 1, as the Linux driver does.
/// - One-shot mode shows one complete cycle (both pulses) from the start of the bank's cycle or from the change of the
///   mode bit, then the output stays off.
/// - A command byte with one of the bits 7 to 5 set is not acknowledged and counted in [`Tca6507::violations`].
/// - A fade passes through the levels 0 to maximum in equal times.
///
/// The pulse width modulation at 125 Hz is not visible: brightness is its average.
/// Source: SCPS164D; for reserved registers, SCPS164B, table 3; `drivers/leds/leds-tca6507.c` of Linux.
#[derive(Clone, Debug)]
pub struct Tca6507 {
    registers: [u8; REGISTERS],
    enabled: bool,
    /// Register of the next data byte.
    pointer: usize,
    increments: bool,
    /// The next byte written is the command byte.
    expects_command: bool,
    /// Start of the present cycle of each bank.
    cycle_start: [Time; 2],
    violations: u64,
    writes: u64,
}

impl Default for Tca6507 {
    fn default() -> Self {
        Self {
            registers: DEFAULTS,
            enabled: false,
            pointer: 0,
            increments: false,
            expects_command: false,
            cycle_start: [Time::ZERO; 2],
            violations: 0,
            writes: 0,
        }
    }
}

impl Tca6507 {
    /// Seven-bit address; the first byte of a write is 0x8a.
    pub const ADDRESS: u8 = 0x45;

    /// Sets the level of the EN pin. A low level resets the registers and switches the bus interface off.
    pub fn set_enabled(&mut self, time: Time, enabled: bool) {
        if self.enabled != enabled {
            let (violations, writes) = (self.violations, self.writes);
            *self = Self { enabled, cycle_start: [time; 2], violations, writes, ..Self::default() };
        }
    }

    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Resets the registers as a loss of the supply does. EN keeps its level.
    pub fn power_cycle(&mut self, time: Time) {
        let enabled = self.enabled;
        self.enabled = false;
        self.set_enabled(time, true);
        self.set_enabled(time, enabled);
    }

    /// Returns the registers 0x00 to 0x0a. The last one is write-only and 0.
    pub fn registers(&self) -> &[u8; REGISTERS] {
        &self.registers
    }

    /// Returns the number of command bytes that name a reserved register or have reserved bits.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// Returns the number of data bytes written.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// Returns the state of an output. Shape: `port` is 0 to 6; higher ones are off.
    pub fn state(&self, port: usize) -> PortState {
        if port >= PORTS || !self.enabled {
            return PortState::Off;
        }
        let bit = |register: usize| self.registers[register] >> port & 1;
        match bit(2) << 2 | bit(1) << 1 | bit(0) {
            2 => PortState::Level(Bank::Pwm0),
            3 => PortState::Level(Bank::Pwm1),
            4 => PortState::FullyOn,
            5 => PortState::Master,
            6 => PortState::Blink(Bank::Pwm0),
            7 => PortState::Blink(Bank::Pwm1),
            _ => PortState::Off,
        }
    }

    /// Returns the level of an output at a time, from 0 to 15. `time` is not before the last register write.
    pub fn level(&self, time: Time, port: usize) -> u8 {
        match self.state(port) {
            PortState::Off => 0,
            PortState::Level(bank) => self.maximum(bank),
            PortState::FullyOn => LEVEL_MAX,
            PortState::Master => self.registers[MASTER] & 15,
            PortState::Blink(bank) => self.blink_level(time, bank),
        }
    }

    /// Returns the share of time in which an output is on, from 0 to 1.
    pub fn brightness(&self, time: Time, port: usize) -> f64 {
        f64::from(self.level(time, port)) / f64::from(LEVEL_MAX)
    }

    /// Returns the mean brightness between two times with the present registers, sampled every millisecond.
    pub fn average(&self, from: Time, to: Time, port: usize) -> f64 {
        let samples = (to - from).as_ms().max(1);
        let sum: f64 = (0..samples).map(|ms| self.brightness(from + Time::from_ms(ms), port)).sum();
        sum / samples as f64
    }

    /// Returns the maximum intensity of a bank: its own, or the master intensity if the bit of register 0x09 is set.
    fn maximum(&self, bank: Bank) -> u8 {
        let master = self.registers[MASTER];
        if master >> (4 + bank.index()) & 1 != 0 { master & 15 } else { bank.nibble(self.registers[MAX_INTENSITY]) }
    }

    fn is_one_shot(&self, bank: Bank) -> bool {
        self.registers[MASTER] >> (6 + bank.index()) & 1 != 0
    }

    fn blink_level(&self, time: Time, bank: Bank) -> u8 {
        let span = |register: usize| TIMES_MS[usize::from(bank.nibble(self.registers[register]))];
        let (rise, on, fall) = (span(FADE_ON), span(FULLY_ON), span(FADE_OFF));
        let pulse = rise + on + fall;
        let (first, cycle) = (pulse + span(FIRST_OFF), 2 * pulse + span(FIRST_OFF) + span(SECOND_OFF));
        let elapsed = (time - self.cycle_start[bank.index()]).as_ms();
        if cycle == 0 || self.is_one_shot(bank) && elapsed >= cycle {
            return 0;
        }
        let phase = elapsed % cycle;
        let phase = if phase >= first { phase - first } else { phase };
        let maximum = u64::from(self.maximum(bank));
        let level = match phase {
            _ if phase < rise => (maximum + 1) * phase / rise,
            _ if phase < rise + on => maximum,
            _ if phase < pulse => (maximum + 1) * (pulse - phase - 1) / fall,
            _ => 0,
        };
        level.min(maximum) as u8
    }

    fn store(&mut self, time: Time, register: usize, value: u8) {
        let changed = self.registers[register] ^ value;
        for bank in [Bank::Pwm0, Bank::Pwm1] {
            let restarts = match register {
                FADE_ON..=SECOND_OFF => bank.nibble(changed) != 0,
                MASTER => changed >> (6 + bank.index()) & 1 != 0,
                INITIALIZATION => bank.nibble(value) & 8 != 0,
                _ => false,
            };
            if restarts {
                self.cycle_start[bank.index()] = time;
            }
        }
        if register != INITIALIZATION {
            self.registers[register] = value;
        }
        self.writes += 1;
    }

    fn advance(&mut self) {
        if self.increments {
            self.pointer = (self.pointer + 1) % REGISTERS;
        }
    }
}

impl I2cSlave for Tca6507 {
    fn start(&mut self, _time: Time, address: u8, read: bool) -> bool {
        self.expects_command = !read;
        self.enabled && address == Self::ADDRESS
    }

    fn write(&mut self, time: Time, byte: u8) -> bool {
        if !std::mem::take(&mut self.expects_command) {
            self.store(time, self.pointer, byte);
            self.advance();
            return true;
        }
        let register = usize::from(byte & 15);
        if byte & 0xe0 != 0 || register >= REGISTERS {
            self.violations += 1;
            return false;
        }
        (self.pointer, self.increments) = (register, byte & 0x10 != 0);
        true
    }

    fn read(&mut self, _time: Time) -> u8 {
        let value = self.registers[self.pointer];
        self.advance();
        value
    }

    fn stop(&mut self, _time: Time) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(bytes: &[u8]) -> Tca6507 {
        let mut driver = Tca6507::default();
        driver.set_enabled(Time::ZERO, true);
        write(&mut driver, Time::ZERO, bytes);
        driver
    }

    fn write(driver: &mut Tca6507, time: Time, bytes: &[u8]) {
        assert!(driver.start(time, Tca6507::ADDRESS, false));
        assert!(bytes.iter().all(|byte| driver.write(time, *byte)));
    }

    fn levels(driver: &Tca6507, port: usize, times_ms: &[u64]) -> Vec<u8> {
        times_ms.iter().map(|ms| driver.level(Time::from_ms(*ms), port)).collect()
    }

    #[test]
    fn example_of_the_data_sheet_blinks_p1() {
        // SCPS164B, page 24: fade-on 192 ms, on 384 ms, fade-off 192 ms, off 512 and 1024 ms.
        let driver = driver(&[0x10, 0x02, 0x02, 0x02, 0x30, 0x50, 0x30, 0x60, 0x80]);
        assert_eq!(driver.state(1), PortState::Blink(Bank::Pwm1));
        let first = [0, 96, 192, 575, 576, 672, 767, 768, 1279];
        assert_eq!(levels(&driver, 1, &first), [0, 8, 15, 15, 15, 7, 0, 0, 0]);
        let second: Vec<u64> = first[..8].iter().map(|ms| ms + 1280).collect();
        assert_eq!(levels(&driver, 1, &second), [0, 8, 15, 15, 15, 7, 0, 0]);
        assert_eq!(levels(&driver, 1, &[1280 + 768 + 1023, 3072 + 192]), [0, 15]);
        assert_eq!(levels(&driver, 0, &[0, 192, 400]), [0, 0, 0]);
        let mean = driver.average(Time::ZERO, Time::from_ms(3072), 1);
        assert!((mean - 2.0 * 576.0 / 3072.0).abs() < 0.01, "{mean}");
    }

    #[test]
    fn select_registers_choose_one_of_six_states() {
        let driver = driver(&[0x10, 0b010_1010, 0b110_0100, 0b111_1000, 0x44, 0x44, 0x44, 0x44, 0x44, 0x93, 0x05]);
        let states: Vec<_> = (0..PORTS).map(|port| driver.state(port)).collect();
        assert_eq!(states[0], PortState::Off);
        assert_eq!(states[1], PortState::Off);
        assert_eq!(states[2], PortState::Level(Bank::Pwm0));
        assert_eq!(states[3], PortState::Master);
        assert_eq!(states[4], PortState::FullyOn);
        assert_eq!(states[5], PortState::Blink(Bank::Pwm1));
        assert_eq!(states[6], PortState::Blink(Bank::Pwm0));
        let steady: Vec<u8> = (0..5).map(|port| driver.level(Time::ZERO, port)).collect();
        assert_eq!(steady, [0, 0, 3, 5, 15]);
    }

    #[test]
    fn master_intensity_replaces_that_of_a_bank() {
        let driver = driver(&[0x10, 2, 3, 0, 0x44, 0x44, 0x44, 0x44, 0x44, 0x93, 0x25]);
        assert_eq!((driver.level(Time::ZERO, 0), driver.level(Time::ZERO, 1)), (3, 5));
    }

    #[test]
    fn auto_increment_returns_to_register_0() {
        let mut driver = driver(&[0x19, 0x0a, 0x00, 0x7f, 0x01]);
        assert_eq!(driver.registers()[..3], [0x7f, 0x01, 0]);
        assert_eq!((driver.registers()[9], driver.registers()[10]), (0x0a, 0));
        write(&mut driver, Time::ZERO, &[0x08, 0x11, 0x22]);
        assert_eq!(driver.registers()[8..10], [0x22, 0x0a]);
        assert_eq!(driver.read(Time::ZERO), 0x22);
    }

    #[test]
    fn reserved_commands_are_not_acknowledged() {
        for command in [0x0b, 0x0f, 0x1b, 0x20, 0x80] {
            let mut driver = driver(&[]);
            assert!(!driver.write(Time::ZERO, command));
            assert_eq!(driver.violations(), 1);
        }
        assert!(!driver(&[]).start(Time::ZERO, 0x44, false));
    }

    #[test]
    fn low_enable_pin_resets_the_registers() {
        let mut driver = driver(&[0x12, 0x7f]);
        assert_eq!(driver.level(Time::ZERO, 6), 15);
        driver.set_enabled(Time::ZERO, false);
        assert!(!driver.start(Time::ZERO, Tca6507::ADDRESS, false));
        driver.set_enabled(Time::ZERO, true);
        assert_eq!((driver.registers(), driver.level(Time::ZERO, 6)), (&DEFAULTS, 0));
    }

    #[test]
    fn initialization_restarts_a_bank_ambiguous() {
        let mut driver = driver(&[0x10, 1, 3, 3, 0, 0x22, 0, 0x22, 0x22]);
        assert_eq!(levels(&driver, 1, &[0, 127, 128, 256]), [15, 15, 0, 15]);
        write(&mut driver, Time::from_ms(130), &[0x0a, 0x08]);
        assert_eq!(levels(&driver, 1, &[130, 257, 258]), [15, 15, 0]);
        assert_eq!(levels(&driver, 0, &[130, 255, 256]), [0, 0, 15]);
    }

    #[test]
    fn one_shot_ends_after_one_cycle_ambiguous() {
        let mut driver = driver(&[0x10, 0, 1, 1, 0, 0x22, 0, 0x22, 0x22, 0xff, 0x4f]);
        assert_eq!(levels(&driver, 0, &[0, 128, 256, 384, 512, 5000]), [15, 0, 15, 0, 0, 0]);
        write(&mut driver, Time::from_ms(6000), &[0x0a, 0x08]);
        assert_eq!(levels(&driver, 0, &[6000, 6128, 6256, 6512]), [15, 0, 15, 0]);
    }

    #[test]
    fn cycle_without_time_is_dark() {
        let driver = driver(&[0x10, 0, 1, 1, 0, 0, 0, 0, 0]);
        assert_eq!(levels(&driver, 0, &[0, 1, 100]), [0, 0, 0]);
    }
}
