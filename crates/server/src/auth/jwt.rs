//! Parses signed JSON Web Tokens (RFC 7515, 7519), with the checks that RFC 8725 recommends.

use std::sync::Arc;

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use millrace_protocol::{Error, Grant};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{
    config::{Config, Rights, refused},
    key::{Algorithm, Key},
};

/// Maximum length of `sub`, `jti` and `kid`, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Maximum size of the information about a client, in bytes.
const INFO_BYTES_MAX: usize = 4096;
/// Maximum number of keys tried for a token that names no key.
const TRIED_MAX: usize = 8;

/// Parts of a token. They must not be trusted before the signature is verified.
pub struct Token<'a> {
    pub header: Header,
    pub algorithm: Algorithm,
    message: &'a [u8],
    payload: Vec<u8>,
    signed: Vec<u8>,
}

#[derive(Deserialize)]
pub struct Header {
    alg: String,
    pub kid: Option<String>,
    typ: Option<String>,
    crit: Option<serde_json::Value>,
}

/// Claims of a token. A claim that occurs twice is an error, so that all parsers see the same token.
#[derive(Deserialize)]
pub struct Claims {
    pub sub: Option<String>,
    pub jti: Option<String>,
    /// Seconds since 1970; the standard allows fractions.
    pub exp: Option<f64>,
    pub nbf: Option<f64>,
    pub iat: Option<f64>,
    pub iss: Option<String>,
    pub aud: Option<Audience>,
    pub millrace: Option<Rights>,
    /// Information about the client for other members of a channel.
    pub millrace_info: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub enum Audience {
    One(String),
    Many(Vec<String>),
}

impl<'a> Token<'a> {
    /// Splits and decodes a token.
    ///
    /// Errors: [`Code::Unauthorized`](millrace_protocol::Code) for a malformed or unsupported token.
    pub fn parse(text: &'a str, bytes_max: usize) -> Result<Self, Error> {
        if text.len() > bytes_max {
            return Err(refused(format!("the token is larger than {bytes_max} bytes")));
        }
        let none = || refused("the token is malformed: expected HEADER.CLAIMS.SIGNATURE, each in base64url");
        let (message, signed) = text.rsplit_once('.').ok_or_else(none)?;
        let (header, payload) =
            message.split_once('.').filter(|(_, payload)| !payload.contains('.')).ok_or_else(none)?;
        let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| none());
        let (header, payload, signed) = (decode(header)?, decode(payload)?, decode(signed)?);
        let header: Header = object(&header).ok_or_else(|| {
            refused("the token's header is malformed: expected `{\"alg\": \"..\", \"kid\"?: \"..\"}`")
        })?;
        let algorithm = Algorithm::parse(&header.alg)
            .ok_or_else(|| refused("the token's algorithm is not supported: use HS256, RS256, ES256 or EdDSA"))?;
        if header.crit.is_some() {
            return Err(refused("the token requires extensions (`crit`), which are not supported"));
        }
        let typ = header.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
        if !["jwt", "at+jwt"].contains(&typ.strip_prefix("application/").unwrap_or(&typ)) {
            return Err(refused("the token has the wrong type: `typ` must be `JWT`, `at+jwt` or absent"));
        }
        if header.kid.as_ref().is_some_and(|kid| kid.len() > NAME_BYTES_MAX) {
            return Err(refused(format!("the token's `kid` is longer than {NAME_BYTES_MAX} bytes")));
        }
        Ok(Self { header, algorithm, message: message.as_bytes(), payload, signed })
    }

