use crate::{
    FaultKind, Time, ViolationKind,
    clock::Periods,
    cpu::{Bus, Width},
    memory::{Memory, PERIPHERALS_END, Region},
    port::PortRegister,
    wiring::Wiring,
};

use super::peripherals::{Peripherals, pin};

/// First address of the 16-bit registers; the registers below have 8 bits.
const WORD_REGISTERS: u16 = 0x0100;

/// Addresses of registers (msp430g2553.h; periph.x of msp430mcu).
mod address {
    pub const IE1: u16 = 0x0000;
    pub const IE2: u16 = 0x0001;
    pub const IFG1: u16 = 0x0002;
    pub const IFG2: u16 = 0x0003;
    pub const P1: u16 = 0x0020;
    pub const P1_END: u16 = 0x0028;
    pub const P2: u16 = 0x0028;
    pub const P2_END: u16 = 0x0030;
    pub const P1SEL2: u16 = 0x0041;
    pub const P2SEL2: u16 = 0x0042;
    pub const ADC10AE0: u16 = 0x004a;
    pub const BCSCTL3: u16 = 0x0053;
    pub const DCOCTL: u16 = 0x0056;
    pub const BCSCTL1: u16 = 0x0057;
    pub const BCSCTL2: u16 = 0x0058;
    pub const UCA0: u16 = 0x0060;
    pub const UCA0_END: u16 = 0x0068;
    pub const UCB0: u16 = 0x0068;
    pub const UCB0_END: u16 = 0x0070;
    pub const UCB0I2COA: u16 = 0x0118;
    pub const UCB0I2CSA: u16 = 0x011a;
    pub const TA1IV: u16 = 0x011e;
    pub const WDTCTL: u16 = 0x0120;
    pub const FCTL1: u16 = 0x0128;
    pub const FCTL3: u16 = 0x012c;
    pub const TA0IV: u16 = 0x012e;
    pub const TA0: u16 = 0x0160;
    pub const TA0_END: u16 = 0x0178;
    pub const TA1: u16 = 0x0180;
    pub const TA1_END: u16 = 0x0198;
    pub const ADC10CTL0: u16 = 0x01b0;
    pub const ADC10CTL1: u16 = 0x01b2;
    pub const ADC10MEM: u16 = 0x01b4;
}

/// Changes by an instruction beyond CPU and memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effects {
    /// A register of a peripheral was read or written.
    pub registers: bool,
    /// A register of the clock module was written.
    pub clocks: bool,
    pub reset: Option<ResetRequest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetRequest {
    WatchdogPassword,
    FlashKey,
}

/// The address space during one instruction.
pub struct Access<'a> {
    pub pc: u16,
    pub now: Time,
    pub periods: Periods,
    pub memory: &'a mut Memory,
    pub peripherals: &'a mut Peripherals,
    pub wiring: &'a mut Wiring,
    pub effects: &'a mut Effects,
}

impl Bus for Access<'_> {
    fn fetch(&mut self, address: u16) -> Result<u16, FaultKind> {
        match Region::of(address) {
            Region::Peripheral => Err(FaultKind::FetchFromPeripheral { address }),
            Region::Vacant => Err(FaultKind::FetchFromVacant { address }),
            _ => Ok(self.memory.peek_word(address).unwrap_or(0)),
        }
    }

    fn read(&mut self, address: u16, width: Width) -> u16 {
        if address >= PERIPHERALS_END {
            return self.memory.read(self.pc, address, width);
        }
        self.effects.registers = true;
        match (address < WORD_REGISTERS, width) {
            (true, Width::Byte) => self.read_byte(address).into(),
            (true, Width::Word) => {
                self.memory.violate(self.pc, address, ViolationKind::WordAccessToByteRegister);
                self.read_byte(address).into()
            }
            (false, Width::Word) => self.read_word(address),
            (false, Width::Byte) => self.read_word(address & !1) >> (8 * (address & 1)) & 0xff,
        }
    }

    fn write(&mut self, address: u16, width: Width, value: u16) {
        if address >= PERIPHERALS_END {
            return self.memory.write(self.pc, address, width, value);
        }
        self.effects.registers = true;
        match (address < WORD_REGISTERS, width) {
            (true, Width::Byte) => self.write_byte(address, value as u8),
            (true, Width::Word) => {
                self.memory.violate(self.pc, address, ViolationKind::WordAccessToByteRegister);
                self.write_byte(address, value as u8);
            }
            (false, Width::Word) => self.write_word(address, value),
            (false, Width::Byte) => self.write_half(address, value as u8),
        }
    }
}

