//! Payload of a publication: stream, sequence number, due time, and padding.
//!
//! ```text
//! ["mr1 00000007 0000000000000042 0000000123456789 xxxxxxxxxx"]
//!   magic stream  sequence         due, ns          padding to the wanted size
//! ```
//!
//! The payload is JSON without characters that a text protocol would escape. Its bytes are therefore the same in an
//! event stream, inside an envelope, and alone. It is an array because servers that parse and write JSON keep an
//! array unchanged. Some would remove the quotes of a string.

/// Minimum size of a payload in bytes, without padding.
pub const BYTES_MIN: usize = 51;

const HEAD: &[u8] = b"[\"mr1 ";
const TAIL: &[u8] = b"\"]";
const FILLING_AT: usize = 49;
static FILLING: [u8; 1024] = [b'x'; 1024];

/// Fields of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the publisher; below 100,000,000.
    pub stream: u32,
    /// Sequence number of the publication, from 0.
    pub sequence: u64,
    /// Due time in nanoseconds on the run's clock.
    pub due_ns: u64,
}

impl Stamp {
    /// Appends a payload of `bytes` bytes, or of [`BYTES_MIN`] if that is more.
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

    /// Reads a payload that must be `bytes` long. Returns `None` if the payload is not exactly as written.
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

/// Calls `emit` with each payload in a JSON text whose messages have the key `data`. A payload contains `]` only as
/// its last byte.
pub fn payloads(json: &[u8], mut emit: impl FnMut(&[u8])) {
    const DATA: &[u8] = b"\"data\":[";
    let mut rest = json;
    while let Some(at) = memchr::memmem::find(rest, DATA) {
        let data = &rest[at + DATA.len() - 1..];
        let Some(end) = memchr::memchr(b']', data) else { return };
        emit(&data[..=end]);
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

/// Parses eight digits at once within one word: combines pairs, then groups of four, then all eight.
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
    fn every_size_round_trips() {
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
    fn any_changed_byte_is_detected() {
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
