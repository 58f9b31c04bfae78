//! Each peripheral with a small program.

use millrace_msp430::{
    Board, Fault, FaultKind, InfoMemory, Injection, LightSensor, ResetCause, SensorState, Time, ViolationKind,
};

use crate::program::*;

const GIE: u16 = 0x08;
const LPM0: u16 = 0x10 | GIE;
const LPM3: u16 = 0xd0 | GIE;

fn register(board: &Board, number: usize) -> u16 {
    board.mcu().cpu().registers[number]
}

fn run(board: &mut Board, ms: u64) {
    board.run_for(Time::from_ms(ms)).unwrap();
}

/// Counts timer interrupts in R5 and sleeps otherwise. `control` is TA0CTL.
fn tick_counter(control: u16, period: u16, sleep: u16) -> Board {
    let main = [
        start(),
        mov_b(0x20, 0x53),
        vec![0x4305],
        mov(period - 1, TA0CCR0),
        mov(0x0010, TA0CCTL0),
        mov(control, TA0CTL),
        bis_sr(sleep),
        stop(),
    ];
    board(&main, &[(0xfff2, [inc(5), reti()].concat())])
}

#[test]
fn timer_wakes_the_cpu_every_10_ms() {
    let mut board = tick_counter(0x0214, 10_000, LPM0);
    run(&mut board, 1005);
    assert_eq!(register(&board, 5), 100);
    // Interrupt 6, increment 1, return 5 cycles; the rest of the second is sleep.
    let active = board.mcu().active_cycles();
    assert!((1200..1400).contains(&active), "{active} cycles");
}

#[test]
fn deep_sleep_stops_smclk_but_not_aclk() {
    let mut from_smclk = tick_counter(0x0214, 10_000, LPM3);
    run(&mut from_smclk, 1000);
    assert_eq!(register(&from_smclk, 5), 0);
    let mut from_aclk = tick_counter(0x0114, 120, LPM3);
    run(&mut from_aclk, 1005);
    assert_eq!(register(&from_aclk, 5), 100);
}

#[test]
fn watchdog_resets_a_program_that_hangs() {
    let main = [vec![0x4031, 0x0400], calibrate(), copy_b(IFG1, 0x0200), mov(0x5a08, WDTCTL), stop()];
    let mut board = board(&main, &[]);
    run(&mut board, 100);
    let causes: Vec<_> = board.mcu().resets().iter().map(|reset| reset.cause).collect();
    use ResetCause::{PowerOn, Watchdog};
    assert_eq!(causes, [PowerOn, Watchdog, Watchdog, Watchdog]);
    let resets = board.mcu().resets();
    let period = resets[2].time - resets[1].time;
    assert!((32_768..32_850).contains(&period.as_us()), "{period}");
    // WDTIFG, OFIFG and PORIFG: only software and power-on clear the causes.
    assert_eq!(board.mcu().memory().peek(0x0200), Some(0x07));
}

#[test]
fn wrong_password_resets_the_chip() {
    let mut board = board(&[vec![0x4031, 0x0400], mov(0x1234, WDTCTL), stop()], &[]);
    board.run_for(Time::from_us(100)).unwrap();
    assert!(board.mcu().resets()[1..].iter().all(|reset| reset.cause == ResetCause::WatchdogPassword));
    assert!(board.mcu().resets().len() > 2);
}

#[test]
fn uart_echoes_bytes_at_9600_baud() {
    let main = [start(), start_uart(), bis_b(1, IE2), bis_sr(LPM0), stop()];
    let mut board = board(&main, &[(0xffee, [copy_b(UCA0RXBUF, UCA0TXBUF), reti()].concat())]);
    run(&mut board, 1);
    let text: Vec<u8> = (0..=255).collect();
    let end = board.uart_write(&text);
    assert_eq!((end - board.now()).as_ms(), 266);
    board.run_until(end + Time::from_ms(2)).unwrap();
    assert_eq!(board.uart_read(), text);
    assert_eq!(board.framing_errors(), 0);
}

