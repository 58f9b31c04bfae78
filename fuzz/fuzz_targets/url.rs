//! Fuzzes engine URLs: whatever follows the credentials, neither errors nor the displayed URL may contain them.
//! Input: text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_engine::{check_url, shown_url};

const SECRET: &str = "s3cr3t";
const SCHEMES: [&str; 6] = ["redis", "redis+cluster", "redis+sentinel", "rediss", "nats", "tls"];

fuzz_target!(|text: &str| {
    let silent = |url: &str| {
        let checked = check_url(url);
        if let Err(error) = &checked {
            assert!(!error.to_string().contains(SECRET), "{url}: {error}");
        }
        checked.is_ok()
    };
    silent(text);
    if text.contains(SECRET) {
        return;
    }
    for scheme in SCHEMES {
        for credentials in [format!("me:{SECRET}"), format!(":{SECRET}"), SECRET.into()] {
            let url = format!("{scheme}://{credentials}@{text}");
            if silent(&url) {
                assert!(!shown_url(&url).contains(SECRET), "{url}");
            }
        }
    }
});
