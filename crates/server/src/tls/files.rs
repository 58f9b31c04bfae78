use std::{
    fs,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
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

/// Returns `$XDG_DATA_HOME/millrace/NAME`, or the same below the home directory.
pub fn data_dir(name: &str) -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")));
    data.map_or_else(|| format!("millrace-{name}").into(), |data| data.join("millrace").join(name))
}

/// Creates a folder that only its owner can open, unless it exists.
pub fn make_private_dir(dir: &Path) -> anyhow::Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("cannot create {}", dir.display()))
}

/// Writes a file atomically, so that a server that reads it concurrently sees the old or the new content.
pub fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let temporary = path.with_extension("new");
    let unwritable = || format!("cannot write {}", path.display());
    let _ = fs::remove_file(&temporary);
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary).with_context(unwritable)?;
    file.write_all(text.as_bytes()).with_context(unwritable)?;
    fs::rename(&temporary, path).with_context(unwritable)
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
