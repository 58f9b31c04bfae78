//! Fuzzes tokens, API keys and key sets: an unsigned token grants nothing, and a signed token grants only its claims.
//!
//! Input: a line with a header and a line with claims, which the target signs unchanged; then a key set or a key in
//! PEM. The whole input is also used as an unsigned token and as an API key.

#![no_main]

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use hmac::{Hmac, KeyInit, Mac};
use libfuzzer_sys::fuzz_target;
use millrace_fuzz::file;
use millrace_protocol::{Code, Error, Grant, Pattern, Permission};
use millrace_server::{
    auth::{ApiKey, Auth, Config, Rights, encode_hash, hash_api_key},
    config::Secret,
};
use millrace_transport::access::Authority;
use serde_json::Value;

const SECRET: &str = "a secret of thirty-two bytes and more";
const API_KEY: &str = "mrk_back-end";
const NOW_S: u64 = 1_800_000_000;
/// Maximum number of rules in a token. Source: docs/reference/tokens.md.
const RULES_MAX: usize = 100;
const SUBJECT: &str = "{sub}";

fuzz_target!(|text: &str| {
    thread_local!(static AUTH: Auth = Auth::new(&config(), &Default::default(), || NOW_S).expect("a good configuration"));
    AUTH.with(|auth| {
        unsigned(auth, text.trim());
        let mut lines = text.splitn(3, '\n');
        let (header, claims) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        signed(auth, header, claims);
        keys(lines.next().unwrap_or_default(), header, claims);
    });
});

fn config() -> Config {
    let grants = Rights { publish: vec!["orders/#".into()], ..Rights::default() };
    let api_key = ApiKey { sha256: encode_hash(&hash_api_key(API_KEY)), grants };
    Config {
        secret: Secret::from(SECRET),
        audience: "millrace".into(),
        default: Rights { publish: vec!["cars/{sub}/#".into()], ..Rights::default() },
        api_keys: [("back-end".into(), api_key)].into(),
        ..Config::default()
    }
}

/// Polls a future once. Verification never waits here, because no key set is fetched.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a verification waits for something"),
    }
}

/// Returns the server's verdict. The verdict must not depend on earlier checks of the token.
fn verify(auth: &Auth, token: &str) -> Result<Arc<Grant>, Error> {
    let verdict = now(auth.explain(token)).map(|verified| verified.grant);
    assert_eq!(now(auth.verify(token)), verdict);
    assert_eq!(now(auth.verify(token)), verdict);
    if let Err(error) = &verdict {
        assert_eq!(error.code, Code::Unauthorized, "{error}");
        let told = token.split('.').find(|part| is_secret(part, 16) && error.detail.contains(*part));
        assert!(told.is_none(), "an error contains a part of the token: {error}");
    }
    verdict
}

/// Returns true for a long word without spaces, which no error text contains by chance.
fn is_secret(word: &str, bytes_min: usize) -> bool {
    word.len() >= bytes_min && !word.contains(' ')
}

fn unsigned(auth: &Auth, text: &str) {
    let verdict = verify(auth, text);
    if let Ok(grant) = verdict {
        let is_signed = || {
            let (message, signed) = text.rsplit_once('.')?;
            (BASE64_URL_SAFE_NO_PAD.encode(sign(message)) == signed).then_some(())
        };
        assert!(text == API_KEY || is_signed().is_some(), "{text:?} is not signed, and was accepted: {grant:?}");
    }
}

/// Signs with another implementation than the server's.
fn sign(message: &str) -> Vec<u8> {
    let mut hmac = Hmac::<sha2::Sha256>::new_from_slice(SECRET.as_bytes()).expect("any length");
    hmac.update(message.as_bytes());
    hmac.finalize().into_bytes().to_vec()
}

