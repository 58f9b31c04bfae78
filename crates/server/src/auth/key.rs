//! Keys that verify signatures. The algorithm belongs to the key, so a token cannot choose it: neither HS256 with the
//! bytes of a public key nor `none` ever verifies.

use std::{
    io,
    path::{Path, PathBuf},
};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use ring::{
    hmac,
    signature::{self, RsaPublicKeyComponents, UnparsedPublicKey},
};
use rustls::pki_types::{SubjectPublicKeyInfoDer, pem::PemObject};
use serde::Deserialize;

use super::config::SECRET_BYTES_MIN;

/// Signature algorithm. Source: RFC 7518, section 3.1; RFC 8037, section 3.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    Hs256,
    Rs256,
    Es256,
    EdDsa,
}

impl Algorithm {
    pub const ALL: [Algorithm; 4] = [Algorithm::Hs256, Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa];

    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Hs256 => "HS256",
            Algorithm::Rs256 => "RS256",
            Algorithm::Es256 => "ES256",
            Algorithm::EdDsa => "EdDSA",
        }
    }

    /// Parses an algorithm name. `Ed25519` is the name in RFC 9864 for the EdDSA variant that is supported here.
    pub fn parse(name: &str) -> Option<Self> {
        let name = if name == "Ed25519" { "EdDSA" } else { name };
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// Key that verifies signatures of one algorithm.
#[derive(Clone, Debug)]
pub struct Key {
    pub algorithm: Algorithm,
    /// Name of the key in tokens (`kid`).
    pub id: Option<String>,
    /// Source of the key, for messages to the operator.
    pub from: String,
    material: Material,
}

#[derive(Clone, Debug)]
enum Material {
    Secret(hmac::Key),
    Public(UnparsedPublicKey<Vec<u8>>),
    RsaComponents(RsaPublicKeyComponents<Vec<u8>>),
}

/// Reasons why a key cannot be used. No message contains a part of the key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("a secret for HS256 needs at least {SECRET_BYTES_MIN} bytes")]
    ShortSecret,
    #[error("cannot read {}: {error}", .path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{}: {error}", .path.display())]
    InFile { path: PathBuf, error: Box<KeyError> },
    #[error("this is a private key: give the server only the public one, from `openssl pkey -in private.pem -pubout`")]
    PrivateKey,
    #[error("expected a public key in PEM (`-----BEGIN PUBLIC KEY-----`) or a JSON Web Key Set")]
    NotPem,
    #[error("unsupported public key: expected RSA (2048 bits or more), P-256 or Ed25519")]
    UnsupportedKey,
    #[error("expected a JSON Web Key Set (`{{\"keys\": [..]}}`)")]
    NotAKeySet,
    #[error("more than {SET_MAX} keys")]
    TooManyKeys,
    #[error("the key set has no key for signatures by RS256, ES256 or EdDSA")]
    NoUsableKey,
}

/// DER prefix of an Ed25519 public key; its 32 bytes follow. Source: RFC 8410, section 4.
pub const ED25519_SPKI: &[u8] = &[0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];
/// DER prefix of a P-256 public key; the 65 bytes of an uncompressed point follow. Source: RFC 5480, section 2.
pub const P256_SPKI: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7, 3,
    0x42, 0,
];
/// DER prefix of an `RSAPublicKey`, without the two lengths, which have two bytes each from 2048 bits on. Source: RFC
/// 3279, section 2.3.1.
const RSA_SPKI: &[u8] = &[0x30, 0x0d, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 5, 0, 3, 0x82];
/// Minimum size of an RSA modulus, in bytes (2048 bits); shorter keys are insecure.
const RSA_BYTES_MIN: usize = 256;

impl Key {
    /// Creates a key for HS256.
    ///
    /// Errors: the secret is too short.
    pub fn from_secret(secret: &[u8], from: &str) -> Result<Self, KeyError> {
        if secret.len() < SECRET_BYTES_MIN {
            return Err(KeyError::ShortSecret);
        }
        let material = Material::Secret(hmac::Key::new(hmac::HMAC_SHA256, secret));
        Ok(Self { algorithm: Algorithm::Hs256, id: None, from: from.into(), material })
    }

