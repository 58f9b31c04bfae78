use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use millrace_protocol::{Code, Error, Grant, Pattern, Permission};
use serde::{Deserialize, Serialize};

use super::api_key;
use crate::setting::{InvalidSetting, Secret};

/// Maximum number of patterns of one token or one API key.
const RULES_MAX: usize = 100;
/// Placeholder for the token's subject in a pattern.
const SUBJECT: &str = "{sub}";
/// Minimum length of an HS256 secret, in bytes. Source: RFC 7518, section 3.2.
pub const SECRET_BYTES_MIN: usize = 32;
const YEARS: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// `[auth]`: the keys that verify tokens, and the required claims.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Secret of tokens signed with HS256. Empty: HS256 is disabled.
    pub secret: Secret,
    /// Files with public keys (PEM: RSA, P-256, Ed25519), or with a JSON Web Key Set.
    pub keys: Vec<PathBuf>,
    /// URL of a key set to fetch. Empty: none.
    pub jwks: String,
    #[serde(with = "humantime_serde")]
    pub jwks_refresh: Duration,
    /// Minimum time between two fetches, even if tokens name unknown keys.
    #[serde(with = "humantime_serde")]
    pub jwks_pause: Duration,
    /// Required `iss` claim of a token. Empty: any.
    pub issuer: String,
    /// Required `aud` claim of a token. Empty: any.
    pub audience: String,
    /// Maximum difference between clocks.
    #[serde(with = "humantime_serde")]
    pub leeway: Duration,
    /// Maximum remaining lifetime of a token. It bounds the time for which revocations must be kept.
    #[serde(with = "humantime_serde")]
    pub lifetime_max: Duration,
    pub token_bytes_max: usize,
    /// Maximum number of tokens in the cache that avoids verifying a signature for each request.
    pub cached_max: usize,
    /// Maximum number of revoked tokens and subjects.
    pub revoked_max: usize,
    /// File that lists revocations. Empty: none.
    pub revoked: PathBuf,
    /// Name of the cookie that may carry a token, for pages of this server and of `limits.allowed_origins`. Empty:
    /// none.
    pub cookie: String,
    /// True if the URL may carry the token, as `token=`.
    pub query: bool,
    /// Permissions of a token without a `millrace` claim.
    pub default: Rights,
    /// API keys of back ends, by name.
    pub api_keys: BTreeMap<String, ApiKey>,
}

/// Channel patterns by permission. In the patterns of tokens, `{sub}` stands for the subject.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rights {
    pub subscribe: Vec<String>,
    pub publish: Vec<String>,
    pub presence: Vec<String>,
    pub history: Vec<String>,
    /// True if the client may send operator requests. It includes no permission on channels.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub admin: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApiKey {
    /// SHA-256 hash of the key, in hexadecimal.
    pub sha256: String,
    pub grants: Rights,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            secret: Secret::default(),
            keys: Vec::new(),
            jwks: String::new(),
            jwks_refresh: Duration::from_secs(15 * 60),
            jwks_pause: Duration::from_secs(10),
            issuer: String::new(),
            audience: String::new(),
            leeway: Duration::from_secs(10),
            lifetime_max: Duration::from_secs(30 * 24 * 60 * 60),
            token_bytes_max: 8192,
            cached_max: 10_000,
            revoked_max: 100_000,
            revoked: PathBuf::new(),
            cookie: String::new(),
            query: false,
            default: Rights::default(),
            api_keys: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Returns whether authentication is configured. If so, a client without a token has only the permissions of the
    /// namespaces.
    pub fn is_configured(&self) -> bool {
        !self.secret.is_empty() || !self.keys.is_empty() || !self.jwks.is_empty() || !self.api_keys.is_empty()
    }

    /// Returns the time for which a revocation must be kept.
    pub fn revocation_lifetime(&self) -> Duration {
        self.lifetime_max + 2 * self.leeway
    }

    /// Checks ranges and combinations that the types cannot express. Files are read when the server starts.
    ///
    /// Errors: one sentence with the key and the allowed values.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        let bad = |key: &str, what: &str| Err(InvalidSetting { key: format!("auth.{key}"), what: what.into() });
        if !self.secret.is_empty() && self.secret.as_bytes().len() < SECRET_BYTES_MIN {
            return bad(
                "secret",
                "must be empty or have at least 32 bytes; `millrace token key --alg HS256` generates one",
            );
        }
        let without_effect = [
            ("issuer", !self.issuer.is_empty()),
            ("audience", !self.audience.is_empty()),
            ("cookie", !self.cookie.is_empty()),
            ("query", self.query),
            ("revoked", !self.revoked.as_os_str().is_empty()),
            ("default", self.default != Rights::default()),
        ];
        if let Some((key, _)) = without_effect.iter().find(|(_, is_set)| *is_set && !self.is_configured()) {
            return bad(
                key,
                "has no effect without a key, because every client then has all permissions: set `auth.secret`, `auth.keys`, `auth.jwks` or \
                 `auth.api_keys`",
            );
        }
        if let Err(what) = check_url(&self.jwks) {
            return bad("jwks", what);
        }
        if self.jwks_pause.is_zero() || self.jwks_refresh < self.jwks_pause {
            return bad("jwks_refresh", "must be at least `auth.jwks_pause`, which must not be zero");
        }
        if self.leeway > Duration::from_secs(300) {
            return bad("leeway", "must be at most 5min");
        }
        if self.lifetime_max > YEARS || self.lifetime_max.is_zero() {
            return bad("lifetime_max", "must be at most ten years, and not zero");
        }
        if !(256..=64 * 1024).contains(&self.token_bytes_max) {
            return bad("token_bytes_max", "must be from 256 to 65536 bytes");
        }
        if self.default.admin {
            return bad("default.admin", "must be false: name the permission `admin` in each token that needs it");
        }
        if let Err(error) = self.default.check() {
            return bad("default", &format!("has an invalid pattern: {}", error.detail));
        }
        for (name, key) in &self.api_keys {
            if api_key::decode_hash(&key.sha256).is_none() {
                return bad(
                    &format!("api_keys.{name}.sha256"),
                    "must have 64 hexadecimal digits, as `millrace token api-key` prints them",
                );
            }
            if let Err(error) = key.grants.grant(&mut Grant::nothing()) {
                return bad(&format!("api_keys.{name}.grants"), &format!("has an invalid pattern: {}", error.detail));
            }
        }
        Ok(())
    }
}

