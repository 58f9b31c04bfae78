use crate::{
    Time,
    bus::Levels,
    clock::Periods,
    sfr::{Sfr, bit2},
};

/// Registers of USCI_B0, by their offset from UCB0CTL0. UCB0I2CSA and UCB0I2COA have addresses of their own.
mod register {
    pub const CTL0: u16 = 0;
    pub const CTL1: u16 = 1;
    pub const BR0: u16 = 2;
    pub const BR1: u16 = 3;
    pub const I2CIE: u16 = 4;
    pub const STAT: u16 = 5;
    pub const RXBUF: u16 = 6;
    pub const TXBUF: u16 = 7;
}

const CTL0_I2C_MASTER: u8 = 0x0f;
const MST: u8 = 0x08;
const SWRST: u8 = 0x01;
const TXSTT: u8 = 0x02;
const TXSTP: u8 = 0x04;
const TR: u8 = 0x10;
const ALIFG: u8 = 0x01;
const NACKIFG: u8 = 0x08;
const BBUSY: u8 = 0x10;
const SCLLOW: u8 = 0x40;

/// Content of the nine clock pulses in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shift {
    Address,
    Transmit,
    Receive,
}

/// State of the master.
///
/// ```text
///        UCTXSTT, bus free                                       ninth clock, acknowledged
///   Idle ----------------> Start -> Low <-> Rise -> High -> Low ... ------------------------> next byte, Hold
///    ^                                ^                     |                                     | UCTXSTT
///    |                                +---------------------+  next bit                           v
///    +----- StopLow -> StopRise -> StopHigh <---- UCTXSTP -------------------------- RestartLow -> RestartRise
/// ```
///
/// `Rise`, `RestartRise` and `StopRise` wait until SCL is high: a slave can stretch the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// SDA is low, SCL is still high.
    Start,
    /// SCL is low, SDA has the bit.
    Low,
    Rise,
    High,
    /// SCL is low until software acts: writes TXBUF, reads RXBUF, or sets UCTXSTT or UCTXSTP.
    Hold(Hold),
    RestartLow,
    RestartRise,
    RestartHigh,
    StopLow,
    StopRise,
    StopHigh,
}

/// Reason for holding SCL low.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// TXBUF is empty before the acknowledgement of a transmitted byte.
    TransmitEmpty,
    /// RXBUF is full after a received byte.
    ReceiveFull,
    /// The slave did not acknowledge.
    Nack,
}

/// USCI_B0 as I2C master with seven-bit addresses, bit by bit on the wires.
///
/// Not supported: slave mode, SPI, ten-bit addresses, several masters beyond the detection of a lost arbitration.
/// The module requests its clock in every low-power mode.
/// Source: SLAU144K, chapter 17.
#[derive(Clone, Debug)]
pub struct I2cMaster {
    registers: [u8; 8],
    slave_address: u16,
    own_address: u16,
    state: State,
    /// End of the present state.
    timeout: Option<Time>,
    shift: Shift,
    byte: u8,
    /// Number of the bit in progress; 8 is the acknowledgement.
    bit: u8,
    /// The bit that the acknowledgement of a received byte sends: `true` is NACK, and a STOP or START follows.
    refuse: bool,
    loaded: bool,
    /// Half of a clock period in picoseconds; `None` in reset or without a clock.
    half: Option<u64>,
    scl_low: bool,
    sda_low: bool,
    levels: Levels,
}

impl Default for I2cMaster {
    fn default() -> Self {
        let mut registers = [0; 8];
        registers[usize::from(register::CTL0)] = 0x01;
        registers[usize::from(register::CTL1)] = SWRST;
        Self {
            registers,
            slave_address: 0,
            own_address: 0,
            state: State::Idle,
            timeout: None,
            shift: Shift::Address,
            byte: 0,
            bit: 0,
            refuse: false,
            loaded: false,
            half: None,
            scl_low: false,
            sda_low: false,
            levels: Levels { scl: true, sda: true },
        }
    }
}

impl I2cMaster {
    pub fn reset(&mut self) {
        *self = Self { levels: self.levels, ..Self::default() };
    }

