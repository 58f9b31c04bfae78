//! Creates tokens and their keys, for `millrace token`. The server never uses this module.

use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD, Engine as _};
use ring::{
    hmac,
    rand::SystemRandom,
    signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair},
};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use serde_json::{Value, json};

use super::{
    config::SECRET_BYTES_MIN,
    key::{Algorithm, ED25519_SPKI, P256_SPKI},
};

/// DER prefix of an Ed25519 private key; its 32 bytes follow. The public key is omitted, since some parsers do not
/// expect it. Source: RFC 8410, section 7.
const ED25519_PKCS8: &[u8] = &[0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// Key that signs tokens.
pub enum SigningKey {
    Secret(hmac::Key),
    Rsa(Box<RsaKeyPair>),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

/// Reasons why a key cannot be read or created, or a token not be signed.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    #[error(
        "a secret for HS256 needs at least {SECRET_BYTES_MIN} bytes; `millrace token key --alg HS256` generates one"
    )]
    ShortSecret,
    #[error(
        "expected a private key in PEM that begins with `-----BEGIN PRIVATE KEY-----`; `openssl pkcs8 -topk8 -nodes` converts other private keys"
    )]
    NotPem,
    #[error("unsupported private key: expected RSA (2048 bits or more), P-256 or Ed25519")]
    UnsupportedKey,
    #[error("use `openssl genpkey` to create a key pair for {}", .0.name())]
    NotGenerated(Algorithm),
    #[error("the system has no random numbers")]
    NoRandomness,
    #[error(transparent)]
    Random(#[from] getrandom::Error),
    #[error("{0}")]
    Rejected(ring::error::KeyRejected),
}

/// New key pair, both keys in PEM.
pub struct Pair {
    pub private: String,
    pub public: String,
}

impl SigningKey {
    /// Parses a private key in PEM, or else a secret for HS256.
    ///
    /// Errors: the text is neither a supported private key nor a secret that is long enough.
    pub fn parse(text: &[u8]) -> Result<Self, SigningError> {
        if text.windows(11).any(|word| word == b"-----BEGIN ") {
            return Self::from_pem(text);
        }
        let secret = text.trim_ascii();
        if secret.len() < SECRET_BYTES_MIN {
            return Err(SigningError::ShortSecret);
        }
        Ok(Self::Secret(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    }

    fn from_pem(pem: &[u8]) -> Result<Self, SigningError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem).map_err(|_| SigningError::NotPem)?;
        let der = der.secret_pkcs8_der();
        if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der) {
            return Ok(Self::Ed25519(pair));
        }
        let p256 = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        if let Ok(pair) = EcdsaKeyPair::from_pkcs8(p256, der, &SystemRandom::new()) {
            return Ok(Self::P256(pair));
        }
        let pair = RsaKeyPair::from_pkcs8(der);
        pair.map(|pair| Self::Rsa(pair.into())).map_err(|_| SigningError::UnsupportedKey)
    }

    pub fn algorithm(&self) -> Algorithm {
        match self {
            Self::Secret(_) => Algorithm::Hs256,
            Self::Rsa(_) => Algorithm::Rs256,
            Self::P256(_) => Algorithm::Es256,
            Self::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    /// Returns a token with these claims. `kid` names the key, for servers with several keys.
    ///
    /// Errors: the system has no random numbers.
    pub fn sign(&self, claims: &Value, kid: Option<&str>) -> Result<String, SigningError> {
        let mut header = json!({ "alg": self.algorithm().name(), "typ": "JWT" });
        if let Some(kid) = kid {
            header["kid"] = kid.into();
        }
        let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(&header), part(claims));
        let signed = self.sign_bytes(message.as_bytes()).map_err(|_| SigningError::NoRandomness)?;
        Ok(format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(signed)))
    }

    fn sign_bytes(&self, message: &[u8]) -> Result<Vec<u8>, ring::error::Unspecified> {
        let random = SystemRandom::new();
        Ok(match self {
            Self::Secret(key) => hmac::sign(key, message).as_ref().to_vec(),
            Self::P256(pair) => pair.sign(&random, message)?.as_ref().to_vec(),
            Self::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
            Self::Rsa(pair) => {
                let mut signed = vec![0; pair.public().modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut signed)?;
                signed
            }
        })
    }
}

/// Returns a new key pair for EdDSA or ES256. `openssl genpkey` creates pairs for the other algorithms.
///
/// Errors: another algorithm, or the system has no random numbers.
pub fn generate(algorithm: Algorithm) -> Result<Pair, SigningError> {
    let (private, public) = match algorithm {
        Algorithm::EdDsa => {
            let mut seed = [0; 32];
            getrandom::fill(&mut seed)?;
            let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(SigningError::Rejected)?;
            ([ED25519_PKCS8, &seed].concat(), [ED25519_SPKI, pair.public_key().as_ref()].concat())
        }
        Algorithm::Es256 => {
            let (p256, random) = (&signature::ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
            let private = EcdsaKeyPair::generate_pkcs8(p256, &random).map_err(|_| SigningError::NoRandomness)?;
            let pair = EcdsaKeyPair::from_pkcs8(p256, private.as_ref(), &random).map_err(SigningError::Rejected)?;
            (private.as_ref().to_vec(), [P256_SPKI, pair.public_key().as_ref()].concat())
        }
        other => return Err(SigningError::NotGenerated(other)),
    };
    Ok(Pair { private: pem("PRIVATE KEY", &private), public: pem("PUBLIC KEY", &public) })
}

/// Encodes DER as PEM. Source: RFC 7468, section 3.
fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap_or_default()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::key::Key;

    #[test]
    fn public_key_verifies_signature_of_its_pair() {
        for algorithm in [Algorithm::EdDsa, Algorithm::Es256] {
            let (pair, other) = (generate(algorithm).unwrap(), generate(algorithm).unwrap());
            let signing = SigningKey::parse(pair.private.as_bytes()).unwrap();
            assert_eq!(signing.algorithm(), algorithm);
            let signed = signing.sign_bytes(b"text").unwrap();
            let key = |pair: &Pair| Key::from_pem(pair.public.as_bytes(), "").unwrap();
            assert!(key(&pair).verify(b"text", &signed) && !key(&pair).verify(b"test", &signed));
            assert!(!key(&other).verify(b"text", &signed));
        }
        assert!(generate(Algorithm::Rs256).is_err() && SigningKey::parse(b"short").is_err());
        assert!(SigningKey::parse(b"-----BEGIN RSA PRIVATE KEY-----\n").is_err());
    }
}
