//! Fuzzes the driver of a kit: each report is JSON within its limit, and the driver never sends more than a request at
//! a time. Input: pieces, each with a first byte that selects its use: a command, bytes of the serial connection, a
//! valid line with this content, the end or the start of a connection, or time.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use millrace_earl::{
    Driver, Report,
    report::STATE_BYTES_MAX,
    request::{LINE_BYTES_MAX, crc},
};

fuzz_target!(|data: &[u8]| {
    let mut driver = Driver::default();
    let mut now = Duration::ZERO;
    driver.connect(now);
    for piece in data.split(|byte| *byte == 0xff) {
        let Some((use_of, rest)) = piece.split_first() else { continue };
        match use_of % 6 {
            0 => driver.handle_command(rest),
            1 => driver.handle_input(now, rest),
            2 => {
                let sum = crc(rest);
                driver.handle_input(now, &[rest, format!("*{sum:04x}\n").as_bytes()].concat());
            }
            3 => driver.disconnect(now, &String::from_utf8_lossy(rest)),
            4 => driver.connect(now),
            _ => now += Duration::from_millis(1 + 10 * u64::from(rest.first().copied().unwrap_or_default())),
        }
        driver.handle_timeout(now);
        let output = driver.poll_output();
        // A retransmission and the probe after a start message begin with a line feed each.
        assert!(output.len() <= LINE_BYTES_MAX + 64, "{} bytes at once", output.len());
        while let Some(report) = driver.poll_report() {
            let (Report::State(json) | Report::Light(json)) = report;
            assert!(json.len() <= STATE_BYTES_MAX, "{} bytes: {json}", json.len());
            serde_json::from_str::<serde_json::Value>(&json).expect("JSON");
        }
        assert!(driver.poll_timeout() <= now + Duration::from_secs(1), "the driver has to act in time");
    }
});
