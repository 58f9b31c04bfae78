//! Fuzzes the decoder of OBD-II adapters: the number of reports is limited, and each record that the filter
//! lets pass has possible values. Input: text of an OBD-II adapter, or CAN frames.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_fuzz::device::check;
use millrace_ingest::{Report, obd};

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        let decoded = obd::decode(text);
        assert!(decoded.pending.len() <= 128 && decoded.permanent.len() <= 128);
        assert!(decoded.reading.trouble_codes.as_ref().is_none_or(|codes| codes.len() <= 128));
        check(vec![Report { reading: decoded.reading, ..Report::default() }], 1);
    }
});
