//! Encryption of a link's datagrams by AES-GCM, with keys that a DTLS handshake has exported as for SRTP.
//!
//! ```text
//!   version, type, epoch, sequence (authenticated) │ body (encrypted) │ tag
//! ```
//!
//! The nonce is the salt, combined with the link sequence number. Source: RFC 7714, section 8.1, without SSRC.

use dimpl::SrtpProfile;
use millrace_rtc::crypto::KeyingMaterial;
use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};

use super::frame::HEAD_BYTES;

const SALT_BYTES: usize = 12;

/// Keys of a link.
pub struct LinkKeys {
    sends: Direction,
    receives: Direction,
}

struct Direction {
    key: LessSafeKey,
    salt: [u8; SALT_BYTES],
}

impl LinkKeys {
    /// `None`: the profile of the handshake is not AES-GCM, or there are too few bytes.
    pub fn new(material: &KeyingMaterial) -> Option<Self> {
        let (algorithm, key) = match material.profile {
            SrtpProfile::AEAD_AES_128_GCM => (&aead::AES_128_GCM, 16),
            SrtpProfile::AEAD_AES_256_GCM => (&aead::AES_256_GCM, 32),
            _ => return None,
        };
        let direction = |key_at: usize, salt_at: usize| {
            let salt = material.bytes.get(salt_at..salt_at + SALT_BYTES)?.try_into().ok()?;
            let key = UnboundKey::new(algorithm, material.bytes.get(key_at..key_at + key)?).ok()?;
            Some(Direction { key: LessSafeKey::new(key), salt })
        };
        let client = direction(0, 2 * key)?;
        let server = direction(key, 2 * key + SALT_BYTES)?;
        let (sends, receives) = if material.is_client { (client, server) } else { (server, client) };
        Some(Self { sends, receives })
    }

    /// Encrypts a frame in place. A frame that is sealed again must have the same contents, because its number is its
    /// nonce. `None`: the frame is shorter than its header.
    pub fn seal(&self, frame: &mut Vec<u8>) -> Option<()> {
        let nonce = self.sends.nonce(frame)?;
        let (head, body) = frame.split_at_mut_checked(HEAD_BYTES)?;
        let tag = self.sends.key.seal_in_place_separate_tag(nonce, Aad::from(&*head), body).ok()?;
        frame.extend_from_slice(tag.as_ref());
        Some(())
    }

    /// Decrypts a datagram in place. `None`: it is not authentic.
    pub fn open(&self, datagram: &mut Vec<u8>) -> Option<()> {
        let nonce = self.receives.nonce(datagram)?;
        let (head, body) = datagram.split_at_mut_checked(HEAD_BYTES)?;
        let opened = self.receives.key.open_in_place(nonce, Aad::from(&*head), body).ok()?.len();
        datagram.truncate(HEAD_BYTES + opened);
        Some(())
    }
}

impl Direction {
    fn nonce(&self, frame: &[u8]) -> Option<Nonce> {
        let mut nonce = self.salt;
        let sequence = frame.get(HEAD_BYTES - 8..HEAD_BYTES)?;
        nonce[SALT_BYTES - 8..].iter_mut().zip(sequence).for_each(|(byte, other)| *byte ^= other);
        Some(Nonce::assume_unique_for_key(nonce))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cascade::{
        OVERHEAD_BYTES,
        frame::{Head, padding},
    };

    #[test]
    fn modified_datagram_is_not_opened() {
        for (profile, bytes) in [(SrtpProfile::AEAD_AES_128_GCM, 56), (SrtpProfile::AEAD_AES_256_GCM, 88)] {
            let keys =
                |is_client| LinkKeys::new(&KeyingMaterial { profile, bytes: (0..bytes).collect(), is_client }).unwrap();
            let (one, other) = (keys(true), keys(false));
            let frame = padding(Head { epoch: 1, sequence: 5 }, 60);
            let mut sealed = frame.clone();
            one.seal(&mut sealed).unwrap();
            assert_eq!(sealed.len(), frame.len() + OVERHEAD_BYTES);
            let mut opened = sealed.clone();
            other.open(&mut opened).unwrap();
            assert_eq!(opened, frame);
            assert_eq!(one.open(&mut sealed.clone()), None, "the other direction has other keys");
            for at in 0..sealed.len() {
                let mut spoiled = sealed.clone();
                spoiled[at] ^= 1;
                assert_eq!(other.open(&mut spoiled), None, "byte {at}");
            }
        }
        let counter =
            KeyingMaterial { profile: SrtpProfile::AES128_CM_SHA1_80, bytes: vec![0; 60].into(), is_client: true };
        assert!(LinkKeys::new(&counter).is_none());
    }
}
