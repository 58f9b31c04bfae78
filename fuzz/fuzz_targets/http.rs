//! Requests, through a real connection of a real shard: whatever the bytes are, the answer is HTTP with a status that the protocol knows,
//! errors are problem details, and the server lives on. Input: what a client sends, of any version of HTTP, upgraded or not.

#![no_main]

mod world;

use libfuzzer_sys::fuzz_target;
use millrace_protocol::CODES;
use serde_json::Value;

/// Beside those of [`CODES`]; of these, 414 and 431 are hyper's.
const STATUSES: &[u16] = &[101, 200, 204, 304, 414, 431];
/// What only our own fault, a slow engine or a drain leads to.
const NEVER: &[u16] = &[500, 503];

fuzz_target!(|said: &[u8]| {
    world::with(|world| {
        let heard = world.talk(said, |_| false);
        if heard.starts_with(b"HTTP/") {
            check(said, &heard);
        }
    });
});

fn check(said: &[u8], mut heard: &[u8]) {
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(heard).unwrap_or_else(|error| panic!("{error}: {}", shown(heard)));
        let httparse::Status::Complete(head) = parsed else { panic!("half a head: {}", shown(heard)) };
        let status = response.code.expect("a status");
        let body = &heard[head..];
        // Go on with what comes after `100 Continue`.
        if status == 100 {
            heard = body;
            if heard.is_empty() {
                return;
            }
            continue;
        }
        let is_known = STATUSES.contains(&status) || CODES.iter().any(|row| row.0.status() == status);
        assert!(is_known && !NEVER.contains(&status), "{}", shown(heard));
        let header = |name: &str| {
            let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            found.map(|header| std::str::from_utf8(header.value).expect("ASCII"))
        };
        let head_only = said.trim_ascii_start().starts_with(b"HEAD ");
        let has_no_body = head_only || matches!(status, 101 | 204 | 304);
        if let Some(length) = header("content-length").filter(|_| !has_no_body) {
            let length: usize = length.parse().expect("a number");
            let body = body.get(..length).unwrap_or_else(|| panic!("half a body: {}", shown(heard)));
            match header("content-type") {
                Some("application/problem+json") => problem(status, body),
                Some("application/json") => drop(serde_json::from_slice::<Value>(body).expect("JSON")),
                _ => {}
            }
        }
        if header("content-type") != Some("application/problem+json") {
            assert!(status < 400 || header("content-length") == Some("0"), "unexplained: {}", shown(heard));
        }
        return;
    }
}

fn problem(status: u16, body: &[u8]) {
    let problem: Value = serde_json::from_slice(body).expect("JSON");
    assert_eq!(problem["status"], status);
    let code = problem["code"].as_str().expect("a code");
    assert!(CODES.iter().any(|row| row.0.name() == code && row.0.status() == status), "{problem}");
    assert_eq!(problem["type"], format!("urn:millrace:error:{code}"));
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.len() < 1000), "{problem}");
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned()
}
