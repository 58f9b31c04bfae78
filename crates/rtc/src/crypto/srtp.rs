//! SRTP ciphers for media. Source: RFC 3711 (AES in counter mode), RFC 7714 (AES-GCM).

use aes::{Aes128, Aes256};
use ring::aead;
use str0m::crypto::{
    AeadAes128GcmCipher, AeadAes256GcmCipher, Aes128CmSha1_80Cipher, CryptoError, SrtpProvider, SupportedAeadAes128Gcm,
    SupportedAeadAes256Gcm, SupportedAes128CmSha1_80,
};

use super::aes_modes::{AesCtr, aes_block};

const TAG_BYTES: usize = 16;

#[derive(Debug)]
pub struct Srtp;

impl SrtpProvider for Srtp {
    fn aes_128_cm_sha1_80(&self) -> &'static dyn SupportedAes128CmSha1_80 {
        &Srtp
    }

    fn aead_aes_128_gcm(&self) -> &'static dyn SupportedAeadAes128Gcm {
        &Srtp
    }

    fn aead_aes_256_gcm(&self) -> &'static dyn SupportedAeadAes256Gcm {
        &Srtp
    }

    fn srtp_aes_128_ecb_round(&self, key: &[u8], input: &[u8], output: &mut [u8]) {
        round(aes_block::<Aes128>, key, input, output);
    }

    fn srtp_aes_256_ecb_round(&self, key: &[u8], input: &[u8], output: &mut [u8]) {
        round(aes_block::<Aes256>, key, input, output);
    }
}

fn round(encrypt: impl Fn(&[u8], &[u8; 16]) -> [u8; 16], key: &[u8], input: &[u8], output: &mut [u8]) {
    let mut block = [0; 16];
    block.copy_from_slice(&input[..16]);
    output[..16].copy_from_slice(&encrypt(key, &block));
}

impl SupportedAes128CmSha1_80 for Srtp {
    fn create_cipher(&self, key: [u8; 16], _: bool) -> Box<dyn Aes128CmSha1_80Cipher> {
        Box::new(AesCtr::new(key))
    }
}

impl SupportedAeadAes128Gcm for Srtp {
    fn create_cipher(&self, key: [u8; 16], _: bool) -> Box<dyn AeadAes128GcmCipher> {
        Box::new(Gcm::new(&aead::AES_128_GCM, &key))
    }
}

impl SupportedAeadAes256Gcm for Srtp {
    fn create_cipher(&self, key: [u8; 32], _: bool) -> Box<dyn AeadAes256GcmCipher> {
        Box::new(Gcm::new(&aead::AES_256_GCM, &key))
    }
}

impl Aes128CmSha1_80Cipher for AesCtr {
    fn encrypt(&mut self, iv: &[u8; 16], input: &[u8], output: &mut [u8]) -> Result<(), CryptoError> {
        let output = &mut output[..input.len()];
        output.copy_from_slice(input);
        self.apply(u128::from_be_bytes(*iv), output);
        Ok(())
    }

    fn decrypt(&mut self, iv: &[u8; 16], input: &[u8], output: &mut [u8]) -> Result<(), CryptoError> {
        let output = &mut output[..input.len()];
        output.copy_from_slice(input);
        self.apply(u128::from_be_bytes(*iv), output);
        Ok(())
    }
}

#[derive(Debug)]
struct Gcm(aead::LessSafeKey);

impl Gcm {
    fn new(algorithm: &'static aead::Algorithm, key: &[u8]) -> Self {
        let key = aead::UnboundKey::new(algorithm, key).expect("the caller has a key of this cipher's length");
        Self(aead::LessSafeKey::new(key))
    }

    fn seal(&self, iv: &[u8; 12], aad: &[u8], input: &[u8], output: &mut [u8]) -> Result<(), CryptoError> {
        let (text, tag) = output.split_at_mut(input.len());
        text.copy_from_slice(input);
        let nonce = aead::Nonce::assume_unique_for_key(*iv);
        let made = self.0.seal_in_place_separate_tag(nonce, aead::Aad::from(aad), text).map_err(failed)?;
        tag[..TAG_BYTES].copy_from_slice(made.as_ref());
        Ok(())
    }

    fn open(&self, iv: &[u8; 12], aads: &[&[u8]], input: &[u8], output: &mut [u8]) -> Result<usize, CryptoError> {
        let mut text = input.to_vec();
        let nonce = aead::Nonce::assume_unique_for_key(*iv);
        let opened = self.0.open_in_place(nonce, aead::Aad::from(aads.concat()), &mut text).map_err(failed)?;
        output.get_mut(..opened.len()).ok_or_else(|| failed(()))?.copy_from_slice(opened);
        Ok(opened.len())
    }
}

fn failed<E>(_: E) -> CryptoError {
    CryptoError::Other("AES-GCM has failed".into())
}

impl AeadAes128GcmCipher for Gcm {
    fn encrypt(&mut self, iv: &[u8; 12], aad: &[u8], input: &[u8], output: &mut [u8]) -> Result<(), CryptoError> {
        self.seal(iv, aad, input, output)
    }

    fn decrypt(
        &mut self,
        iv: &[u8; 12],
        aads: &[&[u8]],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, CryptoError> {
        self.open(iv, aads, input, output)
    }
}

impl AeadAes256GcmCipher for Gcm {
    fn encrypt(&mut self, iv: &[u8; 12], aad: &[u8], input: &[u8], output: &mut [u8]) -> Result<(), CryptoError> {
        self.seal(iv, aad, input, output)
    }

    fn decrypt(
        &mut self,
        iv: &[u8; 12],
        aads: &[&[u8]],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, CryptoError> {
        self.open(iv, aads, input, output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modified_ciphertext_is_rejected() {
        let gcm = Gcm::new(&aead::AES_128_GCM, &[1; 16]);
        let mut sealed = [0; 5 + TAG_BYTES];
        gcm.seal(&[2; 12], b"head", b"hello", &mut sealed).unwrap();
        let mut text = [0; 5];
        assert_eq!(gcm.open(&[2; 12], &[b"he", b"ad"], &sealed, &mut text).unwrap(), 5);
        assert_eq!(&text, b"hello");
        sealed[0] ^= 1;
        assert!(gcm.open(&[2; 12], &[b"head"], &sealed, &mut text).is_err());
    }
}
