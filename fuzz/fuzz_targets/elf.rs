//! Fuzzes the loader of firmware: any file is refused with an error or programmed. Input: an ELF file.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| millrace_msp430::fuzz::elf(data));
