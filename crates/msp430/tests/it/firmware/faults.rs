//! Faults of bus, supply and program.

use millrace_msp430::{FRAME_BITS, InfoMemory, Injection, ResetCause, SerialReceiver, Time};

use super::{Kit, line};

#[test]
fn nack_of_each_byte_ends_with_stop() {
    let Some(mut kit) = Kit::ready() else { return };
    for byte in 0..=2 {
        kit.board.inject(Injection::Nack { byte, transfers: 1 });
        assert_eq!(kit.request("w 08 42"), "err nack", "byte {byte}");
        let transfers = kit.transfers();
        assert_eq!(transfers.len(), 1, "{transfers:02x?}");
        assert!(transfers[0].stopped);
        assert_eq!(transfers[0].bytes.len(), byte as usize);
        assert_eq!(kit.registers()[8], 0xff);
    }
    kit.expect(&[("v", "ok 1 04 03 00"), ("w 08 42", "ok 08 42")]);
}

#[test]
fn nack_keeps_the_old_level() {
    let Some(mut kit) = Kit::ready() else { return };
    kit.board.inject(Injection::Nack { byte: 0, transfers: 1 });
    kit.expect(&[("-0", "err nack"), ("-0", "ok e")]);
}

#[test]
fn unplugged_module_is_reported_and_restored() {
    let Some(mut kit) = Kit::ready() else { return };
    kit.expect(&[("p 00 00 7e", "ok")]);
    kit.board.inject(Injection::Disconnect { disconnected: true });
    kit.expect(&[("w 08 42", "err nack"), ("i", "err nack")]);
    kit.board.inject(Injection::Disconnect { disconnected: false });
    assert_eq!(kit.board.lamps().a.red, 0.0);
    kit.expect(&[("i", "ok")]);
    assert_eq!(kit.board.lamps().a.red, 1.0);
}

#[test]
fn stuck_data_line_is_freed_by_clock_pulses() {
    let Some(mut kit) = Kit::ready() else { return };
    kit.board.inject(Injection::HoldSda { pulses: 9 });
    let start = kit.board.now();
    kit.expect(&[("w 08 42", "ok 08 42")]);
    println!("stuck SDA: command completed after {}", kit.board.now() - start);
    assert!(kit.board.wiring().bus.monitor().idle_clocks() >= 9);
    assert_eq!(kit.registers()[8], 0x42);
    kit.expect(&[("v", "ok 1 04 00 01")]);
}

#[test]
fn data_line_stuck_during_a_transfer_is_freed() {
    let Some(mut kit) = Kit::ready() else { return };
    kit.send_command("p 00 00 7e");
    // The transfer of 1.2 ms follows the last byte of the line; the fault comes in its middle.
    while !kit.board.wiring().bus.monitor().is_active() {
        kit.board.run_for(Time::from_us(50)).unwrap();
    }
    kit.board.run_for(Time::from_us(500)).unwrap();
    kit.board.inject(Injection::HoldSda { pulses: 9 });
    kit.run(200);
    let lines = kit.take_lines();
    assert_eq!(lines, ["01 ok"]);
    assert_eq!(kit.registers()[2], 0x7e);
}

#[test]
fn permanently_stuck_lines_give_an_error() {
    let Some(mut kit) = Kit::ready() else { return };
    kit.board.inject(Injection::HoldScl { low: true });
    let start = kit.board.now();
    kit.expect(&[("w 08 42", "err bus")]);
    println!("SCL held low: error after {}", kit.board.now() - start);
    assert!(kit.board.now() - start < Time::from_ms(150));
    kit.board.inject(Injection::HoldScl { low: false });
    kit.expect(&[("w 08 43", "ok 08 43")]);
    kit.board.inject(Injection::HoldSda { pulses: 1000 });
    kit.expect(&[("w 08 44", "err bus")]);
    assert_eq!(kit.board.mcu().resets().len(), 1, "the watchdog did not bite");
}

#[test]
fn brown_out_restores_the_driver() {
    for ram_lost in [true, false] {
        let Some(mut kit) = Kit::ready() else { return };
        kit.expect(&[("p 00 00 7e", "ok")]);
        kit.board.i2c_events();
        kit.board.inject(Injection::BrownOut { ram_lost });
        kit.run(50);
        assert_eq!(kit.take_lines(), ["ev boot 04"]);
        assert_eq!(kit.writes().len(), 1);
        assert_eq!(kit.registers()[..3], [0, 0, 0]);
        kit.expect(&[("v", "ok 1 04 00 00"), ("w 08 42", "ok 08 42")]);
    }
}

