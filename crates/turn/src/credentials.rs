//! Time-limited usernames and passwords that the server does not need to store.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use md5::{Digest as _, Md5};
use ring::{digest, hmac};

/// Maximum length of the subject in a username, in bytes. A longer subject is replaced by its hash.
const SUBJECT_BYTES_MAX: usize = 128;
/// Maximum length of the realm, in bytes. It keeps an answer to an unauthenticated client below twice the size
/// of its request.
pub const REALM_BYTES_MAX: usize = 32;
/// Maximum length of a username, in bytes. Source: RFC 8489, section 14.3.
const USERNAME_BYTES_MAX: usize = 508;

/// Derives passwords from usernames with a shared secret. The username is `EXPIRY:SUBJECT`, and the password is
/// the base64 of its HMAC-SHA1.
///
/// Any server with the secret can verify them, for example coturn on another machine (`--use-auth-secret`).
pub struct Credentials {
    secret: hmac::Key,
    realm: String,
}

/// Username and password of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    pub username: String,
    pub password: String,
}

/// Content of a username.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedUsername<'a> {
    /// Seconds since 1970.
    pub expires_s: u64,
    /// Subject of the user; may be empty.
    pub subject: &'a str,
}

impl Credentials {
    pub fn new(secret: &[u8], realm: &str) -> Self {
        Self { secret: hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret), realm: realm.to_owned() }
    }

    pub fn realm(&self) -> &str {
        &self.realm
    }

    /// Returns credentials that are valid until `expires_s`. The allocations and bytes of one `subject` are counted
    /// together.
    pub fn login(&self, subject: &str, expires_s: u64) -> Login {
        let short = match subject.len() > SUBJECT_BYTES_MAX {
            true => STANDARD.encode(digest::digest(&digest::SHA256, subject.as_bytes())),
            false => subject.to_owned(),
        };
        let username = format!("{expires_s}:{short}");
        let password = self.password(&username);
        Login { username, password }
    }

    /// Parses a username, and returns it with its content and the key that signs its messages. Expiry is not
    /// checked. Returns `None` if the username does not have the expected format.
    pub(super) fn key<'a>(&self, username: &'a [u8]) -> Option<(&'a str, ParsedUsername<'a>, [u8; 16])> {
        let username = std::str::from_utf8(username).ok().filter(|name| name.len() <= USERNAME_BYTES_MAX)?;
        let (expires_s, subject) = username.split_once(':').unwrap_or((username, ""));
        let named = ParsedUsername { expires_s: expires_s.parse().ok()?, subject };
        Some((username, named, long_term_key(username, &self.realm, &self.password(username))))
    }

    fn password(&self, username: &str) -> String {
        STANDARD.encode(hmac::sign(&self.secret, username.as_bytes()))
    }
}

/// Returns the key of long-term credentials. Source: RFC 8489, section 9.2.2.
pub(super) fn long_term_key(username: &str, realm: &str, password: &str) -> [u8; 16] {
    Md5::digest(format!("{username}:{realm}:{password}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected password comes from this command:
    /// `printf 1795208191:alice | openssl dgst -sha1 -hmac north -binary | base64`.
    /// `turnutils_uclient -W north` uses the same password.
    #[test]
    fn password_matches_coturn() {
        let login = Credentials::new(b"north", "millrace").login("alice", 1_795_208_191);
        assert_eq!(login.username, "1795208191:alice");
        assert_eq!(login.password, "FfEg94KwKiO4xzXNod40MdbVQx4=");
    }

    #[test]
    fn username_contains_expiry_and_subject() {
        let credentials = Credentials::new(b"north", "millrace");
        let named = |username: &'static str| credentials.key(username.as_bytes()).map(|(_, named, _)| named);
        assert_eq!(named("12:car:7"), Some(ParsedUsername { expires_s: 12, subject: "car:7" }));
        assert_eq!(named("12"), Some(ParsedUsername { expires_s: 12, subject: "" }));
        for wrong in ["", ":", "alice", "-1:alice", "99999999999999999999999:alice"] {
            assert_eq!(named(wrong), None, "{wrong}");
        }
        assert!(credentials.key(&[0xff, b':']).is_none());
    }

    #[test]
    fn long_subjects_are_hashed() {
        let credentials = Credentials::new(b"north", "millrace");
        let username = |subject: String| credentials.login(&subject, u64::MAX).username;
        let (long, longer) = (username("x".repeat(10_000)), username("x".repeat(10_001)));
        assert!(long != longer && long.len() < 100);
    }
}
