/// Registers of a port, by their order in the addresses of P1 and P2. SEL2 has an address of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortRegister {
    In,
    Out,
    Dir,
    Ifg,
    Ies,
    Ie,
    Sel,
    Ren,
    Sel2,
}

impl PortRegister {
    /// Returns the register at an offset from P1IN or P2IN; `None` above 7.
    pub fn at(offset: u16) -> Option<Self> {
        let all = [Self::In, Self::Out, Self::Dir, Self::Ifg, Self::Ies, Self::Ie, Self::Sel, Self::Ren];
        all.get(usize::from(offset)).copied()
    }
}

/// A digital port of eight pins with interrupts.
///
/// Source: SLAU144K, chapter 8.
#[derive(Clone, Debug, Default)]
pub struct Port {
    pub out: u8,
    pub dir: u8,
    pub sel: u8,
    pub sel2: u8,
    ifg: u8,
    ies: u8,
    ie: u8,
    ren: u8,
    /// Levels that the board drives.
    external: u8,
    /// Pins that the board drives. The others follow their pull resistors, or read as 0.
    driven: u8,
    /// Levels at the last look, for the detection of edges.
    last: u8,
}

impl Port {
    /// Sets the registers to their values after a PUC. OUT and IES keep theirs; IFG is cleared, so that no edge is
    /// left from before.
    pub fn reset(&mut self) {
        *self = Self { out: self.out, ies: self.ies, external: self.external, driven: self.driven, ..Self::default() };
        self.last = self.levels();
    }

    pub fn read(&self, register: PortRegister) -> u8 {
        match register {
            PortRegister::In => self.levels(),
            PortRegister::Out => self.out,
            PortRegister::Dir => self.dir,
            PortRegister::Ifg => self.ifg,
            PortRegister::Ies => self.ies,
            PortRegister::Ie => self.ie,
            PortRegister::Sel => self.sel,
            PortRegister::Sel2 => self.sel2,
            PortRegister::Ren => self.ren,
        }
    }

    pub fn write(&mut self, register: PortRegister, value: u8) {
        match register {
            PortRegister::In => {}
            PortRegister::Out => self.out = value,
            PortRegister::Dir => self.dir = value,
            PortRegister::Ifg => self.ifg = value,
            PortRegister::Ies => self.ies = value,
            PortRegister::Ie => self.ie = value,
            PortRegister::Sel => self.sel = value,
            PortRegister::Sel2 => self.sel2 = value,
            PortRegister::Ren => self.ren = value,
        }
        self.detect_edges();
    }

    /// Sets the levels of the pins in `mask` that the board drives.
    pub fn drive(&mut self, mask: u8, levels: u8) {
        self.driven |= mask;
        self.external = self.external & !mask | levels & mask;
        self.detect_edges();
    }

    /// Returns the levels of the pins. A pin that nothing drives reads as 0.
    pub fn levels(&self) -> u8 {
        let output = self.dir & !self.sel;
        let pulled = self.ren & !self.driven;
        output & self.out | !output & (self.external & self.driven | pulled & self.out)
    }

    /// Returns the pins that the port itself drives as outputs.
    pub fn outputs(&self) -> u8 {
        self.dir & !self.sel & !self.sel2
    }

    /// Returns the pins that the USCI modules use: SEL and SEL2 are set (SLAS735J, "Port P1 Pin Schematic").
    pub fn usci_pins(&self) -> u8 {
        self.sel & self.sel2
    }

    pub fn is_pending(&self) -> bool {
        self.ie & self.ifg != 0
    }

    fn detect_edges(&mut self) {
        let levels = self.levels();
        let (rising, falling) = (!self.last & levels, self.last & !levels);
        self.ifg |= rising & !self.ies | falling & self.ies;
        self.last = levels;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_pins_read_back_their_value() {
        let mut port = Port::default();
        port.write(PortRegister::Dir, 0x0f);
        port.write(PortRegister::Out, 0x3c);
        port.drive(0xf0, 0x90);
        assert_eq!(port.read(PortRegister::In), 0x9c);
    }

    #[test]
    fn pull_resistor_sets_an_undriven_pin() {
        let mut port = Port::default();
        port.write(PortRegister::Ren, 0x03);
        port.write(PortRegister::Out, 0x01);
        assert_eq!(port.read(PortRegister::In), 0x01);
        port.drive(0x01, 0);
        assert_eq!(port.read(PortRegister::In), 0x00);
    }

    #[test]
    fn selected_edge_sets_the_flag() {
        let mut port = Port::default();
        port.drive(0x03, 0x02);
        port.write(PortRegister::Ies, 0x02);
        port.write(PortRegister::Ifg, 0);
        port.write(PortRegister::Ie, 0x03);
        assert!(!port.is_pending());
        port.drive(0x03, 0x01);
        assert_eq!(port.read(PortRegister::Ifg), 0x03);
        assert!(port.is_pending());
    }
}
