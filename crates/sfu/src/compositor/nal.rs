//! NAL units of H.264: their bounds in a byte stream, and the bits of their first fields.
//!
//! Source: ITU-T H.264, sections 7.4.1 and 9.1, and annex B.

pub const START_CODE: [u8; 4] = [0, 0, 0, 1];
/// Types of NAL units. Source: ITU-T H.264, table 7-1.
pub const SLICE: u8 = 1;
pub const KEY_SLICE: u8 = 5;
pub const SEQUENCE_PARAMETERS: u8 = 7;
pub const PICTURE_PARAMETERS: u8 = 8;
pub const TYPE_MASK: u8 = 0x1f;
/// Byte that is inserted after two zeros, so that the content of a NAL unit has no start code.
const EMULATION_PREVENTION: u8 = 3;
/// The fields that are read fit into this number of bytes.
const HEAD_BYTES_MAX: usize = 64;

/// Returns the NAL units of a byte stream. A start code inside a NAL unit ends it, as in the decoder.
pub fn nal_units(stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = skip_start_code(stream);
    std::iter::from_fn(move || {
        let all = rest?;
        let end = all.windows(3).position(|code| code == [0, 0, 1]);
        let unit = &all[..end.unwrap_or(all.len())];
        rest = end.map(|end| &all[end + 3..]);
        Some(unit.strip_suffix(&[0]).filter(|_| end.is_some()).unwrap_or(unit))
    })
}

fn skip_start_code(stream: &[u8]) -> Option<&[u8]> {
    stream.windows(3).position(|code| code == [0, 0, 1]).map(|at| &stream[at + 3..])
}

/// Returns the type of a NAL unit; `None` if the unit is empty.
pub fn kind(unit: &[u8]) -> Option<u8> {
    unit.first().map(|head| head & TYPE_MASK)
}

/// The content of a NAL unit ends before a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncated;

/// Reads the first fields of a NAL unit.
#[derive(Clone)]
pub struct Bits {
    /// Content without the bytes that prevent start codes.
    bytes: Vec<u8>,
    at: usize,
    /// The content is longer than `bytes`.
    is_cut: bool,
}

impl Bits {
    /// `content`: the NAL unit without its first byte.
    pub fn new(content: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(content.len().min(HEAD_BYTES_MAX));
        let is_inserted = |at: usize| at >= 2 && content[at - 2..=at] == [0, 0, EMULATION_PREVENTION];
        let mut kept = (0..content.len()).filter(|at| !is_inserted(*at)).map(|at| content[at]);
        bytes.extend(kept.by_ref().take(HEAD_BYTES_MAX));
        let is_cut = kept.next().is_some();
        Self { bytes, at: 0, is_cut }
    }

    pub fn read(&mut self, count: u32) -> Result<u32, Truncated> {
        let mut value = 0;
        for _ in 0..count {
            let byte = self.bytes.get(self.at / 8).ok_or(Truncated)?;
            value = value << 1 | u32::from(byte >> (7 - self.at % 8) & 1);
            self.at += 1;
        }
        Ok(value)
    }

    pub fn read_flag(&mut self) -> Result<bool, Truncated> {
        Ok(self.read(1)? == 1)
    }

    /// Reads an Exp-Golomb code. Source: section 9.1.
    pub fn golomb(&mut self) -> Result<u32, Truncated> {
        let mut zeros = 0;
        while self.read(1)? == 0 {
            zeros += 1;
            if zeros > 31 {
                return Err(Truncated);
            }
        }
        Ok((1 << zeros) - 1 + self.read(zeros)?)
    }

    /// Returns the bits before the next field.
    pub fn copy_before(&self) -> BitWriter {
        let mut from = Self { at: 0, ..self.clone() };
        let mut writer = BitWriter::default();
        while from.at < self.at
            && let Ok(bit) = from.read(1)
        {
            writer.write(bit, 1);
        }
        writer
    }

