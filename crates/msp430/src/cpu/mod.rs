//! The CPU of the MSP430x2xx family: registers, instruction decoding and interrupts. Not CPUX.
//!
//! Source: SLAU144K, chapter 3.

mod alu;
mod cycles;
mod register;

use crate::{Fault, FaultKind};
use alu::Flags;
use register::CG;
pub use register::{PC, SP, SR, Width, sr};

/// The only encoding of RETI.
const RETI: u16 = 0x1300;

/// Memory and peripherals as the CPU sees them.
///
/// Shape: a byte is in the low half of the value. The CPU checks alignment before each call with [`Width::Word`].
pub trait Bus {
    fn fetch(&mut self, address: u16) -> Result<u16, FaultKind>;
    fn read(&mut self, address: u16, width: Width) -> u16;
    fn write(&mut self, address: u16, width: Width, value: u16);
}

/// Place of an operand.
#[derive(Clone, Copy)]
enum Operand {
    Register(usize),
    Memory(u16),
    Constant(u16),
}

/// Registers of the CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// R0 to R15: PC, SP, SR, constant generator, and twelve general registers.
    pub registers: [u16; 16],
    /// One more instruction executes before the next interrupt, because the last one set GIE (SLAU144K, 2.2.2).
    interrupt_delay: bool,
}

impl Cpu {
    /// Cycles from the acceptance of an interrupt to its first instruction (SLAU144K, 3.4.4).
    pub const INTERRUPT_CYCLES: u32 = 6;

    pub fn pc(&self) -> u16 {
        self.registers[PC]
    }

    pub fn sp(&self) -> u16 {
        self.registers[SP]
    }

    pub fn sr(&self) -> u16 {
        self.registers[SR]
    }

    /// Returns whether the CPU is switched off until the next interrupt.
    pub fn is_asleep(&self) -> bool {
        self.sr() & sr::CPUOFF != 0
    }

    /// Returns whether an interrupt can be accepted before the next instruction.
    pub fn accepts_interrupts(&self) -> bool {
        self.sr() & sr::GIE != 0 && (!self.interrupt_delay || self.is_asleep())
    }

    /// Sets the registers as a reset does: SR is 0 and PC is the reset vector. The others keep their values.
    pub fn reset(&mut self, vector: u16) {
        self.registers[PC] = vector & !1;
        self.registers[SR] = 0;
        self.interrupt_delay = false;
    }

    /// Pushes PC and SR, clears SR and jumps to the handler. Returns the cycles.
    ///
    /// Errors: [`FaultKind::OddAddress`] cannot occur, because SP is always even.
    pub fn accept_interrupt(&mut self, bus: &mut impl Bus, vector: u16) -> u32 {
        self.push(bus, Width::Word, self.pc());
        self.push(bus, Width::Word, self.sr());
        self.registers[SR] = 0;
        self.registers[PC] = bus.read(vector, Width::Word) & !1;
        Self::INTERRUPT_CYCLES
    }

    /// Executes one instruction and returns its cycles.
    ///
    /// Errors: an illegal opcode, a word access to an odd address, or a fetch from an address without code. PC is then
    /// that of the instruction; other registers can have changed.
    pub fn step(&mut self, bus: &mut impl Bus) -> Result<u32, Fault> {
        let pc = self.pc();
        self.execute(bus).map_err(|kind| {
            self.registers[PC] = pc;
            Fault { pc, kind }
        })
    }

    fn execute(&mut self, bus: &mut impl Bus) -> Result<u32, FaultKind> {
        let gie = self.sr() & sr::GIE;
        let word = self.fetch(bus)?;
        let cycles = match word >> 12 {
            0x1 => self.single_operand(bus, word),
            0x2 | 0x3 => Ok(self.jump(word)),
            0x4..=0xf => self.double_operand(bus, word),
            _ => Err(FaultKind::IllegalOpcode { word }),
        }?;
        self.interrupt_delay = word != RETI && gie == 0 && self.sr() & sr::GIE != 0;
        Ok(cycles)
    }

