//! Cryptography for WebRTC, implemented with ring. The rest of this program uses ring too, and ring builds with
//! only a C compiler. See docs/adr/0006.
//!
//! - [`dtls`]: DTLS handshake and records
//! - [`srtp`]: ciphers of media
//! - [`aes_modes`]: the two forms of AES that ring does not expose

mod aes_modes;
mod dtls;
mod srtp;

use std::sync::{Arc, OnceLock};

use ring::{digest, hmac};
use str0m::{
    config::{CryptoProvider, DtlsCert},
    crypto::{Sha1HmacProvider, Sha1Provider, Sha256Provider},
};

pub use aes_modes::{AesCtr, aes_block};
use dtls::generate_certificate;
pub use dtls::{KeyingMaterial, take_keying_material};

/// Returns the provider for connections with media. It is created once.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| with(&dtls::Provider { for_media: true })).clone()
}

/// Returns the provider for connections without media. Their handshakes also agree on media keys, but do not
/// keep them, which saves 9 KB.
pub fn provider_without_media() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| with(&dtls::Provider { for_media: false })).clone()
}

fn with(dtls_provider: &'static dtls::Provider) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        srtp_provider: &srtp::Srtp,
        sha1_hmac_provider: &Hash,
        sha1_provider: &Hash,
        sha256_provider: &Hash,
        dtls_provider,
    })
}

/// Returns the certificate that all peers of this process use. A remote peer recognizes it only by the
/// fingerprint in the session description.
pub fn certificate() -> DtlsCert {
    static CERTIFICATE: OnceLock<DtlsCert> = OnceLock::new();
    CERTIFICATE.get_or_init(|| generate_certificate().expect("the system has random bytes")).clone()
}

#[derive(Debug)]
struct Hash;

impl Sha1HmacProvider for Hash {
    fn sha1_hmac(&self, key: &[u8], payloads: &[&[u8]]) -> [u8; 20] {
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key);
        let mut context = hmac::Context::with_key(&key);
        payloads.iter().for_each(|payload| context.update(payload));
        context.sign().as_ref().try_into().expect("SHA-1 has 20 bytes")
    }
}

impl Sha1Provider for Hash {
    fn sha1(&self, data: &[u8]) -> [u8; 20] {
        let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, data);
        hash.as_ref().try_into().expect("SHA-1 has 20 bytes")
    }
}

impl Sha256Provider for Hash {
    fn sha256(&self, data: &[u8]) -> [u8; 32] {
        digest::digest(&digest::SHA256, data).as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}
