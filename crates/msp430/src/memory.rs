use crate::{
    Violation, ViolationKind, Violations,
    cpu::Width,
    flash::{Flash, FlashAction},
};

/// First address of the RAM.
pub const RAM: u16 = 0x0200;
/// First address after the RAM.
pub const RAM_END: u16 = 0x0400;
/// First address of the information memory: segments D, C, B and A of 64 bytes.
pub const INFO: u16 = 0x1000;
pub const INFO_END: u16 = 0x1100;
/// First address of the main flash memory, which ends with the interrupt vectors at 0xffe0.
pub const FLASH: u16 = 0xc000;
/// First address after the peripheral registers.
pub const PERIPHERALS_END: u16 = 0x0200;
/// Value of a read from a vacant address: the instruction `JMP $`.
pub const VACANT: u16 = 0x3fff;

/// Kind of memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Registers of peripherals: 0x0000 to 0x01ff.
    Peripheral,
    Ram,
    /// Information memory, a part of the flash memory.
    Info,
    Flash,
    /// No memory. The bootstrap loader at 0x0c00 counts as vacant: the simulator has none.
    Vacant,
}

impl Region {
    pub fn of(address: u16) -> Self {
        match address {
            0..PERIPHERALS_END => Self::Peripheral,
            RAM..RAM_END => Self::Ram,
            INFO..INFO_END => Self::Info,
            FLASH.. => Self::Flash,
            _ => Self::Vacant,
        }
    }
}

/// RAM and flash memory of the MSP430G2553.
///
/// Source: memory.x of msp430mcu for the msp430g2553; SLAS735J, table 8.
#[derive(Clone)]
pub struct Memory {
    ram: Box<[u8; 0x200]>,
    info: Box<[u8; 0x100]>,
    flash: Box<[u8; 0x4000]>,
    pub(crate) controller: Flash,
    stack_low: u16,
    violations: Violations,
}

impl Memory {
    /// Creates erased flash memory and information memory with these bytes. RAM has the pattern of
    /// [`Self::lose_ram`].
    pub fn new(info: [u8; 0x100]) -> Self {
        let mut memory = Self {
            ram: Box::new([0; 0x200]),
            info: Box::new(info),
            flash: Box::new([0xff; 0x4000]),
            controller: Flash::default(),
            stack_low: RAM_END,
            violations: Violations::default(),
        };
        memory.lose_ram();
        memory
    }

    /// Fills the RAM with a fixed pattern that is neither zero nor erased flash: after a brown-out, RAM has no
    /// defined content. Also forgets the stack's low-water mark.
    pub fn lose_ram(&mut self) {
        let mut state = 0x1234_5678_u32;
        for byte in self.ram.iter_mut() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
        self.stack_low = RAM_END;
    }

    /// Writes bytes as a programmer does, without the flash controller. Returns `false` if a byte is outside of RAM,
    /// information memory and flash memory; nothing is written then.
    #[must_use]
    pub fn program(&mut self, address: u16, bytes: &[u8]) -> bool {
        let Some(last) = bytes.len().checked_sub(1) else { return true };
        let Some(end) = u16::try_from(last).ok().and_then(|last| address.checked_add(last)) else { return false };
        if !(address..=end).all(|at| matches!(Region::of(at), Region::Ram | Region::Info | Region::Flash)) {
            return false;
        }
        for (at, byte) in (address..=end).zip(bytes) {
            if let Some(cell) = self.cell(at) {
                *cell = *byte;
            }
        }
        true
    }

    /// Returns a byte without side effects; `None` for a peripheral or a vacant address.
    pub fn peek(&self, address: u16) -> Option<u8> {
        let at = usize::from(address);
        match Region::of(address) {
            Region::Ram => Some(self.ram[at - usize::from(RAM)]),
            Region::Info => Some(self.info[at - usize::from(INFO)]),
            Region::Flash => Some(self.flash[at - usize::from(FLASH)]),
            Region::Peripheral | Region::Vacant => None,
        }
    }

    /// Returns a little-endian word without side effects.
    pub fn peek_word(&self, address: u16) -> Option<u16> {
        Some(u16::from_le_bytes([self.peek(address & !1)?, self.peek(address | 1)?]))
    }

    /// Returns the lowest stack pointer in RAM since power-on.
    pub fn stack_low(&self) -> u16 {
        self.stack_low
    }

    pub(crate) fn note_stack(&mut self, sp: u16) {
        if (RAM..self.stack_low).contains(&sp) {
            self.stack_low = sp;
        }
    }

