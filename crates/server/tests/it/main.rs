//! Tokens from outside: made by other libraries (`tokens.json`: PyJWT 2.15 and jose 6.2; its clock is fixed), by hand,
//! and with keys from a real HTTP server.

mod key_sets;
mod tokens;
#[cfg(feature = "otlp")]
mod traces;

use std::{collections::BTreeMap, sync::Arc};

use millrace_protocol::{Error, Grant, Permission, session::Target};
use millrace_server::auth::{Algorithm, Anonymous, Auth, Config, SigningKey, generate};
use millrace_transport::access::Authority as _;
use serde_json::{Value, json};

pub const NOW: u64 = 1_800_000_000;

pub fn made_elsewhere() -> Value {
    serde_json::from_str(include_str!("tokens.json")).expect("it is JSON")
}

pub fn auth(config: &Config) -> Auth {
    Auth::new(config, &Anonymous::default(), || NOW).expect("the configuration is good")
}

/// Returns a private key, and a file with its public key.
pub fn pair(algorithm: Algorithm) -> (SigningKey, tempfile::NamedTempFile) {
    let pair = generate(algorithm).expect("there is randomness");
    (SigningKey::parse(pair.private.as_bytes()).expect("it was just made"), file(&pair.public))
}

pub fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("it is ours");
    file
}

/// Returns claims that are valid for an hour.
pub fn claims() -> Value {
    json!({ "sub": "car-7", "jti": "t-1", "iat": NOW, "exp": NOW + 3600, "millrace": { "publish": ["cars/{sub}/#"] } })
}

pub async fn verify(auth: &Auth, token: &str) -> Result<Arc<Grant>, Error> {
    auth.verify(token).await
}

pub fn may(grant: &Grant, right: Permission, target: &str) -> bool {
    grant.check(right, &Target::parse(target).expect("it is a name")).is_ok()
}

pub fn rights(namespace: &str, rights: &[Permission]) -> Anonymous {
    Anonymous { namespaces: BTreeMap::from([(namespace.to_owned(), rights.to_vec())]), has_connect_hook: false }
}
