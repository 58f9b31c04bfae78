//! Registers of the CPU, bits of the status register, and widths of operands.

/// Index of the program counter in [`Cpu::registers`](super::Cpu::registers).
pub const PC: usize = 0;
/// Index of the stack pointer.
pub const SP: usize = 1;
/// Index of the status register.
pub const SR: usize = 2;
/// Index of the constant generator.
pub const CG: usize = 3;
/// Bits of the status register (SLAU144K, 3.2.3).
pub mod sr {
    pub const C: u16 = 1 << 0;
    pub const Z: u16 = 1 << 1;
    pub const N: u16 = 1 << 2;
    pub const GIE: u16 = 1 << 3;
    pub const CPUOFF: u16 = 1 << 4;
    pub const OSCOFF: u16 = 1 << 5;
    pub const SCG0: u16 = 1 << 6;
    pub const SCG1: u16 = 1 << 7;
    pub const V: u16 = 1 << 8;
    /// Bits that exist; the others are reserved and read as 0.
    pub const ALL: u16 = 0x01ff;
}

/// Width of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    Byte,
    Word,
}

impl Width {
    /// Returns the mask of the operand: 0xff or 0xffff.
    pub const fn mask(self) -> u16 {
        match self {
            Self::Byte => 0x00ff,
            Self::Word => 0xffff,
        }
    }

    /// Returns the sign bit of the operand.
    pub const fn sign(self) -> u16 {
        match self {
            Self::Byte => 0x0080,
            Self::Word => 0x8000,
        }
    }

    pub(super) const fn of(word: u16) -> Self {
        if word & 0x0040 != 0 { Self::Byte } else { Self::Word }
    }
}