    pub fn violations(&self) -> &Violations {
        &self.violations
    }

    pub(crate) fn violate(&mut self, pc: u16, address: u16, kind: ViolationKind) {
        self.violations.record(Violation { pc, address, kind });
    }

    /// Reads RAM, flash memory or a vacant address. Shape: a word address is even.
    pub(crate) fn read(&mut self, pc: u16, address: u16, width: Width) -> u16 {
        let value = match width {
            Width::Byte => self.peek(address).map(u16::from),
            Width::Word => self.peek_word(address),
        };
        value.unwrap_or_else(|| {
            self.violate(pc, address, ViolationKind::VacantRead);
            if width == Width::Byte && address & 1 != 0 { VACANT >> 8 } else { VACANT & width.mask() }
        })
    }

    /// Writes RAM or flash memory. A write to flash memory is recorded and ignored unless the flash controller is
    /// unlocked.
    pub(crate) fn write(&mut self, pc: u16, address: u16, width: Width, value: u16) {
        let region = Region::of(address);
        match region {
            Region::Ram => {}
            Region::Flash | Region::Info => match self.controller.write(address) {
                FlashAction::Refuse => return self.violate(pc, address, ViolationKind::FlashWrite),
                FlashAction::Erase { first, length } => {
                    for at in (first..=0xffff).take(length) {
                        if let Some(cell) = self.cell(at) {
                            *cell = 0xff;
                        }
                    }
                    return;
                }
                FlashAction::Program => {}
            },
            Region::Peripheral | Region::Vacant => return self.violate(pc, address, ViolationKind::VacantWrite),
        }
        let bytes = value.to_le_bytes();
        let count = if width == Width::Byte { 1 } else { 2 };
        for (at, byte) in (address..=0xffff).zip(&bytes[..count]) {
            if let Some(cell) = self.cell(at) {
                // Programming can only clear bits of flash memory.
                *cell = if region == Region::Ram { *byte } else { *cell & byte };
            }
        }
    }

    fn cell(&mut self, address: u16) -> Option<&mut u8> {
        let at = usize::from(address);
        match Region::of(address) {
            Region::Ram => self.ram.get_mut(at - usize::from(RAM)),
            Region::Info => self.info.get_mut(at - usize::from(INFO)),
            Region::Flash => self.flash.get_mut(at - usize::from(FLASH)),
            Region::Peripheral | Region::Vacant => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        Memory::new([0xff; 0x100])
    }

    #[test]
    fn vacant_address_reads_as_jump_to_itself() {
        let mut memory = memory();
        assert_eq!(memory.read(0xc000, 0x0400, Width::Word), 0x3fff);
        assert_eq!(memory.read(0xc000, 0xbffe, Width::Byte), 0xff);
        assert_eq!(memory.read(0xc000, 0xbfff, Width::Byte), 0x3f);
        memory.write(0xc004, 0x1100, Width::Byte, 1);
        let kinds: Vec<_> = memory.violations().first().iter().map(|one| (one.address, one.kind)).collect();
        assert_eq!(kinds[0], (0x0400, ViolationKind::VacantRead));
        assert_eq!(kinds[3], (0x1100, ViolationKind::VacantWrite));
        assert_eq!(memory.violations().count(), 4);
    }

    #[test]
    fn locked_flash_keeps_its_content() {
        let mut memory = memory();
        memory.write(0xc000, 0xc100, Width::Word, 0);
        memory.write(0xc000, 0x10fe, Width::Byte, 0);
        assert_eq!((memory.peek_word(0xc100), memory.peek(0x10fe)), (Some(0xffff), Some(0xff)));
        assert_eq!(memory.violations().count(), 2);
    }

    #[test]
    fn program_refuses_addresses_outside_of_memory() {
        let mut memory = memory();
        assert!(memory.program(0xfffe, &[0, 0xc0]));
        assert!(memory.program(0x0200, &[1; 0x200]));
        assert!(!memory.program(0xffff, &[1, 2]));
        assert!(!memory.program(0x03ff, &[1, 2]));
        assert!(!memory.program(0x0100, &[1]));
        assert!(!memory.program(0x0200, &[0; 0x2_0000]));
        assert_eq!(memory.peek_word(0xfffe), Some(0xc000));
    }

    #[test]
    fn stack_low_keeps_the_lowest_pointer_in_ram() {
        let mut memory = memory();
        for sp in [0, 0x0400, 0x03f0, 0x0200, 0x03fe, 0xc000] {
            memory.note_stack(sp);
        }
        assert_eq!(memory.stack_low(), 0x0200);
    }
}