    pub fn read(&mut self, now: Time, offset: u16, sfr: &mut Sfr) -> u8 {
        match offset {
            register::STAT => {
                let scl_low = if self.levels.scl { 0 } else { SCLLOW };
                self.get(register::STAT) & !SCLLOW | scl_low
            }
            register::RXBUF => {
                sfr.ifg2 &= !bit2::UCB0RX;
                let byte = self.get(register::RXBUF);
                if self.state == State::Hold(Hold::ReceiveFull) {
                    self.finish_receive(now, sfr);
                }
                byte
            }
            _ => self.registers.get(usize::from(offset)).copied().unwrap_or(0),
        }
    }

    pub fn write(&mut self, now: Time, offset: u16, value: u8, sfr: &mut Sfr, periods: &Periods) {
        match offset {
            register::RXBUF => {}
            register::TXBUF => {
                self.set(register::TXBUF, value);
                sfr.ifg2 &= !bit2::UCB0TX;
                self.loaded = true;
                self.handle_request(now);
            }
            register::STAT => {
                let writable = !(SCLLOW | BBUSY);
                self.set(register::STAT, value & writable | self.get(register::STAT) & !writable);
            }
            register::CTL1 => {
                // Software cannot clear a pending START or STOP except with UCSWRST.
                let pending = self.get(register::CTL1) & (TXSTT | TXSTP);
                self.set(register::CTL1, value | if value & SWRST == 0 { pending } else { 0 });
                self.set_periods(periods);
                if value & SWRST != 0 {
                    self.software_reset(sfr);
                } else {
                    self.handle_request(now);
                }
            }
            _ => {
                if let Some(cell) = self.registers.get_mut(usize::from(offset)) {
                    *cell = value;
                }
                self.set_periods(periods);
            }
        }
    }

    pub fn slave_address(&self) -> u16 {
        self.slave_address
    }

    pub fn set_slave_address(&mut self, value: u16) {
        self.slave_address = value & 0x3ff;
    }

    pub fn own_address(&self) -> u16 {
        self.own_address
    }

    pub fn set_own_address(&mut self, value: u16) {
        self.own_address = value & 0x83ff;
    }

    /// Follows a change of the clocks. The present half period keeps its length.
    pub fn set_periods(&mut self, periods: &Periods) {
        let clock = match self.get(register::CTL1) >> 6 {
            0 => None,
            1 => periods.aclk_on_request,
            _ => Some(periods.smclk_on_request),
        };
        let divider = u64::from(self.get(register::BR0)) | u64::from(self.get(register::BR1)) << 8;
        // Low and high time are UCBR / 2 cycles each, rounded down (SLAU144K, 17.3.6).
        self.half = clock.filter(|_| self.is_enabled()).map(|clock| (divider / 2).max(1) * clock);
    }

    /// Returns whether the module pulls SCL and SDA low.
    pub fn pulls(&self) -> (bool, bool) {
        (self.scl_low, self.sda_low)
    }

    /// Returns whether a state-change flag requests an interrupt on the receive vector.
    pub fn state_pending(&self) -> bool {
        self.is_i2c() && self.get(register::STAT) & self.get(register::I2CIE) & 0x0f != 0
    }

    /// Returns whether the module is in I2C mode: then the transmit vector serves the data flags of both directions.
    pub fn is_i2c(&self) -> bool {
        self.get(register::CTL0) & 0x07 == 0x07
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        self.timeout
    }

    /// Handles the end of a state. Afterwards the caller applies [`I2cMaster::pulls`] to the wires.
    pub fn handle_timeout(&mut self, now: Time, sfr: &mut Sfr) {
        let Some(time) = self.timeout.take_if(|timeout| *timeout <= now) else { return };
        match self.state {
            State::Idle => self.begin_start(time, sfr),
            State::Start => self.begin_byte(time, Shift::Address, sfr),
            State::Low => self.release_scl(State::Rise),
            State::High => self.end_bit(time, sfr),
            State::RestartLow => self.release_scl(State::RestartRise),
            State::RestartHigh => self.begin_start(time, sfr),
            State::StopLow => self.release_scl(State::StopRise),
            State::StopHigh => {
                self.sda_low = false;
                self.clear_control(TXSTP);
                self.state = State::Idle;
                self.handle_request(time);
            }
            State::Rise | State::RestartRise | State::StopRise | State::Hold(_) => {}
        }
    }

