//! The CPU against the simulator of mspdebug, instruction by instruction.
//!
//! Where mspdebug is not installed, each test prints that it was skipped. Not compared: V after DADD, which the family
//! guide leaves undefined; `PUSH SP`, where mspdebug pushes the old pointer and SLAU144K (figure 3-5) the new one; the
//! high byte on the stack after PUSH.B, which mspdebug 0.22 clears, and the step of `mov.b @sp+`, which it takes as 1
//! (later versions agree with this crate in both); cycles, which mspdebug does not print.

use std::{
    fmt::Write as _,
    fs::{self, File},
    path::PathBuf,
    process::{Command, Stdio},
};

use millrace_msp430::{
    CALIBRATIONS, Cpu, Elf, FaultKind,
    cpu::{self, Bus, Width},
};

use crate::{firmware, random::Random};

const PROGRAM: u16 = 0x4000;
const DATA: u16 = 0x2000;
const STACK: u16 = 0x3000;
const V: u16 = 0x0100;

/// Memory as mspdebug has it: registers of peripherals above 0x000f read as 0.
struct Flat(Vec<u8>);

impl Flat {
    fn new() -> Self {
        Self(vec![0xff; 0x1_0000])
    }

    fn load(&mut self, address: u16, bytes: &[u8]) {
        let at = usize::from(address);
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Bus for Flat {
    fn fetch(&mut self, address: u16) -> Result<u16, FaultKind> {
        let at = usize::from(address);
        Ok(u16::from_le_bytes([self.0[at & !1], self.0[at | 1]]))
    }

    fn read(&mut self, address: u16, width: Width) -> u16 {
        let at = usize::from(address);
        match width {
            _ if (0x0010..0x0200).contains(&address) => 0,
            Width::Byte => self.0[at].into(),
            Width::Word => u16::from_le_bytes([self.0[at & !1], self.0[at | 1]]),
        }
    }

    fn write(&mut self, address: u16, width: Width, value: u16) {
        let [low, high] = value.to_le_bytes();
        let at = usize::from(address);
        self.0[at] = low;
        if width == Width::Word {
            self.0[at | 1] = high;
        }
    }
}

/// Runs commands in mspdebug and returns its output. `None` if mspdebug is not installed.
fn mspdebug(name: &str, commands: &str) -> Option<String> {
    let path = scratch(&format!("{name}.commands"));
    fs::write(&path, commands).unwrap();
    let run = Command::new("mspdebug")
        .args(["-n", "-q", "sim"])
        .stdin(Stdio::from(File::open(&path).unwrap()))
        .stderr(Stdio::null())
        .output();
    match run {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(error) => {
            println!("skipped: {name}: mspdebug does not run ({error}); install it with: apt install mspdebug");
            None
        }
    }
}

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Writes segments as a TI-TXT file and returns its path.
fn ti_text(name: &str, segments: &[(u16, Vec<u8>)]) -> PathBuf {
    let mut text = String::new();
    for (address, bytes) in segments {
        writeln!(text, "@{address:04x}").unwrap();
        for row in bytes.chunks(16) {
            let row: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "{}", row.join(" ")).unwrap();
        }
    }
    text.push_str("q\n");
    let path = scratch(&format!("{name}.txt"));
    fs::write(&path, text).unwrap();
    path
}

/// Returns the registers after each command that prints them.
fn registers(output: &str) -> Vec<[u16; 16]> {
    let mut all = Vec::new();
    let mut present = [0; 16];
    for part in output.split('(').filter(|part| part.contains(')')) {
        let Some((name, value)) = part.split(')').next().and_then(|part| part.trim().split_once(": ")) else {
            continue;
        };
        let index = match name {
            "PC" => 0,
            "SP" => 1,
            "SR" => 2,
            _ => match name.strip_prefix('R').and_then(|number| number.parse::<usize>().ok()) {
                Some(number) if number < 16 => number,
                _ => continue,
            },
        };
        present[index] = u32::from_str_radix(value.trim(), 16).unwrap() as u16;
        // R15 is the last one of a listing.
        if index == 15 {
            all.push(present);
        }
    }
    all
}

/// Returns the bytes that `md` printed.
fn dump(output: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in output.lines() {
        let Some((address, rest)) = line.trim_start_matches("(mspdebug) ").trim().split_once(": ") else { continue };
        if address.len() == 5 && u32::from_str_radix(address, 16).is_ok() {
            let row = rest.split('|').next().unwrap_or("");
            bytes.extend(row.split_whitespace().filter_map(|byte| u8::from_str_radix(byte, 16).ok()));
        }
    }
    bytes
}

/// A random program. R10 and R11 point into the data; the other general registers hold data.
struct Generator {
    random: Random,
    words: Vec<u16>,
    pointers: [u16; 2],
    instructions: usize,
    /// Numbers of the instructions after which V is undefined.
    undefined_v: Vec<usize>,
}

impl Generator {
    fn new(seed: u64) -> Self {
        let mut one = Self {
            random: Random::new(seed),
            words: Vec::new(),
            pointers: [0; 2],
            instructions: 0,
            undefined_v: Vec::new(),
        };
        one.emit(&[0x4031, STACK]);
        one.emit(&[0x4302]);
        for register in 4..16 {
            let value = one.random.word();
            one.emit(&[0x4030 | register, value]);
        }
        (0..2).for_each(|pointer| one.aim(pointer));
        one
    }

