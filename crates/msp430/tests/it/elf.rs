//! The ELF loader with valid, damaged and hostile files.

use millrace_msp430::{Board, Elf, ElfError};

use crate::random::Random;

/// An ELF file with one segment at 0xc000, one for the reset vector, and a symbol table.
pub fn sample() -> Vec<u8> {
    let half = |value: u16| value.to_le_bytes().to_vec();
    let word = |value: u32| value.to_le_bytes().to_vec();
    let (code, vector) = (vec![0xff_u8, 0x3f], vec![0x00_u8, 0xc0]);
    let names = b"\0main\0counter\0".to_vec();
    let symbol =
        |name: u32, value: u32, section: u16| [word(name), word(value), word(0), vec![0x10, 0], half(section)].concat();
    let symbols = [symbol(0, 0, 0), symbol(1, 0xc000, 1), symbol(6, 0x0200, 2), symbol(6, 0x0300, 0)].concat();
    let (code_at, vector_at, names_at, symbols_at) = (52 + 64, 52 + 66, 52 + 68, 52 + 68 + 14);
    let sections_at = symbols_at + 64;
    let segment = |offset: u32, address: u32| {
        [word(1), word(offset), word(address), word(address), word(2), word(2), word(5), word(2)].concat()
    };
    let section = |kind: u32, offset: u32, size: u32, link: u32, entry: u32| {
        [word(0), word(kind), word(0), word(0), word(offset), word(size), word(link), word(0), word(1), word(entry)]
            .concat()
    };
    let header = [
        b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec(),
        half(2),
        half(105),
        word(1),
        word(0xc000),
        word(52),
        word(sections_at),
        word(0),
        half(52),
        half(32),
        half(2),
        half(40),
        half(3),
        half(0),
    ];
    [
        header.concat(),
        segment(code_at, 0xc000),
        segment(vector_at, 0xfffe),
        code,
        vector,
        names,
        symbols,
        section(0, 0, 0, 0, 0),
        section(2, symbols_at, 64, 2, 16),
        section(3, names_at, 14, 0, 0),
    ]
    .concat()
}

/// Returns the sample with bytes replaced.
fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = sample();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

#[test]
fn segments_and_symbols_are_read() {
    let elf = Elf::parse(&sample()).unwrap();
    assert_eq!(elf.segments().len(), 2);
    assert_eq!((elf.symbol("main"), elf.symbol("counter"), elf.symbol("other")), (Some(0xc000), Some(0x0200), None));
    assert_eq!((elf.entry(), elf.flash_bytes()), (0xc000, 4));
    let board = Board::with_program(&elf).unwrap();
    assert_eq!(board.mcu().cpu().pc(), 0xc000);
}

#[test]
fn foreign_files_are_refused() {
    assert_eq!(Elf::parse(b""), Err(ElfError::NotElf));
    assert_eq!(Elf::parse(b"MZ not an ELF file"), Err(ElfError::NotElf));
    assert!(matches!(Elf::parse(b"\x7fELF"), Err(ElfError::Truncated { .. })));
    assert!(matches!(Elf::parse(&with(4, &[2])), Err(ElfError::Class { .. })));
    assert!(matches!(Elf::parse(&with(5, &[2])), Err(ElfError::Class { .. })));
    assert_eq!(Elf::parse(&with(18, &[62, 0])), Err(ElfError::Machine { machine: 62 }));
    assert_eq!(Elf::parse(&with(44, &[0, 0])), Err(ElfError::NoSegment));
}

#[test]
fn offsets_outside_of_the_file_are_refused() {
    let huge = u32::MAX.to_le_bytes();
    // The program header table, the section header table, and the content of a segment.
    for at in [28, 32, 52 + 4] {
        let error = Elf::parse(&with(at, &huge)).unwrap_err();
        assert!(matches!(error, ElfError::Truncated { .. }), "{at}: {error}");
    }
    assert!(matches!(Elf::parse(&with(42, &[8, 0])), Err(ElfError::EntrySize { .. })));
    assert!(matches!(Elf::parse(&with(52 + 12, &huge)), Err(ElfError::Address { .. })));
    assert!(matches!(Elf::parse(&with(52 + 16, &huge)), Err(ElfError::Address { .. })));
    assert!(matches!(Elf::parse(&with(44, &[0xff, 0xff])), Err(ElfError::Truncated { .. })));
}

#[test]
fn segment_outside_of_the_memory_is_refused() {
    let elf = Elf::parse(&with(52 + 12, &0x0100_u32.to_le_bytes())).unwrap();
    let error = Board::with_program(&elf).err().unwrap();
    assert_eq!((error.address, error.bytes), (0x0100, 2));
    let elf = Elf::parse(&with(52 + 12, &0xbfff_u32.to_le_bytes())).unwrap();
    assert!(Board::with_program(&elf).is_err());
}

#[test]
fn segments_larger_than_the_address_space_are_refused() {
    // Two segments of 40000 bytes that overlap, in the file and in the memory.
    let mut file = sample();
    for at in [52, 52 + 32] {
        file[at + 4..at + 8].copy_from_slice(&52_u32.to_le_bytes());
        file[at + 12..at + 16].copy_from_slice(&0x4000_u32.to_le_bytes());
        file[at + 16..at + 20].copy_from_slice(&40_000_u32.to_le_bytes());
    }
    file.resize(50_000, 0);
    assert_eq!(Elf::parse(&file), Err(ElfError::TooLarge { bytes: 80_000 }));
}

#[test]
fn every_truncation_is_an_error() {
    let file = sample();
    for length in 0..file.len() {
        assert!(Elf::parse(&file[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn mutated_files_never_panic() {
    let mut random = Random::new(20_261_125);
    let original = sample();
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..60_000 {
        let mut file = original.clone();
        for _ in 0..1 + random.below(6) {
            match random.below(4) {
                0 => {
                    let at = random.below(file.len());
                    file[at] = random.word() as u8;
                }
                1 => {
                    let at = random.below(file.len());
                    file[at] ^= 1 << random.below(8);
                }
                2 => {
                    let at = random.below(file.len() - 3);
                    let value = random.pick(&[0_u32, 1, 0xffff, 0x1_0000, 0x7fff_ffff, u32::MAX, 40]);
                    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
                }
                _ => file.truncate(4.max(random.below(file.len()) + 4).min(file.len())),
            }
        }
        match Elf::parse(&file) {
            Ok(elf) => {
                accepted += 1;
                let bytes: usize = elf.segments().iter().map(|segment| segment.bytes.len()).sum();
                assert!(bytes <= 0x1_0000);
                let _ = Board::with_program(&elf);
            }
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
            }
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
}

#[test]
fn random_bytes_never_panic() {
    let mut random = Random::new(7);
    for _ in 0..20_000 {
        let mut file: Vec<u8> = (0..random.below(200)).map(|_| random.word() as u8).collect();
        if let Some(start) = file.get_mut(..4) {
            start.copy_from_slice(b"\x7fELF");
        }
        assert!(Elf::parse(&file).is_err());
    }
}