#[test]
fn brown_out_during_a_transfer_is_survived() {
    let Some(mut kit) = Kit::ready() else { return };
    kit.may_garble = true;
    for wait_us in (0..1400).step_by(97) {
        kit.send_command("i");
        while !kit.board.wiring().bus.monitor().is_active() {
            kit.board.run_for(Time::from_us(20)).unwrap();
        }
        kit.board.run_for(Time::from_us(wait_us)).unwrap();
        kit.board.inject(Injection::BrownOut { ram_lost: true });
        kit.run(60);
        // The frame on the line can be cut by the reset; the next line feed ends it.
        kit.send(b"\n");
        kit.run(60);
        kit.expect(&[("w 08 42", "ok 08 42")]);
    }
}

/// Puts the program counter into an endless loop, with this status register.
fn hang(kit: &mut Kit, status: u16) {
    const LOOP: u16 = 0xf000;
    assert!(kit.board.mcu_mut().memory_mut().program(LOOP, &[0xff, 0x3f]));
    let cpu = kit.board.mcu_mut().cpu_mut();
    (cpu.registers[0], cpu.registers[2]) = (LOOP, status);
}

#[test]
fn watchdog_restarts_a_hanging_program() {
    let Some(mut kit) = Kit::ready() else { return };
    hang(&mut kit, 0);
    let start = kit.board.now();
    kit.run(100);
    let reset = *kit.board.mcu().resets().last().unwrap();
    assert_eq!(reset.cause, ResetCause::Watchdog);
    assert!(reset.time - start <= Time::from_us(32_768 + 20), "{}", reset.time - start);
    assert_eq!(kit.take_lines(), ["ev boot 01"]);
    kit.expect(&[("v", "ok 1 01 00 00")]);
}

#[test]
fn endless_interrupts_do_not_feed_the_watchdog() {
    // The main loop hangs while the tick's interrupt continues.
    let Some(mut kit) = Kit::ready() else { return };
    hang(&mut kit, 0x08);
    kit.run(100);
    assert_eq!(kit.take_lines(), ["ev boot 01"]);
}

#[test]
fn erased_calibration_keeps_the_reset_clock() {
    let Some(mut kit) = Kit::off(InfoMemory::Erased) else { return };
    kit.board.power_on();
    kit.board.run_for(Time::from_ms(15)).unwrap();
    let clock = kit.board.mcu().peripherals().clock();
    assert_eq!(clock.dco_hz(), 1_100_000);
    // The host listens at the actual rate of 1.1 MHz / 104.
    let bits = [94_545_000; FRAME_BITS];
    kit.board.run_for(Time::from_ms(5)).unwrap();
    let mut receiver = SerialReceiver::default();
    let line_out = kit.board.wiring().uart_out.clone();
    let mut text = Vec::new();
    kit.board.run_for(Time::from_ms(15)).unwrap();
    let late = kit.board.wiring().uart_out.clone();
    for line in [&line_out, &late] {
        while let Some(frame) = receiver.poll(kit.board.now(), line, &bits) {
            text.push(frame.byte);
        }
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.contains("ev err cal*"), "{text:?}");
}

#[test]
fn failed_initialisation_is_an_event() {
    let Some(mut kit) = Kit::off(InfoMemory::Calibrated) else { return };
    kit.board.inject(Injection::Disconnect { disconnected: true });
    kit.board.power_on();
    kit.run(100);
    assert_eq!(kit.take_lines(), ["ev boot 04", "ev err nack"]);
    kit.board.inject(Injection::Disconnect { disconnected: false });
    kit.expect(&[("i", "ok")]);
}

#[test]
fn equal_inputs_give_equal_transfers() {
    let run = || {
        let mut kit = Kit::start()?;
        kit.send(&line("01 t ports"));
        kit.board.inject(Injection::Nack { byte: 3, transfers: 2 });
        kit.run(2000);
        Some((kit.board.i2c_events(), kit.take_lines(), kit.board.mcu().active_cycles()))
    };
    assert_eq!(run(), run());
}
