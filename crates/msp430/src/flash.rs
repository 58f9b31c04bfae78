//! The flash controller: keys, lock bits, programming and erasing. Operations take no time.
//!
//! Source: SLAU144K, chapter 7.

const FCTL1: u16 = 0x0128;
const FCTL2: u16 = 0x012a;
const KEY: u16 = 0xa500;
const KEY_READ: u16 = 0x9600;

const ERASE: u16 = 0x0002;
const MERAS: u16 = 0x0004;
const WRT: u16 = 0x0040;
const KEYV: u16 = 0x0002;
const ACCVIFG: u16 = 0x0004;
const LOCK: u16 = 0x0010;
const LOCKA: u16 = 0x0040;

/// Effect of a write to flash memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashAction {
    Refuse,
    Program,
    Erase { first: u16, length: usize },
}

/// Registers FCTL1 to FCTL3.
#[derive(Clone, Debug)]
pub struct Flash {
    fctl1: u16,
    fctl2: u16,
    fctl3: u16,
}

impl Default for Flash {
    fn default() -> Self {
        Self { fctl1: 0, fctl2: 0x42, fctl3: LOCK | LOCKA | 0x08 }
    }
}

impl Flash {
    /// Sets the registers to their values after a PUC. KEYV stays, so that software can find the cause of the reset.
    pub fn reset(&mut self) {
        *self = Self { fctl3: Self::default().fctl3 | self.fctl3 & KEYV, ..Self::default() };
    }

    pub fn read_register(&self, address: u16) -> u16 {
        KEY_READ
            | match address {
                FCTL1 => self.fctl1,
                FCTL2 => self.fctl2,
                _ => self.fctl3,
            }
    }

    /// Writes a register. Returns `false` after a wrong key: the chip resets (PUC).
    #[must_use]
    pub fn write_register(&mut self, address: u16, value: u16) -> bool {
        if value & 0xff00 != KEY {
            self.fctl3 |= KEYV;
            return false;
        }
        let value = value & 0xff;
        match address {
            FCTL1 => self.fctl1 = value,
            FCTL2 => self.fctl2 = value,
            _ => {
                // LOCKA toggles when a 1 is written.
                let lock_a = (self.fctl3 ^ value) & LOCKA;
                self.fctl3 = value & (KEYV | ACCVIFG | LOCK) | lock_a | 0x08;
            }
        }
        true
    }

    /// Returns the effect of a write to an address of the flash memory.
    pub fn write(&mut self, address: u16) -> FlashAction {
        let segment_a_locked = (0x10c0..0x1100).contains(&address) && self.fctl3 & LOCKA != 0;
        if self.fctl3 & LOCK != 0 || segment_a_locked {
            return FlashAction::Refuse;
        }
        let is_info = address < 0xc000;
        match (self.fctl1 & WRT != 0, self.fctl1 & ERASE != 0, self.fctl1 & MERAS != 0) {
            (true, false, false) => FlashAction::Program,
            (false, true, false) if is_info => FlashAction::Erase { first: address & !0x3f, length: 0x40 },
            (false, true, false) => FlashAction::Erase { first: address & !0x1ff, length: 0x200 },
            (false, _, true) => FlashAction::Erase { first: 0xc000, length: 0x4000 },
            _ => {
                self.fctl3 |= ACCVIFG;
                FlashAction::Refuse
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlocked_controller_programs_and_erases() {
        let mut flash = Flash::default();
        assert_eq!(flash.write(0xc000), FlashAction::Refuse);
        assert!(flash.write_register(0x012c, KEY));
        assert_eq!(flash.write(0xc000), FlashAction::Refuse);
        assert!(flash.write_register(FCTL1, KEY | WRT));
        assert_eq!(flash.write(0xc000), FlashAction::Program);
        assert_eq!(flash.write(0x10ff), FlashAction::Refuse);
        assert!(flash.write_register(FCTL1, KEY | ERASE));
        assert_eq!(flash.write(0xc3ff), FlashAction::Erase { first: 0xc200, length: 0x200 });
        assert_eq!(flash.write(0x1041), FlashAction::Erase { first: 0x1040, length: 0x40 });
    }

    #[test]
    fn wrong_key_is_refused() {
        let mut flash = Flash::default();
        assert!(!flash.write_register(FCTL1, 0x9640));
        assert_eq!(flash.read_register(0x012c) & KEYV, KEYV);
    }
}
