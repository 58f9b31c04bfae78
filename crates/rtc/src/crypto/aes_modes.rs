//! AES in the two forms that ring does not expose: one block, and counter mode.

use aes::{
    Aes128,
    cipher::{Block, BlockCipherEncrypt, KeyInit},
};

/// Encrypts one block with AES, which ring does not expose.
pub fn aes_block<C: KeyInit + BlockCipherEncrypt>(key: &[u8], block: &[u8; 16]) -> [u8; 16] {
    let cipher = C::new_from_slice(key).expect("the caller has a key of this cipher's length");
    let mut out = Block::<C>::default();
    out.copy_from_slice(block);
    cipher.encrypt_block(&mut out);
    out[..].try_into().expect("a block has 16 bytes")
}

/// AES in counter mode: encryption and decryption are the same operation.
pub struct AesCtr(Aes128);

/// Number of blocks that are encrypted at once, because a processor can do them in parallel.
const BLOCKS: usize = 8;

impl std::fmt::Debug for AesCtr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AesCtr")
    }
}

impl AesCtr {
    pub fn new(key: [u8; 16]) -> Self {
        Self(Aes128::new(&key.into()))
    }

    pub fn apply(&self, mut counter: u128, text: &mut [u8]) {
        for text in text.chunks_mut(16 * BLOCKS) {
            let mut stream = [Block::<Aes128>::default(); BLOCKS];
            for block in &mut stream {
                block.copy_from_slice(&counter.to_be_bytes());
                counter = counter.wrapping_add(1);
            }
            self.0.encrypt_blocks(&mut stream);
            text.iter_mut().zip(stream.iter().flatten()).for_each(|(byte, key)| *byte ^= key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source: RFC 3711, appendix B.2.
    #[test]
    fn key_stream_matches_rfc() {
        let key = 0x2B7E151628AED2A6ABF7158809CF4F3Cu128.to_be_bytes();
        let mut stream = [0; 48];
        AesCtr::new(key).apply(0xF0F1F2F3F4F5F6F7F8F9FAFBFCFD0000, &mut stream);
        let expected = [
            0xE03EAD0935C95E80E166B16DD92B4EB4u128,
            0xD23513162B02D0F72A43A2FE4A5F97AB,
            0x41E95B3BB0A2E8DD477901E4FCA894C0,
        ];
        assert_eq!(stream.to_vec(), expected.map(u128::to_be_bytes).concat());
    }
}
