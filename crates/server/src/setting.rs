//! Types that several sections of the configuration share.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, IgnoredAny},
};

/// A secret string. `Debug` hides it; no log, page or message shows it.
#[derive(Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// Implemented by hand: the error of a derived implementation would show a number given instead of a string.
impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Value {
            Text(String),
            Other(IgnoredAny),
        }
        match Value::deserialize(deserializer) {
            Ok(Value::Text(text)) => Ok(Self(text)),
            _ => Err(D::Error::custom("expected a string in quotes")),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "\"\"" } else { "\"(hidden)\"" })
    }
}

/// A setting whose value is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` {what}")]
pub struct InvalidSetting {
    /// Section and key, for example `server.secret`.
    pub key: String,
    /// The allowed values, as the end of a sentence that begins with the key.
    pub what: String,
}

/// Replaces the query of a URL, which may contain a secret.
pub fn hide_query(url: &mut String) {
    if let Some((shown, _)) = url.split_once('?') {
        *url = format!("{shown}?(hidden)");
    }
}
