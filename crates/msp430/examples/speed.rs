//! Prints how many seconds of the LED module one second of a processor simulates.
//!
//! `cargo run --release -p millrace-msp430 --example speed -- target/firmware/led-module-msp430.elf`

use std::{env, error::Error, fs};

use millrace_msp430::{Board, Elf, Time};

/// A program that never sleeps: it increments a register and jumps back.
const BUSY: [u8; 14] = [0x31, 0x40, 0x00, 0x04, 0xb2, 0x40, 0x80, 0x5a, 0x20, 0x01, 0x15, 0x53, 0xfe, 0x3f];

fn main() -> Result<(), Box<dyn Error>> {
    let mut busy = Board::new(Default::default());
    assert!(busy.mcu_mut().memory_mut().program(0xc000, &BUSY));
    assert!(busy.mcu_mut().memory_mut().program(0xfffe, &[0x00, 0xc0]));
    busy.power_on();
    report("endless loop without sleep", &mut busy, |_, _| {})?;
    let Some(path) = env::args().nth(1) else {
        eprintln!("usage: speed ELF; without the file of a firmware, only the endless loop is measured");
        return Ok(());
    };
    let elf = Elf::parse(&fs::read(path)?)?;
    report("firmware, idle", &mut Board::with_program(&elf)?, |_, _| {})?;
    let mut board = Board::with_program(&elf)?;
    report("firmware, a command every 40 ms", &mut board, |board, round| {
        let text = format!("{:02x} w 08 {:02x}", round % 256, round % 256);
        board.uart_write(format!("{text}*{:04x}\n", crc(text.as_bytes())).as_bytes());
    })?;
    println!("  replies: {}", board.uart_read().iter().filter(|byte| **byte == b'\n').count());
    Ok(())
}

/// Runs ten simulated seconds in steps of 40 ms and prints the rate.
fn report(name: &str, board: &mut Board, step: impl Fn(&mut Board, u64)) -> Result<(), Box<dyn Error>> {
    let before = cpu_seconds()?;
    for round in 0..250 {
        step(board, round);
        board.run_for(Time::from_ms(40))?;
    }
    let (simulated, used) = (board.now().as_secs_f64(), cpu_seconds()? - before);
    println!(
        "{name}: {:.0} simulated seconds per CPU second ({:.2} % of a core in real time)",
        simulated / used,
        100.0 * used / simulated
    );
    Ok(())
}

/// Returns the processor time of this process: the first number of schedstat, in nanoseconds.
fn cpu_seconds() -> Result<f64, Box<dyn Error>> {
    let text = fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds: f64 = text.split_whitespace().next().ok_or("schedstat is empty")?.parse()?;
    Ok(nanoseconds / 1e9)
}

/// CRC-16/CCITT-FALSE.
fn crc(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0xffff, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| crc << 1 ^ if crc & 0x8000 != 0 { 0x1021 } else { 0 })
    })
}
