//! Cost of verifying a request's token: a signature of each algorithm, and a cached token. One thread, no network.
//!
//! `cargo bench -p millrace-server --bench tokens` prints a row for each; docs/reference/tokens.md has the figures.

use std::{hint::black_box, time::Instant};

use millrace_server::auth::{Anonymous, Auth, Config, encode_hash, hash_api_key};
use millrace_transport::access::Authority as _;
use serde_json::Value;

const ROUNDS: usize = 7;
const TOKENS: u32 = 2000;

fn main() {
    let made: Value = serde_json::from_str(include_str!("../tests/it/tokens.json")).expect("it is JSON");
    let set = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(set.path(), made["jwks"].to_string()).expect("it is ours");
    let config = |cached_max| {
        let keys = vec![set.path().to_owned()];
        let key = [("bench".to_owned(), serde_json::json!({ "sha256": encode_hash(&hash_api_key("mrk_bench")) }))];
        let api_keys = key.map(|(name, key)| (name, serde_json::from_value(key).expect("it is one"))).into();
        Config {
            secret: made["secret"].as_str().expect("text").into(),
            keys,
            cached_max,
            api_keys,
            ..Config::default()
        }
    };
    let auth =
        |cached_max| Auth::new(&config(cached_max), &Anonymous::default(), || 1_800_000_000).expect("it is good");
    let (checking, remembering) = (auth(0), auth(10_000));
    let token = |algorithm: &str| made["tokens"]["pyjwt"][algorithm].as_str().expect("text").to_owned();
    for algorithm in ["HS256", "EdDSA", "ES256", "RS256"] {
        row(algorithm, &checking, &token(algorithm));
    }
    row("remembered", &remembering, &token("RS256"));
    row("API key", &checking, "mrk_bench");
    let mut forged = token("ES256");
    forged.replace_range(forged.len() - 8..forged.len() - 4, "AAAA");
    row("forged ES256", &checking, &forged);
    row("garbage", &checking, "e30.e30.e30");
}

fn row(what: &str, auth: &Auth, token: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut each_us: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            runtime.block_on(async {
                let start = Instant::now();
                for _ in 0..TOKENS {
                    let _ = black_box(auth.verify(black_box(token)).await);
                }
                start.elapsed().as_secs_f64() * 1e6 / f64::from(TOKENS)
            })
        })
        .collect();
    each_us.sort_by(f64::total_cmp);
    println!("{what:<14} {:>8.2} µs  ({:.2} to {:.2})", each_us[ROUNDS / 2], each_us[0], each_us[ROUNDS - 1]);
}
