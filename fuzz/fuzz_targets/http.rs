//! Fuzzes requests through a real connection of a real shard. Whatever the bytes, the response must be HTTP with a
//! status of the protocol, errors must be problem details, and the server must survive. Input: data of a client, in
//! any version of HTTP, upgraded or not.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_fuzz::world;
use millrace_protocol::CODES;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Valid statuses in addition to those of [`CODES`]. hyper generates 414 and 431.
const STATUSES: &[u16] = &[101, 200, 204, 304, 414, 431];
/// Statuses that only a defect of the server, a slow engine or a drain causes.
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
        // Continues with the response after `100 Continue`.
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
        // With several requests, it is unknown whether a response is for `HEAD`.
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
            // Not parsed into a `Value`: a payload may contain numbers that `Value` cannot hold.
            Some("application/json") => drop(serde_json::from_slice::<IgnoredAny>(body).expect("JSON")),
            _ => {}
        }
        // The rest is the response to the next request.
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
