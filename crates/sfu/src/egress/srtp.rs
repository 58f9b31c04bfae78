//! SRTP and SRTCP. Source: RFC 3711 (AES in counter mode), RFC 7714 (AES-GCM), RFC 5764 (keys from the handshake).

use aes::{Aes128, Aes256};
use dimpl::SrtpProfile;
use millrace_rtc::crypto::{AesCtr, KeyingMaterial, aes_block};
use ring::{aead, hmac};

/// Keys of one direction.
pub struct Keys {
    rtp: Cipher,
    rtcp: Cipher,
}

#[expect(clippy::large_enum_variant, reason = "the large one is what nearly everybody has")]
enum Cipher {
    Gcm { key: aead::LessSafeKey, salt: [u8; 12] },
    Counter { cipher: Box<AesCtr>, salt: u128, authentication: hmac::Key },
}

const HEAD_BYTES: usize = 12;
const RTCP_HEAD_BYTES: usize = 8;
const HMAC_TAG_BYTES: usize = 10;
/// Size of the word after a sealed report: the encryption flag and the index.
const INDEX_BYTES: usize = 4;
const IS_ENCRYPTED: u32 = 1 << 31;
/// Maximum number of bytes that sealing adds to a packet.
pub const OVERHEAD_BYTES: usize = 16;

/// Source: RFC 3711, section 4.3.1.
const LABELS_RTP: [u8; 3] = [0, 1, 2];
const LABELS_RTCP: [u8; 3] = [3, 4, 5];

impl Keys {
    /// Returns the keys for sending and the keys for receiving. `None`: the profile is not supported.
    pub fn pair(material: &KeyingMaterial) -> Option<(Keys, Keys)> {
        let (key, salt) = match material.profile {
            SrtpProfile::AES128_CM_SHA1_80 => (16, 14),
            SrtpProfile::AEAD_AES_128_GCM => (16, 12),
            SrtpProfile::AEAD_AES_256_GCM => (32, 12),
            _ => return None,
        };
        let part = |at: usize, length: usize| material.bytes.get(at..at + length);
        let client = Keys::new(material.profile, part(0, key)?, part(2 * key, salt)?)?;
        let server = Keys::new(material.profile, part(key, key)?, part(2 * key + salt, salt)?)?;
        Some(if material.is_client { (client, server) } else { (server, client) })
    }

    fn new(profile: SrtpProfile, key: &[u8], salt: &[u8]) -> Option<Self> {
        Some(Self {
            rtp: Cipher::new(profile, key, salt, LABELS_RTP)?,
            rtcp: Cipher::new(profile, key, salt, LABELS_RTCP)?,
        })
    }

    /// Seals a packet. `head`: length of its header, extensions included. `index`: its sequence number, extended by the
    /// rollover count.
    ///
    /// Errors: `None` if the packet is shorter than its header, or longer than the cipher supports.
    pub fn seal_packet(&self, packet: &mut Vec<u8>, head: usize, index: u64) -> Option<()> {
        let ssrc = ssrc(packet.get(8..HEAD_BYTES)?);
        match &self.rtp {
            Cipher::Gcm { key, salt } => {
                let (aad, text) = packet.split_at_mut_checked(head)?;
                let nonce = nonce(salt, ssrc, index);
                let tag = key.seal_in_place_separate_tag(nonce, aead::Aad::from(&*aad), text).ok()?;
                packet.extend_from_slice(tag.as_ref());
            }
            Cipher::Counter { cipher, salt, authentication } => {
                cipher.apply(counter(*salt, ssrc, index), packet.get_mut(head..)?);
                let mut context = hmac::Context::with_key(authentication);
                context.update(packet);
                context.update(&((index >> 16) as u32).to_be_bytes());
                packet.extend_from_slice(&context.sign().as_ref()[..HMAC_TAG_BYTES]);
            }
        }
        Some(())
    }

    /// Opens a report in place. Returns the index with which it can be sealed again. `None`: the report is not
    /// authentic, not encrypted, or too short.
    pub fn open_report(&self, report: &mut Vec<u8>) -> Option<ReportIndex> {
        let ssrc = ssrc(report.get(4..RTCP_HEAD_BYTES)?);
        match &self.rtcp {
            Cipher::Gcm { key, salt } => {
                let (word, rest) = report.split_last_chunk_mut::<INDEX_BYTES>().map(|(rest, word)| (*word, rest))?;
                let index = ReportIndex::read(word)?;
                let (head, text) = rest.split_at_mut_checked(RTCP_HEAD_BYTES)?;
                let aad = associated(head, index)?;
                let opened = key.open_in_place(nonce(salt, ssrc, index.0.into()), aead::Aad::from(aad), text);
                let length = RTCP_HEAD_BYTES + opened.ok()?.len();
                report.truncate(length);
                Some(index)
            }
            Cipher::Counter { cipher, salt, authentication } => {
                let (signed, tag) = report.split_at_checked(report.len().checked_sub(HMAC_TAG_BYTES)?)?;
                let made = hmac::sign(authentication, signed);
                // Compare in constant time.
                let differ = made.as_ref().iter().zip(tag).fold(0, |differ, (one, other)| differ | (one ^ other));
                let (rest, word) = signed.split_last_chunk::<INDEX_BYTES>()?;
                let (index, length) = (ReportIndex::read(*word)?, rest.len());
                if differ != 0 {
                    return None;
                }
                report.truncate(length);
                cipher.apply(counter(*salt, ssrc, index.0.into()), report.get_mut(RTCP_HEAD_BYTES..)?);
                Some(index)
            }
        }
    }

