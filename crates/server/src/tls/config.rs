use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::acme;

/// Settings of TLS; without a certificate, connections are not encrypted. Paths are relative to the server's working
/// directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// File with the server's certificate chain, its own certificate first (PEM).
    pub cert: String,
    /// File with the private key (PEM: PKCS#8, SEC1 or PKCS#1).
    pub key: String,
    /// Minimum protocol version: `1.2` or `1.3`.
    pub min_version: String,
    /// File with the CA certificates of clients (PEM). Empty: no client certificate is requested.
    pub client_ca: String,
    /// Whether a client certificate is required.
    pub client_auth: ClientAuth,
    /// Part of the client certificate that names the device: none (empty), `cn` or `san`.
    pub client_subject: String,
    /// Timeout from the first byte to the end of the handshake.
    #[serde(with = "humantime_serde")]
    pub handshake_timeout: Duration,
    /// Maximum number of concurrent handshakes; further connections are refused.
    pub handshakes_max: usize,
    /// Certificates from an ACME server, instead of files.
    pub acme: acme::Config,
    /// File with a certificate (PEM) that is offered at `/ca.crt`, so that devices can trust it. Empty: none.
    pub give_out_ca: String,
}

/// Whether a client certificate is required if `client_ca` is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    Optional,
    #[default]
    Required,
}

/// Source of the server's certificate. A change of the source needs a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// No certificate, and no TLS.
    Nowhere,
    Files,
    Acme,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cert: String::new(),
            key: String::new(),
            min_version: "1.2".into(),
            client_ca: String::new(),
            client_auth: ClientAuth::Required,
            client_subject: String::new(),
            handshake_timeout: Duration::from_secs(10),
            handshakes_max: 4096,
            give_out_ca: String::new(),
            acme: acme::Config::default(),
        }
    }
}

impl Config {
    pub fn is_on(&self) -> bool {
        self.source() != Source::Nowhere
    }

    pub fn source(&self) -> Source {
        match (self.acme.is_on(), self.cert.is_empty()) {
            (true, _) => Source::Acme,
            (false, false) => Source::Files,
            (false, true) => Source::Nowhere,
        }
    }

    /// Checks what the types cannot express.
    ///
    /// Errors: the key and its allowed values.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if self.acme.is_on() && !(self.cert.is_empty() && self.key.is_empty()) {
            return Err(("tls", "must use either `cert` and `key` (--tls-dev sets them) or `acme`, not both"));
        }
        self.acme.check()?;
        if self.cert.is_empty() != self.key.is_empty() {
            return Err(("tls", "needs both `cert` and `key`; `millrace cert dev` creates a pair for development"));
        }
        if !self.is_on() && !self.client_ca.is_empty() {
            return Err((
                "tls.client_ca",
                "has no effect without TLS: set `tls.cert` and `tls.key`, or `tls.acme.domains`",
            ));
        }
        if self.client_ca.is_empty() && !self.client_subject.is_empty() {
            return Err((
                "tls.client_subject",
                "has no effect without `tls.client_ca`, because no client certificate is requested",
            ));
        }
        if !["1.2", "1.3"].contains(&self.min_version.as_str()) {
            return Err(("tls.min_version", "must be `1.2` or `1.3`"));
        }
        if !["", "cn", "san"].contains(&self.client_subject.as_str()) {
            return Err(("tls.client_subject", "must be `cn`, `san` or empty"));
        }
        if self.handshakes_max == 0 || self.handshake_timeout.is_zero() {
            return Err(("tls", "must have `handshakes_max` and `handshake_timeout` above zero"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_has_one_source() {
        let mut config = Config::default();
        assert_eq!((config.source(), config.check()), (Source::Nowhere, Ok(())));
        (config.cert, config.key) = ("cert.pem".into(), "key.pem".into());
        assert_eq!((config.source(), config.check()), (Source::Files, Ok(())));
        config.acme = acme::Config { domains: vec!["app.example".into()], accept_terms: true, ..config.acme };
        assert!(config.check().is_err_and(|(key, what)| key == "tls" && what.contains("not both")));
        (config.cert, config.key) = Default::default();
        assert_eq!((config.source(), config.check()), (Source::Acme, Ok(())));
    }
}