#[test]
fn uncalibrated_clock_garbles_bytes() {
    let main = [vec![0x4031, 0x0400], mov(0x5a80, WDTCTL), start_uart(), bis_b(1, IE2), bis_sr(LPM0), stop()];
    let mut board = board(&main, &[(0xffee, [copy_b(UCA0RXBUF, UCA0TXBUF), reti()].concat())]);
    run(&mut board, 1);
    let end = board.uart_write(b"\x55\xaa\x33\xcc");
    board.run_until(end + Time::from_ms(2)).unwrap();
    assert_ne!(board.uart_read(), b"\x55\xaa\x33\xcc");
}

#[test]
fn break_sets_the_error_flags() {
    let mut board = board(&[start(), start_uart(), stop()], &[]);
    run(&mut board, 1);
    board.uart_write_levels(0, &[Board::HOST_BIT_PS; 12]);
    run(&mut board, 3);
    let stat = board.mcu().peek(UCA0STAT);
    assert_eq!(stat & 0x4c, 0x4c, "FE, BRK and RXERR in {stat:#04x}");
    assert_eq!(board.mcu().peek(IFG2) & 1, 0);
}

#[test]
fn overrun_is_reported() {
    let mut board = board(&[start(), start_uart(), stop()], &[]);
    run(&mut board, 1);
    board.uart_write(b"ab");
    run(&mut board, 3);
    assert_eq!((board.mcu().peek(UCA0STAT) & 0x24, board.mcu().peek(UCA0RXBUF)), (0x24, b'b'));
}

/// Converts A4 once a millisecond and stores the result at 0x0200.
fn light_meter() -> Board {
    let convert = [mov(0x1813, 0x01b0), wait_set(0x04, 0x01b0), copy(0x01b4, 0x0200), vec![0x3ff5]].concat();
    assert_eq!(convert.len(), 11);
    board(&[start(), mov_b(0x10, 0x4a), mov(0x4000, 0x01b2), convert], &[])
}

#[test]
fn adc_measures_the_light_sensor() {
    let mut board = light_meter();
    let mut measure = |sensor: LightSensor| {
        *board.sensor_mut() = sensor;
        run(&mut board, 1);
        board.mcu().memory().peek_word(0x0200)
    };
    let sensor = LightSensor::default();
    // 2 V per unit of light and a reference of 3.3 V.
    assert_eq!(measure(LightSensor { ambient: 0.5, ..sensor }), Some(310));
    assert_eq!(measure(LightSensor { ambient: 99.0, ..sensor }), Some(1023));
    assert_eq!(measure(LightSensor { state: SensorState::Dark, ..sensor }), Some(0));
    assert_eq!(measure(LightSensor { state: SensorState::Saturated, ..sensor }), Some(1023));
    assert_eq!(measure(LightSensor { state: SensorState::Disconnected, ..sensor }), Some(0));
}

#[test]
fn illegal_instruction_stops_the_run() {
    let mut board = board(&[start(), vec![0x0000]], &[]);
    let fault = board.run_for(Time::from_ms(1)).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::IllegalOpcode { word: 0 }), "{fault}");
    assert_eq!(board.run_for(Time::from_ms(1)), Err(fault));
}

#[test]
fn jump_into_registers_or_vacant_memory_is_a_fault() {
    for (target, kind) in [
        (0x0060, FaultKind::FetchFromPeripheral { address: 0x0060 }),
        (0x8000, FaultKind::FetchFromVacant { address: 0x8000 }),
    ] {
        let mut board = board(&[start(), vec![0x4030, target]], &[]);
        assert_eq!(board.run_for(Time::from_ms(1)), Err(Fault { pc: target, kind }));
    }
}

#[test]
fn erased_chip_reports_its_reset_vector() {
    let mut board = Board::new(InfoMemory::Calibrated);
    board.power_on();
    let fault = board.run_for(Time::from_ms(1)).unwrap_err();
    assert_eq!(fault.kind, FaultKind::ErasedResetVector);
}

