use super::register::{Width, sr};

/// Operations of the arithmetic unit: result and new status register.
///
/// Shape: operands are masked to the width. Bits other than V, N, Z and C of the status register never change.
/// Source: SLAU144K, 3.4.6.
#[derive(Clone, Copy)]
pub struct Flags {
    pub sr: u16,
    pub width: Width,
}

impl Flags {
    /// Adds with carry-in. SUB and CMP use the inverted source and a carry of 1, SUBC the inverted source and C.
    pub fn add(self, src: u16, dst: u16, carry: u16) -> (u16, u16) {
        let sum = u32::from(src) + u32::from(dst) + u32::from(carry);
        let result = sum as u16 & self.width.mask();
        let overflow = (src ^ result) & (dst ^ result) & self.width.sign() != 0;
        (result, self.set(result, sum > u32::from(self.width.mask()), overflow))
    }

    /// Adds binary coded decimals with C. V is undefined in hardware and unchanged here.
    pub fn dadd(self, src: u16, dst: u16) -> (u16, u16) {
        let mut carry = self.sr & sr::C;
        let mut result = 0;
        let digits = if self.width == Width::Byte { 2 } else { 4 };
        for shift in (0..digits).map(|digit| 4 * digit) {
            let sum = (src >> shift & 15) + (dst >> shift & 15) + carry;
            carry = u16::from(sum > 9);
            result |= (if sum > 9 { sum + 6 } else { sum } & 15) << shift;
        }
        (result, self.set(result, carry != 0, self.sr & sr::V != 0))
    }

    pub fn and(self, src: u16, dst: u16) -> (u16, u16) {
        let result = src & dst;
        (result, self.set(result, result != 0, false))
    }

    pub fn xor(self, src: u16, dst: u16) -> (u16, u16) {
        let result = src ^ dst;
        (result, self.set(result, result != 0, src & dst & self.width.sign() != 0))
    }

    pub fn rrc(self, value: u16) -> (u16, u16) {
        let top = if self.sr & sr::C != 0 { self.width.sign() } else { 0 };
        let result = value >> 1 | top;
        (result, self.set(result, value & 1 != 0, false))
    }

    pub fn rra(self, value: u16) -> (u16, u16) {
        let result = value >> 1 | value & self.width.sign();
        (result, self.set(result, value & 1 != 0, false))
    }

    /// Extends the sign of the low byte.
    pub fn sxt(self, value: u16) -> (u16, u16) {
        let result = value as u8 as i8 as i16 as u16;
        (result, self.set(result, result != 0, false))
    }

    fn set(self, result: u16, carry: bool, overflow: bool) -> u16 {
        let mut sr = self.sr & !(sr::C | sr::Z | sr::N | sr::V);
        for (bit, is_set) in
            [(sr::C, carry), (sr::Z, result == 0), (sr::N, result & self.width.sign() != 0), (sr::V, overflow)]
        {
            if is_set {
                sr |= bit;
            }
        }
        sr
    }
}
