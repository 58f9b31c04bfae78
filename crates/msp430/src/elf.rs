use std::collections::BTreeMap;

use thiserror::Error;

/// A program for the MSP430 from an ELF file: loadable bytes and symbols.
///
/// The parser reads files from anywhere: every offset is checked, and memory use is at most a small multiple of the
/// file's size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elf {
    segments: Vec<Segment>,
    symbols: BTreeMap<String, u16>,
    entry: u16,
}

/// Bytes for consecutive addresses of the memory: the load address, not that of initialized data in RAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub address: u16,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ElfError {
    #[error("the file is no ELF file: it does not begin with 7f 45 4c 46")]
    NotElf,
    #[error("the ELF file is {found}; expected a 32-bit little-endian file")]
    Class { found: &'static str },
    #[error("the ELF file is for machine {machine}; expected 105 (MSP430)")]
    Machine { machine: u16 },
    #[error("{part} ends at byte {end}, but the file has {length} bytes; the file is truncated")]
    Truncated { part: &'static str, end: u64, length: usize },
    #[error("{part} has entries of {size} bytes; expected at least {expected}")]
    EntrySize { part: &'static str, size: u16, expected: u16 },
    #[error("segment at {address:#x} with {bytes} bytes is outside of the 64 KiB address space")]
    Address { address: u32, bytes: u32 },
    #[error("the segments have {bytes} bytes together; the address space has 65536")]
    TooLarge { bytes: u64 },
    #[error("the ELF file has no loadable segment; link it with a program header")]
    NoSegment,
}

impl Elf {
    const MACHINE_MSP430: u16 = 105;
    const PT_LOAD: u32 = 1;
    const SHT_SYMTAB: u32 = 2;
    /// Section index of an undefined symbol.
    const SHN_UNDEF: u16 = 0;

    /// Parses an executable file.
    ///
    /// Errors: the file is for another machine, or an offset or address is out of range. Symbols with invalid names
    /// are left out.
    /// Source: System V ABI, "Object Files"; MSP430 EABI (SLAA534).
    pub fn parse(file: &[u8]) -> Result<Self, ElfError> {
        let file = Reader(file);
        if file.0.get(..4) != Some(b"\x7fELF") {
            return Err(ElfError::NotElf);
        }
        let header = file.slice("the header", 0, 52)?;
        if header.0[4] != 1 {
            return Err(ElfError::Class { found: "not 32-bit" });
        }
        if header.0[5] != 1 {
            return Err(ElfError::Class { found: "not little-endian" });
        }
        let machine = header.half(18);
        if machine != Self::MACHINE_MSP430 {
            return Err(ElfError::Machine { machine });
        }
        let segments = Self::parse_segments(file, header)?;
        if segments.is_empty() {
            return Err(ElfError::NoSegment);
        }
        Ok(Self { segments, symbols: Self::parse_symbols(file, header)?, entry: header.word(24) as u16 })
    }

    fn parse_segments(file: Reader<'_>, header: Reader<'_>) -> Result<Vec<Segment>, ElfError> {
        let part = "the program header table";
        let mut segments = Vec::new();
        let mut total = 0_u64;
        for entry in file.table(part, header.word(28), header.half(42), header.half(44), 32)? {
            let (offset, address, bytes) = (entry.word(4), entry.word(12), entry.word(16));
            if entry.word(0) != Self::PT_LOAD || bytes == 0 {
                continue;
            }
            let start = u16::try_from(address).map_err(|_| ElfError::Address { address, bytes })?;
            if u64::from(address) + u64::from(bytes) > 0x1_0000 {
                return Err(ElfError::Address { address, bytes });
            }
            total += u64::from(bytes);
            if total > 0x1_0000 {
                return Err(ElfError::TooLarge { bytes: total });
            }
            let content = file.slice("a segment", offset, bytes)?;
            segments.push(Segment { address: start, bytes: content.0.to_vec() });
        }
        Ok(segments)
    }

    fn parse_symbols(file: Reader<'_>, header: Reader<'_>) -> Result<BTreeMap<String, u16>, ElfError> {
        let mut symbols = BTreeMap::new();
        if header.word(32) == 0 {
            return Ok(symbols);
        }
        let sections: Vec<_> =
            file.table("the section header table", header.word(32), header.half(46), header.half(48), 40)?.collect();
        // One symbol table is enough; a file with thousands of references to one table must not cost their product.
        let Some(table) = sections.iter().find(|section| section.word(4) == Self::SHT_SYMTAB) else {
            return Ok(symbols);
        };
        let Some(names) = sections.get(table.word(24) as usize) else { return Ok(symbols) };
        let names = file.slice("the table of symbol names", names.word(16), names.word(20))?;
        let table = file.slice("the symbol table", table.word(16), table.word(20))?;
        let mut named_bytes = 0;
        for symbol in table.0.as_chunks::<16>().0.iter().map(|bytes| Reader(bytes)) {
            let is_defined = symbol.half(14) != Self::SHN_UNDEF;
            if let (true, Some(name), Ok(value)) =
                (is_defined, names.string(symbol.word(0)), u16::try_from(symbol.word(4)))
            {
                named_bytes += name.len();
                // Names can overlap in the file. The bound keeps the copies below a multiple of its size.
                if named_bytes > 4 * file.0.len() {
                    break;
                }
                symbols.insert(name.to_owned(), value);
            }
        }
        Ok(symbols)
    }

    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the address or value of a symbol.
    pub fn symbol(&self, name: &str) -> Option<u16> {
        self.symbols.get(name).copied()
    }

    /// Returns all defined symbols by name.
    pub fn symbols(&self) -> &BTreeMap<String, u16> {
        &self.symbols
    }

    /// Returns the entry address. The chip ignores this address and starts at its reset vector.
    pub fn entry(&self) -> u16 {
        self.entry
    }

    /// Returns the bytes that the program occupies in flash memory, interrupt vectors included.
    pub fn flash_bytes(&self) -> usize {
        let in_flash = |segment: &&Segment| segment.address >= crate::memory::FLASH;
        self.segments.iter().filter(in_flash).map(|segment| segment.bytes.len()).sum()
    }
}

/// Little-endian fields of a part of the file.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Returns the bytes of a part, or an error if the file is shorter.
    fn slice(self, part: &'static str, offset: u32, bytes: u32) -> Result<Self, ElfError> {
        let end = u64::from(offset) + u64::from(bytes);
        let range = offset as usize..usize::try_from(end).unwrap_or(usize::MAX);
        let error = ElfError::Truncated { part, end, length: self.0.len() };
        self.0.get(range).map(Reader).ok_or(error)
    }

    /// Returns the entries of a table, each with at least `expected` bytes.
    fn table(
        self,
        part: &'static str,
        offset: u32,
        size: u16,
        count: u16,
        expected: u16,
    ) -> Result<impl Iterator<Item = Reader<'a>>, ElfError> {
        if count > 0 && size < expected {
            return Err(ElfError::EntrySize { part, size, expected });
        }
        let table = self.slice(part, offset, u32::from(size) * u32::from(count))?;
        Ok(table.0.chunks_exact(usize::from(size.max(1))).map(Reader))
    }

    /// Returns the 16 bits at an offset; 0 behind the end.
    fn half(self, at: usize) -> u16 {
        self.0.get(at..at + 2).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn word(self, at: usize) -> u32 {
        u32::from(self.half(at)) | u32::from(self.half(at + 2)) << 16
    }

    /// Returns the string up to the next zero byte; `None` if the string is empty, endless or not UTF-8.
    fn string(self, at: u32) -> Option<&'a str> {
        let bytes = self.0.get(at as usize..)?;
        let end = bytes.iter().take(Self::NAME_MAX).position(|byte| *byte == 0)?;
        std::str::from_utf8(&bytes[..end]).ok().filter(|name| !name.is_empty())
    }

    /// Longest name of a symbol in bytes. Longer ones are left out, so that a name costs bounded time.
    const NAME_MAX: usize = 1024;
}
