/// Extends sequence numbers of 16 bits to 64 bits that do not wrap.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extender {
    highest: Option<u64>,
}

/// Numbers start here, so that a packet before the first one has a number, too.
const FIRST: u64 = 1 << 16;

impl Extender {
    /// Returns the extended number that is nearest to the highest one so far.
    pub fn extend(&mut self, number: u16) -> u64 {
        let Some(highest) = self.highest else {
            let first = FIRST + u64::from(number);
            self.highest = Some(first);
            return first;
        };
        let extended = nearest(highest, number);
        self.highest = Some(highest.max(extended));
        extended
    }

    pub fn highest(&self) -> Option<u64> {
        self.highest
    }
}

/// Returns the number that ends with these 16 bits and is nearest to another one.
pub(crate) fn nearest(to: u64, number: u16) -> u64 {
    let ahead = number.wrapping_sub(to as u16);
    match ahead < 1 << 15 {
        true => to + u64::from(ahead),
        false => to.saturating_sub(u64::from(ahead.wrapping_neg())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_grow_over_the_wrap_and_may_go_back() {
        let mut extender = Extender::default();
        let extended = [65_534, 65_535, 0, 65_533, 2].map(|number| extender.extend(number) - FIRST);
        assert_eq!(extended, [65_534, 65_535, 65_536, 65_533, 65_538]);
        assert_eq!(Extender::default().extend(0), FIRST);
        let mut first = Extender::default();
        assert_eq!((first.extend(0), first.extend(65_535)), (FIRST, FIRST - 1));
    }
}
