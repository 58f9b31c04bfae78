use std::path::Path;

use anyhow::Context as _;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::Config;

/// Warned of at start and reload.
const EXPIRES_SOON_DAYS: i64 = 14;

/// Certificate chain and key.
///
/// Errors: say which file, and what is wrong with it.
pub fn identity(config: &Config) -> anyhow::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let chain = certificates(&std::fs::read(&config.cert).with_context(|| unreadable("tls.cert", &config.cert))?)
        .with_context(|| format!("`tls.cert`: {} has no certificates in PEM", config.cert))?;
    let key =
        PrivateKeyDer::from_pem_slice(&std::fs::read(&config.key).with_context(|| unreadable("tls.key", &config.key))?)
            .with_context(|| format!("`tls.key`: {} has no private key in PEM", config.key))?;
    warn_of_expiry(&chain[0], Path::new(&config.cert));
    Ok((chain, key))
}

/// What `client_ca` holds; empty if it is not set.
pub fn client_ca(config: &Config) -> anyhow::Result<Vec<u8>> {
    match config.client_ca.as_str() {
        "" => Ok(Vec::new()),
        path => std::fs::read(path).with_context(|| unreadable("tls.client_ca", path)),
    }
}

/// Errors: no certificate in it, or one that cannot be trusted in.
pub fn roots(pem: &[u8]) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

/// One at least.
pub fn certificates(pem: &[u8]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?;
    anyhow::ensure!(!all.is_empty(), "there is none");
    Ok(all)
}

fn unreadable(key: &str, path: &str) -> String {
    format!("`{key}`: {path} cannot be read")
}

fn warn_of_expiry(certificate: &CertificateDer<'_>, path: &Path) {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return };
    let now = x509_parser::time::ASN1Time::now().timestamp();
    let days = (certificate.validity().not_after.timestamp() - now) / (24 * 60 * 60);
    if days < EXPIRES_SOON_DAYS {
        tracing::warn!(path = %path.display(), days, "the certificate expires soon, or has expired");
    }
}
