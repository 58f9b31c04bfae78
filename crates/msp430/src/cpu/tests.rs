use super::*;

/// 64 KiB of memory without peripherals.
struct Flat(Vec<u8>);

impl Bus for Flat {
    fn fetch(&mut self, address: u16) -> Result<u16, FaultKind> {
        Ok(self.read(address, Width::Word))
    }

    fn read(&mut self, address: u16, width: Width) -> u16 {
        let at = usize::from(address);
        match width {
            Width::Byte => self.0[at].into(),
            Width::Word => u16::from_le_bytes([self.0[at & !1], self.0[at | 1]]),
        }
    }

    fn write(&mut self, address: u16, width: Width, value: u16) {
        let at = usize::from(address);
        self.0[at] = value as u8;
        if width == Width::Word {
            self.0[at | 1] = (value >> 8) as u8;
        }
    }
}

const ORIGIN: u16 = 0x4000;

/// A CPU with SP 0x3000 and a program at 0x4000.
fn machine(words: &[u16]) -> (Cpu, Flat) {
    let mut memory = Flat(vec![0; 0x1_0000]);
    for (at, word) in (ORIGIN..).step_by(2).zip(words) {
        memory.write(at, Width::Word, *word);
    }
    let mut cpu = Cpu::default();
    (cpu.registers[PC], cpu.registers[SP]) = (ORIGIN, 0x3000);
    (cpu, memory)
}

/// Executes one instruction with two registers; returns R5 and the flags V, N, Z, C as a string.
fn alu(word: u16, r4: u16, r5: u16, carry: bool) -> (u16, String) {
    let (mut cpu, mut memory) = machine(&[word]);
    (cpu.registers[4], cpu.registers[5], cpu.registers[SR]) = (r4, r5, u16::from(carry));
    assert_eq!(cpu.step(&mut memory), Ok(1));
    let flags = [(sr::V, 'V'), (sr::N, 'N'), (sr::Z, 'Z'), (sr::C, 'C')];
    (cpu.registers[5], flags.iter().filter(|(bit, _)| cpu.sr() & bit != 0).map(|(_, name)| name).collect())
}

fn is((value, flags): (u16, String), expected: u16, expected_flags: &str) {
    assert_eq!((value, flags.as_str()), (expected, expected_flags), "{value:#06x}");
}

// Words of the form `op R4,R5`; 0x40 more is the byte form.
const MOV: u16 = 0x4405;
const ADD: u16 = 0x5405;
const ADDC: u16 = 0x6405;
const SUBC: u16 = 0x7405;
const SUB: u16 = 0x8405;
const CMP: u16 = 0x9405;
const DADD: u16 = 0xa405;
const BIT: u16 = 0xb405;
const BIC: u16 = 0xc405;
const BIS: u16 = 0xd405;
const XOR: u16 = 0xe405;
const AND: u16 = 0xf405;
const BYTE: u16 = 0x40;

#[test]
fn add_sets_carry_and_overflow() {
    is(alu(ADD, 1, 2, true), 3, "");
    is(alu(ADD, 1, 0xffff, false), 0, "ZC");
    is(alu(ADD, 1, 0x7fff, false), 0x8000, "VN");
    is(alu(ADD, 0x8000, 0x8000, false), 0, "VZC");
    is(alu(ADDC, 0xffff, 0, true), 0, "ZC");
    is(alu(ADDC, 0x7fff, 0, true), 0x8000, "VN");
}

#[test]
fn byte_form_clears_the_high_byte_of_a_register() {
    is(alu(ADD | BYTE, 0x1201, 0x34ff, false), 0, "ZC");
    is(alu(ADD | BYTE, 0x007f, 0x1201, false), 0x80, "VN");
    is(alu(MOV | BYTE, 0x1234, 0xffff, false), 0x34, "");
    is(alu(BIS | BYTE, 0xff01, 0xff10, false), 0x11, "");
}

#[test]
fn subtraction_sets_carry_without_borrow() {
    is(alu(SUB, 1, 0x8000, false), 0x7fff, "VC");
    is(alu(SUB, 0xffff, 0x7fff, false), 0x8000, "VN");
    is(alu(SUB, 2, 1, false), 0xffff, "N");
    is(alu(SUB, 5, 5, false), 0, "ZC");
    is(alu(SUB, 0, 5, false), 5, "C");
    is(alu(SUBC, 1, 5, false), 3, "C");
    is(alu(SUBC, 0, 0, false), 0xffff, "N");
    is(alu(SUB | BYTE, 1, 0x0180, false), 0x7f, "VC");
}

#[test]
fn compare_and_bit_test_keep_the_destination() {
    is(alu(CMP, 1, 0x8000, false), 0x8000, "VC");
    is(alu(BIT, 0x8000, 0xffff, false), 0xffff, "NC");
    is(alu(BIT, 1, 2, true), 2, "Z");
}

