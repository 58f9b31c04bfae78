//! Fuzzes the decoder of a sender: the number of reports is limited, and each record that the filter
//! lets pass has possible values. Input: a datagram of a tracker. The first four bytes are the clock.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_fuzz::device::check;
use millrace_ingest::format;

fuzz_target!(|data: &[u8]| {
    let Some((clock, datagram)) = data.split_first_chunk() else { return };
    let now_ms = u64::from(u32::from_le_bytes(*clock)) * 1000;
    if let Ok(reports) = format::nmea::decode(datagram, now_ms) {
        check(reports, 1000);
    }
});