impl Peripherals {
    /// Reads an 8-bit register with its side effects.
    fn read_byte(&mut self, now: Time, at: u16) -> u8 {
        match at {
            address::IE1 => self.sfr.ie1,
            address::IE2 => self.sfr.ie2,
            address::IFG1 => self.sfr.ifg1,
            address::IFG2 => self.sfr.ifg2,
            address::P1..address::P1_END => port(at - address::P1).map_or(0, |one| self.ports[0].read(one)),
            address::P2..address::P2_END => port(at - address::P2).map_or(0, |one| self.ports[1].read(one)),
            address::P1SEL2 => self.ports[0].sel2,
            address::P2SEL2 => self.ports[1].sel2,
            address::ADC10AE0 => self.adc.analog_enable,
            address::BCSCTL3 => self.clock.read_bcsctl3(),
            address::DCOCTL => self.clock.dcoctl,
            address::BCSCTL1 => self.clock.bcsctl1,
            address::BCSCTL2 => self.clock.bcsctl2,
            address::UCA0..address::UCA0_END => self.uart.read(at - address::UCA0, &mut self.sfr),
            address::UCB0..address::UCB0_END => self.i2c.read(now, at - address::UCB0, &mut self.sfr),
            _ => self.storage[usize::from(at)],
        }
    }

    /// Returns an 8-bit register. The caller passes a copy of the modules, because a read can change them.
    pub(super) fn peek(mut self, now: Time, at: u16) -> u8 {
        if at < WORD_REGISTERS { self.read_byte(now, at) } else { 0 }
    }
}

