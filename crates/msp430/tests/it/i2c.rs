//! USCI_B0, the wires and the driver with small programs that poll.

use millrace_msp430::{Board, I2cEventKind, Injection, Time};

use crate::program::*;

const TXIFG: u16 = 0x08;
const RXIFG: u16 = 0x04;
const TXSTT: u16 = 0x02;
const TXSTP: u16 = 0x04;
const NACKIFG: u16 = 0x08;

/// Sends bytes with START and STOP.
fn transmit(bytes: &[u8]) -> Vec<u16> {
    let send = bytes.iter().map(|byte| [wait_set(TXIFG, IFG2), mov_b(u16::from(*byte), UCB0TXBUF)].concat());
    [mov_b(0x92, UCB0CTL1), send.collect::<Vec<_>>().concat(), wait_set(TXIFG, IFG2), end()].concat()
}

/// Requests STOP and waits for its end.
fn end() -> Vec<u16> {
    [bis_b(TXSTP, UCB0CTL1), bic_b(TXIFG, IFG2), wait_clear(TXSTP, UCB0CTL1)].concat()
}

/// Marks that the program has come this far.
fn done() -> Vec<u16> {
    [mov(0x600d, 0x0200), stop()].concat()
}

fn is_done(board: &Board) -> bool {
    board.mcu().memory().peek_word(0x0200) == Some(0x600d)
}

fn run(main: &[Vec<u16>]) -> Board {
    let mut board = board(&[&[start(), start_i2c()], main].concat(), &[]);
    board.run_for(Time::from_ms(5)).unwrap();
    board
}

fn kinds(board: &mut Board) -> Vec<I2cEventKind> {
    board.i2c_events().iter().map(|event| event.kind).collect()
}

use I2cEventKind::{RepeatedStart, Start, Stop};

fn address(read: bool, ack: bool) -> I2cEventKind {
    I2cEventKind::Address { address: 0x45, read, ack }
}

fn byte(byte: u8) -> I2cEventKind {
    I2cEventKind::Byte { byte, ack: true }
}

#[test]
fn transfer_has_100_khz_and_all_bytes() {
    let mut board = run(&[transmit(&[0x08, 0xa5]), done()]);
    assert!(is_done(&board));
    let events = board.i2c_events();
    let seen: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(seen, [Start, address(false, true), byte(0x08), byte(0xa5), Stop]);
    let ten_us = Time::from_us(10);
    assert_eq!(board.wiring().bus.monitor().bit_time(), Some((ten_us, ten_us)));
    // Half a period after the START, nine bits; the byte is complete at the rising edge of the ninth.
    let times: Vec<u64> = events.iter().map(|event| (event.time - events[0].time).as_us()).collect();
    assert_eq!(times, [0, 90, 180, 270, 285]);
    assert_eq!(board.driver().unwrap().registers()[8], 0xa5);
}

#[test]
fn sixteen_registers_wrap_in_one_transfer() {
    let bytes: Vec<u8> = [0x10].into_iter().chain(1..=13).collect();
    let board = run(&[transmit(&bytes), done()]);
    assert_eq!(board.driver().unwrap().registers(), &[12, 13, 3, 4, 5, 6, 7, 8, 9, 10, 0]);
}

#[test]
fn slow_software_stretches_the_clock() {
    // The second byte comes a thousand cycles late: the master holds SCL low meanwhile.
    let delay = vec![0x4036, 250, 0x8316, 0x23fe, 0x4303];
    let main = [
        mov_b(0x92, UCB0CTL1),
        wait_set(TXIFG, IFG2),
        mov_b(0x08, UCB0TXBUF),
        wait_set(TXIFG, IFG2),
        delay,
        copy_b(UCB0STAT, 0x0202),
        mov_b(0x77, UCB0TXBUF),
        wait_set(TXIFG, IFG2),
        end(),
        done(),
    ];
    let mut board = run(&main);
    assert!(is_done(&board));
    assert_eq!(kinds(&mut board), [Start, address(false, true), byte(0x08), byte(0x77), Stop]);
    assert_eq!(board.mcu().memory().peek(0x0202), Some(0x50), "UCSCLLOW and UCBBUSY");
}

