/// Returns the text of a diagnostic trouble code of two bytes, such as `P0133`.
///
/// Source: SAE J2012: two bits of the system, two bits of the first digit, three hexadecimal digits.
pub fn trouble_code(code: u16) -> String {
    let system = ['P', 'C', 'B', 'U'][usize::from(code >> 14)];
    format!("{system}{}{:03X}", code >> 12 & 3, code & 0xfff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_select_system_and_digits() {
        for (code, text) in [
            (0x0133, "P0133"),
            (0xc100, "U0100"),
            (0x4123, "C0123"),
            (0x8abc, "B0ABC"),
            (0x3fff, "P3FFF"),
            (0x0000, "P0000"),
        ] {
            assert_eq!(trouble_code(code), text);
        }
    }
}
