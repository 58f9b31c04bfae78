//! Entry points for fuzzing. They take any bytes; a panic is a defect.

use crate::{Board, Elf, InfoMemory, Injection, Time};

/// Parses bytes as an ELF file and programs a board with the result.
pub fn elf(data: &[u8]) {
    if let Ok(elf) = Elf::parse(data) {
        // A program that does not fit is an error of the file.
        let _ = Board::with_program(&elf);
    }
}

/// Runs bytes as a program for 3 ms, with data on the serial line and faults on the bus.
///
/// Shape: the bytes are the flash memory from 0xc000 on, at most 16 KiB; the program starts at 0xc000 with its stack in
/// RAM. The interrupt vectors are the last 32 bytes if there are that many.
pub fn program(data: &[u8]) {
    const START: [u8; 4] = [0x31, 0x40, 0x00, 0x04];
    let mut board = Board::new(InfoMemory::Calibrated);
    let code = &data[..data.len().min(0x3f00)];
    let memory = board.mcu_mut().memory_mut();
    let vectors = code.last_chunk::<32>().copied().unwrap_or([0; 32]);
    let fits = memory.program(0xc000, &START)
        && memory.program(0xc004, code)
        && memory.program(0xffe0, &vectors)
        && memory.program(0xfffe, &[0x00, 0xc0]);
    debug_assert!(fits, "16 KiB of flash memory hold the program");
    board.power_on();
    board.uart_write(&data[..data.len().min(8)]);
    let faults = [
        Injection::Nack { byte: 1, transfers: 1 },
        Injection::HoldSda { pulses: 3 },
        Injection::HoldScl { low: true },
        Injection::HoldScl { low: false },
        Injection::BrownOut { ram_lost: false },
    ];
    for fault in faults {
        // A fault of the program ends the run; the next injection then acts on a stopped chip.
        let _ = board.run_for(Time::from_us(600));
        board.inject(fault);
    }
    board.uart_read();
    board.i2c_events();
}
