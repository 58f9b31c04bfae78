//! JSON Web Tokens, signed (RFC 7515, 7519), read as RFC 8725 advises.

use std::sync::Arc;

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use millrace_protocol::{Error, Grant};
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    config::{Config, Rights, refused},
    key::{Algorithm, Key},
};

/// Longest `sub`, `jti` and `kid`, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// A token that names no key is tried with so many of its algorithm at most.
const TRIED_MAX: usize = 8;

/// A token in its parts. Nothing of it is to be believed before its signature was checked.
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

/// Twice the same claim is an error of the reader, so no two readers see different tokens.
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
}

#[derive(Deserialize)]
#[serde(untagged)]
pub enum Audience {
    One(String),
    Many(Vec<String>),
}

impl<'a> Token<'a> {
    /// Errors: [`Code::Unauthorized`](millrace_protocol::Code) for what is no token that could be good here.
    pub fn parse(text: &'a str, bytes_max: usize) -> Result<Self, Error> {
        if text.len() > bytes_max {
            return Err(refused(format!("a token has at most {bytes_max} bytes")));
        }
        let none = || refused("this is no token: HEADER.CLAIMS.SIGNATURE, each in base64url");
        let (message, signed) = text.rsplit_once('.').ok_or_else(none)?;
        let (header, payload) =
            message.split_once('.').filter(|(_, payload)| !payload.contains('.')).ok_or_else(none)?;
        let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| none());
        let (header, payload, signed) = (decode(header)?, decode(payload)?, decode(signed)?);
        let header: Header = object(&header)
            .ok_or_else(|| refused("the token's header is not `{\"alg\": \"..\", \"kid\"?: \"..\"}`"))?;
        let algorithm = Algorithm::parse(&header.alg)
            .ok_or_else(|| refused("the token's algorithm is none of HS256, RS256, ES256, EdDSA"))?;
        if header.crit.is_some() {
            return Err(refused("the token asks for extensions (`crit`), and there are none here"));
        }
        let typ = header.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
        if !["jwt", "at+jwt"].contains(&typ.strip_prefix("application/").unwrap_or(&typ)) {
            return Err(refused("the token is of another kind: its `typ` is `JWT`, `at+jwt` or absent"));
        }
        if header.kid.as_ref().is_some_and(|kid| kid.len() > NAME_BYTES_MAX) {
            return Err(refused(format!("the token's `kid` has more than {NAME_BYTES_MAX} bytes")));
        }
        Ok(Self { header, algorithm, message: message.as_bytes(), payload, signed })
    }

    /// The key that signed this: one that the token names; among keys without a name, or if it names none, one that fits.
    ///
    /// Errors: `None` if no key could have: a newer key set may have it.
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
                true => Some(Err(refused("the key that the token names is of another algorithm"))),
                false => None,
            };
        }
        match candidates.find(|key| key.verify(self.message, &self.signed)) {
            Some(key) => Some(Ok(key)),
            // A key without a name may have been the wrong one.
            None if !is_named && kid.is_some() => None,
            None => Some(Err(refused("the token's signature is not of the key that should have made it"))),
        }
    }

    /// Errors: they are no JSON object, one is of the wrong kind, or twice there.
    pub fn claims(&self) -> Result<Claims, Error> {
        object(&self.payload)
            .ok_or_else(|| refused("the token's claims cannot be read: one is of the wrong kind, or there twice"))
    }
}

impl Claims {
    /// What the claims grant now.
    ///
    /// Errors: [`Code::Unauthorized`](millrace_protocol::Code), with the claim that is missing or wrong.
    pub fn grant(&self, config: &Config, now_s: u64) -> Result<Grant, Error> {
        let leeway = config.leeway.as_secs();
        let exp = self.exp.ok_or_else(|| refused("the token never expires: it needs `exp`"))?;
        let exp = seconds(exp).ok_or_else(|| refused("the token's `exp` is no time"))?;
        if exp.saturating_add(leeway) <= now_s {
            return Err(refused("the token has expired (`exp`)"));
        }
        if exp > now_s.saturating_add(config.lifetime_max.as_secs()).saturating_add(leeway) {
            return Err(refused("the token expires (`exp`) later than the server's `auth.lifetime_max` allows"));
        }
        if let Some(nbf) = self.nbf {
            let nbf = seconds(nbf).ok_or_else(|| refused("the token's `nbf` is no time"))?;
            if nbf > now_s.saturating_add(leeway) {
                return Err(refused("the token is not good yet (`nbf`)"));
            }
        }
        if !config.issuer.is_empty() && self.iss.as_ref() != Some(&config.issuer) {
            return Err(refused("the token is of another issuer (`iss`)"));
        }
        let names = |audience: &Audience| match audience {
            Audience::One(one) => *one == config.audience,
            Audience::Many(many) => many.contains(&config.audience),
        };
        if !config.audience.is_empty() && !self.aud.as_ref().is_some_and(names) {
            return Err(refused("the token is for another audience (`aud`)"));
        }
        let name = |name: &Option<String>, what: &str| match name {
            Some(text) if text.is_empty() || text.len() > NAME_BYTES_MAX => {
                Err(refused(format!("the token's `{what}` has 1 to {NAME_BYTES_MAX} bytes")))
            }
            name => Ok(name.as_deref().map(Arc::from)),
        };
        let mut grant = Grant {
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

/// A list would be read, too, as the members in their order.
fn object<T: DeserializeOwned>(json: &[u8]) -> Option<T> {
    serde_json::from_slice(json).ok().filter(|_: &T| json.trim_ascii_start().starts_with(b"{"))
}

/// Whole seconds since 1970; `None` for what is no such time.
fn seconds(number: f64) -> Option<u64> {
    (0.0..=1e12).contains(&number).then_some(number as u64)
}
