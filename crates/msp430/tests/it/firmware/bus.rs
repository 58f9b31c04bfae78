//! Bytes and times on the bus, lamps, and the two tests of the thesis.

use millrace_msp430::{I2cEventKind, Time};

use super::Kit;

const START_REGISTERS: [u8; 12] = [0x10, 0, 0, 0, 0x44, 0x44, 0x44, 0x44, 0x44, 0xff, 0x0f, 0x88];

#[test]
fn initialisation_writes_every_register_once() {
    let Some(mut kit) = Kit::start() else { return };
    assert_eq!(kit.take_lines(), ["ev boot 04"]);
    let events = kit.board.i2c_events();
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    let mut expected = vec![
        I2cEventKind::Start,
        // 0x45 with the write bit is the byte 0x8a.
        I2cEventKind::Address { address: 0x45, read: false, ack: true },
    ];
    expected.extend(START_REGISTERS.map(|byte| I2cEventKind::Byte { byte, ack: true }));
    expected.push(I2cEventKind::Stop);
    assert_eq!(kinds, expected);
    assert_eq!(kit.registers()[..10], START_REGISTERS[1..11]);
}

#[test]
fn bus_runs_at_100_khz() {
    let Some(mut kit) = Kit::start() else { return };
    let events = kit.board.i2c_events();
    let (shortest, longest) = kit.board.wiring().bus.monitor().bit_time().unwrap();
    println!("bit time on the bus: {shortest} to {longest}");
    // The ninth clock of a byte waits for the interrupt handler; the others have exactly ten cycles.
    assert_eq!(shortest, Time::from_us(10));
    let length = events.last().unwrap().time - events[0].time;
    println!("initialisation: {length} for {} bytes", events.len() - 2);
    assert!(length < Time::from_us(13 * 9 * 10 + 13 * 300), "{length}");
    assert_eq!(kit.board.mcu().periods().smclk, Some(1_000_000));
}

#[test]
fn transmit_command_sends_three_bytes() {
    let Some(mut kit) = Kit::ready() else { return };
    for register in 0..=10 {
        let command = format!("w {register:02x} {:02x}", register * 16 + 5);
        assert_eq!(kit.request(&command), format!("ok {register:02x} {:02x}", register * 16 + 5));
        assert_eq!(kit.writes(), [[register, register * 16 + 5]]);
    }
    assert_eq!(kit.registers(), [5, 0x15, 0x25, 0x35, 0x45, 0x55, 0x65, 0x75, 0x85, 0x95, 0]);
}

#[test]
fn walk_test_lights_each_port_once() {
    let Some(mut kit) = Kit::ready() else { return };
    assert_eq!(kit.request("t ports"), "ok");
    let mut seen = Vec::new();
    for _ in 0..200 {
        kit.run(10);
        let lamps = kit.board.lamps();
        // In the order of the ports.
        let levels = [lamps.a.blue, lamps.a.green, lamps.a.red, lamps.b.red, lamps.b.green, lamps.b.blue];
        let lit: Vec<usize> = (0..6).filter(|port| levels[*port] == 1.0).collect();
        assert!(levels.iter().all(|level| *level == 0.0 || *level == 1.0));
        if seen.last() != Some(&lit) {
            seen.push(lit);
        }
    }
    seen.retain(|lit| !lit.is_empty());
    assert_eq!(seen, [[0], [1], [2], [3], [4], [5]]);
    let writes = kit.writes();
    let select: Vec<_> = writes.iter().map(|bytes| bytes[..4].to_vec()).collect();
    let walk: Vec<Vec<u8>> = (1..=6).map(|port| vec![0x10, 0, 0, 1 << port]).collect();
    assert_eq!(select[..6], walk);
    assert_eq!(select[6..], [[0x10, 0, 0, 0]]);
    assert!(writes.iter().all(|bytes| bytes.len() == 12 && bytes[4..] == START_REGISTERS[4..]));
}

#[test]
fn count_test_runs_until_another_command() {
    let Some(mut kit) = Kit::ready() else { return };
    assert_eq!(kit.request("t count"), "ok");
    kit.run(20 * 10 * 36);
    let writes = kit.writes();
    assert_eq!(writes[0][..4], [0x10, 0, 0x7e, 0]);
    // BANK0 starts at 15 after the reset of the driver, then counts from 0 to 15 again and again.
    let levels: Vec<u8> = writes[1..].iter().map(|bytes| bytes[1] & 15).collect();
    assert!(writes[1..].iter().all(|bytes| bytes.len() == 2 && bytes[0] == 0x08 && bytes[1] >> 4 == 15));
    let expected: Vec<u8> = (0..16).cycle().take(levels.len()).collect();
    assert_eq!(levels, expected);
    assert!(levels.len() >= 34, "{} steps", levels.len());
    assert_eq!(kit.request("v"), "ok 1 04 00 00");
    kit.board.i2c_events();
    kit.run(1000);
    assert_eq!(kit.transfers(), []);
}