/// Checks the URL of a key set.
///
/// Errors: the message describes the allowed URLs.
fn check_url(url: &str) -> Result<(), &'static str> {
    const ALLOWED: &str =
        "must be empty or https://HOST/PATH without a password; http:// is allowed for this machine only";
    if url.is_empty() {
        return Ok(());
    }
    let uri: http::Uri = url.parse().map_err(|_| ALLOWED)?;
    let authority = uri.authority().ok_or(ALLOWED)?;
    let is_here = matches!(authority.host(), "localhost" | "127.0.0.1" | "[::1]");
    match uri.scheme_str() {
        _ if authority.as_str().contains('@') => Err(ALLOWED),
        Some("https") => Ok(()),
        Some("http") if is_here => Ok(()),
        _ => Err(ALLOWED),
    }
}

impl Rights {
    pub fn by_right(&self) -> [(Permission, &[String]); 4] {
        [
            (Permission::Subscribe, &self.subscribe),
            (Permission::Publish, &self.publish),
            (Permission::Presence, &self.presence),
            (Permission::History, &self.history),
        ]
    }

    /// Adds these permissions to the grant, with `{sub}` replaced by its subject.
    ///
    /// Errors: [`Code::Unauthorized`] for an invalid pattern, too many patterns, or a subject that cannot be a level of
    /// a channel name.
    pub fn grant(&self, grant: &mut Grant) -> Result<(), Error> {
        let rights = self.by_right();
        if rights.iter().map(|(_, patterns)| patterns.len()).sum::<usize>() > RULES_MAX {
            return Err(refused(format!("the token has more than {RULES_MAX} channel patterns")));
        }
        grant.is_admin |= self.admin;
        for (right, patterns) in rights {
            for pattern in patterns {
                grant.allow(right, fill(pattern, grant.subject.as_deref())?);
            }
        }
        Ok(())
    }

    /// Checks the patterns with a valid subject.
    ///
    /// Errors: as [`Self::grant`].
    fn check(&self) -> Result<(), Error> {
        self.grant(&mut Grant { subject: Some("subject".into()), ..Grant::nothing() })
    }
}

fn fill(template: &str, subject: Option<&str>) -> Result<Pattern, Error> {
    let bad = |error: Error| refused(format!("invalid channel pattern: {}", error.detail));
    if !template.contains(SUBJECT) {
        return Pattern::parse(template).map_err(bad);
    }
    let subject =
        subject.ok_or_else(|| refused("a channel pattern uses `{sub}`, but the token has no subject (`sub`)"))?;
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b':');
    if subject.is_empty() || !subject.bytes().all(good) {
        return Err(refused(
            "the subject (`sub`) cannot replace `{sub}`: a level of a channel name has only A-Z a-z 0-9 _ - . :",
        ));
    }
    Pattern::parse(&template.replace(SUBJECT, subject)).map_err(bad)
}

pub(super) fn refused(detail: impl Into<String>) -> Error {
    Error::new(Code::Unauthorized, detail)
}

#[cfg(test)]
mod tests {
    use millrace_protocol::session::Target;

    use super::*;

    fn publish(patterns: &[&str], subject: Option<&str>) -> Result<Grant, Error> {
        let rights = Rights { publish: patterns.iter().map(|p| (*p).to_owned()).collect(), ..Rights::default() };
        let mut grant = Grant { subject: subject.map(Into::into), ..Grant::nothing() };
        rights.grant(&mut grant).map(|()| grant)
    }

    #[test]
    fn subject_placeholder_limits_device_to_its_channels() {
        let grant = publish(&["cars/{sub}/#"], Some("car-7")).unwrap();
        let may = |target: &str| grant.check(Permission::Publish, &Target::parse(target).unwrap()).is_ok();
        assert!(
            may("cars/car-7/telemetry") && !may("cars/car-8/telemetry") && !may("cars/car-70/x") && !may("cars/+/x")
        );
    }

    #[test]
    fn subject_cannot_widen_pattern() {
        for subject in ["+", "#", "a/b", "", "../x", "a b", "ä", "{sub}"] {
            assert_eq!(publish(&["cars/{sub}/#"], Some(subject)).unwrap_err().code, Code::Unauthorized, "{subject}");
            assert!(publish(&["cars/#"], Some(subject)).is_ok(), "it is not used: {subject}");
        }
        assert!(publish(&["{sub}"], None).is_err());
        assert!(publish(&["a/#/b"], None).is_err() && publish(&["{sup}"], None).is_err());
        assert!(publish(&["a"; RULES_MAX + 1], None).is_err());
    }

    #[test]
    fn key_set_url_requires_tls() {
        for good in ["", "https://id.example/keys.json", "http://127.0.0.1:9000/keys", "http://[::1]:1/k"] {
            assert!(check_url(good).is_ok(), "{good}");
        }
        for bad in [
            "http://id.example/keys",
            "https://user:word@id.example/keys",
            "file:///etc/passwd",
            "id.example",
            "http://",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }
}
