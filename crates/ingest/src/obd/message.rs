//! Answers of a vehicle: values, trouble codes, the vehicle identification number.

use super::{Decoded, trouble_code::trouble_code};
use crate::{Reading, text};

/// Maximum number of trouble codes of one kind.
const CODES_MAX: usize = 128;
/// Length of a vehicle identification number.
const VIN_BYTES: usize = 17;

/// Adds the values of a message. Returns false if the message is no answer that is decoded.
pub fn apply(message: &[u8], decoded: &mut Decoded) -> bool {
    match *message {
        [0x41, ref values @ ..] => current_data(values, decoded),
        [0x43, ref codes @ ..] => {
            let Some(codes) = trouble_codes(codes) else { return false };
            let known = decoded.reading.trouble_codes.get_or_insert_default();
            codes.filter(|_| known.len() < CODES_MAX).collect::<Vec<_>>().into_iter().for_each(|code| {
                if known.len() < CODES_MAX && !known.contains(&code) {
                    known.push(code);
                }
            });
            true
        }
        [service @ (0x47 | 0x4a), ref codes @ ..] => {
            let Some(codes) = trouble_codes(codes) else { return false };
            let known = if service == 0x47 { &mut decoded.pending } else { &mut decoded.permanent };
            known.extend(codes.take(CODES_MAX));
            while known.len() > CODES_MAX {
                known.pop_last();
            }
            true
        }
        [0x49, 0x02, _, ref vin @ ..] => match std::str::from_utf8(vin) {
            Ok(vin) if vin.len() == VIN_BYTES && vin.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                decoded.reading.vin = Some(vin.to_owned());
                true
            }
            _ => false,
        },
        _ => false,
    }
}

/// Returns the codes of an answer to service 03, 07 or 0A. On CAN a count goes first, on a K-line three codes follow,
/// and 0 is none.
fn trouble_codes(bytes: &[u8]) -> Option<impl Iterator<Item = String>> {
    let codes = match bytes.split_first() {
        Some((count, codes)) if codes.len() == usize::from(*count) * 2 => codes,
        _ if bytes.len() == 6 => bytes,
        _ => return None,
    };
    let codes = codes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    Some(codes.filter(|code| *code != 0).map(trouble_code))
}

/// Adds the values of an answer to service 01. On CAN several parameters may follow each other.
fn current_data(mut values: &[u8], decoded: &mut Decoded) -> bool {
    let mut is_known = false;
    while let [id, rest @ ..] = values {
        let Some(length) = length(*id) else { break };
        let Some((data, rest)) = rest.split_at_checked(length) else { break };
        set(*id, data, decoded);
        (values, is_known) = (rest, true);
    }
    is_known
}

/// Returns the number of bytes of a parameter.
fn length(id: u8) -> Option<usize> {
    match id {
        0x00 | 0x20 | 0x40 | 0x60 | 0x80 | 0xa0 | 0xc0 | 0x01 => Some(4),
        0x04 | 0x05 | 0x0b | 0x0d | 0x0f | 0x11 | 0x2f | 0x33 | 0x46 | 0x5c => Some(1),
        0x0c | 0x10 | 0x1f | 0x21 | 0x31 | 0x42 | 0x5e => Some(2),
        0xa6 => Some(4),
        _ => None,
    }
}

fn set(id: u8, data: &[u8], decoded: &mut Decoded) {
    let number = data.iter().fold(0u32, |number, byte| number << 8 | u32::from(*byte));
    let value = f64::from(number);
    let percent = text::round(value * 100.0 / 255.0);
    let reading = &mut decoded.reading;
    let field = match id {
        0x00 | 0x20 | 0x40 | 0x60 | 0x80 | 0xa0 | 0xc0 => {
            decoded.supported.extend((0..32u8).filter(|bit| number >> (31 - bit) & 1 == 1).map(|bit| id + bit + 1));
            return;
        }
        0x01 => {
            reading.lamp = Some(data[0] & 0x80 != 0);
            return;
        }
        0x04 => (&mut reading.engine_load, percent),
        0x05 => (&mut reading.coolant_temperature, value - 40.0),
        0x0b => (&mut reading.manifold_pressure, value),
        0x0c => (&mut reading.rpm, value / 4.0),
        0x0d => {
            reading.is_vehicle_speed = true;
            (&mut reading.speed, text::round(value / 3.6))
        }
        0x0f => (&mut reading.intake_temperature, value - 40.0),
        0x10 => (&mut reading.air_flow, value / 100.0),
        0x11 => (&mut reading.throttle, percent),
        0x2f => (&mut reading.fuel, percent),
        0x42 => (&mut reading.battery_voltage, value / 1000.0),
        0x46 => (&mut reading.ambient_temperature, value - 40.0),
        0x5c => (&mut reading.oil_temperature, value - 40.0),
        0x5e => (&mut reading.fuel_rate, value / 20.0),
        0xa6 => (&mut reading.odometer, value * 100.0),
        0x1f => return attribute(reading, "runTimeS", number),
        0x21 => return attribute(reading, "distanceWithLampKm", number),
        0x31 => return attribute(reading, "distanceSinceClearedKm", number),
        _ => return,
    };
    *field.0 = Some(field.1);
}

fn attribute(reading: &mut Reading, name: &str, number: u32) {
    text::attribute(reading, name, number.into());
}
