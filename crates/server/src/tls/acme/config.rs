use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::tls::storage::data_dir;

/// Maximum number of domains of one certificate. Source: Let's Encrypt, "Rate Limits".
const DOMAINS_MAX: usize = 100;

/// Settings of ACME (RFC 8555): certificates that the server requests itself. It answers each challenge on its own port
/// (RFC 8737).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Domains to request certificates for. Empty disables ACME.
    pub domains: Vec<String>,
    /// True if the operator accepts the terms of service of the certificate authority.
    pub accept_terms: bool,
    /// Mail addresses to which the certificate authority may report problems.
    pub contact: Vec<String>,
    /// URL of the certificate authority's ACME directory.
    pub directory: String,
    /// File with CA certificates that the ACME server's own certificate must chain to (PEM). Empty: the CAs that this
    /// machine trusts.
    pub ca: String,
    /// Folder for the account key and the certificates. Empty: a folder in the user's data directory.
    pub cache: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            domains: Vec::new(),
            accept_terms: false,
            contact: Vec::new(),
            directory: "https://acme-v02.api.letsencrypt.org/directory".into(),
            ca: String::new(),
            cache: String::new(),
        }
    }
}

impl Config {
    pub fn is_on(&self) -> bool {
        !self.domains.is_empty()
    }

    /// Returns the folder for the account key and the certificates.
    pub fn cache(&self) -> PathBuf {
        match self.cache.as_str() {
            "" => data_dir("acme"),
            path => path.into(),
        }
    }

    /// Checks what the types cannot express.
    ///
    /// Errors: the key and its allowed values.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if !self.is_on() {
            let what = "has no effect without `tls.acme.domains` (--tls-acme DOMAIN)";
            return if self.accept_terms { Err(("tls.acme.accept_terms", what)) } else { Ok(()) };
        }
        if !self.accept_terms {
            let what = "must be true (--tls-acme-accept-terms): certificates require the acceptance of the terms of service of the certificate \
                authority. Those of Let's Encrypt are at https://letsencrypt.org/repository/";
            return Err(("tls.acme.accept_terms", what));
        }
        if self.domains.len() > DOMAINS_MAX || !self.domains.iter().all(|domain| is_domain(domain)) {
            let what = "must be up to 100 domain names such as `app.example`, in lower case (`xn--..` for names beyond ASCII). \
                TLS-ALPN-01 supports neither wildcards nor IP addresses";
            return Err(("tls.acme.domains", what));
        }
        if !self.contact.iter().all(|mail| is_mail(mail)) {
            return Err(("tls.acme.contact", "must be email addresses, for example `ops@app.example`"));
        }
        if !self.directory.starts_with("https://") {
            return Err(("tls.acme.directory", "must be a URL that begins with `https://`"));
        }
        Ok(())
    }
}

/// Returns true if this is a host name in lower case, not an IP address. Source: RFC 1123, section 2.1; RFC 1035,
/// section 2.3.4.
fn is_domain(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_good)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253
        && name.split('.').all(is_label)
        && !name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

fn is_mail(address: &str) -> bool {
    let parts = address.split_once('@');
    parts.is_some_and(|(name, host)| !name.is_empty() && is_domain(host))
        && address.bytes().all(|byte| byte.is_ascii_graphic() && !b"?,:".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Config)) -> Option<&'static str> {
        let mut config = Config { domains: vec!["app.example".into()], accept_terms: true, ..Config::default() };
        change(&mut config);
        config.check().err().map(|(key, _)| key)
    }

    #[test]
    fn invalid_acme_settings_are_named() {
        assert_eq!(Config::default().check(), Ok(()));
        assert_eq!(refused(|_| {}), None);
        assert_eq!(refused(|config| config.accept_terms = false), Some("tls.acme.accept_terms"));
        for domain in ["", "*.app.example", "App.example", "192.0.2.1", "a..b", "-a.b", "a.b.", "[::1]", "a_b.c", "a/b"]
        {
            assert_eq!(refused(|config| config.domains.push(domain.into())), Some("tls.acme.domains"), "{domain}");
        }
        assert_eq!(refused(|config| config.domains = vec!["a.example".into(); 101]), Some("tls.acme.domains"));
        for (mail, key) in
            [("ops@app.example", None), ("ops", Some("tls.acme.contact")), ("mailto:a@b.c", Some("tls.acme.contact"))]
        {
            assert_eq!(refused(|config| config.contact.push(mail.into())), key, "{mail}");
        }
        assert_eq!(refused(|config| config.directory = "http://ca.test/dir".into()), Some("tls.acme.directory"));
    }
}