    /// Reads all keys of a file: one public key in PEM, or a JSON Web Key Set.
    ///
    /// Errors: [`KeyError::Read`], or [`KeyError::InFile`].
    pub fn from_file(path: &Path) -> Result<Vec<Self>, KeyError> {
        let from = format!("file {}", path.display());
        let text = std::fs::read(path).map_err(|error| KeyError::Read { path: path.to_owned(), error })?;
        let keys = match text.trim_ascii_start().starts_with(b"{") {
            true => from_set(&text, &from, Secrets::Taken),
            false => Self::from_pem(&text, &from).map(|key| vec![key]),
        };
        keys.map_err(|error| KeyError::InFile { path: path.to_owned(), error: error.into() })
    }

    /// Parses a public key in PEM.
    ///
    /// Errors: the text is a private key, no key, or a key of another algorithm.
    pub fn from_pem(pem: &[u8], from: &str) -> Result<Self, KeyError> {
        if pem.windows(11).any(|word| word == b"PRIVATE KEY") {
            return Err(KeyError::PrivateKey);
        }
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem).map_err(|_| KeyError::NotPem)?;
        Self::from_spki(&der, from).ok_or(KeyError::UnsupportedKey)
    }

    fn from_spki(der: &[u8], from: &str) -> Option<Self> {
        if let Some(raw) = der.strip_prefix(ED25519_SPKI).filter(|raw| raw.len() == 32) {
            return Some(Self::public(Algorithm::EdDsa, raw, from));
        }
        if let Some(point) = der.strip_prefix(P256_SPKI).filter(|point| point.len() == 65 && point[0] == 4) {
            return Some(Self::public(Algorithm::Es256, point, from));
        }
        let (outer, rest) = der.strip_prefix(&[0x30, 0x82])?.split_at_checked(2)?;
        let (inner, rest) = rest.strip_prefix(RSA_SPKI)?.split_at_checked(2)?;
        let length = |bytes: &[u8]| usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
        let key = rest.strip_prefix(&[0])?;
        let fits = length(outer) + 4 == der.len() && length(inner) == rest.len() && key.len() > RSA_BYTES_MIN;
        fits.then(|| Self::public(Algorithm::Rs256, key, from))
    }

    pub(super) fn public(algorithm: Algorithm, bytes: &[u8], from: &str) -> Self {
        let how: &'static dyn signature::VerificationAlgorithm = match algorithm {
            Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Algorithm::Es256 => &signature::ECDSA_P256_SHA256_FIXED,
            Algorithm::EdDsa => &signature::ED25519,
            Algorithm::Hs256 => unreachable!("a secret is no public key"),
        };
        let material = Material::Public(UnparsedPublicKey::new(how, bytes.to_vec()));
        Self { algorithm, id: None, from: from.into(), material }
    }

    /// Returns true if the holder of the key signed this message.
    pub fn verify(&self, message: &[u8], signed: &[u8]) -> bool {
        match &self.material {
            Material::Secret(key) => hmac::verify(key, message, signed).is_ok(),
            Material::Public(key) => key.verify(message, signed).is_ok(),
            Material::RsaComponents(key) => key.verify(&signature::RSA_PKCS1_2048_8192_SHA256, message, signed).is_ok(),
        }
    }
}

/// Whether a key set may contain secrets for HS256. A key set from a URL is public, so it must not.
#[derive(Clone, Copy, PartialEq)]
pub enum Secrets {
    Taken,
    Refused,
}

/// Maximum number of keys in one set.
const SET_MAX: usize = 100;

#[derive(Deserialize)]
struct Set {
    keys: Vec<serde_json::Value>,
}

/// JSON Web Key. Source: RFC 7517, section 4; RFC 7518, section 6; RFC 8037, section 2.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    k: Option<String>,
}

/// Returns the keys of a JSON Web Key Set that verify signatures here. Other keys are ignored, as RFC 7517, section 5,
/// requires.
///
/// Errors: the text is not a key set, or has no usable key.
pub fn from_set(json: &[u8], from: &str, secrets: Secrets) -> Result<Vec<Key>, KeyError> {
    let set: Set = serde_json::from_slice(json).map_err(|_| KeyError::NotAKeySet)?;
    if set.keys.len() > SET_MAX {
        return Err(KeyError::TooManyKeys);
    }
    let read =
        |value: serde_json::Value| serde_json::from_value::<Jwk>(value).ok().and_then(|jwk| jwk.key(from, secrets));
    let keys: Vec<Key> = set.keys.into_iter().filter_map(read).collect();
    match keys.is_empty() {
        true => Err(KeyError::NoUsableKey),
        false => Ok(keys),
    }
}

