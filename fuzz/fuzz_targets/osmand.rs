//! Fuzzes the decoder of a sender: the number of reports is limited, and each record that the filter
//! lets pass has possible values. Input: a query or form of the OsmAnd protocol, or JSON of Traccar Client.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_fuzz::device::check;
use millrace_ingest::format;

fuzz_target!(|data: &[u8]| {
    let parameters = format::parameters(data);
    if let Ok(report) = format::osmand::decode_parameters(&parameters) {
        check(vec![report], 1);
    }
    if let Ok(reports) = format::osmand::decode_json(data, 8) {
        check(reports, 8);
    }
});