#[test]
fn decimal_addition_carries_over_digits() {
    is(alu(DADD, 0x0001, 0x0019, false), 0x0020, "");
    is(alu(DADD, 0x0001, 0x9999, false), 0x0000, "ZC");
    is(alu(DADD, 0x0000, 0x9999, true), 0x0000, "ZC");
    is(alu(DADD, 0x4000, 0x4000, false), 0x8000, "N");
    is(alu(DADD | BYTE, 0x0099, 0x1201, false), 0x0000, "ZC");
    is(alu(DADD | BYTE, 0x0045, 0x0046, true), 0x0092, "N");
}

#[test]
fn logic_sets_carry_unless_zero() {
    is(alu(AND, 0x00ff, 0x8080, true), 0x0080, "C");
    is(alu(AND, 0xff00, 0x00ff, true), 0, "Z");
    is(alu(XOR, 0x8000, 0x8001, false), 1, "VC");
    is(alu(XOR, 0x8000, 0x0001, false), 0x8001, "NC");
    is(alu(XOR, 7, 7, true), 0, "Z");
    is(alu(BIC, 0x00ff, 0x8080, true), 0x8000, "C");
    is(alu(BIS, 0x0100, 0x0001, true), 0x0101, "C");
}

#[test]
fn rotations_shift_through_carry_and_sign() {
    is(alu(0x1005, 0, 0x0001, true), 0x8000, "NC");
    is(alu(0x1005, 0, 0x0001, false), 0, "ZC");
    is(alu(0x1045, 0, 0xff02, true), 0x0081, "N");
    is(alu(0x1105, 0, 0x8001, false), 0xc000, "NC");
    is(alu(0x1145, 0, 0x0081, false), 0x00c0, "NC");
    is(alu(0x1085, 0, 0x1234, true), 0x3412, "C");
    is(alu(0x1185, 0, 0x1280, false), 0xff80, "NC");
    is(alu(0x1185, 0, 0xff00, true), 0, "Z");
}

#[test]
fn jumps_follow_the_flags() {
    let conditions: [(u16, u16, bool); 14] = [
        (0x2001, sr::Z, false),
        (0x2001, 0, true),
        (0x2401, sr::Z, true),
        (0x2801, sr::C, false),
        (0x2c01, sr::C, true),
        (0x3001, sr::N, true),
        (0x3001, 0, false),
        (0x3401, sr::N | sr::V, true),
        (0x3401, sr::N, false),
        (0x3401, sr::V, false),
        (0x3801, sr::V, true),
        (0x3801, sr::N, true),
        (0x3801, 0, false),
        (0x3c01, 0, true),
    ];
    for (word, flags, taken) in conditions {
        let (mut cpu, mut memory) = machine(&[word]);
        cpu.registers[SR] = flags;
        assert_eq!(cpu.step(&mut memory), Ok(2));
        assert_eq!(cpu.pc(), ORIGIN + if taken { 4 } else { 2 }, "{word:#06x} with {flags:#06x}");
    }
    // The longest jumps: 511 words forward and 512 words backward, both from the next instruction.
    for (word, target) in [(0x3dff, 0x4400), (0x3e00, 0x3c02), (0x3fff, 0x4000)] {
        let (mut cpu, mut memory) = machine(&[word]);
        assert_eq!(cpu.step(&mut memory), Ok(2));
        assert_eq!(cpu.pc(), target);
    }
}

#[test]
fn addressing_modes_read_and_write_memory() {
    // mov 4(r4), r5; mov @r4+, 6(r4); mov.b @r4+, r6; mov #0x1234, &0x2100; mov &0x2100, r7; mov 0x10(pc), r8
    let program =
        [0x4415, 4, 0x44b4, 6, 0x4476, 0x40b2, 0x1234, 0x2100, 0x4217, 0x2100, 0x4018, 0x0010, 0, 0, 0, 0, 0, 0, 0, 77];
    let (mut cpu, mut memory) = machine(&program);
    cpu.registers[4] = 0x2000;
    memory.write(0x2000, Width::Word, 0xaaaa);
    memory.write(0x2002, Width::Word, 0x4455);
    memory.write(0x2004, Width::Word, 0xbbbb);
    let cycles: Vec<u32> = (0..6).map(|_| cpu.step(&mut memory).unwrap()).collect();
    assert_eq!(cycles, [3, 5, 2, 5, 3, 3]);
    assert_eq!(cpu.registers[5], 0xbbbb);
    assert_eq!(memory.read(0x2008, Width::Word), 0xaaaa);
    assert_eq!((cpu.registers[6], cpu.registers[4]), (0x55, 0x2003));
    assert_eq!(cpu.registers[7], 0x1234);
    assert_eq!(cpu.registers[8], 77);
}

#[test]
fn constant_generators_need_no_extra_word() {
    for (word, value) in
        [(0x4305, 0), (0x4315, 1), (0x4325, 2), (0x4335, 0xffff), (0x4225, 4), (0x4235, 8), (0x4375, 0x00ff)]
    {
        let (mut cpu, mut memory) = machine(&[word]);
        assert_eq!(cpu.step(&mut memory), Ok(1));
        assert_eq!((cpu.registers[5], cpu.pc()), (value, ORIGIN + 2));
    }
}