impl Jwk {
    fn key(self, from: &str, secrets: Secrets) -> Option<Key> {
        let is_for_signatures = self.usage.as_deref().is_none_or(|usage| usage == "sig")
            && self.key_ops.as_ref().is_none_or(|ops| ops.iter().any(|op| op == "verify"));
        if !is_for_signatures {
            return None;
        }
        let bytes = |text: &Option<String>| BASE64_URL_SAFE_NO_PAD.decode(text.as_ref()?).ok();
        let mut key = match (self.kty.as_str(), self.crv.as_deref()) {
            ("OKP", Some("Ed25519")) => Key::public(Algorithm::EdDsa, &bytes(&self.x).filter(|x| x.len() == 32)?, from),
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes(&self.x).filter(|x| x.len() == 32)?, bytes(&self.y).filter(|y| y.len() == 32)?);
                Key::public(Algorithm::Es256, &[&[4], &x[..], &y[..]].concat(), from)
            }
            ("RSA", _) => {
                let (n, e) = (bytes(&self.n).filter(|n| n.len() >= RSA_BYTES_MIN)?, bytes(&self.e)?);
                let material = Material::RsaComponents(RsaPublicKeyComponents { n, e });
                Key { algorithm: Algorithm::Rs256, id: None, from: from.into(), material }
            }
            ("oct", _) if secrets == Secrets::Taken => Key::from_secret(&bytes(&self.k)?, from).ok()?,
            _ => return None,
        };
        if self.alg.is_some_and(|alg| Algorithm::parse(&alg) != Some(key.algorithm)) {
            return None;
        }
        key.id = self.kid;
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_set_skips_unusable_keys() {
        let x = BASE64_URL_SAFE_NO_PAD.encode([7; 32]);
        let good = format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}","kid":"a","alg":"EdDSA","use":"sig","more":1}}"#);
        let others = [
            format!(r#"{{"kty":"OKP","crv":"X25519","x":"{x}"}}"#),
            format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}","use":"enc"}}"#),
            format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}","key_ops":["sign"]}}"#),
            format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}","alg":"HS256"}}"#),
            format!(r#"{{"kty":"EC","crv":"P-256","x":"{x}","y":"AA"}}"#),
            format!(r#"{{"kty":"RSA","n":"{x}","e":"AQAB"}}"#),
            format!(r#"{{"kty":"oct","k":"{x}"}}"#),
            r#"{"kty":7}"#.into(),
        ];
        let set = |keys: &str| from_set(format!("{{\"keys\":[{keys}]}}").as_bytes(), "test", Secrets::Refused);
        let keys = set(&format!("{},{good}", others.join(","))).unwrap();
        assert_eq!((keys.len(), keys[0].algorithm, keys[0].id.as_deref()), (1, Algorithm::EdDsa, Some("a")));
        for other in &others {
            assert!(set(other).is_err(), "{other}");
        }
        assert!(set(&[good.as_str(); SET_MAX + 1].join(",")).is_err());
        assert!(from_set(b"[]", "", Secrets::Taken).is_err() && from_set(b"{", "", Secrets::Taken).is_err());
        let secret = format!("{{\"keys\":[{}]}}", others[6]);
        assert_eq!(from_set(secret.as_bytes(), "", Secrets::Taken).unwrap()[0].algorithm, Algorithm::Hs256);
    }

    #[test]
    fn invalid_key_has_a_reason() {
        let error = |pem: &str| Key::from_pem(pem.as_bytes(), "").unwrap_err().to_string();
        assert!(error("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").contains("private key"));
        assert!(
            error("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n").contains("unsupported public key")
        );
        assert!(error("secret").contains("expected a public key"));
        assert!(Key::from_secret(&[1; 31], "").is_err() && Key::from_secret(&[1; 32], "").is_ok());
    }
}