    fn jump(&mut self, word: u16) -> u32 {
        let sr = self.sr();
        let (c, z, n, v) = (sr & sr::C != 0, sr & sr::Z != 0, sr & sr::N != 0, sr & sr::V != 0);
        let taken = match (word >> 10) & 7 {
            0 => !z,
            1 => z,
            2 => !c,
            3 => c,
            4 => n,
            5 => n == v,
            6 => n != v,
            _ => true,
        };
        if taken {
            // Sign extension of the 10-bit offset in words, as an offset in bytes.
            let offset = ((word << 6) as i16 >> 5) as u16;
            self.registers[PC] = self.pc().wrapping_add(offset);
        }
        cycles::JUMP
    }

    fn single_operand(&mut self, bus: &mut impl Bus, word: u16) -> Result<u32, FaultKind> {
        let illegal = Err(FaultKind::IllegalOpcode { word });
        let (mode, register, width) = ((word >> 4) & 3, usize::from(word & 15), Width::of(word));
        let opcode = (word >> 7) & 7;
        // SWPB, SXT and CALL have no byte form; RETI has no operand; 0x1400 and above are CPUX.
        let valid = match opcode {
            1 | 3 | 5 => width == Width::Word,
            6 => word == RETI,
            7 => false,
            _ => true,
        };
        if word & 0x0c00 != 0 || !valid {
            return illegal;
        }
        if opcode == 6 {
            return self.return_from_interrupt(bus);
        }
        let operand = self.resolve(bus, mode, register, width)?;
        let count = cycles::single(opcode, mode, register);
        let value = self.load(bus, operand, width);
        let flags = Flags { sr: self.sr(), width };
        let (result, sr) = match opcode {
            0 => flags.rrc(value),
            1 => (value.swap_bytes(), self.sr()),
            2 => flags.rra(value),
            3 => flags.sxt(value),
            4 => {
                // PUSH SP stores the decremented pointer (SLAU144K, figure 3-5).
                let value = if mode == 0 && register == SP { value.wrapping_sub(2) & width.mask() } else { value };
                self.push(bus, width, value);
                return Ok(count);
            }
            _ => {
                self.push(bus, Width::Word, self.pc());
                self.registers[PC] = value & !1;
                return Ok(count);
            }
        };
        self.registers[SR] = sr;
        self.store(bus, operand, width, result);
        Ok(count)
    }

    fn double_operand(&mut self, bus: &mut impl Bus, word: u16) -> Result<u32, FaultKind> {
        let (opcode, width) = (word >> 12, Width::of(word));
        let (source, mode) = (usize::from(word >> 8 & 15), (word >> 4) & 3);
        let (register, to_memory) = (usize::from(word & 15), word & 0x0080 != 0);
        let from = self.resolve(bus, mode, source, width)?;
        let src = self.load(bus, from, width);
        let to = if to_memory { self.resolve(bus, 1, register, width)? } else { Operand::Register(register) };
        // An indexed destination with R3 uses its value 0 as base address.
        let to = if let Operand::Constant(_) = to { Operand::Memory(self.index(bus, 0, width)?) } else { to };
        let count = cycles::double(mode, source, to_memory, register);
        // MOV does not read its destination.
        let dst = if opcode == 4 { 0 } else { self.load(bus, to, width) };
        let flags = Flags { sr: self.sr(), width };
        let carry = self.sr() & sr::C;
        let (result, sr) = match opcode {
            0x4 => (src, self.sr()),
            0x5 => flags.add(src, dst, 0),
            0x6 => flags.add(src, dst, carry),
            0x7 => flags.add(!src & width.mask(), dst, carry),
            0x8 | 0x9 => flags.add(!src & width.mask(), dst, 1),
            0xa => flags.dadd(src, dst),
            0xb | 0xf => flags.and(src, dst),
            0xc => (dst & !src, self.sr()),
            0xd => (dst | src, self.sr()),
            _ => flags.xor(src, dst),
        };
        self.registers[SR] = sr;
        // CMP and BIT only set flags.
        if !matches!(opcode, 0x9 | 0xb) {
            self.store(bus, to, width, result);
        }
        Ok(count)
    }