    /// Returns the key that verifies this token. A token with a `kid` is checked against the key of that name, or else
    /// against keys without names; a token without `kid` is checked against all keys of its algorithm.
    ///
    /// Returns `None` if no key is a candidate: a newer key set may have it.
    pub fn key<'k>(&self, keys: impl Iterator<Item = &'k Key> + Clone) -> Option<Result<&'k Key, Error>> {
        let kid = self.header.kid.as_deref();
        let is_named = keys.clone().any(|key| kid.is_some() && key.id.as_deref() == kid);
        let may = |key: &&Key| match (is_named, kid) {
            (true, _) => key.id.as_deref() == kid,
            (false, Some(_)) => key.id.is_none(),
            (false, None) => true,
        };
        let mut candidates = keys.filter(may).filter(|key| key.algorithm == self.algorithm).take(TRIED_MAX).peekable();
        if candidates.peek().is_none() {
            return match is_named {
                true => Some(Err(refused("the token names a key (`kid`) of another algorithm"))),
                false => None,
            };
        }
        match candidates.find(|key| key.verify(self.message, &self.signed)) {
            Some(key) => Some(Ok(key)),
            // The matching key may be in a newer key set, so do not report an error yet.
            None if !is_named && kid.is_some() => None,
            None => Some(Err(refused("the token's signature does not match its key"))),
        }
    }

    /// Parses the claims.
    ///
    /// Errors: the claims are not a JSON object, or one of them has the wrong type or occurs twice.
    pub fn claims(&self) -> Result<Claims, Error> {
        object(&self.payload)
            .ok_or_else(|| refused("the token's claims are malformed: one has the wrong type or occurs twice"))
    }
}

impl Claims {
    /// Returns the permissions that the claims grant at `now_s`.
    ///
    /// Errors: [`Code::Unauthorized`](millrace_protocol::Code), with the missing or invalid claim.
    pub fn grant(&self, config: &Config, now_s: u64) -> Result<Grant, Error> {
        let leeway = config.leeway.as_secs();
        let exp = self.exp.ok_or_else(|| refused("the token has no expiry: `exp` is required"))?;
        let exp = seconds(exp).ok_or_else(|| refused("the token's `exp` is not a valid time"))?;
        if exp.saturating_add(leeway) <= now_s {
            return Err(refused("the token has expired (`exp`)"));
        }
        if exp > now_s.saturating_add(config.lifetime_max.as_secs()).saturating_add(leeway) {
            return Err(refused("the token expires (`exp`) later than `auth.lifetime_max` of the server allows"));
        }
        if let Some(nbf) = self.nbf {
            let nbf = seconds(nbf).ok_or_else(|| refused("the token's `nbf` is not a valid time"))?;
            if nbf > now_s.saturating_add(leeway) {
                return Err(refused("the token is not valid yet (`nbf`)"));
            }
        }
        if !config.issuer.is_empty() && self.iss.as_ref() != Some(&config.issuer) {
            return Err(refused("the token has another issuer (`iss`) than the server requires"));
        }
        let names = |audience: &Audience| match audience {
            Audience::One(one) => *one == config.audience,
            Audience::Many(many) => many.contains(&config.audience),
        };
        if !config.audience.is_empty() && !self.aud.as_ref().is_some_and(names) {
            return Err(refused("the token has another audience (`aud`) than the server requires"));
        }
        let name = |name: &Option<String>, what: &str| match name {
            Some(text) if text.is_empty() || text.len() > NAME_BYTES_MAX => {
                Err(refused(format!("the token's `{what}` must have 1 to {NAME_BYTES_MAX} bytes")))
            }
            name => Ok(name.as_deref().map(Arc::from)),
        };
        let info = self.millrace_info.as_ref().map(|info| info.get());
        if info.is_some_and(|info| info.len() > INFO_BYTES_MAX) {
            return Err(refused(format!("the token's `millrace_info` must have at most {INFO_BYTES_MAX} bytes")));
        }
        let mut grant = Grant {
            info: info.map(Arc::from),
            subject: name(&self.sub, "sub")?,
            id: name(&self.jti, "jti")?,
            expires_s: Some(exp.saturating_add(leeway)),
            issued_s: self.iat.and_then(seconds),
            ..Grant::nothing()
        };
        self.millrace.as_ref().unwrap_or(&config.default).grant(&mut grant)?;
        Ok(grant)
    }
}

/// Parses a JSON object. Serde alone would also accept a list of the members in their order.
fn object<T: DeserializeOwned>(json: &[u8]) -> Option<T> {
    serde_json::from_slice(json).ok().filter(|_: &T| json.trim_ascii_start().starts_with(b"{"))
}

/// Returns whole seconds since 1970, or `None` if the number is not such a time.
fn seconds(number: f64) -> Option<u64> {
    (0.0..=1e12).contains(&number).then_some(number as u64)
}
