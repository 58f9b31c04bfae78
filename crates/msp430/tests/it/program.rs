//! A small assembler: functions that return the words of one instruction, and a board with such a program.

use millrace_msp430::{Board, InfoMemory};

pub const IE2: u16 = 0x0001;
pub const IFG1: u16 = 0x0002;
pub const IFG2: u16 = 0x0003;
pub const P1OUT: u16 = 0x0021;
pub const P1DIR: u16 = 0x0022;
pub const P1SEL: u16 = 0x0026;
pub const P1SEL2: u16 = 0x0041;
pub const UCA0CTL1: u16 = 0x0061;
pub const UCA0BR0: u16 = 0x0062;
pub const UCA0MCTL: u16 = 0x0064;
pub const UCA0STAT: u16 = 0x0065;
pub const UCA0RXBUF: u16 = 0x0066;
pub const UCA0TXBUF: u16 = 0x0067;
pub const UCB0CTL0: u16 = 0x0068;
pub const UCB0CTL1: u16 = 0x0069;
pub const UCB0BR0: u16 = 0x006a;
pub const UCB0STAT: u16 = 0x006d;
pub const UCB0RXBUF: u16 = 0x006e;
pub const UCB0TXBUF: u16 = 0x006f;
pub const UCB0I2CSA: u16 = 0x011a;
pub const WDTCTL: u16 = 0x0120;
pub const TA0CTL: u16 = 0x0160;
pub const TA0CCTL0: u16 = 0x0162;
pub const TA0CCR0: u16 = 0x0172;

/// Address of the first word of [`board`]'s program.
pub const MAIN: u16 = 0xc000;

/// `mov #value, &address`
pub fn mov(value: u16, address: u16) -> Vec<u16> {
    vec![0x40b2, value, address]
}

/// `mov.b #value, &address`
pub fn mov_b(value: u16, address: u16) -> Vec<u16> {
    vec![0x40f2, value, address]
}

/// `bis.b #value, &address`
pub fn bis_b(value: u16, address: u16) -> Vec<u16> {
    vec![0xd0f2, value, address]
}

/// `bic.b #value, &address`
pub fn bic_b(value: u16, address: u16) -> Vec<u16> {
    vec![0xc0f2, value, address]
}

/// `mov.b &from, &to`
pub fn copy_b(from: u16, to: u16) -> Vec<u16> {
    vec![0x42d2, from, to]
}

/// `mov &from, &to`
pub fn copy(from: u16, to: u16) -> Vec<u16> {
    vec![0x4292, from, to]
}

/// `add #1, rN`
pub fn inc(register: u16) -> Vec<u16> {
    vec![0x5310 | register]
}

/// `bis #bits, sr`
pub fn bis_sr(bits: u16) -> Vec<u16> {
    vec![0xd032, bits]
}

/// Loops until one of the bits at an address is set.
pub fn wait_set(bits: u16, address: u16) -> Vec<u16> {
    vec![0xb0f2, bits, address, 0x27fc]
}

/// Loops until all bits at an address are clear.
pub fn wait_clear(bits: u16, address: u16) -> Vec<u16> {
    vec![0xb0f2, bits, address, 0x23fc]
}

/// `jmp $`
pub fn stop() -> Vec<u16> {
    vec![0x3fff]
}

pub fn reti() -> Vec<u16> {
    vec![0x1300]
}

/// Sets the stack, holds the watchdog and selects 1 MHz.
pub fn start() -> Vec<u16> {
    [vec![0x4031, 0x0400], mov(0x5a80, WDTCTL), calibrate()].concat()
}

/// Selects 1 MHz.
pub fn calibrate() -> Vec<u16> {
    [mov_b(0, 0x56), copy_b(0x10ff, 0x57), copy_b(0x10fe, 0x56)].concat()
}

/// Connects UART (P1.1, P1.2) and starts it with 9600 baud at 1 MHz.
pub fn start_uart() -> Vec<u16> {
    [
        bis_b(0x06, P1SEL),
        bis_b(0x06, P1SEL2),
        mov_b(0x81, UCA0CTL1),
        mov_b(104, UCA0BR0),
        mov_b(0x02, UCA0MCTL),
        mov_b(0x80, UCA0CTL1),
    ]
    .concat()
}

/// Enables the driver, connects I2C (P1.6, P1.7) and starts it with 100 kHz at 1 MHz for the slave 0x45.
pub fn start_i2c() -> Vec<u16> {
    [
        bis_b(0x20, P1OUT),
        bis_b(0x20, P1DIR),
        bis_b(0xc0, P1SEL),
        bis_b(0xc0, P1SEL2),
        mov_b(0x81, UCB0CTL1),
        mov_b(0x0f, UCB0CTL0),
        mov_b(10, UCB0BR0),
        mov(0x45, UCB0I2CSA),
        mov_b(0x80, UCB0CTL1),
    ]
    .concat()
}

fn write(board: &mut Board, address: u16, words: &[u16]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert!(board.mcu_mut().memory_mut().program(address, &bytes));
}

/// Returns a running board. `handlers` has vector addresses and the words of their interrupt handlers.
pub fn board_with(info: InfoMemory, main: &[Vec<u16>], handlers: &[(u16, Vec<u16>)]) -> Board {
    let mut board = Board::new(info);
    write(&mut board, MAIN, &main.concat());
    write(&mut board, 0xfffe, &[MAIN]);
    for (address, (vector, words)) in (0xd000..).step_by(0x100).zip(handlers) {
        write(&mut board, address, words);
        write(&mut board, *vector, &[address]);
    }
    board.power_on();
    board
}

pub fn board(main: &[Vec<u16>], handlers: &[(u16, Vec<u16>)]) -> Board {
    board_with(InfoMemory::Calibrated, main, handlers)
}