impl Access<'_> {
    fn read_byte(&mut self, at: u16) -> u8 {
        self.peripherals.read_byte(self.now, at)
    }

    fn write_byte(&mut self, at: u16, value: u8) {
        let chip = &mut *self.peripherals;
        match at {
            address::IE1 => chip.sfr.ie1 = value,
            address::IE2 => chip.sfr.ie2 = value,
            address::IFG1 => chip.sfr.ifg1 = value,
            address::IFG2 => chip.sfr.ifg2 = value,
            address::P1..address::P1_END => {
                if let Some(register) = port(at - address::P1) {
                    chip.ports[0].write(register, value);
                }
            }
            address::P2..address::P2_END => {
                if let Some(register) = port(at - address::P2) {
                    chip.ports[1].write(register, value);
                }
            }
            address::P1SEL2 => chip.ports[0].write(PortRegister::Sel2, value),
            address::P2SEL2 => chip.ports[1].write(PortRegister::Sel2, value),
            address::ADC10AE0 => chip.adc.analog_enable = value,
            address::BCSCTL3 | address::DCOCTL | address::BCSCTL1 | address::BCSCTL2 => {
                self.effects.clocks = true;
                match at {
                    address::BCSCTL3 => chip.clock.bcsctl3 = value,
                    address::DCOCTL => chip.clock.dcoctl = value,
                    address::BCSCTL1 => chip.clock.bcsctl1 = value,
                    _ => chip.clock.bcsctl2 = value,
                }
            }
            address::UCA0..address::UCA0_END => {
                let connected = chip.ports[0].usci_pins() & pin::TXD != 0;
                let line = connected.then_some(&mut self.wiring.uart_out);
                chip.uart.write(self.now, at - address::UCA0, value, &mut chip.sfr, &self.periods, line);
            }
            address::UCB0..address::UCB0_END => {
                chip.i2c.write(self.now, at - address::UCB0, value, &mut chip.sfr, &self.periods);
            }
            _ => self.store(at, value),
        }
    }

    fn read_word(&mut self, at: u16) -> u16 {
        let chip = &mut *self.peripherals;
        let known = match at {
            address::UCB0I2COA => Some(chip.i2c.own_address()),
            address::UCB0I2CSA => Some(chip.i2c.slave_address()),
            address::TA0IV => Some(chip.timers[0].read_vector(self.now)),
            address::TA1IV => Some(chip.timers[1].read_vector(self.now)),
            address::WDTCTL => Some(chip.watchdog.read()),
            address::FCTL1..=address::FCTL3 => Some(self.memory.controller.read_register(at)),
            address::TA0..address::TA0_END => chip.timers[0].read(self.now, at - address::TA0),
            address::TA1..address::TA1_END => chip.timers[1].read(self.now, at - address::TA1),
            address::ADC10CTL0 => Some(chip.adc.read_control_0()),
            address::ADC10CTL1 => Some(chip.adc.read_control_1()),
            address::ADC10MEM => Some(chip.adc.read_memory()),
            _ => None,
        };
        known.unwrap_or_else(|| {
            let at = usize::from(at);
            u16::from_le_bytes([self.peripherals.storage[at], self.peripherals.storage[at | 1]])
        })
    }

    fn write_word(&mut self, at: u16, value: u16) {
        let chip = &mut *self.peripherals;
        let known = match at {
            address::UCB0I2COA => {
                chip.i2c.set_own_address(value);
                true
            }
            address::UCB0I2CSA => {
                chip.i2c.set_slave_address(value);
                true
            }
            // A write to an interrupt vector register clears the highest request, as a read does.
            address::TA0IV | address::TA1IV => {
                chip.timers[usize::from(at == address::TA1IV)].read_vector(self.now);
                true
            }
            address::WDTCTL => {
                if !chip.watchdog.write(self.now, value, &self.periods) {
                    self.effects.reset = Some(ResetRequest::WatchdogPassword);
                }
                true
            }
            address::FCTL1..=address::FCTL3 => {
                if !self.memory.controller.write_register(at, value) {
                    self.effects.reset = Some(ResetRequest::FlashKey);
                }
                true
            }
            address::TA0..address::TA0_END => chip.timers[0].write(self.now, at - address::TA0, value, &self.periods),
            address::TA1..address::TA1_END => chip.timers[1].write(self.now, at - address::TA1, value, &self.periods),
            address::ADC10CTL0 => {
                chip.adc.write_control_0(self.now, value, &self.periods);
                true
            }
            address::ADC10CTL1 => {
                chip.adc.write_control_1(value);
                true
            }
            address::ADC10MEM => true,
            _ => false,
        };
        if !known {
            let [low, high] = value.to_le_bytes();
            self.store(at, low);
            self.peripherals.storage[usize::from(at | 1)] = high;
        }
    }

    /// Writes one byte of a 16-bit register; the other byte keeps its value. Registers with a password reset the chip.
    fn write_half(&mut self, at: u16, value: u8) {
        let even = at & !1;
        match even {
            address::WDTCTL => self.effects.reset = Some(ResetRequest::WatchdogPassword),
            address::FCTL1..=address::FCTL3 => self.effects.reset = Some(ResetRequest::FlashKey),
            _ => {
                let [low, high] = self.read_word(even).to_le_bytes();
                let bytes = if at == even { [value, high] } else { [low, value] };
                self.write_word(even, u16::from_le_bytes(bytes));
            }
        }
    }

    fn store(&mut self, at: u16, value: u8) {
        self.peripherals.storage[usize::from(at)] = value;
        self.peripherals.stray_writes[usize::from(at)] += 1;
    }
}

fn port(offset: u16) -> Option<PortRegister> {
    PortRegister::at(offset)
}