    fn return_from_interrupt(&mut self, bus: &mut impl Bus) -> Result<u32, FaultKind> {
        let sr = self.pop(bus);
        let pc = self.pop(bus);
        self.registers[SR] = sr & sr::ALL;
        self.registers[PC] = pc & !1;
        Ok(cycles::RETI)
    }

    /// Resolves an operand with its addressing mode: register, indexed, indirect, or indirect with increment.
    fn resolve(&mut self, bus: &mut impl Bus, mode: u16, register: usize, width: Width) -> Result<Operand, FaultKind> {
        let operand = match (mode, register) {
            (0, CG) => Operand::Constant(0),
            (0, _) => Operand::Register(register),
            (1, CG) => Operand::Constant(1),
            (1, SR) => Operand::Memory(self.index(bus, 0, width)?),
            (1, _) => Operand::Memory(self.index(bus, self.registers[register], width)?),
            (2, SR) => Operand::Constant(4),
            (2, CG) => Operand::Constant(2),
            (2, _) => Operand::Memory(aligned(self.registers[register], width)?),
            (_, SR) => Operand::Constant(8),
            (_, CG) => Operand::Constant(0xffff),
            (_, PC) => Operand::Constant(self.fetch(bus)?),
            _ => {
                let address = aligned(self.registers[register], width)?;
                let step = if width == Width::Byte && register != SP { 1 } else { 2 };
                self.registers[register] = address.wrapping_add(step);
                Operand::Memory(address)
            }
        };
        Ok(operand)
    }

    /// Reads the index word and returns the address `base` + index. For PC, the base is the address of the index word.
    fn index(&mut self, bus: &mut impl Bus, base: u16, width: Width) -> Result<u16, FaultKind> {
        aligned(self.fetch(bus)?.wrapping_add(base), width)
    }

    fn fetch(&mut self, bus: &mut impl Bus) -> Result<u16, FaultKind> {
        let word = bus.fetch(self.pc())?;
        self.registers[PC] = self.pc().wrapping_add(2);
        Ok(word)
    }

    fn load(&self, bus: &mut impl Bus, operand: Operand, width: Width) -> u16 {
        let value = match operand {
            Operand::Register(register) => self.registers[register],
            Operand::Memory(address) => bus.read(address, width),
            Operand::Constant(value) => value,
        };
        value & width.mask()
    }

    /// Writes a result. A byte clears the high byte of a register.
    fn store(&mut self, bus: &mut impl Bus, operand: Operand, width: Width, value: u16) {
        let value = value & width.mask();
        match operand {
            Operand::Register(register) => {
                self.registers[register] = match register {
                    PC | SP => value & !1,
                    SR => value & sr::ALL,
                    CG => 0,
                    _ => value,
                }
            }
            Operand::Memory(address) => bus.write(address, width, value),
            Operand::Constant(_) => {}
        }
    }

    fn push(&mut self, bus: &mut impl Bus, width: Width, value: u16) {
        self.registers[SP] = self.sp().wrapping_sub(2);
        bus.write(self.sp(), width, value);
    }

    fn pop(&mut self, bus: &mut impl Bus) -> u16 {
        let value = bus.read(self.sp(), Width::Word);
        self.registers[SP] = self.sp().wrapping_add(2);
        value
    }
}

fn aligned(address: u16, width: Width) -> Result<u16, FaultKind> {
    if width == Width::Word && address & 1 != 0 { Err(FaultKind::OddAddress { address }) } else { Ok(address) }
}

#[cfg(test)]
mod tests;
