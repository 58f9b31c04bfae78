use crate::cpu::sr;

/// A calibration of the DCO: the register values that TI stores in information memory, and their frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calibration {
    pub hz: u64,
    pub bcsctl1: u8,
    pub dcoctl: u8,
    /// Address of the DCOCTL byte in information memory; the BCSCTL1 byte follows.
    address: u16,
}

/// The calibrations of the simulated chip, for 1, 8, 12 and 16 MHz.
///
/// Each real chip has other values; these are typical ones.
pub const CALIBRATIONS: [Calibration; 4] = [
    Calibration { hz: 1_000_000, bcsctl1: 0x86, dcoctl: 0xb6, address: 0x10fe },
    Calibration { hz: 8_000_000, bcsctl1: 0x8d, dcoctl: 0x97, address: 0x10fc },
    Calibration { hz: 12_000_000, bcsctl1: 0x8e, dcoctl: 0x9e, address: 0x10fa },
    Calibration { hz: 16_000_000, bcsctl1: 0x8f, dcoctl: 0x94, address: 0x10f8 },
];

/// Content of the information memory of a chip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InfoMemory {
    /// Segment A has the calibrations; the other segments are erased.
    #[default]
    Calibrated,
    /// All segments are erased, as after a mass erase with unlocked segment A.
    Erased,
}

impl InfoMemory {
    /// Returns the bytes from 0x1000 to 0x10ff.
    pub fn bytes(self) -> [u8; 0x100] {
        let mut bytes = [0xff; 0x100];
        if self == Self::Calibrated {
            for calibration in CALIBRATIONS {
                let at = usize::from(calibration.address - 0x1000);
                (bytes[at], bytes[at + 1]) = (calibration.dcoctl, calibration.bcsctl1);
            }
        }
        bytes
    }
}

/// Frequency of the very-low-power oscillator: 12 kHz, typical (SLAS735J, "Internal Very-Low-Power Low-Frequency
/// Oscillator").
pub const VLO_HZ: u64 = 12_000;

/// Periods of the clocks in picoseconds; `None` if the clock is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// Clock of the CPU. Only valid while the CPU is on.
    pub mclk: u64,
    /// SMCLK as timers and the ADC see it: stopped by SCG1.
    pub smclk: Option<u64>,
    /// ACLK: stopped by OSCOFF, and without a source.
    pub aclk: Option<u64>,
    /// SMCLK for a module that requests its clock in every low-power mode: UART, I2C, watchdog.
    pub smclk_on_request: u64,
    /// ACLK for a module that requests it; `None` without a source.
    pub aclk_on_request: Option<u64>,
}

/// The basic clock module+: DCO, VLO and dividers. The board has no crystal.
///
/// The frequency of the DCO is exact for the calibrated settings. For others, it follows the typical steps of the data
/// sheet: 1.1 MHz at RSEL 7 and DCO 3, factor 1.35 per RSEL, 1.08 per DCO, and the mean of two taps by MOD.
/// Source: SLAU144K, chapter 5; SLAS735J, "DCO Frequency".
#[derive(Clone, Debug)]
pub struct Clock {
    pub dcoctl: u8,
    pub bcsctl1: u8,
    pub bcsctl2: u8,
    pub bcsctl3: u8,
}

impl Default for Clock {
    /// Returns the registers after a PUC.
    fn default() -> Self {
        Self { dcoctl: 0x60, bcsctl1: 0x87, bcsctl2: 0x00, bcsctl3: 0x05 }
    }
}

impl Clock {
    const LFXT1OF: u8 = 0x01;
    const PS_PER_S: u64 = 1_000_000_000_000;

    /// Returns the frequency of the DCO in hertz.
    pub fn dco_hz(&self) -> u64 {
        let rsel = self.bcsctl1 & 0x0f;
        let exact = |one: &&Calibration| one.bcsctl1 & 0x0f == rsel && one.dcoctl == self.dcoctl;
        if let Some(calibration) = CALIBRATIONS.iter().find(exact) {
            return calibration.hz;
        }
        let tap = i32::from(self.dcoctl >> 5);
        let modulation = if tap == 7 { 0.0 } else { f64::from(self.dcoctl & 0x1f) };
        let base = 1.1e6 * 1.35_f64.powi(i32::from(rsel) - 7) * 1.08_f64.powi(tap - 3);
        // Of 32 cycles, `modulation` have the frequency of the next tap.
        (base * 32.0 / (32.0 - modulation + modulation / 1.08)).round() as u64
    }

