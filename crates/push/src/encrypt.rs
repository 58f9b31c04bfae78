//! Encryption of a message for one subscription.
//!
//! Source: RFC 8291 (Message Encryption for Web Push), RFC 8188 (aes128gcm).

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::{
    aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral},
    hkdf::{HKDF_SHA256, KeyType, Salt},
    rand::SystemRandom,
};

/// Maximum size of a message in bytes: push services accept 4,096 encrypted bytes (RFC 8291, section 4).
pub const MESSAGE_BYTES_MAX: usize = RECORD_BYTES as usize - HEADER_BYTES - 1 - TAG_BYTES;
const RECORD_BYTES: u32 = 4096;
const SALT_BYTES: usize = 16;
const POINT_BYTES: usize = 65;
const HEADER_BYTES: usize = SALT_BYTES + 4 + 1 + POINT_BYTES;
const TAG_BYTES: usize = 16;
const AUTH_BYTES: usize = 16;
/// Marks the last record (RFC 8188, section 2).
const LAST_RECORD: u8 = 2;

/// Keys of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    public: [u8; POINT_BYTES],
    auth: [u8; AUTH_BYTES],
}

/// Reason why a message cannot be encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncryptError {
    #[error("`keys.p256dh` is not an uncompressed point of P-256 in base64url")]
    Public,
    #[error("`keys.auth` is not 16 bytes in base64url")]
    Auth,
    #[error("the message has {0} bytes; a push service accepts at most {MESSAGE_BYTES_MAX}")]
    TooLarge(usize),
    #[error("the system has no random numbers")]
    NoRandomness,
}

impl Keys {
    /// Parses `keys` of a `PushSubscription` (base64url, with or without padding).
    pub fn parse(p256dh: &str, auth: &str) -> Result<Self, EncryptError> {
        let decode = |text: &str| BASE64_URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok();
        let public = decode(p256dh).and_then(|bytes| bytes.try_into().ok()).ok_or(EncryptError::Public)?;
        let auth = decode(auth).and_then(|bytes| bytes.try_into().ok()).ok_or(EncryptError::Auth)?;
        let keys = Self { public, auth };
        match keys.public[0] {
            4 => Ok(keys),
            _ => Err(EncryptError::Public),
        }
    }

    /// Encrypts a message with a new key pair and a new salt.
    pub fn encrypt(&self, message: &[u8]) -> Result<Vec<u8>, EncryptError> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(EncryptError::TooLarge(message.len()));
        }
        let random = SystemRandom::new();
        let private = EphemeralPrivateKey::generate(&ECDH_P256, &random).map_err(|_| EncryptError::NoRandomness)?;
        let public = private.compute_public_key().map_err(|_| EncryptError::NoRandomness)?;
        let public: [u8; POINT_BYTES] = public.as_ref().try_into().map_err(|_| EncryptError::NoRandomness)?;
        let mut salt = [0; SALT_BYTES];
        getrandom::fill(&mut salt).map_err(|_| EncryptError::NoRandomness)?;
        let peer = UnparsedPublicKey::new(&ECDH_P256, &self.public);
        // The agreement fails if the point of the subscription is not on the curve.
        agree_ephemeral(private, &peer, |secret| self.seal(secret, &public, &salt, message))
            .map_err(|_| EncryptError::Public)
    }

    /// Encrypts with a shared secret (RFC 8291, section 3.4).
    fn seal(&self, secret: &[u8], public: &[u8; POINT_BYTES], salt: &[u8; SALT_BYTES], message: &[u8]) -> Vec<u8> {
        let info = [b"WebPush: info\0", &self.public[..], public].concat();
        let input: [u8; 32] = derive(&self.auth, secret, &info);
        let key: [u8; 16] = derive(salt, &input, b"Content-Encoding: aes128gcm\0");
        let nonce: [u8; 12] = derive(salt, &input, b"Content-Encoding: nonce\0");
        let mut sealed = [message, &[LAST_RECORD]].concat();
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).expect("the key has 16 bytes"));
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed)
            .expect("a message of 4 KiB is below the limit of the cipher");
        let head = [&salt[..], &RECORD_BYTES.to_be_bytes(), &[POINT_BYTES as u8], public].concat();
        [head, sealed].concat()
    }
}

/// Length of derived bytes.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF with SHA-256 (RFC 5869).
fn derive<const N: usize>(salt: &[u8], input: &[u8], info: &[u8]) -> [u8; N] {
    let mut output = [0; N];
    let key = Salt::new(HKDF_SHA256, salt).extract(input);
    let expanded = key.expand(std::slice::from_ref(&info), Length(N)).and_then(|okm| okm.fill(&mut output));
    expanded.expect("HKDF gives up to 8,160 bytes");
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<const N: usize>(text: &str) -> [u8; N] {
        BASE64_URL_SAFE_NO_PAD.decode(text).expect("base64url").try_into().expect("the length")
    }

    /// Source: RFC 8291, section 5 and appendix A.
    #[test]
    fn example_of_the_rfc_is_encrypted() {
        let keys = Keys::parse(
            "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
            "BTBZMqHH6r4Tts7J_aSIgg",
        )
        .unwrap();
        let secret: [u8; 32] = bytes("kyrL1jIIOHEzg3sM2ZWRHDRB62YACZhhSlknJ672kSs");
        let public = bytes("BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8");
        let salt = bytes("DGv6ra1nlYgDCS1FRnbzlw");
        let sealed = keys.seal(&secret, &public, &salt, b"When I grow up, I want to be a watermelon");
        let expected = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmY\
                        WAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_\
                        Qulcy4a-fN";
        assert_eq!(BASE64_URL_SAFE_NO_PAD.encode(sealed), expected);
    }

    #[test]
    fn bad_keys_and_large_messages_are_refused() {
        let public = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4=";
        assert_eq!(Keys::parse("AAAA", "BTBZMqHH6r4Tts7J_aSIgg"), Err(EncryptError::Public));
        assert_eq!(Keys::parse(public, "BTBZ"), Err(EncryptError::Auth));
        let keys = Keys::parse(public, "BTBZMqHH6r4Tts7J_aSIgg==").unwrap();
        assert_eq!(keys.encrypt(&[0; MESSAGE_BYTES_MAX]).unwrap().len(), 4096);
        assert_eq!(keys.encrypt(&[0; MESSAGE_BYTES_MAX + 1]), Err(EncryptError::TooLarge(MESSAGE_BYTES_MAX + 1)));
        // A point that is not on the curve.
        let off = BASE64_URL_SAFE_NO_PAD.encode([&[4][..], &[7; 64]].concat());
        let keys = Keys::parse(&off, "BTBZMqHH6r4Tts7J_aSIgg").unwrap();
        assert_eq!(keys.encrypt(b"x"), Err(EncryptError::Public));
    }
}
