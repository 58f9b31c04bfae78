/// Interrupt enable and interrupt flag registers that several modules share (SLAU144K, 2.2.2.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sfr {
    pub ie1: u8,
    pub ie2: u8,
    pub ifg1: u8,
    pub ifg2: u8,
}

/// Bits of IE1 and IFG1.
pub mod bit1 {
    pub const WDT: u8 = 0x01;
    pub const OF: u8 = 0x02;
    pub const POR: u8 = 0x04;
}

/// Bits of IE2 and IFG2.
pub mod bit2 {
    pub const UCA0RX: u8 = 0x01;
    pub const UCA0TX: u8 = 0x02;
    pub const UCB0RX: u8 = 0x04;
    pub const UCB0TX: u8 = 0x08;
}

impl Default for Sfr {
    /// Returns the registers after power-on.
    fn default() -> Self {
        Self { ie1: 0, ie2: 0, ifg1: bit1::OF | bit1::POR, ifg2: bit2::UCA0TX | bit2::UCB0TX }
    }
}

impl Sfr {
    /// Sets the registers to their values after a PUC. The cause bits of IFG1 stay until software or power-on clears
    /// them.
    pub fn reset(&mut self) {
        *self = Self { ifg1: self.ifg1 | bit1::OF, ..Self::default() };
    }
}
