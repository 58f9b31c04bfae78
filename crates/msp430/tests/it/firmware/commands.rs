//! Replies to commands, valid and invalid.

use millrace_msp430::{SensorState, Time};

use super::Kit;

#[test]
fn version_reports_reset_and_counters() {
    let Some(mut kit) = Kit::ready() else { return };
    kit.expect(&[("v", "ok 1 04 00 00"), ("v", "ok 1 04 00 00")]);
}

#[test]
fn increments_and_decrements_saturate() {
    let Some(mut kit) = Kit::ready() else { return };
    for (down, up, shift) in [("-0", "+0", 0), ("-1", "+1", 4)] {
        let other = kit.registers()[8] >> (4 - shift) & 15;
        for step in 0..18_u8 {
            let level = 14_u8.saturating_sub(step);
            assert_eq!(kit.request(down), format!("ok {level:x}"));
            assert_eq!(kit.registers()[8] >> shift & 15, level);
        }
        for step in 0..18_u8 {
            let level = (step + 1).min(15);
            assert_eq!(kit.request(up), format!("ok {level:x}"));
            assert_eq!(kit.registers()[8] >> shift & 15, level);
        }
        assert_eq!(kit.registers()[8] >> (4 - shift) & 15, other);
    }
}

#[test]
fn port_values_go_to_the_select_registers() {
    let Some(mut kit) = Kit::ready() else { return };
    kit.expect(&[("p 12 34 56", "ok")]);
    let writes = kit.writes();
    assert_eq!(writes.len(), 1);
    assert_eq!(writes[0], [0x10, 0x12, 0x34, 0x56, 0x44, 0x44, 0x44, 0x44, 0x44, 0xff, 0x0f, 0x88]);
    kit.expect(&[("p 80 00 00", "err arg"), ("p 00 80 00", "err arg"), ("p 00 00 ff", "err arg")]);
    assert_eq!(kit.transfers(), []);
}

#[test]
fn init_command_restores_all_registers() {
    let Some(mut kit) = Kit::ready() else { return };
    kit.expect(&[("p 12 34 56", "ok"), ("b 0 1 2 3 4 5", "ok"), ("m 7", "ok"), ("-1", "ok e")]);
    let before = kit.registers();
    kit.board.reset_driver();
    assert_ne!(kit.registers(), before);
    kit.board.i2c_events();
    kit.expect(&[("i", "ok")]);
    assert_eq!(kit.registers(), before);
    assert_eq!(kit.writes()[0].len(), 12);
}

#[test]
fn wrong_arguments_change_nothing() {
    let Some(mut kit) = Kit::ready() else { return };
    kit.expect(&[
        ("w 0b 00", "err reg"),
        ("w 0f 12", "err reg"),
        ("w 10 12", "err reg"),
        ("w ff ff", "err reg"),
        ("w 00", "err arg"),
        ("w 0 0", "err arg"),
        ("w 00 00 00", "err arg"),
        ("w 0A 00", "err arg"),
        ("w", "err arg"),
        ("m g", "err level"),
        ("m 10", "err level"),
        ("m", "err level"),
        ("b 2 0 0 0 0 0", "err arg"),
        ("b 0 0 0 0 0", "err arg"),
        ("p 00 00", "err arg"),
        ("i 0", "err arg"),
        ("t other", "err arg"),
        ("t", "err arg"),
        ("l 1", "err arg"),
        ("+2", "err cmd"),
        ("x", "err cmd"),
        ("ww", "err cmd"),
    ]);
    assert_eq!(kit.transfers(), []);
    assert_eq!(kit.board.driver().unwrap().violations(), 0);
}

#[test]
fn light_readings_follow_the_sensor() {
    let Some(mut kit) = Kit::ready() else { return };
    let reading = |volts: f64| format!("ok {:03x}", (volts / 3.3 * 1023.0).round() as u16);
    kit.board.sensor_mut().ambient = 0.25;
    assert_eq!(kit.request("l"), reading(0.5));
    // All six ports fully on: both LEDs white, 2 V more.
    kit.expect(&[("p 00 00 7e", "ok")]);
    assert_eq!(kit.request("l"), reading(2.5));
    for (state, expected) in
        [(SensorState::Dark, "ok 000"), (SensorState::Disconnected, "ok 000"), (SensorState::Saturated, "ok 3ff")]
    {
        kit.board.sensor_mut().state = state;
        assert_eq!(kit.request("l"), expected);
    }
}

#[test]
fn light_events_have_the_period() {
    let Some(mut kit) = Kit::ready() else { return };
    kit.board.sensor_mut().state = SensorState::Saturated;
    kit.expect(&[("l 05", "ok 05")]);
    kit.take_lines();
    kit.run(1000);
    let lines = kit.take_lines();
    assert!((19..=21).contains(&lines.len()), "{} events", lines.len());
    assert!(lines.iter().all(|line| line == "ev l 3ff"));
    kit.expect(&[("l 00", "ok 00")]);
    kit.take_lines();
    kit.run(1000);
    assert_eq!(kit.take_lines(), [""; 0]);
}

#[test]
fn carriage_return_before_the_line_feed_is_ignored() {
    let Some(mut kit) = Kit::ready() else { return };
    let mut bytes = super::line("7f v");
    bytes.insert(bytes.len() - 1, b'\r');
    kit.send(&bytes);
    kit.run(60);
    assert_eq!(kit.take_lines(), ["7f ok 1 04 00 00"]);
}

#[test]
fn servo_loop_answers_within_a_tick() {
    // A step of the lamps is visible in the next light event.
    let Some(mut kit) = Kit::ready() else { return };
    kit.expect(&[("l 01", "ok 01")]);
    kit.take_lines();
    let start = kit.board.now();
    let sequence = kit.send_command("p 00 00 7e");
    let mut bright = None;
    while bright.is_none() {
        kit.run(1);
        bright = kit.lines.iter().find(|line| line.starts_with("ev l") && *line > &"ev l 200".to_owned()).cloned();
        assert!(kit.board.now() - start < Time::from_ms(200), "{:?}", kit.lines);
    }
    println!("lamp to light event over UART and I2C: {}", kit.board.now() - start);
    assert!(kit.lines.iter().any(|line| line.starts_with(&sequence)));
}