    /// Returns whether no field follows: only a one, and zeros up to the end of its byte. Source: section 7.3.2.11.
    pub fn ends(mut self) -> bool {
        let has_stop = self.read(1) == Ok(1);
        let is_aligned = self.bytes.len() * 8 - self.at < 8;
        let is_zero = std::iter::from_fn(|| self.read(1).ok()).all(|bit| bit == 0);
        has_stop && is_aligned && is_zero && !self.is_cut
    }
}

/// Writes the fields of a NAL unit.
#[derive(Default)]
pub struct BitWriter {
    bytes: Vec<u8>,
    count: usize,
}

impl BitWriter {
    /// Writes the lowest `count` bits of `value`.
    pub fn write(&mut self, value: u32, count: u32) {
        for at in (0..count).rev() {
            if self.count.is_multiple_of(8) {
                self.bytes.push(0);
            }
            if let Some(last) = self.bytes.last_mut() {
                *last |= ((value >> at & 1) as u8) << (7 - self.count % 8);
            }
            self.count += 1;
        }
    }

    /// Ends the content. Returns the NAL unit with this first byte.
    pub fn finish(mut self, head: u8) -> Vec<u8> {
        self.write(1, 1);
        let mut unit = vec![head];
        let mut zeros = 0;
        for byte in self.bytes {
            if zeros == 2 && byte <= EMULATION_PREVENTION {
                unit.push(EMULATION_PREVENTION);
                zeros = 0;
            }
            zeros = if byte == 0 { zeros + 1 } else { 0 };
            unit.push(byte);
        }
        unit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_codes_separate_units() {
        let stream = [0, 0, 0, 1, 0x67, 5, 0, 0, 1, 0x68, 0, 0, 0, 1, 0x65, 0];
        assert_eq!(nal_units(&stream).collect::<Vec<_>>(), [&[0x67, 5][..], &[0x68], &[0x65, 0]]);
        assert_eq!(nal_units(&[1, 2, 3]).count(), 0);
    }

    #[test]
    fn written_bits_are_read_again() {
        // Zeros, and the values after them that need another byte.
        for value in [0, 1, 2, 3, 4, 0x0300, 0x0003_0000, 0x0101, u32::MAX] {
            let mut writer = BitWriter::default();
            [(0, 16), (value, 32), (0, 32), (5, 3)].into_iter().for_each(|(value, count)| writer.write(value, count));
            let unit = writer.finish(0x67);
            let has_start_code = unit.windows(3).any(|bytes| bytes[..2] == [0, 0] && bytes[2] < 3);
            assert!(!has_start_code, "{unit:02x?}");
            let mut bits = Bits::new(&unit[1..]);
            assert_eq!([16, 32, 32, 3].map(|count| bits.read(count)), [0, value, 0, 5].map(Ok), "{unit:02x?}");
            assert!(bits.ends());
        }
        assert_eq!(BitWriter::default().finish(0x67), [0x67, 0x80]);
    }

    #[test]
    fn end_is_a_one_and_zeros() {
        assert!(Bits::new(&[0x80]).ends());
        for content in [&[][..], &[0], &[0xc0], &[0x80, 0], &[0x00, 0x80]] {
            assert!(!Bits::new(content).ends(), "{content:?}");
        }
        let mut long = vec![0xff; HEAD_BYTES_MAX];
        long.push(0x80);
        let mut bits = Bits::new(&long);
        assert_eq!((0..HEAD_BYTES_MAX).filter(|_| bits.read(8) == Ok(0xff)).count(), HEAD_BYTES_MAX);
        assert!(!bits.clone().ends(), "the content is longer");
        assert_eq!(bits.read(1), Err(Truncated));
    }

    #[test]
    fn golomb_codes_are_bounded() {
        let mut bits = Bits::new(&[0b1010_0110, 0b0100_0010, 0b1000_0000]);
        assert_eq!([(); 5].map(|()| bits.golomb()), [0, 1, 2, 3, 4].map(Ok));
        assert_eq!(Bits::new(&[0; 4]).golomb(), Err(Truncated));
        assert_eq!(Bits::new(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]).golomb(), Ok(u32::MAX - 1));
    }
}
