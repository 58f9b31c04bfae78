//! Text of an ELM327: answers as hexadecimal digits, with or without spaces and headers, between echoes and words such
//! as `SEARCHING...` and `NO DATA`.
//!
//! Source: ELM327 data sheet, "Interpreting OBD messages", "Multiline responses", "Headers".

use super::{can::hex, isotp::Assembler};

/// Maximum length of a message of several lines without headers.
const LENGTH_MAX: usize = 4095;
/// Number of answers with a vehicle identification number on a K-line: each has 4 bytes of it.
const VIN_LINES: u8 = 5;

/// State between the lines of a message.
#[derive(Default)]
pub struct Reader {
    /// Announced length, number of the next line, and data of a message whose lines have numbers.
    numbered: Option<(usize, u8, Vec<u8>)>,
    /// Number of the next line and bytes of a vehicle identification number on a K-line.
    vin: (u8, Vec<u8>),
}

impl Reader {
    /// Reads one line. Returns the message that it completes.
    pub fn receive(&mut self, line: &str, frames: &mut Assembler) -> Option<Vec<u8>> {
        let line = line.trim();
        if let Some((number, data)) = line.split_once(':') {
            return self.receive_numbered(number.trim(), &joined(data));
        }
        let digits = joined(line);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        match digits.len() {
            // The length of a message whose lines have numbers.
            3 => {
                let length = usize::from_str_radix(&digits, 16).ok()?;
                self.numbered = (1..=LENGTH_MAX).contains(&length).then(|| (length, 0, Vec::new()));
                None
            }
            1 => None,
            // An identifier of 11 bits, and a frame.
            length if length % 2 == 1 => {
                let id = u32::from_str_radix(&digits[..3], 16).ok()?;
                frames.receive(id, &hex(&digits[3..])?)
            }
            _ => self.receive_bytes(hex(&digits)?, frames),
        }
    }

    fn receive_numbered(&mut self, number: &str, data: &str) -> Option<Vec<u8>> {
        let (length, next, message) = self.numbered.as_mut()?;
        let number = u8::from_str_radix(number, 16).ok();
        let Some(data) = hex(data).filter(|_| number == Some(*next)) else {
            self.numbered = None;
            return None;
        };
        *next = (*next + 1) & 0x0f;
        message.extend_from_slice(&data);
        if message.len() < *length {
            return None;
        }
        let (length, _, mut message) = self.numbered.take()?;
        message.truncate(length);
        Some(message)
    }

    fn receive_bytes(&mut self, bytes: Vec<u8>, frames: &mut Assembler) -> Option<Vec<u8>> {
        match bytes[..] {
            // An identifier of 29 bits: from a control unit to the tester.
            [0x18, 0xda, 0xf1, unit, ref frame @ ..] => frames.receive(0x18da_f100 | u32::from(unit), frame),
            // The header of a K-line, and a checksum: the sum (ISO 9141, ISO 14230) or a CRC (SAE J1850).
            [0x48, 0x6b, _, ref rest @ .., _] | [0x80..=0x87, 0xf1, _, ref rest @ .., _] if rest.len() > 1 => {
                self.receive_bytes(rest.to_vec(), frames)
            }
            [0x49, 0x02, number, ref part @ ..] if part.len() == 4 => self.receive_vin(number, part),
            // A request is its echo.
            [0x41..=0x4a, ..] => Some(bytes),
            _ => None,
        }
    }

    /// Collects the vehicle identification number, which is padded with three zeros in front.
    fn receive_vin(&mut self, number: u8, part: &[u8]) -> Option<Vec<u8>> {
        let (next, vin) = &mut self.vin;
        if number == 1 {
            (*next, *vin) = (1, vec![0x49, 0x02, 0x01]);
        }
        if *next != number {
            *next = 0;
            return None;
        }
        *next += 1;
        vin.extend(part.iter().filter(|byte| **byte != 0));
        (number == VIN_LINES).then(|| std::mem::take(vin))
    }
}

/// Returns the text without spaces.
fn joined(text: &str) -> String {
    text.split_ascii_whitespace().collect()
}