#[test]
fn late_first_byte_stretches_the_address() {
    // The old byte in UCB0TXBUF must not be sent.
    let delay = vec![0x4036, 250, 0x8316, 0x23fe, 0x4303];
    let main = [
        transmit(&[0x08, 0x11]),
        mov_b(0x92, UCB0CTL1),
        delay,
        mov_b(0x07, UCB0TXBUF),
        wait_set(TXIFG, IFG2),
        mov_b(0x22, UCB0TXBUF),
        wait_set(TXIFG, IFG2),
        end(),
        done(),
    ];
    let mut board = run(&main);
    assert!(is_done(&board));
    assert_eq!(kinds(&mut board)[5..], [Start, address(false, true), byte(0x07), byte(0x22), Stop]);
}

#[test]
fn nack_clears_the_transmit_flag() {
    // UCTXSTP is set while the byte is on the bus, and UCB0TXIFG is not cleared by software.
    let main = [
        start(),
        start_i2c(),
        mov_b(0x92, UCB0CTL1),
        wait_set(TXIFG, IFG2),
        mov_b(0x08, UCB0TXBUF),
        wait_set(TXIFG, IFG2),
        bis_b(TXSTP, UCB0CTL1),
        copy_b(IFG2, 0x0202),
        wait_set(NACKIFG, UCB0STAT),
        copy_b(IFG2, 0x0203),
        wait_clear(TXSTP, UCB0CTL1),
        done(),
    ];
    let mut board = board(&main, &[]);
    board.inject(Injection::Nack { byte: 1, transfers: 1 });
    board.run_for(Time::from_ms(5)).unwrap();
    assert!(is_done(&board));
    let flag = |at: u16| board.mcu().memory().peek(at).unwrap() & TXIFG as u8;
    assert_eq!((flag(0x0202), flag(0x0203)), (TXIFG as u8, 0));
}

#[test]
fn stop_after_the_address_sends_no_data() {
    let main = [mov_b(0x92, UCB0CTL1), bis_b(TXSTP, UCB0CTL1), wait_clear(TXSTP, UCB0CTL1), done()];
    let mut board = run(&main);
    assert_eq!(kinds(&mut board), [Start, address(false, true), Stop]);
}

#[test]
fn repeated_start_reads_a_register() {
    let read = [
        mov_b(0x92, UCB0CTL1),
        wait_set(TXIFG, IFG2),
        mov_b(0x13, UCB0TXBUF),
        wait_set(TXIFG, IFG2),
        // Repeated START as receiver, then two bytes; STOP is requested during the second.
        mov_b(0x82, UCB0CTL1),
        wait_clear(TXSTT, UCB0CTL1),
        wait_set(RXIFG, IFG2),
        copy_b(UCB0RXBUF, 0x0202),
        bis_b(TXSTP, UCB0CTL1),
        wait_set(RXIFG, IFG2),
        copy_b(UCB0RXBUF, 0x0203),
        wait_clear(TXSTP, UCB0CTL1),
    ]
    .concat();
    let mut board = run(&[transmit(&[0x13, 0x12, 0x34]), read, done()]);
    assert!(is_done(&board));
    assert_eq!(board.mcu().memory().peek_word(0x0202), Some(0x3412));
    let last = I2cEventKind::Byte { byte: 0x34, ack: false };
    let expected =
        [Start, address(false, true), byte(0x13), RepeatedStart, address(true, true), byte(0x12), last, Stop];
    assert_eq!(kinds(&mut board)[6..], expected);
}

#[test]
fn missing_slave_is_a_nack() {
    let main = [
        mov_b(0x92, UCB0CTL1),
        wait_set(TXIFG, IFG2),
        mov_b(0x08, UCB0TXBUF),
        wait_set(NACKIFG, UCB0STAT),
        bis_b(TXSTP, UCB0CTL1),
        wait_clear(TXSTP, UCB0CTL1),
        copy_b(UCB0STAT, 0x0203),
        done(),
    ];
    let mut board = board(&[&[start(), start_i2c(), bic_b(0x20, P1OUT)], &main[..]].concat(), &[]);
    board.run_for(Time::from_ms(5)).unwrap();
    assert!(is_done(&board));
    assert_eq!(kinds(&mut board), [Start, address(false, false), Stop]);
    assert_eq!(board.mcu().memory().peek(0x0203), Some(NACKIFG as u8));
}

