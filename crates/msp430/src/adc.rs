use crate::{Time, clock::Periods};

const SC: u16 = 0x0001;
const ENC: u16 = 0x0002;
const IFG: u16 = 0x0004;
const IE: u16 = 0x0008;
const ON: u16 = 0x0010;
const REF2_5V: u16 = 0x0040;
const BUSY: u16 = 0x0001;
const DF: u16 = 0x0200;

/// Supply voltage of the board in volts.
pub const VCC: f64 = 3.3;

/// Period of the ADC10OSC: 5 MHz, typical (SLAS735J, "10-Bit ADC, Timing Parameters").
const ADC10OSC_PS: u64 = 200_000;

/// The ADC10: single conversions of single channels.
///
/// Not supported: sequences, repeated conversions, timer triggers, and the data transfer controller. Software starts a
/// conversion with ENC and ADC10SC.
/// Source: SLAU144K, chapter 22.
#[derive(Clone, Debug, Default)]
pub struct Adc10 {
    control_0: u16,
    control_1: u16,
    memory: u16,
    /// Pins that are connected to the converter instead of the port.
    pub analog_enable: u8,
    conversion: Option<Conversion>,
}

#[derive(Clone, Copy, Debug)]
struct Conversion {
    /// End of the sample phase: the time of the measured voltage.
    sampled: Time,
    end: Time,
    channel: u8,
}

impl Adc10 {
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    pub fn read_control_0(&self) -> u16 {
        self.control_0
    }

    pub fn read_control_1(&self) -> u16 {
        self.control_1 & !BUSY | u16::from(self.conversion.is_some())
    }

    pub fn read_memory(&self) -> u16 {
        self.memory
    }

    /// Writes ADC10CTL0. Most bits keep their values while ENC is set. Clearing ENC lets a conversion finish.
    pub fn write_control_0(&mut self, now: Time, value: u16, periods: &Periods) {
        const ALWAYS: u16 = SC | ENC | IFG | IE;
        let locked = self.control_0 & ENC != 0;
        self.control_0 = if locked { self.control_0 & !ALWAYS | value & ALWAYS } else { value } & !SC;
        let starts = value & SC != 0 && self.control_0 & (ENC | ON) == ENC | ON;
        if starts && self.conversion.is_none() {
            self.start(now, periods);
        }
    }

    pub fn write_control_1(&mut self, value: u16) {
        if self.control_0 & ENC == 0 {
            self.control_1 = value & !BUSY;
        }
    }

    pub fn is_pending(&self) -> bool {
        self.control_0 & (IE | IFG) == IE | IFG
    }

    /// Resets the flag when the interrupt is accepted.
    pub fn accept(&mut self) {
        self.control_0 &= !IFG;
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        self.conversion.map(|conversion| conversion.end)
    }

    /// Handles the end of a conversion. `voltage` returns the voltage of a channel from A0 to A7 at a time.
    pub fn handle_timeout(&mut self, now: Time, voltage: impl FnOnce(u8, Time) -> f64) {
        let Some(conversion) = self.conversion.take_if(|conversion| conversion.end <= now) else { return };
        let input = match conversion.channel {
            // A pin that is not enabled as analog input has no defined value.
            channel @ 0..=7 if self.analog_enable >> channel & 1 != 0 => voltage(channel, conversion.sampled),
            // The temperature sensor at 25 degrees (SLAS735J, "10-Bit ADC, Temperature Sensor and Built-In VMID").
            10 => 0.986 + 0.003_55 * 25.0,
            11 => VCC / 2.0,
            _ => 0.0,
        };
        let code = (input / self.reference() * 1023.0).round().clamp(0.0, 1023.0) as u16;
        self.memory = if self.control_1 & DF != 0 { (code ^ 0x200) << 6 } else { code };
        self.control_0 |= IFG;
    }

    /// Returns the upper reference voltage. The lower one is 0 V.
    fn reference(&self) -> f64 {
        match (self.control_0 >> 13 & 3, self.control_0 & REF2_5V != 0) {
            (1, false) => 1.5,
            (1, true) => 2.5,
            _ => VCC,
        }
    }

    fn start(&mut self, now: Time, periods: &Periods) {
        let source = match self.control_1 >> 3 & 3 {
            0 => Some(ADC10OSC_PS),
            1 => periods.aclk_on_request,
            2 => Some(periods.mclk),
            _ => Some(periods.smclk_on_request),
        };
        let clock = source.map(|period| period * (u64::from(self.control_1 >> 5 & 7) + 1));
        let sample = [4, 8, 16, 64][usize::from(self.control_0 >> 11 & 3)];
        // One cycle synchronizes the start, and 13 convert (SLAU144K, 22.2.5.1).
        self.conversion = clock.map(|clock| Conversion {
            sampled: now + Time::from_ps((1 + sample) * clock),
            end: now + Time::from_ps((1 + sample + 13) * clock),
            channel: (self.control_1 >> 12) as u8,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    fn convert(control_1: u16, analog_enable: u8, volts: f64) -> (Time, u16) {
        let mut adc = Adc10 { analog_enable, ..Adc10::default() };
        adc.write_control_1(control_1);
        adc.write_control_0(Time::ZERO, 0x1000 | ON | IE, &Clock::default().periods(0));
        assert_eq!(adc.poll_timeout(), None);
        adc.write_control_0(Time::ZERO, 0x1000 | ON | IE | ENC | SC, &Clock::default().periods(0));
        let end = adc.poll_timeout().unwrap();
        assert_eq!(adc.read_control_1() & BUSY, BUSY);
        adc.handle_timeout(end, |_, _| volts);
        assert!(adc.is_pending() && adc.read_control_1() & BUSY == 0);
        adc.accept();
        assert!(!adc.is_pending());
        (end, adc.read_memory())
    }

    #[test]
    fn conversion_takes_sample_and_thirteen_cycles() {
        assert_eq!(convert(0x4000, 0x10, 1.65), (Time::from_us(6), 512));
        assert_eq!(convert(0x4000 | 0x20, 0x10, 1.65).0, Time::from_us(12));
    }

    #[test]
    fn result_is_limited_to_ten_bits() {
        assert_eq!(convert(0x4000, 0x10, 9.0).1, 1023);
        assert_eq!(convert(0x4000, 0x10, -1.0).1, 0);
        assert_eq!(convert(0x4000, 0x00, 1.0).1, 0);
        assert_eq!(convert(0xb000, 0x00, 1.0).1, 512);
    }

    #[test]
    fn channel_is_locked_while_enabled() {
        let mut adc = Adc10::default();
        adc.write_control_0(Time::ZERO, ON | ENC, &Clock::default().periods(0));
        adc.write_control_1(0x4000);
        assert_eq!(adc.read_control_1(), 0);
    }
}
