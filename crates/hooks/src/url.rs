use std::{fmt, net::IpAddr};

use reqwest::Url;

/// Checked URL of a back end.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HookUrl(Url);

/// Reasons why a URL of a back end is not accepted. No message contains the URL, because it may contain a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUrl {
    #[error("must be an http or https URL, for example `https://app.example/hooks`")]
    Syntax,
    #[error("must not contain a user name or a password; the signature authenticates the requests")]
    Credentials,
    #[error("must use https, because the requests are not encrypted otherwise; `hooks.allow_http = true` allows http")]
    Cleartext,
}

impl HookUrl {
    /// Parses a URL. Plain HTTP is accepted for this machine only, unless `allow_http` is true.
    pub fn parse(text: &str, allow_http: bool) -> Result<Self, InvalidUrl> {
        let mut url = Url::parse(text).map_err(|_| InvalidUrl::Syntax)?;
        if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none_or(str::is_empty) {
            return Err(InvalidUrl::Syntax);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(InvalidUrl::Credentials);
        }
        if url.scheme() == "http" && !allow_http && !is_loopback(&url) {
            return Err(InvalidUrl::Cleartext);
        }
        url.set_fragment(None);
        Ok(Self(url))
    }

    /// Returns scheme, host and port, such as `https://app.example`.
    pub fn origin(&self) -> String {
        self.0.origin().ascii_serialization()
    }

    pub(crate) fn url(&self) -> &Url {
        &self.0
    }

    /// Returns the URL without its query, which may contain a secret.
    pub fn shown(&self) -> String {
        let mut url = self.0.clone();
        url.set_query(None);
        url.into()
    }
}

impl fmt::Debug for HookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

/// Returns true for a literal loopback address and for `localhost`.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked() {
        for good in
            ["https://app.example/hooks?key=s", "http://127.0.0.1:3000/", "http://[::1]:3000/a", "http://localhost/a"]
        {
            assert!(HookUrl::parse(good, false).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("app.example/hooks", InvalidUrl::Syntax),
            ("ftp://app.example/", InvalidUrl::Syntax),
            ("", InvalidUrl::Syntax),
            ("https://ann:secret@app.example/", InvalidUrl::Credentials),
            ("http://app.example/hooks", InvalidUrl::Cleartext),
            ("http://127.0.0.1.app.example/", InvalidUrl::Cleartext),
            ("http://10.0.0.1/", InvalidUrl::Cleartext),
        ] {
            assert_eq!(HookUrl::parse(bad, false), Err(why), "{bad}");
        }
        assert!(HookUrl::parse("http://app.example/hooks", true).is_ok());
    }

    #[test]
    fn query_is_not_shown() {
        let url = HookUrl::parse("https://app.example/hooks?key=s3cr3t#part", false).unwrap();
        assert_eq!(
            (url.shown().as_str(), format!("{url:?}").as_str()),
            ("https://app.example/hooks", "https://app.example/hooks")
        );
        assert_eq!(url.url().query(), Some("key=s3cr3t"));
    }
}