    fn emit(&mut self, words: &[u16]) {
        self.words.extend(words);
        self.instructions += 1;
    }

    /// Sets a pointer to an even address in the data.
    fn aim(&mut self, pointer: usize) {
        let address = DATA + 0x80 + 2 * self.random.below(0x80) as u16;
        self.pointers[pointer] = address;
        self.emit(&[0x403a + pointer as u16, address]);
    }

    fn data_register(&mut self) -> u16 {
        self.random.pick(&[4, 5, 6, 7, 8, 9, 12, 13, 14, 15])
    }

    /// Returns an even or, for bytes, any address in the data.
    fn data_address(&mut self, byte: bool) -> u16 {
        let address = DATA + self.random.below(0x200) as u16;
        if byte { address } else { address & !1 }
    }

    /// Returns register, mode and extension word of a random source. `at` is the address of the extension word.
    fn source(&mut self, byte: bool, at: u16, writable: bool) -> (u16, u16, Option<u16>) {
        let pointer = self.random.below(2);
        if !byte && self.pointers[pointer] & 1 != 0 || self.pointers[pointer] > DATA + 0x1e0 {
            return (self.data_register(), 0, None);
        }
        let register = 10 + pointer as u16;
        let index = 2 * self.random.below(0x40) as u16;
        match self.random.below(if writable { 7 } else { 10 }) {
            0 | 1 => (self.data_register(), 0, None),
            2 => (register, 1, Some(index.wrapping_sub(0x40))),
            3 => (register, 2, None),
            4 => {
                self.pointers[pointer] += if byte { 1 } else { 2 };
                (register, 3, None)
            }
            5 => (2, 1, Some(self.data_address(byte))),
            6 => (0, 1, Some(self.data_address(byte).wrapping_sub(at))),
            7 => (0, 3, Some(self.random.word())),
            8 => (3, self.random.below(4) as u16, None),
            _ => (2, 2 + self.random.below(2) as u16, None),
        }
    }

    fn double_operand(&mut self) {
        let byte = self.random.below(2) == 1;
        // All but DADD (0xa), which needs decimal operands.
        let opcode = self.random.pick(&[4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15]);
        let here = PROGRAM + 2 * self.words.len() as u16;
        let (source, mode, extension) = self.source(byte, here + 2, false);
        let to_memory = self.random.below(3) == 0;
        let (destination, index) = match to_memory {
            true => (2, Some(self.data_address(byte))),
            false => (self.data_register(), None),
        };
        let word =
            opcode << 12 | source << 8 | u16::from(to_memory) << 7 | u16::from(byte) << 6 | mode << 4 | destination;
        let words: Vec<u16> = [Some(word), extension, index].into_iter().flatten().collect();
        self.emit(&words);
    }

    fn single_operand(&mut self) {
        // RRC, SWPB, RRA, SXT.
        let opcode = self.random.below(4) as u16;
        let byte = opcode & 1 == 0 && self.random.below(2) == 1;
        let here = PROGRAM + 2 * self.words.len() as u16;
        let (register, mode, extension) = self.source(byte, here + 2, true);
        let word = 0x1000 | opcode << 7 | u16::from(byte) << 6 | mode << 4 | register;
        let words: Vec<u16> = [Some(word), extension].into_iter().flatten().collect();
        self.emit(&words);
    }

    fn decimal(&mut self) {
        let (left, right) = (self.data_register(), self.data_register());
        for register in [left, right] {
            let digits = (0..4).fold(0, |word, _| word << 4 | self.random.below(10) as u16);
            self.emit(&[0x4030 | register, digits]);
        }
        let byte = self.random.below(2) as u16;
        self.emit(&[0xa000 | left << 8 | byte << 6 | right]);
        self.undefined_v.push(self.instructions - 1);
        self.emit(&[0xc032, V]);
    }

    fn stack(&mut self) {
        let next = |words: &Vec<u16>, skipped: usize| PROGRAM + 2 * (words.len() + skipped) as u16;
        match self.random.below(3) {
            0 => {
                let byte = self.random.below(2) == 1;
                let here = next(&self.words, 0);
                let (register, mode, extension) = self.source(byte, here + 2, false);
                let word = 0x1200 | u16::from(byte) << 6 | mode << 4 | register;
                let words: Vec<u16> = [Some(word), extension].into_iter().flatten().collect();
                self.emit(&words);
                // `mov @sp, rN` and `add #2, sp`: in mspdebug 0.22, a byte read with @sp+ adds 1.
                let register = self.data_register();
                self.emit(&[0x4120 | u16::from(byte) << 6 | register]);
                self.emit(&[0x5321]);
            }
            1 => {
                let target = next(&self.words, 2);
                self.emit(&[0x12b0, target]);
                let register = self.data_register();
                self.emit(&[0x4130 | register]);
            }
            _ => {
                let target = next(&self.words, 5);
                let flags = self.random.word() & 0x0107;
                self.emit(&[0x1230, target]);
                self.emit(&[0x1230, flags]);
                self.emit(&[0x1300]);
            }
        }
    }

