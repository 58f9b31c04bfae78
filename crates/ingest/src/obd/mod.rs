//! Decoder of OBD-II adapters: the text of an ELM327, or CAN frames as `candump` writes them.
//!
//! ```text
//!   text ─► elm327 or can ─► isotp (messages of several frames) ─► message ─► values of the device record
//! ```
//!
//! Source: SAE J1979 (services and parameter ids), ISO 15765-2 (ISO-TP), ELM327 data sheet.

mod can;
mod elm327;
mod isotp;
mod message;
mod trouble_code;

use std::collections::BTreeSet;

use crate::Reading;

pub use trouble_code::trouble_code;

/// Maximum number of lines that are read.
const LINES_MAX: usize = 10_000;

/// Answers of a vehicle.
#[derive(Debug, PartialEq)]
pub struct Decoded {
    pub reading: Reading,
    /// Parameter ids of service 01 that the vehicle supports, as far as it was asked.
    pub supported: BTreeSet<u8>,
    /// Codes of the current drive that are not confirmed yet.
    pub pending: BTreeSet<String>,
    /// Codes that only the vehicle itself can clear.
    pub permanent: BTreeSet<String>,
    /// Number of answers that were decoded.
    pub answers: usize,
}

/// Decodes the output of an adapter: any number of answers, with or without headers, spaces and echoes. Each line may
/// be text of an ELM327, or a frame as `candump` writes it (`can0 7E8#03410D32`). Other lines are left out.
pub fn decode(text: &str) -> Decoded {
    let mut decoded = Decoded {
        reading: Reading::from("obd"),
        supported: BTreeSet::new(),
        pending: BTreeSet::new(),
        permanent: BTreeSet::new(),
        answers: 0,
    };
    let (mut elm327, mut frames) = (elm327::Reader::default(), isotp::Assembler::default());
    for line in text.split(['\r', '\n', '>']).take(LINES_MAX) {
        let message = match can::parse(line) {
            Some((id, data)) => frames.receive(id, &data),
            None => elm327.receive(line, &mut frames),
        };
        if let Some(message) = message {
            decoded.answers += usize::from(message::apply(&message, &mut decoded));
        }
    }
    decoded
}

#[cfg(test)]
mod tests;
