//! Identification of this server at push services.
//!
//! Source: RFC 8292 (VAPID).

use std::fmt;

use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::json;

/// Validity of a token; at most 24 h are permitted (section 2).
const VALID_S: u64 = 12 * 60 * 60;

/// Key pair of this server, and the contact of its operator.
pub struct Vapid {
    pair: EcdsaKeyPair,
    contact: String,
}

/// Reason why a key cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("the file has no private key of P-256 in PEM (PKCS#8); `millrace token key --alg ES256` creates one")]
    Malformed,
    #[error("the system has no random numbers")]
    NoRandomness,
}

impl fmt::Debug for Vapid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vapid({})", self.public_key())
    }
}

impl Vapid {
    /// Parses a private key in PEM. `contact` is a `mailto:` or `https:` URL.
    pub fn parse(pem: &str, contact: String) -> Result<Self, KeyError> {
        let body = pem.split_once("-----BEGIN PRIVATE KEY-----").and_then(|(_, rest)| rest.split_once("-----END"));
        let body: String = body.ok_or(KeyError::Malformed)?.0.split_whitespace().collect();
        let der = BASE64_STANDARD.decode(body).map_err(|_| KeyError::Malformed)?;
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der, &SystemRandom::new());
        Ok(Self { pair: pair.map_err(|_| KeyError::Malformed)?, contact })
    }

    /// Returns the public key in base64url, the `applicationServerKey` of browsers.
    pub fn public_key(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(self.pair.public_key())
    }

    /// Returns the value of `Authorization` for a push service; `origin` is that of the endpoint.
    pub fn authorization(&self, origin: &str, now_s: u64) -> Result<String, KeyError> {
        let part = |value: serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let claims = json!({"aud": origin, "exp": now_s + VALID_S, "sub": self.contact});
        let message = format!("{}.{}", part(json!({"typ": "JWT", "alg": "ES256"})), part(claims));
        let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes());
        let signature = BASE64_URL_SAFE_NO_PAD.encode(signature.map_err(|_| KeyError::NoRandomness)?);
        Ok(format!("vapid t={message}.{signature}, k={}", self.public_key()))
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    use super::*;

    #[test]
    fn token_names_the_service_and_verifies() {
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
        let body = BASE64_STANDARD.encode(der.as_ref());
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{}\n{}\n-----END PRIVATE KEY-----\n", &body[..64], &body[64..]);
        let vapid = Vapid::parse(&pem, "mailto:ops@example.org".into()).unwrap();
        let header = vapid.authorization("https://push.example", 1000).unwrap();
        let (token, key) = header.strip_prefix("vapid t=").unwrap().split_once(", k=").unwrap();
        assert_eq!(key, vapid.public_key());
        let (message, signature) = token.rsplit_once('.').unwrap();
        let decode = |text: &str| BASE64_URL_SAFE_NO_PAD.decode(text).unwrap();
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, decode(key));
        assert!(public.verify(message.as_bytes(), &decode(signature)).is_ok());
        let claims: serde_json::Value = serde_json::from_slice(&decode(message.split_once('.').unwrap().1)).unwrap();
        assert_eq!(claims, json!({"aud": "https://push.example", "exp": 44_200, "sub": "mailto:ops@example.org"}));
        assert_eq!(Vapid::parse("none", String::new()).err(), Some(KeyError::Malformed));
    }
}