fn signed(auth: &Auth, header: &str, claims: &str) {
    let message = message(header, claims);
    let signed = sign(&message);
    let token = format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(&signed));
    let Ok(grant) = verify(auth, &token) else { return };
    let (header, claims): (Value, Value) =
        (serde_json::from_str(header).expect("JSON"), serde_json::from_str(claims).expect("JSON"));
    assert!(header["alg"] == "HS256" && header["crit"].is_null(), "{header}");
    assert_eq!(grant.subject.as_deref(), claims["sub"].as_str());
    assert_eq!(grant.id.as_deref(), claims["jti"].as_str());
    let expires = claims["exp"].as_f64().expect("a time");
    let last = Config::default().lifetime_max.as_secs() + Config::default().leeway.as_secs();
    assert!(expires + 11.0 > NOW_S as f64 && expires < (NOW_S + last + 1) as f64, "{claims}");
    assert!(claims["nbf"].as_f64().is_none_or(|from| from < (NOW_S + 11) as f64), "{claims}");
    let audience = &claims["aud"];
    let is_named = |names: &Vec<Value>| names.iter().any(|name| name == "millrace");
    assert!(audience == "millrace" || audience.as_array().is_some_and(is_named), "{claims}");
    assert_eq!(grant.rules(), rules(&claims), "{claims}");

    // Changes one bit of the signature or of the signed text, or the algorithm.
    let bent = |mut signed: Vec<u8>| {
        let place = message.len() % signed.len();
        signed[place] ^= 1;
        BASE64_URL_SAFE_NO_PAD.encode(signed)
    };
    let none = BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
    let payload = message.split_once('.').expect("two parts").1;
    for forged in [
        format!("{message}.{}", bent(signed.clone())),
        format!("{message}A.{}", BASE64_URL_SAFE_NO_PAD.encode(&signed)),
        format!("{message}."),
        format!("{none}.{payload}."),
        format!("{none}.{payload}.{}", BASE64_URL_SAFE_NO_PAD.encode(&signed)),
    ] {
        assert!(verify(auth, &forged).is_err(), "forged: {forged}");
    }
}

fn message(header: &str, claims: &str) -> String {
    format!("{}.{}", BASE64_URL_SAFE_NO_PAD.encode(header), BASE64_URL_SAFE_NO_PAD.encode(claims))
}

/// Returns the rules that the claims grant.
///
/// Source: docs/reference/tokens.md, "What a token says".
fn rules(claims: &Value) -> Vec<(Permission, Pattern)> {
    let said = |permission: Permission| match &claims["millrace"] {
        Value::Null => {
            if permission == Permission::Publish {
                vec!["cars/{sub}/#"]
            } else {
                vec![]
            }
        }
        permissions => {
            permissions[permission.name()].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
        }
    };
    let subject = claims["sub"].as_str();
    let fill = |pattern: &str| {
        let subject = || subject.filter(|subject| !subject.is_empty() && !subject.contains(['/', '+', '#']));
        match pattern.contains(SUBJECT) {
            true => pattern.replace(SUBJECT, subject().expect("a subject that widens nothing")),
            false => pattern.to_owned(),
        }
    };
    let rule = |permission: Permission| {
        move |pattern: &str| (permission, Pattern::parse(&fill(pattern)).expect("a good pattern"))
    };
    let rules: Vec<_> =
        Permission::ALL.into_iter().flat_map(|permission| said(permission).into_iter().map(rule(permission))).collect();
    assert!(rules.len() <= RULES_MAX);
    rules
}

/// Loads unrelated keys. Tokens signed by other keys must be refused, and an error must not contain text of the key
/// file.
fn keys(text: &str, header: &str, claims: &str) {
    if text.is_empty() {
        return;
    }
    let path = file::with(text);
    let config = Config { keys: vec![path], ..Config::default() };
    let auth = match Auth::new(&config, &Default::default(), || NOW_S) {
        Ok(auth) => auth,
        Err(error) => {
            let error = error.to_string();
            let told = text.split(['"', '\n']).find(|word| is_secret(word, 32) && error.contains(*word));
            return assert!(told.is_none(), "{error}");
        }
    };
    assert!(auth.anonymous().rules().is_empty(), "with a key, a client without a token has no permission");
    let kid = serde_json::from_str::<Value>(text).map(|set| set["keys"][0]["kid"].clone()).unwrap_or_default();
    let headers = ["HS256", "RS256", "ES256", "EdDSA"]
        .map(|alg| serde_json::json!({ "alg": alg, "kid": kid }).to_string())
        .into_iter()
        .chain([header.to_owned()]);
    for header in headers {
        for length in [0, 32, 64, 256] {
            let signed = BASE64_URL_SAFE_NO_PAD.encode(&[0x5a; 256][..length]);
            let token = format!("{}.{signed}", message(&header, claims));
            assert!(verify(&auth, &token).is_err(), "{text} verified a token of another key: {header} {claims}");
        }
    }
}