    /// Returns whether the selected low-frequency oscillator does not oscillate: no crystal is mounted.
    pub fn oscillator_fault(&self) -> bool {
        self.bcsctl3 >> 4 & 3 != 2
    }

    /// Returns BCSCTL3 with its read-only fault bit.
    pub fn read_bcsctl3(&self) -> u8 {
        self.bcsctl3 & !Self::LFXT1OF | u8::from(self.oscillator_fault())
    }

    /// Returns the periods of all clocks for a status register of the CPU.
    pub fn periods(&self, status: u16) -> Periods {
        let dco = Self::PS_PER_S / self.dco_hz().max(1);
        let vlo = (!self.oscillator_fault()).then_some(Self::PS_PER_S / VLO_HZ);
        // Without its source, a clock falls back to the DCO (SLAU144K, 5.2.7.1).
        let mclk_source = if self.bcsctl2 & 0x80 != 0 { vlo.unwrap_or(dco) } else { dco };
        let smclk_source = if self.bcsctl2 & 0x08 != 0 { vlo.unwrap_or(dco) } else { dco };
        let smclk = smclk_source << (self.bcsctl2 >> 1 & 3);
        let aclk = vlo.map(|vlo| vlo << (self.bcsctl1 >> 4 & 3));
        Periods {
            mclk: mclk_source << (self.bcsctl2 >> 4 & 3),
            smclk: (status & sr::SCG1 == 0 && status & sr::OSCOFF == 0).then_some(smclk),
            aclk: aclk.filter(|_| status & sr::OSCOFF == 0),
            smclk_on_request: smclk,
            aclk_on_request: aclk,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_default_is_near_one_megahertz() {
        let clock = Clock::default();
        assert_eq!(clock.dco_hz(), 1_100_000);
        assert_eq!(clock.periods(0).aclk, None);
        assert_eq!(clock.read_bcsctl3() & 1, 1);
    }

    #[test]
    fn calibrated_settings_are_exact() {
        for calibration in CALIBRATIONS {
            let clock = Clock { dcoctl: calibration.dcoctl, bcsctl1: calibration.bcsctl1, ..Clock::default() };
            assert_eq!(clock.dco_hz(), calibration.hz);
        }
        let info = InfoMemory::Calibrated.bytes();
        assert_eq!((info[0xfe], info[0xff], info[0]), (0xb6, 0x86, 0xff));
    }

    #[test]
    fn erased_calibration_is_far_too_fast() {
        let clock = Clock { dcoctl: 0xff, bcsctl1: 0xff, ..Clock::default() };
        assert!(clock.dco_hz() > 15_000_000);
    }

    #[test]
    fn higher_taps_are_faster() {
        let hz = |dcoctl| Clock { dcoctl, ..Clock::default() }.dco_hz();
        assert!((0..0xdf_u8).all(|dcoctl| hz(dcoctl) < hz(dcoctl + 1)));
    }

    #[test]
    fn low_power_bits_stop_clocks() {
        let clock = Clock { bcsctl3: 0x20, bcsctl1: 0xa7, bcsctl2: 0x02, ..Clock::default() };
        let active = clock.periods(0);
        assert_eq!(active.smclk, Some(2 * active.mclk));
        assert_eq!(active.aclk, Some(4 * (1_000_000_000_000 / 12_000)));
        let lpm3 = clock.periods(sr::CPUOFF | sr::SCG0 | sr::SCG1);
        assert_eq!((lpm3.smclk, lpm3.aclk), (None, active.aclk));
        let lpm4 = clock.periods(sr::CPUOFF | sr::SCG0 | sr::SCG1 | sr::OSCOFF);
        assert_eq!((lpm4.smclk, lpm4.aclk), (None, None));
        assert_eq!(lpm4.smclk_on_request, active.smclk_on_request);
    }
}
