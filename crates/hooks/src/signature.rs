//! Signatures of requests to the app's back end, and their verification.
//!
//! `Millrace-Signature: t=UNIX_S,v1=HEX[,v1=HEX]`: each `v1` is the HMAC-SHA256 of `UNIX_S.BODY` with one secret. While
//! secrets are rotated there are several, so that a back end with the old or the new secret accepts the request.
//!
//! Source: docs/reference/hooks.md, "Signature".

use std::{
    fmt,
    fmt::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderValue};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// Header of the signature.
pub const SIGNATURE: &str = "millrace-signature";
/// Header of the id of the event. A repeated request has the same id.
pub const EVENT_ID: &str = "millrace-event-id";
/// Minimum length of a secret, in bytes: a shorter one can be guessed.
pub const SECRET_BYTES_MIN: usize = 16;

/// Signs request bodies with every secret in force. `Debug` hides the secrets.
#[derive(Clone)]
pub struct Signer {
    secrets: Vec<Hmac<Sha256>>,
}

/// Reasons why a receiver rejects a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("the header `Millrace-Signature` is not `t=SECONDS,v1=HEX`")]
    Malformed,
    #[error("the request is too old, or its clock is ahead")]
    Time,
    #[error("no signature matches the body and the secret")]
    Mismatch,
}

impl Signer {
    /// Creates a signer. The first secret signs first.
    pub fn new<S: AsRef<[u8]>>(secrets: impl IntoIterator<Item = S>) -> Self {
        let key = |secret: S| Hmac::new_from_slice(secret.as_ref()).expect("HMAC accepts keys of any length");
        Self { secrets: secrets.into_iter().map(key).collect() }
    }

    /// Returns the value of the header for a body that is sent now.
    pub fn sign(&self, unix_s: u64, body: &[u8]) -> String {
        let mut header = format!("t={unix_s}");
        for secret in &self.secrets {
            header.push_str(",v1=");
            for byte in digest(secret, unix_s, body) {
                let _ = write!(header, "{byte:02x}");
            }
        }
        header
    }

    /// Verifies a header as a receiver does: any secret of this signer may match any `v1` of the header.
    ///
    /// Errors: a malformed header, a time further than `tolerance` from `now_s`, or no matching signature.
    pub fn verify(&self, header: &str, body: &[u8], now_s: u64, tolerance: Duration) -> Result<(), SignatureError> {
        let mut time = None;
        let mut sent = Vec::new();
        for part in header.split(',') {
            match part.trim().split_once('=').ok_or(SignatureError::Malformed)? {
                ("t", text) => time = Some(text.parse::<u64>().map_err(|_| SignatureError::Malformed)?),
                ("v1", text) => sent.push(decode_hex(text).ok_or(SignatureError::Malformed)?),
                // A later version of the signature.
                _ => {}
            }
        }
        let unix_s = time.ok_or(SignatureError::Malformed)?;
        if sent.is_empty() {
            return Err(SignatureError::Malformed);
        }
        if unix_s.abs_diff(now_s) > tolerance.as_secs() {
            return Err(SignatureError::Time);
        }
        let matches = self.secrets.iter().map(|secret| digest(secret, unix_s, body)).fold(false, |matches, own| {
            matches | sent.iter().fold(false, |matches, sent| matches | bool::from(own.ct_eq(sent)))
        });
        if matches { Ok(()) } else { Err(SignatureError::Mismatch) }
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({} secrets)", self.secrets.len())
    }
}

/// Returns the headers of a request that is sent now: signature and id of the event.
pub fn signed_headers(signer: &Signer, event_id: &str, body: &[u8]) -> HeaderMap {
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut headers = HeaderMap::new();
    for (name, value) in [(SIGNATURE, signer.sign(unix_s, body)), (EVENT_ID, event_id.to_owned())] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    headers
}

/// Returns a new random id of an event, 32 hexadecimal digits.
///
/// Errors: the system has no random numbers.
pub fn event_id() -> Result<String, getrandom::Error> {
    let mut chance = [0; 16];
    getrandom::fill(&mut chance)?;
    Ok(chance.iter().fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

fn digest(secret: &Hmac<Sha256>, unix_s: u64, body: &[u8]) -> [u8; 32] {
    let mut mac = secret.clone();
    mac.update(unix_s.to_string().as_bytes());
    mac.update(b".");
    mac.update(body);
    mac.finalize().into_bytes().into()
}

fn decode_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &[u8] = b"the old secret, 32 bytes or more";
    const NEW: &[u8] = b"the new secret, 32 bytes or more";
    const TOLERANCE: Duration = Duration::from_secs(300);

    #[test]
    fn signature_matches_an_independent_computation() {
        // printf '1800000000.{"hook":"publish"}' | openssl dgst -sha256 -hmac 'the new secret, 32 bytes or more'
        let header = Signer::new([NEW]).sign(1_800_000_000, br#"{"hook":"publish"}"#);
        assert_eq!(header, "t=1800000000,v1=19f59d5c4a337b1acf4daa481b3d611f7d9bdba40e52e1542268fc57e438a7a8");
    }

    #[test]
    fn rotation_leaves_no_gap() {
        let (old, both, new) = (Signer::new([OLD]), Signer::new([NEW, OLD]), Signer::new([NEW]));
        let header = both.sign(100, b"body");
        assert_eq!(header.matches("v1=").count(), 2);
        for receiver in [&old, &both, &new] {
            assert_eq!(receiver.verify(&header, b"body", 100, TOLERANCE), Ok(()));
        }
        assert_eq!(new.verify(&old.sign(100, b"body"), b"body", 100, TOLERANCE), Err(SignatureError::Mismatch));
    }

    #[test]
    fn altered_late_and_malformed_requests_are_rejected() {
        let signer = Signer::new([NEW]);
        let header = signer.sign(1000, b"body");
        let verify = |header: &str, body: &[u8], now_s| signer.verify(header, body, now_s, TOLERANCE);
        assert_eq!(verify(&header, b"body", 1300), Ok(()));
        assert_eq!(verify(&header, b"bodY", 1000), Err(SignatureError::Mismatch));
        assert_eq!(verify(&header.replace("t=1000", "t=1001"), b"body", 1000), Err(SignatureError::Mismatch));
        assert_eq!(verify(&header, b"body", 1301), Err(SignatureError::Time));
        assert_eq!(verify(&header, b"body", 699), Err(SignatureError::Time));
        for bad in ["", "t=1000", "v1=00", "t=x,v1=00", "t=1000,v1=zz", "nonsense"] {
            assert_eq!(verify(bad, b"body", 1000), Err(SignatureError::Malformed), "{bad}");
        }
    }

    #[test]
    fn debug_hides_secrets() {
        assert_eq!(format!("{:?}", Signer::new([OLD, NEW])), "Signer(2 secrets)");
    }
}