    /// Handles the present levels of the wires.
    pub fn handle_levels(&mut self, now: Time, levels: Levels) {
        let before = std::mem::replace(&mut self.levels, levels);
        if self.is_enabled() && before.scl && levels.scl && before.sda != levels.sda {
            let busy = if levels.sda { 0 } else { BBUSY };
            self.set(register::STAT, self.get(register::STAT) & !BBUSY | busy);
        }
        if levels.scl {
            match self.state {
                State::Rise => self.enter(now, State::High),
                State::RestartRise => self.enter(now, State::RestartHigh),
                State::StopRise => self.enter(now, State::StopHigh),
                _ => {}
            }
        }
        if self.state == State::Idle {
            self.handle_request(now);
        }
    }

    /// Acts on UCTXSTT, UCTXSTP and TXBUF in the states that wait for software.
    fn handle_request(&mut self, now: Time) {
        let control = self.get(register::CTL1);
        match self.state {
            State::Idle => {
                let is_master = self.is_enabled() && self.get(register::CTL0) & CTL0_I2C_MASTER == CTL0_I2C_MASTER;
                let bus_free = self.levels.scl && self.levels.sda && self.get(register::STAT) & BBUSY == 0;
                if is_master && control & TXSTT != 0 && bus_free {
                    // The bus must stay free for half a period before the START.
                    if self.timeout.is_none() {
                        self.schedule(now);
                    }
                } else {
                    self.timeout = None;
                }
            }
            State::Hold(Hold::TransmitEmpty) if !self.lacks_data() => self.enter(now, State::Low),
            State::Hold(Hold::Nack) if control & TXSTP != 0 => self.begin_stop(now),
            State::Hold(Hold::Nack) if control & TXSTT != 0 => self.begin_restart(now),
            _ => {}
        }
    }

    fn begin_start(&mut self, now: Time, sfr: &mut Sfr) {
        self.sda_low = true;
        self.loaded = false;
        self.set(register::STAT, self.get(register::STAT) & !NACKIFG);
        if self.is_transmitter() {
            sfr.ifg2 |= bit2::UCB0TX;
        }
        self.enter(now, State::Start);
    }

    fn begin_restart(&mut self, now: Time) {
        self.sda_low = false;
        self.enter(now, State::RestartLow);
    }

    fn begin_stop(&mut self, now: Time) {
        self.sda_low = true;
        self.enter(now, State::StopLow);
    }

    fn begin_byte(&mut self, now: Time, shift: Shift, sfr: &mut Sfr) {
        self.shift = shift;
        self.bit = 0;
        match shift {
            Shift::Address => {
                let read = u8::from(!self.is_transmitter());
                self.byte = (self.slave_address as u8) << 1 | read;
            }
            Shift::Transmit => {
                self.byte = self.get(register::TXBUF);
                self.loaded = false;
                sfr.ifg2 |= bit2::UCB0TX;
            }
            Shift::Receive => self.byte = 0,
        }
        self.scl_low = true;
        self.begin_bit(now);
    }

    /// Puts the next bit on SDA while SCL is low.
    fn begin_bit(&mut self, now: Time) {
        let is_sender = self.shift != Shift::Receive;
        self.sda_low = match (self.bit, is_sender) {
            (8, true) => false,
            (8, false) => !self.refuse,
            (bit, true) => self.byte >> (7 - bit) & 1 == 0,
            (_, false) => false,
        };
        if self.bit == 8 && is_sender && self.lacks_data() {
            self.state = State::Hold(Hold::TransmitEmpty);
            self.timeout = None;
        } else {
            self.enter(now, State::Low);
        }
    }

