//! Cycles per instruction (SLAU144K, 3.4.4, tables 3-14 to 3-16).

use super::register::{CG, PC, SR};

pub const JUMP: u32 = 2;
pub const RETI: u32 = 5;

/// Kind of a source operand in the tables.
enum Source {
    /// A register or a constant of a constant generator.
    Register,
    Indirect,
    Increment,
    Immediate,
    /// Indexed, symbolic or absolute.
    Indexed,
}

fn source(mode: u16, register: usize) -> Source {
    match (mode, register) {
        (0, _) | (_, CG) | (2 | 3, SR) => Source::Register,
        (1, _) => Source::Indexed,
        (2, _) => Source::Indirect,
        (_, PC) => Source::Immediate,
        _ => Source::Increment,
    }
}

pub fn double(mode: u16, register: usize, to_memory: bool, destination: usize) -> u32 {
    let to_pc = !to_memory && destination == PC;
    let base = match source(mode, register) {
        Source::Register => 1 + u32::from(to_pc),
        Source::Indirect => 2,
        Source::Increment | Source::Immediate => 2 + u32::from(to_pc),
        Source::Indexed => 3,
    };
    base + if to_memory { 3 } else { 0 }
}

/// Shape: `opcode` is the three-bit number of the instruction: 4 is PUSH, 5 is CALL, below 4 are rotations.
pub fn single(opcode: u16, mode: u16, register: usize) -> u32 {
    let source = source(mode, register);
    match (opcode, source) {
        (4, Source::Register) => 3,
        (4, Source::Indirect | Source::Immediate) => 4,
        (4, _) => 5,
        (5, Source::Register | Source::Indirect) => 4,
        (5, _) => 5,
        (_, Source::Register) => 1,
        (_, Source::Indexed) => 4,
        _ => 3,
    }
}
