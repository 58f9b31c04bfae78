use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;

use super::allocation::Client;

/// Unit of the time in a nonce, in seconds.
const STEP_S: u64 = 16;
/// Lifetime of a nonce in units of [`STEP_S`]: one hour, the maximum that RFC 8656, section 5, recommends.
const STEPS: u32 = 3600 / STEP_S as u32;
const TIME_BITS: u32 = 24;
/// Length of the MAC in a nonce, in bytes. Six bytes are sufficient, because guesses are possible only online,
/// and an answer to an unauthenticated client must be small.
const MAC_BYTES: usize = 6;
const BYTES: usize = 3 + MAC_BYTES;

/// Creates nonces that carry their expiry time and are bound to one client, so that the server stores nothing
/// for unauthenticated clients.
pub struct Nonces {
    key: hmac::Key,
}

impl Nonces {
    pub fn new(seed: &[u8]) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, seed) }
    }

    pub fn make(&self, client: Client, now_ms: u64) -> String {
        self.of(client, step(now_ms).wrapping_add(STEPS))
    }

    /// Returns true if this server made the nonce for this client and the nonce has not expired.
    pub fn is_good(&self, nonce: &[u8], client: Client, now_ms: u64) -> bool {
        let mut bytes = [0; BYTES];
        if URL_SAFE_NO_PAD.decode_slice(nonce, &mut bytes) != Ok(BYTES) {
            return false;
        }
        let until = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
        let left = until.wrapping_sub(step(now_ms)) & ((1 << TIME_BITS) - 1);
        (1..=STEPS).contains(&left) && self.of(client, until).as_bytes() == nonce
    }

    fn of(&self, client: Client, until: u32) -> String {
        let until = &until.to_be_bytes()[1..];
        let (ip, port) = (client.address().ip(), client.address().port().to_be_bytes());
        let mut context = hmac::Context::with_key(&self.key);
        context.update(until);
        context.update(&port);
        match ip {
            IpAddr::V4(ip) => context.update(&ip.octets()),
            IpAddr::V6(ip) => context.update(&ip.octets()),
        }
        let mac = context.sign();
        URL_SAFE_NO_PAD.encode([until, &mac.as_ref()[..MAC_BYTES]].concat())
    }
}

fn step(now_ms: u64) -> u32 {
    (now_ms / 1000 / STEP_S) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonce_is_valid_one_hour_for_one_client() {
        let (nonces, now) = (Nonces::new(b"seed"), 1_795_208_191_000);
        let client = |address: &str| Client::Datagram(address.parse().unwrap());
        let own = client("192.0.2.1:7");
        let nonce = nonces.make(own, now);
        assert_eq!(nonce.len(), 12);
        let is_good = |client, now_ms| nonces.is_good(nonce.as_bytes(), client, now_ms);
        assert!(is_good(own, now) && is_good(own, now + 3_580_000));
        assert!(!is_good(own, now + 3_601_000) && !is_good(own, now - 60_000));
        assert!(!is_good(client("192.0.2.1:8"), now) && !is_good(client("192.0.2.2:7"), now));
        for wrong in ["", "AAAA", "AAAAAAAAAAAA", &nonce[..11], &format!("{nonce}A")] {
            assert!(!nonces.is_good(wrong.as_bytes(), own, now), "{wrong}");
        }
        assert!(!Nonces::new(b"another").is_good(nonce.as_bytes(), own, now));
    }

    #[test]
    fn nonce_survives_time_wraparound() {
        let nonces = Nonces::new(b"seed");
        let end_ms = (1 << TIME_BITS) * STEP_S * 1000;
        let own = Client::Stream(3, "[2001:db8::1]:7".parse().unwrap());
        let nonce = nonces.make(own, end_ms - 1000);
        assert!(nonces.is_good(nonce.as_bytes(), own, end_ms + 1000));
    }
}
