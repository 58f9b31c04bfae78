/// Reads a variable byte integer and its length; `None` while it is incomplete.
///
/// Errors: it has more than four bytes. Source: MQTT 5.0, section 1.5.5.
pub fn read(bytes: &[u8]) -> Result<Option<(u32, usize)>, ()> {
    let mut value = 0;
    for (i, byte) in bytes.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Ok(Some((value, i + 1)));
        }
    }
    if bytes.len() < 4 { Ok(None) } else { Err(()) }
}

/// Appends a variable byte integer, at most 268,435,455.
pub fn write_varint(out: &mut Vec<u8>, value: usize) {
    let mut rest = value;
    loop {
        let byte = (rest & 0x7f) as u8;
        rest >>= 7;
        if rest == 0 {
            return out.push(byte);
        }
        out.push(byte | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_round_trip() {
        for (value, length) in [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (2_097_152, 4), (268_435_455, 4)]
        {
            let mut bytes = Vec::new();
            write_varint(&mut bytes, value);
            assert_eq!(bytes.len(), length);
            assert_eq!(read(&bytes), Ok(Some((value as u32, length))));
            assert_eq!(read(&bytes[..length - 1]), Ok(None));
        }
        assert_eq!(read(&[0x80; 4]), Err(()));
    }
}
