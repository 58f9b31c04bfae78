use thiserror::Error;

/// The reason why the CPU cannot continue, with the address of the instruction.
///
/// The simulation stops at a fault. The hardware continues with an unspecified state, or resets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("instruction at {pc:#06x}: {kind}")]
pub struct Fault {
    pub pc: u16,
    pub kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FaultKind {
    #[error("{word:#06x} is not an instruction of the MSP430 (CPUX instructions are not supported)")]
    IllegalOpcode { word: u16 },
    #[error("word access to the odd address {address:#06x}; words need an even address")]
    OddAddress { address: u16 },
    #[error("instruction fetch from the peripheral address {address:#06x}; the program counter is wrong")]
    FetchFromPeripheral { address: u16 },
    #[error("instruction fetch from the vacant address {address:#06x}; the program counter is wrong")]
    FetchFromVacant { address: u16 },
    #[error("the reset vector at 0xfffe is erased; load a program first")]
    ErasedResetVector,
}

/// A memory access that the hardware ignores or answers with an undefined value. The program continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    pub pc: u16,
    pub address: u16,
    pub kind: ViolationKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViolationKind {
    /// A read from an address without memory. The value is 0x3fff, "JMP $".
    VacantRead,
    /// A write to an address without memory.
    VacantWrite,
    /// A write to flash memory while the flash controller does not allow it.
    FlashWrite,
    /// A word access to a peripheral with 8-bit registers: only the low byte is defined.
    WordAccessToByteRegister,
}

/// The first violations, and the number of all.
#[derive(Clone, Debug, Default)]
pub struct Violations {
    first: Vec<Violation>,
    count: u64,
}

impl Violations {
    const KEPT: usize = 64;

    pub(crate) fn record(&mut self, violation: Violation) {
        self.count += 1;
        if self.first.len() < Self::KEPT {
            self.first.push(violation);
        }
    }

    /// Returns at most the first 64 violations, oldest first.
    pub fn first(&self) -> &[Violation] {
        &self.first
    }

    pub fn count(&self) -> u64 {
        self.count
    }
}