    /// Samples SDA at the end of the high phase and pulls SCL low.
    fn end_bit(&mut self, now: Time, sfr: &mut Sfr) {
        let sda = self.levels.sda;
        let is_sender = self.shift != Shift::Receive;
        if is_sender && self.bit < 8 && !self.sda_low && !sda {
            return self.lose_arbitration();
        }
        self.scl_low = true;
        if !is_sender && self.bit < 8 {
            self.byte = self.byte << 1 | u8::from(sda);
        }
        self.bit += 1;
        match (self.bit, self.shift) {
            (9, Shift::Address | Shift::Transmit) => self.end_sent_byte(now, !sda, sfr),
            (9, Shift::Receive) => {
                if sfr.ifg2 & bit2::UCB0RX != 0 {
                    self.state = State::Hold(Hold::ReceiveFull);
                } else {
                    self.finish_receive(now, sfr);
                }
            }
            (8, Shift::Receive) => {
                self.refuse = self.get(register::CTL1) & (TXSTT | TXSTP) != 0;
                self.begin_bit(now);
            }
            _ => self.begin_bit(now),
        }
    }

    fn end_sent_byte(&mut self, now: Time, acknowledged: bool, sfr: &mut Sfr) {
        if self.shift == Shift::Address || !acknowledged {
            self.clear_control(TXSTT);
        }
        let control = self.get(register::CTL1);
        if !acknowledged {
            self.set(register::STAT, self.get(register::STAT) | NACKIFG);
            self.loaded = false;
            sfr.ifg2 &= !bit2::UCB0TX;
            self.state = State::Hold(Hold::Nack);
            self.timeout = None;
            self.handle_request(now);
        } else if self.shift == Shift::Address && !self.is_transmitter() {
            self.begin_byte(now, Shift::Receive, sfr);
        } else if control & TXSTP != 0 {
            self.begin_stop(now);
        } else if control & TXSTT != 0 {
            self.begin_restart(now);
        } else {
            self.begin_byte(now, Shift::Transmit, sfr);
        }
    }

    /// Stores the received byte, then continues with the next byte, a STOP or a repeated START.
    fn finish_receive(&mut self, now: Time, sfr: &mut Sfr) {
        self.set(register::RXBUF, self.byte);
        sfr.ifg2 |= bit2::UCB0RX;
        match (self.refuse, self.get(register::CTL1) & TXSTP != 0) {
            (false, _) => self.begin_byte(now, Shift::Receive, sfr),
            (true, true) => self.begin_stop(now),
            (true, false) => self.begin_restart(now),
        }
    }

    /// Another part pulls SDA low while this master sends a 1.
    fn lose_arbitration(&mut self) {
        self.set(register::STAT, self.get(register::STAT) | ALIFG);
        self.set(register::CTL0, self.get(register::CTL0) & !MST);
        self.clear_control(TXSTT | TXSTP);
        self.release();
    }

    fn software_reset(&mut self, sfr: &mut Sfr) {
        sfr.ie2 &= !(bit2::UCB0RX | bit2::UCB0TX);
        sfr.ifg2 &= !(bit2::UCB0RX | bit2::UCB0TX);
        self.set(register::STAT, 0);
        self.release();
    }

    fn release(&mut self) {
        self.state = State::Idle;
        self.timeout = None;
        (self.scl_low, self.sda_low, self.loaded) = (false, false, false);
    }

    fn release_scl(&mut self, next: State) {
        self.scl_low = false;
        self.state = next;
        self.timeout = None;
    }

    fn enter(&mut self, now: Time, state: State) {
        self.state = state;
        self.schedule(now);
    }

    fn schedule(&mut self, now: Time) {
        self.timeout = self.half.map(|half| now + Time::from_ps(half));
    }

    /// Returns whether the byte after the present one is unknown: the clock then stops before the acknowledgement.
    fn lacks_data(&self) -> bool {
        // During the address, UCTXSTT is still set for the START that was just sent.
        let ends = if self.shift == Shift::Address { TXSTP } else { TXSTP | TXSTT };
        self.is_transmitter() && !self.loaded && self.get(register::CTL1) & ends == 0
    }

    fn is_enabled(&self) -> bool {
        self.is_i2c() && self.get(register::CTL1) & SWRST == 0
    }

    fn is_transmitter(&self) -> bool {
        self.get(register::CTL1) & TR != 0
    }

    fn clear_control(&mut self, bits: u8) {
        self.set(register::CTL1, self.get(register::CTL1) & !bits);
    }

    fn get(&self, offset: u16) -> u8 {
        self.registers[usize::from(offset)]
    }

    fn set(&mut self, offset: u16, value: u8) {
        self.registers[usize::from(offset)] = value;
    }
}