#[test]
fn lamps_show_sixteen_levels() {
    let Some(mut kit) = Kit::ready() else { return };
    // P3 and P4 (red of both LEDs) follow PWM0, P2 and P5 (green) follow PWM1, P1 and P6 (blue) the master level.
    kit.expect(&[("p 66 3c 42", "ok"), ("m 5", "ok")]);
    for level in (0..16).rev() {
        let (pwm0, pwm1) = (level, 15 - level);
        let command = format!("w 08 {:02x}", pwm1 << 4 | pwm0);
        assert!(kit.request(&command).starts_with("ok"));
        let lamps = kit.board.lamps();
        let expected = [pwm0, pwm1, 5].map(|level| f64::from(level) / 15.0);
        assert_eq!([lamps.a.red, lamps.a.green, lamps.a.blue], expected);
        assert_eq!(lamps.a, lamps.b);
    }
}

#[test]
fn bank_command_gives_the_example_of_the_data_sheet() {
    let Some(mut kit) = Kit::ready() else { return };
    kit.expect(&[("p 02 02 02", "ok")]);
    kit.board.i2c_events();
    kit.expect(&[("b 1 3 5 3 6 8", "ok")]);
    // The time codes of BANK0 keep their values, as do the registers 0x08 and 0x09; the last byte restarts BANK1.
    assert_eq!(kit.writes(), [[0x13, 0x34, 0x54, 0x34, 0x64, 0x84, 0xff, 0x0f, 0x80]]);
    let driver = kit.board.driver().unwrap();
    let now = kit.board.now();
    let mean = driver.average(now, now + Time::from_ms(3072), 1);
    assert!((mean - 2.0 * 576.0 / 3072.0).abs() < 0.01, "{mean}");
    // Two pulses of 384 ms at full brightness per 3072 ms.
    let full = (0..3072).filter(|ms| driver.level(now + Time::from_ms(*ms), 1) == 15).count();
    assert!((2 * 384..2 * 384 + 2 * 26).contains(&full), "{full} ms");
    kit.expect(&[("b 0 0 1 0 1 1", "ok")]);
    assert_eq!(kit.registers()[3..8], [0x30, 0x51, 0x30, 0x61, 0x81]);
}

#[test]
fn idle_firmware_sleeps() {
    let Some(mut kit) = Kit::ready() else { return };
    let before = kit.board.mcu().active_cycles();
    kit.run(1000);
    let share = (kit.board.mcu().active_cycles() - before) as f64 / 1e6;
    println!("idle: the CPU is on for {:.1} % of the time", 100.0 * share);
    assert!(share < 0.1, "{share}");
    assert_eq!(kit.transfers(), []);
}

#[test]
fn memory_stays_within_its_limits() {
    let Some(mut kit) = Kit::ready() else { return };
    kit.board.sensor_mut().ambient = 0.7;
    let busy = ["l 01", "p 7f 7f 7f", "b 1 f f f f f", "+0", "-1", "i", "l", "t count", "zz", "m 3", "v"];
    for command in busy.iter().cycle().take(3 * busy.len()) {
        kit.request(command);
    }
    let memory = kit.board.mcu().memory();
    let end = kit.elf.symbol("bssEnd").unwrap();
    let (variables, stack) = (end - 0x0200, 0x0400 - memory.stack_low());
    let flash = kit.elf.flash_bytes();
    println!("flash {flash} of 4096 bytes, variables {variables} and stack {stack} of 512 bytes of RAM");
    assert!(flash <= 4096);
    assert!(memory.stack_low() >= end, "the stack reaches the variables");
    // No access outside of memory, none to flash, no word access to a byte register.
    assert_eq!(memory.violations().first(), []);
    // Only the registers of port P3, which the 20-pin package does not have.
    let stray: Vec<u16> = kit.board.mcu().peripherals().stray_writes().map(|(address, _)| address).collect();
    assert_eq!(stray, [0x19, 0x1a]);
    assert_eq!(kit.board.driver().unwrap().violations(), 0);
}
