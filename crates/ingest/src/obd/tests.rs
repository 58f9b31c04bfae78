//! Test vectors: SAE J1979 formulas, the data sheet of the ELM327, and the documentation of python-OBD.

use super::*;

fn reading(text: &str) -> Reading {
    decode(text).reading
}

#[test]
fn values_have_the_formulas_of_the_standard() {
    type Field = fn(&Reading) -> Option<f64>;
    let vectors: [(&str, Field, f64); 15] = [
        ("41 0C 0E 70", |r| r.rpm, 924.0),
        ("41 04 FF", |r| r.engine_load, 100.0),
        ("41 05 00", |r| r.coolant_temperature, -40.0),
        ("41 05 8D", |r| r.coolant_temperature, 101.0),
        ("41 0B 64", |r| r.manifold_pressure, 100.0),
        ("41 0D 32", |r| r.speed, 13.889),
        ("41 0F 3C", |r| r.intake_temperature, 20.0),
        ("41 10 01 F4", |r| r.air_flow, 5.0),
        ("41 11 80", |r| r.throttle, 50.196),
        ("41 2F 66", |r| r.fuel, 40.0),
        ("41 42 35 E8", |r| r.battery_voltage, 13.8),
        ("41 46 37", |r| r.ambient_temperature, 15.0),
        ("41 5C 82", |r| r.oil_temperature, 90.0),
        ("41 5E 00 64", |r| r.fuel_rate, 5.0),
        ("41 A6 00 00 3A 98", |r| r.odometer, 1_500_000.0),
    ];
    for (text, field, expected) in vectors {
        assert_eq!(field(&reading(text)), Some(expected), "{text}");
        assert_eq!(field(&reading(&text.replace(' ', ""))), Some(expected), "{text} without spaces");
    }
}

#[test]
fn supported_parameters_are_a_bitmap() {
    let supported: Vec<u8> = decode("41 00 BE 1F A8 13").supported.into_iter().collect();
    assert_eq!(supported, [1, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16, 17, 19, 21, 28, 31, 32]);
    assert_eq!(decode("41 C0 00 00 00 01").supported.into_iter().collect::<Vec<_>>(), [0xe0]);
}

#[test]
fn text_of_an_adapter_is_decoded() {
    let text = "ATZ\r\r\rELM327 v1.5\r\r>010C\rSEARCHING...\r41 0C 0E 70 \r\r>0105\r41 05 8D \r\r>0142\rNO DATA\r\r>0101\r\
                41 01 81 07 65 04 \r\r>03\r43 01 33 00 00 00 00 \r\r>";
    let Decoded { reading, answers, .. } = decode(text);
    assert_eq!((reading.rpm, reading.coolant_temperature, answers), (Some(924.0), Some(101.0), 4));
    assert_eq!((reading.lamp, reading.trouble_codes), (Some(true), Some(vec!["P0133".into()])));
    for words in
        ["", "NO DATA", "UNABLE TO CONNECT", "?", "BUS INIT: ERROR", "STOPPED", "CAN ERROR", "010C", "BUFFER FULL"]
    {
        assert_eq!(decode(words).answers, 0, "{words}");
    }
}

#[test]
fn headers_are_recognized() {
    for text in [
        "7E8 04 41 0C 0E 70",
        "7E804410C0E70AAAAAA",
        "18 DA F1 10 04 41 0C 0E 70",
        "48 6B 10 41 0C 0E 70 8E",
        "84 F1 10 41 0C 0E 70 50",
        "(1436509052.249713) can0 7E8#04410C0E70AAAAAA",
        "  can0  7E8   [8]  04 41 0C 0E 70 00 00 00",
    ] {
        assert_eq!(reading(text).rpm, Some(924.0), "{text}");
    }
}

#[test]
fn answer_with_several_parameters_is_split() {
    let Decoded { reading, answers, .. } = decode("7E8 10 09 41 0C 0E 70 0D 32\r7E8 21 05 8D 00 00 00 00 00\r");
    assert_eq!((reading.rpm, reading.speed, answers), (Some(924.0), Some(13.889), 1));
    assert_eq!(reading.coolant_temperature, Some(101.0));
}

#[test]
fn trouble_codes_are_counted_on_can_only() {
    let codes = |text: &str| reading(text).trouble_codes;
    assert_eq!(codes("43 02 01 33 C1 00"), Some(vec!["P0133".into(), "U0100".into()]), "CAN");
    assert_eq!(codes("43 01 33 C1 00 00 00"), Some(vec!["P0133".into(), "U0100".into()]), "K-line");
    assert_eq!(codes("43 01 33 00 00 00 00\r43 04 20 00 00 00 00"), Some(vec!["P0133".into(), "P0420".into()]));
    assert_eq!(codes("43 00"), Some(vec![]), "no codes");
    assert_eq!(codes("43 02 01 33"), None, "a code is missing");
    let numbered = "00A\r0: 43 04 01 33 04 20\r1: C1 00 41 23 00 00 00\r";
    assert_eq!(codes(numbered), Some(vec!["P0133".into(), "P0420".into(), "U0100".into(), "C0123".into()]));
    let Decoded { pending, permanent, .. } = decode("47 01 03 01\r4A 01 04 20\r");
    assert_eq!(
        (pending.first().map(String::as_str), permanent.first().map(String::as_str)),
        (Some("P0301"), Some("P0420"))
    );
}

#[test]
fn vehicle_identification_number_has_several_lines() {
    let can = "014\r0: 49 02 01 31 44 34\r1: 47 50 30 30 52 35 35\r2: 42 31 32 33 34 35 36\r";
    let line = "49 02 01 00 00 00 31\r49 02 02 44 34 47 50\r49 02 03 30 30 52 35\r49 02 04 35 42 31 32\r49 02 05 33 34 35 36\r";
    let frames = "7E8#1014490201314434\n7E8#2147503030523535\n7E8#2242313233343536\n";
    for text in [can, line, frames] {
        assert_eq!(reading(text).vin.as_deref(), Some("1D4GP00R55B123456"), "{text}");
    }
    for broken in [&can.replace("1: 47", "2: 47"), &line.replace("02 02", "02 03"), &can.replace("31 44", "07 44")] {
        assert_eq!(reading(broken).vin, None, "{broken}");
    }
}

#[test]
fn any_text_is_decoded_without_a_panic() {
    for text in [
        "4", "41", "41 0C", "41 0C 0E", "43", "7E8", "7E8 0", "FFF", "000", "0:", ":", "0: 41", "é", "49 02",
        "48 6B 10", "4 1",
    ] {
        decode(text);
        decode(&text.repeat(50));
        decode(&format!("00A\r{text}\r0: {text}"));
    }
}