#[test]
fn injected_nack_hits_the_chosen_byte() {
    let mut board = board(&[start(), start_i2c(), transmit(&[0x08, 0x11]), done()], &[]);
    board.inject(Injection::Nack { byte: 2, transfers: 1 });
    board.run_for(Time::from_ms(5)).unwrap();
    let refused = I2cEventKind::Byte { byte: 0x11, ack: false };
    assert_eq!(kinds(&mut board), [Start, address(false, true), byte(0x08), refused, Stop]);
    assert_eq!(board.driver().unwrap().registers()[8], 0xff);
}

#[test]
fn held_wires_prevent_the_start() {
    for injection in [Injection::HoldSda { pulses: 9 }, Injection::HoldScl { low: true }] {
        let mut board = board(&[start(), start_i2c(), transmit(&[0x08, 0x11]), done()], &[]);
        board.inject(injection);
        board.run_for(Time::from_ms(50)).unwrap();
        assert!(!is_done(&board));
        assert_eq!(kinds(&mut board), []);
        if injection == (Injection::HoldScl { low: true }) {
            board.inject(Injection::HoldScl { low: false });
            board.run_for(Time::from_ms(5)).unwrap();
            assert!(is_done(&board));
            assert_eq!(kinds(&mut board).len(), 5);
        }
    }
}

#[test]
fn nine_clock_pulses_free_a_stuck_slave() {
    // SCL as output, nine pulses on P1DIR with P1OUT 0, then STOP by SDA, then a transfer.
    let low = |bits: u16| bis_b(bits, P1DIR);
    let high = |bits: u16| bic_b(bits, P1DIR);
    let pulse = [low(0x40), high(0x40)].concat();
    let pulses: Vec<u16> = std::iter::repeat_n(pulse, 9).flatten().collect();
    let stop_condition = [low(0x40), low(0x80), high(0x40), high(0x80)].concat();
    let main = [start(), pulses, stop_condition, copy_b(0x20, 0x0202), start_i2c(), transmit(&[0x08, 0x11]), done()];
    let mut board = board(&main, &[]);
    board.inject(Injection::HoldSda { pulses: 9 });
    board.run_for(Time::from_ms(10)).unwrap();
    assert!(is_done(&board));
    assert!(board.wiring().bus.monitor().idle_clocks() >= 9);
    assert_eq!(board.mcu().memory().peek(0x0202).map(|levels| levels & 0xc0), Some(0xc0));
    assert_eq!(kinds(&mut board), [Start, address(false, true), byte(0x08), byte(0x11), Stop]);
}

#[test]
fn cut_read_leaves_the_slave_on_the_bus() {
    // The register 0x00 is 0: the driver sends eight low bits. The program resets USCI in the middle of the byte.
    let cut = [
        mov_b(0x92, UCB0CTL1),
        wait_set(TXIFG, IFG2),
        mov_b(0x00, UCB0TXBUF),
        wait_set(TXIFG, IFG2),
        mov_b(0x82, UCB0CTL1),
        wait_clear(TXSTT, UCB0CTL1),
        vec![0x4303; 25],
        mov_b(0x81, UCB0CTL1),
        done(),
    ];
    let board = run(&cut);
    assert!(is_done(&board));
    let levels = board.wiring().bus.levels();
    assert!(levels.scl && !levels.sda);
}

#[test]
fn enable_pin_resets_the_driver() {
    let main = [transmit(&[0x02, 0x7f]), bic_b(0x20, P1OUT), bis_b(0x20, P1OUT), done()];
    let board = run(&main);
    assert!(is_done(&board));
    assert_eq!(board.driver().unwrap().registers()[2], 0);
}

#[test]
fn unplugged_module_does_not_acknowledge() {
    let mut board = board(&[start(), start_i2c(), transmit(&[0x02, 0x7f]), done()], &[]);
    board.inject(Injection::Disconnect { disconnected: true });
    board.run_for(Time::from_ms(5)).unwrap();
    assert_eq!(kinds(&mut board), [Start, address(false, false)]);
    assert!(!is_done(&board));
}
