//! Brightness levels of the lamps.
//!
//! The LED driver TCA6507 gives each of its outputs one of 16 levels, but only three outputs levels at once that are
//! neither 0 nor 15: those of PWM0, PWM1 and the master intensity. Six outputs can ask for more. Then the outputs share
//! the three levels that differ least from the wanted ones.

/// Outputs of the module: red, green and blue of LED A, then of LED B.
pub const OUTPUTS: usize = 6;
/// Ports of the driver for these outputs (`hw/led-module/README.md`). P0 is not connected.
const PORTS: [usize; OUTPUTS] = [3, 2, 1, 4, 5, 6];
/// Highest level.
pub const LEVEL_MAX: u8 = 15;

/// Select states of the driver (SCPS164, section 8.6.1).
const OFF: u8 = 0;
const PWM0: u8 = 2;
const PWM1: u8 = 3;
const FULLY_ON: u8 = 4;
const MASTER: u8 = 5;
const BLINK0: u8 = 6;

/// Settings of the driver, and the levels that the outputs get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Select registers 0 to 2.
    pub select: [u8; 3],
    /// Levels of PWM0 and PWM1.
    pub pwm: [u8; 2],
    pub master: u8,
    pub given: [u8; OUTPUTS],
}

/// Allocates the levels of the driver. `wanted` has levels from 0 to 15; outputs with `blinks` blink with BANK0.
///
/// All blinking outputs share the level of PWM0, the highest wanted one. An output with level 0 stays dark, all others
/// are lit.
pub fn allocate(wanted: [u8; OUTPUTS], blinks: [bool; OUTPUTS]) -> Allocation {
    let wanted = wanted.map(|level| level.min(LEVEL_MAX));
    let is_blinking = |output: usize| blinks[output] && wanted[output] > 0;
    let blinking = (0..OUTPUTS).filter(|output| is_blinking(*output)).map(|output| wanted[output]).max();
    let steady: Vec<u8> = (0..OUTPUTS).filter(|output| !is_blinking(*output)).map(|output| wanted[output]).collect();
    let banks: &[u8] = if blinking.is_some() { &[PWM1, MASTER] } else { &[PWM0, PWM1, MASTER] };
    let levels = shared_levels(&steady, banks.len());
    // Unused levels keep the value after a reset.
    let level_of = |state: u8| {
        let place = banks.iter().position(|bank| *bank == state);
        place.and_then(|place| levels.get(place)).copied().unwrap_or(LEVEL_MAX)
    };
    let mut allocation = Allocation {
        select: [0; 3],
        pwm: [blinking.unwrap_or_else(|| level_of(PWM0)), level_of(PWM1)],
        master: level_of(MASTER),
        given: [0; OUTPUTS],
    };
    for output in 0..OUTPUTS {
        let (state, given) = match (wanted[output], blinking) {
            (0, _) => (OFF, 0),
            (_, Some(level)) if is_blinking(output) => (BLINK0, level),
            (level, _) => {
                let given = nearest(level, &levels);
                let bank = levels.iter().position(|level| *level == given).map(|place| banks[place]);
                (bank.unwrap_or(FULLY_ON), given)
            }
        };
        allocation.given[output] = given;
        for (bit, register) in allocation.select.iter_mut().enumerate() {
            *register |= (state >> bit & 1) << PORTS[output];
        }
    }
    allocation
}

/// Returns at most `count` levels between 1 and 14 that are nearest to the steady levels in sum.
fn shared_levels(steady: &[u8], count: usize) -> Vec<u8> {
    let mut wanted: Vec<u8> = steady.iter().copied().filter(|level| (1..LEVEL_MAX).contains(level)).collect();
    let all = wanted.clone();
    wanted.sort_unstable();
    wanted.dedup();
    // At most six levels, so at most 64 subsets. The best levels are among the wanted ones, as for every median.
    let subsets = (0..1_u32 << wanted.len()).filter(|subset| subset.count_ones() as usize == count.min(wanted.len()));
    let levels = |subset: u32| -> Vec<u8> {
        (0..wanted.len()).filter(|place| subset >> place & 1 != 0).map(|place| wanted[place]).collect()
    };
    let error = |subset: &u32| -> u32 {
        let levels = levels(*subset);
        all.iter().map(|level| u32::from(level.abs_diff(nearest(*level, &levels)))).sum()
    };
    subsets.min_by_key(error).map(levels).unwrap_or_default()
}

/// Returns the nearest of these levels and of the highest one.
fn nearest(level: u8, levels: &[u8]) -> u8 {
    levels.iter().copied().chain([LEVEL_MAX]).min_by_key(|other| level.abs_diff(*other)).unwrap_or(LEVEL_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady(wanted: [u8; OUTPUTS]) -> Allocation {
        allocate(wanted, [false; OUTPUTS])
    }

    #[test]
    fn three_levels_beside_off_and_on_are_exact() {
        let allocation = steady([15, 8, 0, 3, 12, 8]);
        assert_eq!(allocation.given, [15, 8, 0, 3, 12, 8]);
        assert_eq!((allocation.pwm, allocation.master), ([3, 8], 12));
        // P3 fully on (4), P2 and P6 PWM1 (3), P4 PWM0 (2), P5 master (5).
        assert_eq!(allocation.select, [0b110_0100, 0b101_0100, 0b010_1000]);
    }

    #[test]
    fn more_levels_share_the_nearest() {
        let allocation = steady([1, 2, 6, 7, 13, 14]);
        let errors: u32 = (0..OUTPUTS).map(|i| u32::from(allocation.given[i].abs_diff([1, 2, 6, 7, 13, 14][i]))).sum();
        assert_eq!(errors, 3, "{allocation:?}");
    }

    #[test]
    fn dark_outputs_stay_dark_and_others_are_lit() {
        for seed in 0..10_000_u32 {
            let wanted =
                std::array::from_fn(|i| (seed.wrapping_mul(2_654_435_761).rotate_left(4 * i as u32) & 15) as u8);
            let blinks = std::array::from_fn(|i| seed >> i & 1 != 0);
            let allocation = allocate(wanted, blinks);
            assert!((0..OUTPUTS).all(|i| (wanted[i] == 0) == (allocation.given[i] == 0)), "{wanted:?}: {allocation:?}");
            assert!(allocation.select.iter().all(|register| register & 0x81 == 0), "P0 and bit 7 are unused");
            let mut levels: Vec<_> =
                allocation.given.into_iter().filter(|level| (1..LEVEL_MAX).contains(level)).collect();
            levels.sort_unstable();
            levels.dedup();
            assert!(levels.len() <= 3, "{allocation:?}");
        }
    }

    #[test]
    fn blinking_outputs_share_the_highest_level() {
        let allocation = allocate([10, 4, 0, 6, 7, 8], [true, true, true, false, false, false]);
        assert_eq!(allocation.given[..3], [10, 10, 0]);
        assert_eq!(allocation.pwm[0], 10);
        assert_eq!(allocation.select[2] & 0b1110, 0b1100, "P3 and P2 have state 6");
        // Two levels are left for 6, 7 and 8.
        assert_eq!(allocation.given[3..].iter().map(|level| u32::from(*level)).sum::<u32>().abs_diff(21), 1);
    }
}