#[test]
fn wrong_accesses_are_recorded() {
    let main = [start(), mov(1, 0xc800), copy(0x0600, 0x0200), mov(1, 0x0700), mov(7, P1DIR), mov_b(3, 0x59), stop()];
    let mut board = board(&main, &[]);
    run(&mut board, 1);
    let violations = board.mcu().memory().violations();
    let kinds: Vec<_> = violations.first().iter().map(|one| (one.address, one.kind)).collect();
    let expected = [
        (0xc800, ViolationKind::FlashWrite),
        (0x0600, ViolationKind::VacantRead),
        (0x0700, ViolationKind::VacantWrite),
        (P1DIR, ViolationKind::WordAccessToByteRegister),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(board.mcu().memory().peek_word(0x0200), Some(0x3fff));
    assert_eq!(board.mcu().peripherals().stray_writes().collect::<Vec<_>>(), [(0x59, 1)]);
}

#[test]
fn flash_controller_erases_and_programs() {
    let main = [start(), mov(0xa500, 0x012c), mov(0xa502, 0x0128), mov(0, 0xc800), mov(0xa540, 0x0128)];
    // The second write can only clear bits.
    let main = [main.concat(), mov(0x1234, 0xc800), mov(0xff0f, 0xc800), mov(0xa510, 0x012c), stop()];
    let mut board = board(&main, &[]);
    assert!(board.mcu_mut().memory_mut().program(0xc802, &[0, 0]));
    run(&mut board, 1);
    let memory = board.mcu().memory();
    assert_eq!((memory.peek_word(0xc800), memory.peek_word(0xc802)), (Some(0x1204), Some(0xffff)));
    assert_eq!(memory.violations().count(), 0);
}

#[test]
fn erased_calibration_makes_the_clock_fast() {
    let mut board = board_with(InfoMemory::Erased, &[start(), stop()], &[]);
    run(&mut board, 1);
    assert!(board.mcu().peripherals().clock().dco_hz() > 15_000_000);
}

#[test]
fn brown_out_keeps_or_loses_ram() {
    let main = [start(), copy(0x0200, 0x0202), mov(0x1234, 0x0200), stop()];
    let mut board = board(&main, &[]);
    run(&mut board, 1);
    board.inject(Injection::BrownOut { ram_lost: false });
    run(&mut board, 1);
    assert_eq!(board.mcu().memory().peek_word(0x0202), Some(0x1234));
    board.inject(Injection::BrownOut { ram_lost: true });
    run(&mut board, 1);
    assert_ne!(board.mcu().memory().peek_word(0x0202), Some(0x1234));
    assert_eq!(board.mcu().resets().len(), 3);
}

#[test]
fn stack_mark_includes_interrupts() {
    let mut board = tick_counter(0x0214, 100, LPM0);
    run(&mut board, 2);
    assert_eq!(board.mcu().memory().stack_low(), 0x0400 - 4);
}

#[test]
fn port_interrupt_follows_an_edge() {
    // P1.7 follows SDA: an injected fault is a falling edge.
    let main = [start(), vec![0x4305], mov_b(0x80, 0x24), mov_b(0, 0x23), mov_b(0x80, 0x25), bis_sr(LPM0), stop()];
    let mut board = board(&main, &[(0xffe4, [inc(5), mov_b(0, 0x23), reti()].concat())]);
    run(&mut board, 1);
    assert_eq!(register(&board, 5), 0);
    board.inject(Injection::HoldSda { pulses: 9 });
    run(&mut board, 1);
    assert_eq!(register(&board, 5), 1);
}

#[test]
fn equal_runs_give_equal_results() {
    let result = || {
        let main = [start(), start_uart(), bis_b(1, IE2), bis_sr(LPM0), stop()];
        let mut board = board(&main, &[(0xffee, [copy_b(UCA0RXBUF, UCA0TXBUF), reti()].concat())]);
        run(&mut board, 1);
        board.uart_write(b"deterministic");
        run(&mut board, 20);
        (board.uart_read(), board.now(), board.mcu().cpu().clone(), board.mcu().active_cycles())
    };
    assert_eq!(result(), result());
}
