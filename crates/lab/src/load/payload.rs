//! What is published: who, the how-manieth, when it was due, and filling.
//!
//! ```text
//! ["mr1 00000007 0000000000000042 0000000123456789 xxxxxxxxxx"]
//!   magic stream  sequence         due, ns          filling to the wanted size
//! ```
//!
//! JSON, without anything that any text protocol would escape: it is the same bytes in an event stream, inside an envelope, or alone; and an
//! array, because servers that read and write JSON leave it alone, while a string would lose its quotes in some.

/// The smallest payload: no filling.
pub const BYTES_MIN: usize = 51;

const HEAD: &[u8] = b"[\"mr1 ";
const TAIL: &[u8] = b"\"]";
const FILLING_AT: usize = 49;
static FILLING: [u8; 1024] = [b'x'; 1024];

/// What a payload says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Which publisher; below 100,000,000.
    pub stream: u32,
    /// Which of its publications, from 0.
    pub sequence: u64,
    /// When it was due, in nanoseconds of the run's clock.
    pub due_ns: u64,
}

impl Stamp {
    /// Appends a payload of so many bytes, at least [`BYTES_MIN`].
    pub fn write(&self, bytes: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(HEAD);
        digits::<8>(u64::from(self.stream), out);
        out.push(b' ');
        digits::<16>(self.sequence, out);
        out.push(b' ');
        digits::<16>(self.due_ns, out);
        out.push(b' ');
        out.resize(out.len() + bytes.saturating_sub(BYTES_MIN), b'x');
        out.extend_from_slice(TAIL);
    }

    /// Reads a payload that must have so many bytes; `None` if it is not exactly as it was written.
    #[inline]
    pub fn read(payload: &[u8], bytes: usize) -> Option<Stamp> {
        if payload.len() != bytes.max(BYTES_MIN) || !payload.starts_with(HEAD) || !payload.ends_with(TAIL) {
            return None;
        }
        let filling = &payload[FILLING_AT..payload.len() - TAIL.len()];
        let filled = filling.chunks(FILLING.len()).all(|part| *part == FILLING[..part.len()]);
        let number = |at: usize| Some(eight(&payload[at..at + 8])? * 100_000_000 + eight(&payload[at + 8..at + 16])?);
        let spaced = payload[14] == b' ' && payload[31] == b' ' && payload[48] == b' ';
        (filled && spaced).then_some(())?;
        Some(Stamp { stream: eight(&payload[6..14])? as u32, sequence: number(15)?, due_ns: number(32)? })
    }
}

/// The payloads of a message, or of several, in a JSON text that calls them `data`: none has a `]` but its last byte.
pub fn payloads(json: &[u8], mut hear: impl FnMut(&[u8])) {
    const DATA: &[u8] = b"\"data\":[";
    let mut rest = json;
    while let Some(at) = memchr::memmem::find(rest, DATA) {
        let data = &rest[at + DATA.len() - 1..];
        let Some(end) = memchr::memchr(b']', data) else { return };
        hear(&data[..=end]);
        rest = &data[end + 1..];
    }
}

fn digits<const N: usize>(mut value: u64, out: &mut Vec<u8>) {
    let mut text = [b'0'; N];
    for digit in text.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
    out.extend_from_slice(&text);
}

/// Eight digits at once: two, four, then eight of them are put together within one word.
#[inline]
fn eight(text: &[u8]) -> Option<u64> {
    let word = u64::from_le_bytes(text.try_into().ok()?);
    let high = 0xf0f0_f0f0_f0f0_f0f0;
    if word & high != 0x3030_3030_3030_3030 || word.wrapping_add(0x0606_0606_0606_0606) & high != 0x3030_3030_3030_3030
    {
        return None;
    }
    let word = word & 0x0f0f_0f0f_0f0f_0f0f;
    let word = word.wrapping_mul(2561) >> 8 & 0x00ff_00ff_00ff_00ff;
    let word = word.wrapping_mul(6_553_601) >> 16 & 0x0000_ffff_0000_ffff;
    Some(word.wrapping_mul(42_949_672_960_001) >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_says_the_same() {
        let stamp = Stamp { stream: 12_345_678, sequence: 9_876_543_210_123_456, due_ns: 1_020_304_050_607_080 };
        for bytes in [BYTES_MIN, BYTES_MIN + 1, 71, 173, 1000, 5000] {
            let mut out = Vec::new();
            stamp.write(bytes, &mut out);
            assert_eq!((out.len(), Stamp::read(&out, bytes)), (bytes, Some(stamp)));
            assert!(serde_json::from_slice::<[String; 1]>(&out).is_ok());
            assert_eq!(Stamp::read(&out, bytes + 1), None);
        }
    }

    #[test]
    fn any_changed_byte_is_seen() {
        let stamp = Stamp { stream: 1, sequence: 2, due_ns: 3 };
        let mut out = Vec::new();
        stamp.write(173, &mut out);
        for at in 0..out.len() {
            for change in [1, 0x10, 0x80] {
                out[at] ^= change;
                assert_ne!(Stamp::read(&out, 173), Some(stamp), "byte {at} is not looked at");
                out[at] ^= change;
            }
        }
        assert_eq!(eight(b"1234567:"), None);
        assert_eq!(eight(b"99999999"), Some(99_999_999));
    }
}
