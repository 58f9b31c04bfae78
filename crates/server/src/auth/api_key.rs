//! API keys of back ends: 32 random bytes, of which the configuration holds only the hash.

use std::fmt::Write as _;

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

pub type Hash = [u8; 32];

/// Prefix of every key, so that people and secret scanners recognize it.
const PREFIX: &str = "mrk_";

/// Returns a new key. Its entropy is so high that its hash needs no salt and no slow hash function.
///
/// Errors: the system has no random numbers.
pub fn generate() -> Result<String, getrandom::Error> {
    Ok(format!("{PREFIX}{}", random_text(32)?))
}

/// Returns `bytes` random bytes in base64url, for a secret for HS256 or the id of a token.
///
/// Errors: the system has no random numbers.
pub fn random_text(bytes: usize) -> Result<String, getrandom::Error> {
    let mut chance = vec![0; bytes];
    getrandom::fill(&mut chance)?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(chance))
}

pub fn hash(text: &str) -> Hash {
    Sha256::digest(text).into()
}

pub fn encode_hash(hash: &Hash) -> String {
    hash.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub fn decode_hash(text: &str) -> Option<Hash> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (place, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(hash)
}

/// Returns the entry of the presented key. All hashes are compared, each in constant time.
pub fn find<'a, T>(keys: &'a [(Hash, T)], presented: &str) -> Option<&'a T> {
    let presented = hash(presented);
    keys.iter().fold(None, |found, (hash, value)| match bool::from(hash.ct_eq(&presented)) {
        true => Some(value),
        false => found,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_key_is_found_by_hash() {
        let [first, second] = [(); 2].map(|()| generate().unwrap());
        assert!(first.starts_with(PREFIX) && first != second);
        let printed = [&first, &second].map(|key| decode_hash(&encode_hash(&hash(key))).unwrap());
        let keys = [(printed[0], 1), (printed[1], 2)];
        assert_eq!((find(&keys, &first), find(&keys, &second), find(&keys, "mrk_other")), (Some(&1), Some(&2), None));
        assert_eq!(find(&keys, &encode_hash(&printed[0])), None, "the hash is no key");
        assert!(decode_hash("00").is_none() && decode_hash(&"+0".repeat(32)).is_none());
    }
}
