//! Damaged and hostile input on the serial line.

use millrace_msp430::Board;

use super::{Kit, line};
use crate::random::Random;

/// Sends bytes and returns the lines of the next 100 ms.
fn answer(kit: &mut Kit, bytes: &[u8]) -> Vec<String> {
    kit.take_lines();
    kit.send(bytes);
    kit.run(bytes.len() as u64 * 11 / 10 + 100);
    kit.take_lines()
}

#[test]
fn wrong_crc_is_reported_and_not_executed() {
    let Some(mut kit) = Kit::ready() else { return };
    assert_eq!(answer(&mut kit, b"01 w 08 00*0000\n"), ["-- err crc"]);
    let mut bytes = line("01 w 08 00");
    bytes[3] ^= 1;
    assert_eq!(answer(&mut kit, &bytes), ["-- err crc"]);
    assert_eq!(kit.transfers(), []);
    kit.expect(&[("v", "ok 1 04 00 00")]);
}

#[test]
fn lines_that_are_no_requests_are_reported() {
    let Some(mut kit) = Kit::ready() else { return };
    let inputs: [&[u8]; 7] = [
        b"hello\n",
        b"*\n",
        b"01 v\n",
        b"01 v*12g4\n",
        b"01 v*12345\n",
        b"01 v\x80*1234\n",
        b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\n",
    ];
    for input in inputs {
        assert_eq!(answer(&mut kit, input), ["-- err line"], "{}", input.escape_ascii());
    }
    assert_eq!(answer(&mut kit, &line("xy v")), ["-- err line"]);
    assert_eq!(answer(&mut kit, &line("01v")), ["-- err line"]);
    assert_eq!(answer(&mut kit, b"\n\n\r\n"), [""; 0]);
    kit.expect(&[("v", "ok 1 04 00 00")]);
}

#[test]
fn longest_line_is_accepted_and_a_longer_one_reported() {
    let Some(mut kit) = Kit::ready() else { return };
    // 48 bytes with the line feed: an unknown command of 39 bytes.
    let longest = line(&format!("01 {}", "z".repeat(39)));
    assert_eq!(longest.len(), 48);
    assert_eq!(answer(&mut kit, &longest), ["01 err cmd"]);
    assert_eq!(answer(&mut kit, &line(&format!("01 {}", "z".repeat(40)))), ["-- err long"]);
    assert_eq!(answer(&mut kit, &[b'a'; 1000]), [""; 0]);
    assert_eq!(answer(&mut kit, b"\n"), ["-- err long"]);
    kit.expect(&[("v", "ok 1 04 00 00")]);
}

#[test]
fn torn_frame_spoils_only_its_line() {
    let Some(mut kit) = Kit::ready() else { return };
    let bytes = line("01 v");
    kit.send(&bytes[..4]);
    // Three bits of a byte, then the idle level: a start bit and no proper stop.
    kit.board.uart_write_levels(0b000, &[Board::HOST_BIT_PS; 3]);
    kit.run(20);
    // A frame with a low stop bit.
    kit.board.uart_write_levels(0b00_1010_1010, &[Board::HOST_BIT_PS; 10]);
    kit.run(20);
    assert_eq!(kit.take_lines(), [""; 0]);
    let rest = answer(&mut kit, &bytes[4..]);
    assert!(rest == ["-- err line"] || rest == ["-- err crc"], "{rest:?}");
    kit.expect(&[("v", "ok 1 04 00 00")]);
}

#[test]
fn break_is_ignored() {
    let Some(mut kit) = Kit::ready() else { return };
    kit.board.uart_write_levels(0, &[Board::HOST_BIT_PS; 16]);
    kit.run(20);
    kit.expect(&[("v", "ok 1 04 00 00")]);
}

#[test]
fn commands_faster_than_the_bus_are_refused_or_executed() {
    let Some(mut kit) = Kit::ready() else { return };
    let mut bytes = Vec::new();
    for sequence in 0..12 {
        bytes.extend(line(&format!("{sequence:02x} i")));
    }
    let lines = answer(&mut kit, &bytes);
    let (ok, busy): (Vec<&String>, Vec<&String>) = lines.iter().partition(|line| line.ends_with(" ok"));
    assert!(busy.iter().all(|line| *line == "-- err busy"), "{busy:?}");
    assert!(!ok.is_empty());
    let writes = kit.writes();
    assert_eq!(writes.len(), ok.len());
    println!("12 commands back to back: {} executed, {} reports of a busy buffer", ok.len(), busy.len());
    kit.expect(&[("v", "ok 1 04 00 00")]);
}

#[test]
fn random_bytes_never_stop_the_firmware() {
    let Some(mut kit) = Kit::ready() else { return };
    let mut random = Random::new(26);
    let valid = [line("01 w 08 42"), line("02 t count"), line("03 l 03"), line("04 b 1 1 2 3 4 5")];
    for _ in 0..150 {
        let mut bytes = valid[random.below(valid.len())].clone();
        for _ in 0..random.below(8) {
            let at = random.below(bytes.len());
            match random.below(3) {
                0 => bytes[at] = random.word() as u8,
                1 => bytes.insert(at, random.word() as u8),
                _ => drop(bytes.remove(at)),
            }
        }
        kit.send(&bytes);
        kit.run(40);
    }
    kit.send(b"\n");
    kit.run(200);
    // The replies so far have the sequences 01 to 04, as the next requests have.
    kit.take_lines();
    let version = kit.request("v");
    assert!(version.starts_with("ok 1 04"), "{version}");
    assert_eq!(kit.board.mcu().resets().len(), 1);
    assert_eq!(kit.board.mcu().memory().violations().count(), 0);
    assert_eq!(kit.board.driver().unwrap().violations(), 0);
}