#[test]
fn cycles_follow_the_tables_of_the_family_guide() {
    // The word, up to two extension words, and its cycles. R4 is 0x2000 and points to even memory.
    let table: [(&[u16], u32); 23] = [
        (&[0x4405], 1),
        (&[0x4400], 2),
        (&[0x4485, 0], 4),
        (&[0x4425], 2),
        (&[0x4420], 2),
        (&[0x44a5, 0], 5),
        (&[0x4430], 3),
        (&[0x4035, 9], 2),
        (&[0x4030, 0x4100], 3),
        (&[0x40b2, 9, 0x2200], 5),
        (&[0x4495, 0, 0x2200], 6),
        (&[0x4310], 2),
        (&[0x1204], 3),
        (&[0x1224], 4),
        (&[0x1234], 5),
        (&[0x1230, 5], 4),
        (&[0x1214, 0], 5),
        (&[0x1284], 4),
        (&[0x12b0, 0x4100], 5),
        (&[0x1114, 0], 4),
        (&[0x1124], 3),
        (&[0x1300], 5),
        (&[0x4303], 1),
    ];
    for (words, expected) in table {
        let (mut cpu, mut memory) = machine(words);
        (cpu.registers[4], cpu.registers[5]) = (0x2000, 0x2100);
        assert_eq!(cpu.step(&mut memory), Ok(expected), "{words:#06x?}");
    }
}

#[test]
fn call_and_push_use_the_stack() {
    // call #0x4100; at 0x4100: push.b #-1; push sp; ret
    let (mut cpu, mut memory) = machine(&[0x12b0, 0x4100]);
    for (at, word) in [(0x4100, 0x1273), (0x4102, 0x1201), (0x4104, 0x5321), (0x4106, 0x5321), (0x4108, 0x4130)] {
        memory.write(at, Width::Word, word);
    }
    memory.write(0x2ffc, Width::Word, 0x5500);
    for _ in 0..3 {
        cpu.step(&mut memory).unwrap();
    }
    assert_eq!(memory.read(0x2ffe, Width::Word), ORIGIN + 4);
    assert_eq!(memory.read(0x2ffc, Width::Word), 0x55ff);
    assert_eq!(memory.read(0x2ffa, Width::Word), 0x2ffa);
    for _ in 0..3 {
        cpu.step(&mut memory).unwrap();
    }
    assert_eq!((cpu.pc(), cpu.sp()), (ORIGIN + 4, 0x3000));
}

#[test]
fn interrupt_saves_and_reti_restores_the_status() {
    let (mut cpu, mut memory) = machine(&[0x4303]);
    memory.write(0xfff0, Width::Word, 0x4200);
    memory.write(0x4200, Width::Word, 0x1300);
    cpu.registers[SR] = sr::GIE | sr::CPUOFF | sr::C;
    assert!(cpu.accepts_interrupts());
    assert_eq!(cpu.accept_interrupt(&mut memory, 0xfff0), 6);
    assert_eq!((cpu.pc(), cpu.sr(), cpu.sp()), (0x4200, 0, 0x2ffc));
    assert_eq!(cpu.step(&mut memory), Ok(5));
    assert_eq!((cpu.pc(), cpu.sr(), cpu.sp()), (ORIGIN, sr::GIE | sr::CPUOFF | sr::C, 0x3000));
}

#[test]
fn instruction_after_eint_executes_before_an_interrupt() {
    let (mut cpu, mut memory) = machine(&[0xd232, 0x4303]);
    cpu.step(&mut memory).unwrap();
    assert!(!cpu.accepts_interrupts());
    cpu.step(&mut memory).unwrap();
    assert!(cpu.accepts_interrupts());
}

#[test]
fn illegal_words_are_faults() {
    for word in [0x0000, 0x0fff, 0x1380, 0x1301, 0x1340, 0x10c5, 0x11c5, 0x12c5, 0x1400, 0x1800, 0x1fff] {
        let (mut cpu, mut memory) = machine(&[word]);
        let fault = Fault { pc: ORIGIN, kind: FaultKind::IllegalOpcode { word } };
        assert_eq!(cpu.step(&mut memory), Err(fault));
        assert_eq!(cpu.pc(), ORIGIN);
    }
}

#[test]
fn word_access_to_an_odd_address_is_a_fault() {
    for words in [[0x4425, 0], [0x4485, 1], [0x4435, 0], [0x4415, 2]] {
        let (mut cpu, mut memory) = machine(&words);
        (cpu.registers[4], cpu.registers[5]) = (0x2001, 0x2000);
        let fault = cpu.step(&mut memory).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::OddAddress { address } if address & 1 == 1), "{fault}");
    }
    let (mut cpu, mut memory) = machine(&[0x4465]);
    cpu.registers[4] = 0x2001;
    assert_eq!(cpu.step(&mut memory), Ok(2));
}