    /// Seals a report. `None`: the report is shorter than an RTCP header.
    pub fn seal_report(&self, report: &mut Vec<u8>, index: ReportIndex) -> Option<()> {
        let (head, text) = report.split_at_mut_checked(RTCP_HEAD_BYTES)?;
        let ssrc = ssrc(head.get(4..)?);
        match &self.rtcp {
            Cipher::Gcm { key, salt } => {
                let (nonce, aad) = (nonce(salt, ssrc, index.0.into()), associated(head, index)?);
                let tag = key.seal_in_place_separate_tag(nonce, aead::Aad::from(aad), text).ok()?;
                report.extend_from_slice(tag.as_ref());
                report.extend_from_slice(&index.word());
            }
            Cipher::Counter { cipher, salt, authentication } => {
                cipher.apply(counter(*salt, ssrc, index.0.into()), text);
                report.extend_from_slice(&index.word());
                let tag = hmac::sign(authentication, report);
                report.extend_from_slice(&tag.as_ref()[..HMAC_TAG_BYTES]);
            }
        }
        Some(())
    }
}

/// Index of a sealed report. With one key, no two reports that are sent have the same index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReportIndex(u32);

impl ReportIndex {
    pub fn numbered(index: u32) -> Self {
        Self(index)
    }

    fn read(word: [u8; INDEX_BYTES]) -> Option<Self> {
        let word = u32::from_be_bytes(word);
        (word & IS_ENCRYPTED != 0).then_some(Self(word & !IS_ENCRYPTED))
    }

    fn word(self) -> [u8; INDEX_BYTES] {
        (self.0 | IS_ENCRYPTED).to_be_bytes()
    }
}

impl Cipher {
    fn new(
        profile: SrtpProfile,
        key: &[u8],
        salt: &[u8],
        [for_key, for_authentication, for_salt]: [u8; 3],
    ) -> Option<Self> {
        let derive = |label, out: &mut [u8]| derive(key, salt, label, out);
        let gcm = |algorithm: &'static aead::Algorithm| {
            let (mut session, mut salt) = ([0; 32], [0; 12]);
            let session = session.get_mut(..algorithm.key_len())?;
            derive(for_key, session);
            derive(for_salt, &mut salt);
            let key = aead::LessSafeKey::new(aead::UnboundKey::new(algorithm, session).ok()?);
            Some(Self::Gcm { key, salt })
        };
        match profile {
            SrtpProfile::AEAD_AES_128_GCM => gcm(&aead::AES_128_GCM),
            SrtpProfile::AEAD_AES_256_GCM => gcm(&aead::AES_256_GCM),
            _ => {
                let (mut session, mut authentication, mut salt) = ([0; 16], [0; 20], [0; 16]);
                derive(for_key, &mut session);
                derive(for_authentication, &mut authentication);
                derive(for_salt, &mut salt[..14]);
                let authentication = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &authentication);
                let (cipher, salt) = (Box::new(AesCtr::new(session)), u128::from_be_bytes(salt));
                Some(Self::Counter { cipher, salt, authentication })
            }
        }
    }
}

/// Derives a session key from the master key. A salt of 96 bits is extended with zeros to 112 bits. Source: RFC 3711,
/// section 4.3; RFC 7714, section 11.
fn derive(key: &[u8], salt: &[u8], label: u8, out: &mut [u8]) {
    let mut input = [0; 16];
    input[..salt.len()].copy_from_slice(salt);
    input[7] ^= label;
    for (round, out) in (0_u16..).zip(out.chunks_mut(16)) {
        input[14..].copy_from_slice(&round.to_be_bytes());
        let block = if key.len() == 32 { aes_block::<Aes256>(key, &input) } else { aes_block::<Aes128>(key, &input) };
        out.copy_from_slice(&block[..out.len()]);
    }
}

