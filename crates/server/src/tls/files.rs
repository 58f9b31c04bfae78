use std::{path::Path, sync::Arc};

use anyhow::Context as _;
use rustls::{
    RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::Config;

/// Remaining days at which expiry is logged at start and reload.
const EXPIRES_SOON_DAYS: i64 = 14;

/// Certificate chain and its private key.
pub type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Reads the certificate chain and key.
///
/// Errors: the file and the fault.
pub fn identity(config: &Config) -> anyhow::Result<Identity> {
    let chain = certificates(&std::fs::read(&config.cert).with_context(|| unreadable("tls.cert", &config.cert))?)
        .with_context(|| format!("`tls.cert`: {} has no certificates in PEM", config.cert))?;
    let key =
        PrivateKeyDer::from_pem_slice(&std::fs::read(&config.key).with_context(|| unreadable("tls.key", &config.key))?)
            .with_context(|| format!("`tls.key`: {} has no private key in PEM", config.key))?;
    warn_of_expiry(&chain[0], Path::new(&config.cert));
    Ok((chain, key))
}

/// Reads the certificate chain and key, and checks that they match.
///
/// Errors: as [`identity`], and a pair that does not match.
pub fn certified_key(config: &Config) -> anyhow::Result<Arc<CertifiedKey>> {
    check_pair(identity(config)?)
        .with_context(|| format!("{} and {} do not match, or their type is not supported", config.cert, config.key))
}

/// Checks that a certificate chain and a key match.
///
/// Errors: the key does not match the certificate, or its type is not supported.
pub fn check_pair((chain, key): Identity) -> anyhow::Result<Arc<CertifiedKey>> {
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &ring::default_provider())?))
}

/// Returns the content of `client_ca`; empty if it is not set.
pub fn client_ca(config: &Config) -> anyhow::Result<Vec<u8>> {
    match config.client_ca.as_str() {
        "" => Ok(Vec::new()),
        path => std::fs::read(path).with_context(|| unreadable("tls.client_ca", path)),
    }
}

/// Parses certificate authorities.
///
/// Errors: no certificate, or one that cannot be an authority.
pub fn roots(pem: &[u8]) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

/// Parses at least one certificate.
///
/// Errors: malformed PEM, or no certificate.
pub fn certificates(pem: &[u8]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?;
    anyhow::ensure!(!all.is_empty(), "no certificate found");
    Ok(all)
}

fn unreadable(key: &str, path: &str) -> String {
    format!("`{key}`: cannot read {path}")
}

fn warn_of_expiry(certificate: &CertificateDer<'_>, path: &Path) {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return };
    let now = x509_parser::time::ASN1Time::now().timestamp();
    let days = (certificate.validity().not_after.timestamp() - now) / (24 * 60 * 60);
    if days < EXPIRES_SOON_DAYS {
        tracing::warn!(path = %path.display(), days, "the certificate expires soon or has expired");
    }
}
