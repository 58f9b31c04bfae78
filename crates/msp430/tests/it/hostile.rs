//! Programs of random bytes: the simulator must stop with a fault or continue, and never panic.

use millrace_msp430::fuzz;

use crate::random::Random;

#[test]
fn random_programs_never_panic() {
    let mut random = Random::new(430);
    for _ in 0..400 {
        let bytes: Vec<u8> = (0..600).map(|_| random.word() as u8).collect();
        fuzz::program(&bytes);
    }
}

/// Instructions that write random values to random registers of peripherals, and read them.
#[test]
fn random_register_accesses_never_panic() {
    let mut random = Random::new(2553);
    for _ in 0..300 {
        let mut words = Vec::new();
        for _ in 0..60 {
            let address = random.below(0x200) as u16;
            match random.below(6) {
                // mov.b, mov, bis.b and xor.b with an immediate value; the last two also read.
                0 => words.extend([0x40f2, random.word(), address]),
                1 => words.extend([0x40b2, random.word(), address & !1]),
                2 => words.extend([0xd0f2, random.word(), address]),
                3 => words.extend([0xe0f2, random.word(), address]),
                // Interrupts on, now and then with the CPU off.
                4 => words.extend([0xd032, random.pick(&[0x08, 0x18, 0x58, 0xd8])]),
                // A watchdog that is held lets the program continue.
                _ => words.extend([0x40b2, 0x5a00 | random.word() & 0xff, 0x0120]),
            }
        }
        words.push(0x3fff);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        fuzz::program(&bytes);
    }
}