/// Source: RFC 7714, sections 8.1 and 9.1.
fn nonce(salt: &[u8; 12], ssrc: u32, index: u64) -> aead::Nonce {
    let mut nonce = *salt;
    let number = (u128::from(ssrc) << 48) | u128::from(index);
    nonce.iter_mut().zip(&number.to_be_bytes()[4..]).for_each(|(byte, other)| *byte ^= other);
    aead::Nonce::assume_unique_for_key(nonce)
}

/// Source: RFC 3711, section 4.1.1.
fn counter(salt: u128, ssrc: u32, index: u64) -> u128 {
    salt ^ (u128::from(ssrc) << 64) ^ (u128::from(index) << 16)
}

/// Source: RFC 7714, section 9.2.
fn associated(head: &[u8], index: ReportIndex) -> Option<[u8; RTCP_HEAD_BYTES + INDEX_BYTES]> {
    let mut aad = [0; RTCP_HEAD_BYTES + INDEX_BYTES];
    aad[..RTCP_HEAD_BYTES].copy_from_slice(head.get(..RTCP_HEAD_BYTES)?);
    aad[RTCP_HEAD_BYTES..].copy_from_slice(&index.word());
    Some(aad)
}

fn ssrc(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const PROFILES: [(SrtpProfile, usize); 3] = [
        (SrtpProfile::AES128_CM_SHA1_80, 2 * (16 + 14)),
        (SrtpProfile::AEAD_AES_128_GCM, 2 * (16 + 12)),
        (SrtpProfile::AEAD_AES_256_GCM, 2 * (32 + 12)),
    ];

    pub fn material(profile: SrtpProfile, bytes: usize, is_client: bool) -> KeyingMaterial {
        KeyingMaterial { profile, bytes: (0..bytes as u8).collect(), is_client }
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    /// Source: RFC 3711, appendix B.3.
    #[test]
    fn derived_keys_match_rfc() {
        let (key, salt) = (hex("E1F97A0D3E018BE0D64FA32C06DE4139"), hex("0EC675AD498AFEEBB6960B3AABE6"));
        for (label, expected) in [
            (0, "C61E7A93744F39EE10734AFE3FF7A087"),
            (2, "30CBBC08863D8C85D49DB34A9AE1"),
            (1, "CEBE321F6FF7716B6FD4AB49AF256A156D38BAA4"),
        ] {
            let expected = hex(expected);
            let mut out = vec![0; expected.len()];
            derive(&key, &salt, label, &mut out);
            assert_eq!(out, expected);
        }
    }

    /// Source: RFC 7714, section 16.1.1.
    #[test]
    fn sealed_packet_matches_rfc() {
        let salt: [u8; 12] = hex("517569642070726f2071756f").try_into().unwrap();
        let key = aead::UnboundKey::new(&aead::AES_128_GCM, &hex("000102030405060708090a0b0c0d0e0f")).unwrap();
        let rtp = Cipher::Gcm { key: aead::LessSafeKey::new(key), salt };
        let rtcp = Cipher::new(SrtpProfile::AEAD_AES_128_GCM, &[0; 16], &salt, LABELS_RTCP).unwrap();
        let head = "8040f17b8041f8d35501a0b2";
        let sealed = "f24de3a3fb34de6cacba861c9d7e4bcabe633bd50d294e6f42a5f47a51c7d19b36de3adf8833899d7f27beb16a9152cf765ee4390cce";
        let mut packet = [&hex(head), &b"Gallia est omnis divisa in partes tres"[..]].concat();
        Keys { rtp, rtcp }.seal_packet(&mut packet, 12, 0xf17b).unwrap();
        assert_eq!(packet, hex(&format!("{head}{sealed}")));
    }

    #[test]
    fn modified_report_is_not_opened() {
        for (profile, bytes) in PROFILES {
            let (sends, _) = Keys::pair(&material(profile, bytes, true)).unwrap();
            let (back, receives) = Keys::pair(&material(profile, bytes, false)).unwrap();
            let report: Vec<u8> = (0..52).collect();
            let mut sealed = report.clone();
            sends.seal_report(&mut sealed, ReportIndex(7)).unwrap();
            assert!(sealed[..8] == report[..8] && sealed[8..52] != report[8..]);
            let mut opened = sealed.clone();
            assert_eq!(receives.open_report(&mut opened), Some(ReportIndex(7)));
            assert_eq!(opened, report);
            assert_eq!(back.open_report(&mut sealed.clone()), None, "the other direction has other keys");
            for at in 0..sealed.len() {
                let mut spoiled = sealed.clone();
                spoiled[at] ^= 1;
                assert_eq!(receives.open_report(&mut spoiled), None, "{profile:?}: byte {at}");
            }
            for length in 0..sealed.len() {
                assert_eq!(receives.open_report(&mut sealed[..length].to_vec()), None);
            }
        }
    }
}
