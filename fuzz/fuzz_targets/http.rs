//! Requests, through a real connection of a real shard: whatever the bytes are, the answer is HTTP with a status that the protocol knows,
//! errors are problem details, and the server lives on. Input: what a client sends, of any version of HTTP, upgraded or not.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_fuzz::world;
use millrace_protocol::CODES;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Beside those of [`CODES`]; of these, 414 and 431 are hyper's.
const STATUSES: &[u16] = &[101, 200, 204, 304, 414, 431];
/// What only our own fault, a slow engine or a drain leads to.
const NEVER: &[u16] = &[500, 503];

fuzz_target!(|said: &[u8]| {
    if world::knows(said) {
        return;
    }
    world::with(&mut |world| {
        let heard = world.talk(said, &|_| false);
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
        let is_head = contains(said, b"HEAD ");
        let has_no_body = matches!(status, 101 | 204 | 304);
        let length = header("content-length").map(|length| length.parse::<usize>().expect("a number"));
        if header("content-type") == Some("application/problem+json") {
            assert!(status >= 400, "{}", shown(heard));
        } else {
            assert!(status < 400 || length == Some(0), "unexplained: {}", shown(heard));
        }
        // Whether an answer is to `HEAD` is not known where there are several requests.
        let Some(length) = length.filter(|_| !has_no_body && !is_head) else {
            if matches!(status, 204 | 304) && !body.is_empty() {
                heard = body;
                continue;
            }
            return;
        };
        let Some((body, after)) = body.split_at_checked(length) else { panic!("half a body: {}", shown(heard)) };
        match header("content-type") {
            Some("application/problem+json") => problem(status, body),
            // As it is: a payload may have numbers that no `Value` can hold.
            Some("application/json") => drop(serde_json::from_slice::<IgnoredAny>(body).expect("JSON")),
            _ => {}
        }
        // The answer to the next request.
        heard = after;
        if heard.is_empty() {
            return;
        }
    }
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
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