    /// A conditional jump over one increment. Both are counted, since the jump may not be taken.
    fn jump(&mut self) {
        let condition = self.random.below(8) as u16;
        let register = self.data_register();
        self.emit(&[0x2001 | condition << 10]);
        self.emit(&[0x5310 | register]);
    }

    fn generate(mut self, count: usize) -> Self {
        while self.instructions < count {
            match self.random.below(12) {
                0..=5 => self.double_operand(),
                6 | 7 => self.single_operand(),
                8 => self.decimal(),
                9 => self.stack(),
                10 => self.jump(),
                _ => {
                    let pointer = self.random.below(2);
                    self.aim(pointer);
                }
            }
        }
        // The program ends with jumps to itself.
        self.words.push(0x3fff);
        self
    }
}

/// Compares a program step by step. Returns the number of compared instructions.
fn compare(name: &str, program: &Generator, data: &[u8]) -> Option<usize> {
    let code: Vec<u8> = program.words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let file = ti_text(name, &[(PROGRAM, code.clone()), (DATA, data.to_vec()), (STACK - 0x40, vec![0; 0x40])]);
    let steps = program.instructions;
    let mut commands = format!("load {}\nset pc {PROGRAM:#06x}\n", file.display());
    commands.push_str(&"step\n".repeat(steps));
    writeln!(commands, "md {DATA:#06x} {}", data.len()).unwrap();
    let output = mspdebug(name, &commands)?;
    let expected = registers(&output);
    assert_eq!(expected.len(), steps + 1, "{name}: mspdebug printed another number of steps");
    let mut memory = Flat::new();
    memory.load(PROGRAM, &code);
    memory.load(DATA, data);
    memory.load(STACK - 0x40, &[0; 0x40]);
    let mut cpu = Cpu::default();
    cpu.registers[cpu::PC] = PROGRAM;
    for (step, expected) in expected[1..].iter().enumerate() {
        let pc = cpu.pc();
        let word = memory.read(pc, Width::Word);
        cpu.step(&mut memory).unwrap();
        let (mut ours, mut theirs) = (cpu.registers, *expected);
        if word & 0xf000 == 0xa000 {
            (ours[cpu::SR], theirs[cpu::SR]) = (ours[cpu::SR] & !V, theirs[cpu::SR] & !V);
        }
        assert_eq!(ours, theirs, "{name}, step {step}: word {word:#06x} at {pc:#06x}");
    }
    let last = output.rsplit("md 0x").next().unwrap_or("");
    assert_eq!(dump(last), memory.0[usize::from(DATA)..][..data.len()], "{name}: data");
    Some(steps)
}

#[test]
fn random_programs_agree_with_mspdebug() {
    let mut total = 0;
    for seed in 1..=24 {
        let program = Generator::new(seed).generate(400);
        let mut random = Random::new(1000 + seed);
        let data: Vec<u8> = (0..0x200).map(|_| random.word() as u8).collect();
        match compare(&format!("random-{seed}"), &program, &data) {
            Some(steps) => total += steps,
            None => return,
        }
    }
    println!("{total} instructions agree with mspdebug");
}

#[test]
fn firmware_start_agrees_with_mspdebug() {
    let Some(file) = firmware::elf() else { return };
    let elf = Elf::parse(&file).unwrap();
    let mut segments: Vec<(u16, Vec<u8>)> =
        elf.segments().iter().map(|segment| (segment.address, segment.bytes.clone())).collect();
    segments.push((0x10fe, vec![CALIBRATIONS[0].dcoctl, CALIBRATIONS[0].bcsctl1]));
    segments.push((0x0200, vec![0xa5; 0x200]));
    let mut memory = Flat::new();
    for (address, bytes) in &segments {
        memory.load(*address, bytes);
    }
    // The registers of peripherals are plain memory or 0. The firmware starts, sends its first event, and sleeps.
    memory.load(0, &[0; 0x200]);
    let mut cpu = Cpu::default();
    cpu.registers[cpu::PC] = u16::from_le_bytes([memory.0[0xfffe], memory.0[0xffff]]);
    let start = cpu.pc();
    let mut trace = Vec::new();
    while !cpu.is_asleep() && trace.len() < 12_000 {
        cpu.step(&mut memory).unwrap();
        trace.push(cpu.registers);
    }
    assert!(trace.len() > 1000, "the firmware sleeps after {} instructions", trace.len());
    let path = ti_text("firmware", &segments);
    let mut commands = format!("load {}\nset pc {start:#06x}\n", path.display());
    commands.push_str(&"step\n".repeat(trace.len()));
    let Some(output) = mspdebug("firmware", &commands) else { return };
    let expected = registers(&output);
    assert_eq!(expected.len(), trace.len() + 1);
    for (step, (ours, theirs)) in trace.iter().zip(&expected[1..]).enumerate() {
        assert_eq!(ours, theirs, "step {step}");
    }
    println!("{} instructions of the firmware agree with mspdebug", trace.len());
}
