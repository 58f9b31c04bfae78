use crate::{
    Time,
    clock::Periods,
    serial::{FRAME_BITS, SerialLine, SerialReceiver},
    sfr::{Sfr, bit2},
};

/// Registers of USCI_A0, by their offset from UCA0CTL0.
mod register {
    pub const CTL1: u16 = 1;
    pub const BR0: u16 = 2;
    pub const BR1: u16 = 3;
    pub const MCTL: u16 = 4;
    pub const STAT: u16 = 5;
    pub const RXBUF: u16 = 6;
    pub const TXBUF: u16 = 7;
}

const SWRST: u8 = 0x01;
const RXEIE: u8 = 0x20;
const BUSY: u8 = 0x01;
const RXERR: u8 = 0x04;
const BRK: u8 = 0x08;
const OE: u8 = 0x20;
const FE: u8 = 0x40;
const OS16: u8 = 0x01;

/// Bits that are one clock longer, for each UCBRS, start bit in bit 0 (SLAU144K, table 15-2). The pattern repeats
/// after eight bits.
const MODULATION: [u8; 8] = [0x00, 0x02, 0x22, 0x2a, 0xaa, 0xae, 0xee, 0xfe];

/// USCI_A0 in UART mode with eight data bits, no parity and one stop bit.
///
/// Not supported: parity, seven bits, two stop bits, multiprocessor formats, IrDA and automatic baud rates. The
/// module requests its clock in every low-power mode.
/// Source: SLAU144K, chapter 15.
#[derive(Clone, Debug)]
pub struct Uart {
    registers: [u8; 8],
    /// Length of each bit of a frame in picoseconds; `None` without a clock or in reset.
    bits: Option<[u64; FRAME_BITS]>,
    /// TXBUF holds a byte that the shift register has not taken.
    loaded: bool,
    /// End of the frame in the shift register.
    sending: Option<Time>,
    receiver: SerialReceiver,
}

impl Default for Uart {
    fn default() -> Self {
        let mut registers = [0; 8];
        registers[usize::from(register::CTL1)] = SWRST;
        Self { registers, bits: None, loaded: false, sending: None, receiver: SerialReceiver::default() }
    }
}

