//! Frames of a CAN bus, as `candump` writes them.

/// Parses a frame with at most 8 bytes, in one of the two forms of `candump`: `(1436509052.249) can0 7E8#03410D32`, or
/// `can0  7E8   [8]  03 41 0D 32 00 00 00 00`. Returns its id and its data; `None` if the line is something else.
pub fn parse(line: &str) -> Option<(u32, Vec<u8>)> {
    if let Some((before, data)) = line.split_once('#') {
        let id = before.split_ascii_whitespace().next_back()?;
        return Some((id_of(id)?, bytes(data.trim())?));
    }
    let (before, after) = line.split_once('[')?;
    let id = before.split_ascii_whitespace().next_back()?;
    let (length, data) = after.split_once(']')?;
    let data = bytes(&data.split_ascii_whitespace().collect::<String>())?;
    (length.trim().parse() == Ok(data.len())).then_some((id_of(id)?, data))
}

fn id_of(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok().filter(|id| *id < 1 << 29)
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    hex(digits).filter(|data| data.len() <= 8)
}

/// Decodes pairs of hexadecimal digits.
pub fn hex(digits: &str) -> Option<Vec<u8>> {
    if digits.is_empty() || !digits.len().is_multiple_of(2) || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let pair = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).ok();
    (0..digits.len()).step_by(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_candump_are_parsed() {
        let frame = Some((0x7e8, vec![0x03, 0x41, 0x0d, 0x32]));
        assert_eq!(parse("(1436509052.249713) can0 7E8#03410D32"), frame);
        assert_eq!(parse("7E8#03410D32"), frame);
        assert_eq!(parse("  can0  7E8   [4]  03 41 0D 32"), frame);
        assert_eq!(parse("can0 18DAF110#03410D32").map(|(id, _)| id), Some(0x18da_f110));
        for other in [
            "41 0D 32",
            "7E8#",
            "7E8#0",
            "7E8#001122334455667788",
            "7E8#R",
            "x#00",
            "20000000#00",
            "7E8 [3] 00",
            "#",
            "[",
            "é#é",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
