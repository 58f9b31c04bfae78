//! Fuzzes the decoder of a sender: the number of reports is limited, and each record that the filter
//! lets pass has possible values. Input: the query of a Torque request.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_fuzz::device::check;
use millrace_ingest::format;

fuzz_target!(|data: &[u8]| {
    if let Ok(Some(report)) = format::torque::decode(&format::parameters(data)) {
        check(vec![report], 1);
    }
});