impl Uart {
    /// Sets the registers to their values after a PUC. Software clears UCSWRST before the module works again.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    pub fn read(&mut self, offset: u16, sfr: &mut Sfr) -> u8 {
        match offset {
            register::STAT => {
                let busy = self.sending.is_some() || self.loaded;
                self.registers[usize::from(offset)] | if busy { BUSY } else { 0 }
            }
            register::RXBUF => {
                sfr.ifg2 &= !bit2::UCA0RX;
                *self.at(register::STAT) &= !(FE | OE | BRK | RXERR);
                self.registers[usize::from(offset)]
            }
            _ => self.registers.get(usize::from(offset)).copied().unwrap_or(0),
        }
    }

    /// Writes a register. A byte for TXBUF starts a frame on the line; without a
    /// line (TXD is not connected) the byte is lost.
    pub fn write(
        &mut self,
        now: Time,
        offset: u16,
        value: u8,
        sfr: &mut Sfr,
        periods: &Periods,
        line: Option<&mut SerialLine>,
    ) {
        match offset {
            register::RXBUF => {}
            register::TXBUF => {
                *self.at(offset) = value;
                sfr.ifg2 &= !bit2::UCA0TX;
                self.loaded = true;
                self.load(now, sfr, line);
            }
            register::STAT => *self.at(offset) = value & !BUSY,
            register::CTL1 => {
                let was_reset = self.in_reset();
                *self.at(offset) = value;
                if self.in_reset() {
                    sfr.ie2 &= !(bit2::UCA0RX | bit2::UCA0TX);
                    sfr.ifg2 = sfr.ifg2 & !bit2::UCA0RX | bit2::UCA0TX;
                    *self.at(register::STAT) = 0;
                    (self.loaded, self.sending) = (false, None);
                    if let Some(line) = line {
                        line.cut(now);
                    }
                } else if was_reset {
                    self.receiver.restart(now);
                }
                self.set_periods(periods);
            }
            _ => {
                if let Some(cell) = self.registers.get_mut(usize::from(offset)) {
                    *cell = value;
                }
                self.set_periods(periods);
            }
        }
    }

    /// Follows a change of the clocks. The frame in the shift register keeps its length.
    pub fn set_periods(&mut self, periods: &Periods) {
        let clock = match *self.at(register::CTL1) >> 6 {
            0 => None,
            1 => periods.aclk_on_request,
            _ => Some(periods.smclk_on_request),
        };
        self.bits = clock.filter(|_| !self.in_reset()).map(|clock| self.bit_lengths().map(|count| count * clock));
    }

    /// Returns the clock cycles of each bit of a frame.
    fn bit_lengths(&self) -> [u64; FRAME_BITS] {
        let register = |offset: u16| u64::from(self.registers[usize::from(offset)]);
        let divider = register(register::BR0) | register(register::BR1) << 8;
        let control = self.registers[usize::from(register::MCTL)];
        let pattern = MODULATION[usize::from(control >> 1 & 7)];
        let base = if control & OS16 != 0 { 16 * divider + u64::from(control >> 4) } else { divider };
        std::array::from_fn(|bit| base.max(1) + u64::from(pattern >> (bit % 8) & 1))
    }

    /// Returns the time of the next end of a frame. `line_in` is `None` while the RXD pin is not connected.
    pub fn poll_timeout(&self, line_in: Option<&SerialLine>) -> Option<Time> {
        let bits = self.bits.as_ref()?;
        let receive = line_in.and_then(|line| self.receiver.poll_timeout(line, bits));
        self.sending.into_iter().chain(receive).min()
    }

    /// Handles the frames that ended at or before `now`.
    pub fn handle_timeout(
        &mut self,
        now: Time,
        sfr: &mut Sfr,
        line_in: Option<&SerialLine>,
        line_out: Option<&mut SerialLine>,
    ) {
        if let Some(end) = self.sending.filter(|end| *end <= now) {
            self.sending = None;
            self.load(end, sfr, line_out);
        }
        let (Some(bits), Some(line_in)) = (self.bits, line_in) else { return };
        while let Some(frame) = self.receiver.poll(now, line_in, &bits) {
            self.receive(frame.byte, frame.framing_error, sfr);
        }
    }

    /// Ignores what arrives while the RXD pin is not connected to the module.
    pub fn skip_input(&mut self, now: Time) {
        self.receiver.restart(now);
    }

    fn receive(&mut self, byte: u8, framing_error: bool, sfr: &mut Sfr) {
        if framing_error {
            *self.at(register::STAT) |= FE | RXERR | if byte == 0 { BRK } else { 0 };
            if *self.at(register::CTL1) & RXEIE == 0 {
                return;
            }
        }
        if sfr.ifg2 & bit2::UCA0RX != 0 {
            *self.at(register::STAT) |= OE | RXERR;
        }
        *self.at(register::RXBUF) = byte;
        sfr.ifg2 |= bit2::UCA0RX;
    }

    /// Moves the byte of TXBUF to the shift register if that is free.
    fn load(&mut self, now: Time, sfr: &mut Sfr, line: Option<&mut SerialLine>) {
        let Some(bits) = self.bits.filter(|_| self.loaded && self.sending.is_none()) else { return };
        let byte = *self.at(register::TXBUF);
        let length = Time::from_ps(bits.iter().sum());
        self.sending = Some(line.map_or(now + length, |line| line.send(now, byte, &bits)));
        self.loaded = false;
        sfr.ifg2 |= bit2::UCA0TX;
    }

    fn in_reset(&self) -> bool {
        self.registers[usize::from(register::CTL1)] & SWRST != 0
    }

    fn at(&mut self, offset: u16) -> &mut u8 {
        &mut self.registers[usize::from(offset)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    /// A module at 9600 baud from 1 MHz: BR 104, UCBRS 1.
    fn module() -> (Uart, Sfr, Periods) {
        let periods = Periods { smclk_on_request: 1_000_000, ..Clock::default().periods(0) };
        let (mut uart, mut sfr) = (Uart::default(), Sfr::default());
        for (offset, value) in [(register::BR0, 104), (register::MCTL, 0x02), (register::CTL1, 0x80)] {
            uart.write(Time::ZERO, offset, value, &mut sfr, &periods, None);
        }
        (uart, sfr, periods)
    }

    #[test]
    fn modulation_lengthens_the_second_bit() {
        let (uart, ..) = module();
        assert_eq!(uart.bit_lengths(), [104, 105, 104, 104, 104, 104, 104, 104, 104, 105]);
    }

    #[test]
    fn oversampling_divides_by_sixteen() {
        let (mut uart, mut sfr, periods) = module();
        uart.write(Time::ZERO, register::BR0, 6, &mut sfr, &periods, None);
        uart.write(Time::ZERO, register::MCTL, 0x81, &mut sfr, &periods, None);
        assert_eq!(uart.bit_lengths(), [104; FRAME_BITS]);
    }

    #[test]
    fn second_byte_waits_for_the_first() {
        let (mut uart, mut sfr, periods) = module();
        let mut line = SerialLine::default();
        uart.write(Time::ZERO, register::TXBUF, 1, &mut sfr, &periods, Some(&mut line));
        assert_eq!(sfr.ifg2 & bit2::UCA0TX, bit2::UCA0TX);
        uart.write(Time::ZERO, register::TXBUF, 2, &mut sfr, &periods, Some(&mut line));
        assert_eq!(sfr.ifg2 & bit2::UCA0TX, 0);
        let end = Time::from_us(1042);
        assert_eq!(uart.poll_timeout(None), Some(end));
        uart.handle_timeout(end, &mut sfr, None, Some(&mut line));
        assert_eq!(sfr.ifg2 & bit2::UCA0TX, bit2::UCA0TX);
        assert_eq!(uart.read(register::STAT, &mut sfr) & BUSY, BUSY);
        assert_eq!(line.free(), end + end);
    }

    #[test]
    fn unread_byte_is_an_overrun() {
        let (mut uart, mut sfr, _) = module();
        let mut line = SerialLine::default();
        let bits = [104_166_667; FRAME_BITS];
        line.send(Time::ZERO, 0x41, &bits);
        let end = line.send(Time::ZERO, 0x42, &bits);
        uart.handle_timeout(end, &mut sfr, Some(&line), None);
        assert_eq!(uart.read(register::STAT, &mut sfr), OE | RXERR);
        assert_eq!(uart.read(register::RXBUF, &mut sfr), 0x42);
        assert_eq!((uart.read(register::STAT, &mut sfr), sfr.ifg2 & bit2::UCA0RX), (0, 0));
    }

    #[test]
    fn framing_error_is_rejected_unless_enabled() {
        let (mut uart, mut sfr, periods) = module();
        let mut line = SerialLine::default();
        line.send_levels(Time::ZERO, 0x1fe & 0x0aa, &[104_166_667; FRAME_BITS]);
        let end = line.free();
        uart.handle_timeout(end, &mut sfr, Some(&line), None);
        assert_eq!((uart.read(register::STAT, &mut sfr), sfr.ifg2 & bit2::UCA0RX), (FE | RXERR, 0));
        uart.write(end, register::CTL1, 0x80 | RXEIE, &mut sfr, &periods, None);
        line.send_levels(end, 0x1fe & 0x0aa, &[104_166_667; FRAME_BITS]);
        uart.handle_timeout(line.free(), &mut sfr, Some(&line), None);
        assert_eq!(sfr.ifg2 & bit2::UCA0RX, bit2::UCA0RX);
        assert_eq!(uart.read(register::RXBUF, &mut sfr), 0x55);
    }

    #[test]
    fn reset_bit_stops_the_module() {
        let (mut uart, mut sfr, periods) = module();
        let mut line = SerialLine::default();
        sfr.ie2 = 0xff;
        uart.write(Time::ZERO, register::TXBUF, 1, &mut sfr, &periods, Some(&mut line));
        uart.write(Time::ZERO, register::CTL1, SWRST, &mut sfr, &periods, Some(&mut line));
        assert_eq!(uart.poll_timeout(Some(&line)), None);
        assert_eq!(sfr.ie2, 0xfc);
    }
}
