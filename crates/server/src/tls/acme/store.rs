use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, ensure};
use instant_acme::AccountCredentials;
use rustls::{
    pki_types::{PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
};

use crate::tls::{
    files::{certificates, check_pair},
    storage::{make_private_dir, write},
};

const ACCOUNT: &str = "account.json";
/// Key and chain are in one file, so that they always match.
const CERTIFICATE: &str = "certificate.pem";

/// Persistent state: an account of one ACME server, and its last certificate. Only the owner may read the files.
pub struct Store {
    folder: PathBuf,
}

/// Certificate with its key and its validity.
#[derive(Clone)]
pub struct Issued {
    pub identity: Arc<CertifiedKey>,
    pub from: SystemTime,
    pub until: SystemTime,
}

impl Store {
    /// Opens the store. Each ACME directory has a folder of its own below `cache`, since certificates of a staging
    /// server are useless elsewhere.
    ///
    /// Errors: the folder cannot be written.
    pub fn open(cache: &Path, directory: &str) -> anyhow::Result<Self> {
        let url = directory.trim_start_matches("https://");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        let name: String = url.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        let folder = cache.join(name.trim_start_matches('.'));
        make_private_dir(&folder).with_context(unusable)?;
        let store = Self { folder };
        let probe = store.path("probe");
        write(&probe, "", 0o600).with_context(unusable)?;
        fs::remove_file(&probe).with_context(|| format!("cannot remove {}", probe.display()))?;
        Ok(store)
    }

    /// Returns the stored account.
    ///
    /// Errors: the file exists, but is invalid.
    pub fn account(&self) -> anyhow::Result<Option<AccountCredentials>> {
        let Some(text) = self.read(ACCOUNT)? else { return Ok(None) };
        // The error must not contain the text: it includes a key.
        let account = serde_json::from_str(&text).ok();
        account.map(Some).with_context(|| {
            format!(
                "{} is not a valid ACME account; move the file away, and the server creates a new account",
                self.path(ACCOUNT).display()
            )
        })
    }

    pub fn keep_account(&self, account: &AccountCredentials) -> anyhow::Result<()> {
        write(&self.path(ACCOUNT), &serde_json::to_string(account)?, 0o600)
    }

    /// Removes an account that its ACME server no longer knows.
    pub fn forget_account(&self) {
        let _ = fs::remove_file(self.path(ACCOUNT));
    }

    /// Returns the last certificate.
    ///
    /// Errors: the file exists, but is invalid or does not cover all of these domains.
    pub fn certificate(&self, domains: &[String]) -> anyhow::Result<Option<Issued>> {
        let Some(pem) = self.read(CERTIFICATE)? else { return Ok(None) };
        Issued::of(&pem, domains).map(Some)
    }

    pub fn keep_certificate(&self, pem: &str) -> anyhow::Result<()> {
        write(&self.path(CERTIFICATE), pem, 0o600)
    }

    fn read(&self, name: &str) -> anyhow::Result<Option<String>> {
        let path = self.path(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Issued {
    /// Parses key and chain in PEM.
    ///
    /// Errors: they do not match, or do not cover all of these domains.
    pub fn of(pem: &str, domains: &[String]) -> anyhow::Result<Self> {
        let chain = certificates(pem.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes())?;
        let (_, leaf) = X509Certificate::from_der(&chain[0])?;
        let names = leaf.subject_alternative_name()?.map(|names| names.value.general_names.clone()).unwrap_or_default();
        let has =
            |domain: &String| names.iter().any(|name| matches!(name, GeneralName::DNSName(name) if name == domain));
        ensure!(domains.iter().all(has), "the certificate covers other domains");
        let validity = leaf.validity();
        let time = |at: x509_parser::time::ASN1Time| {
            UNIX_EPOCH + Duration::from_secs(u64::try_from(at.timestamp()).unwrap_or_default())
        };
        let (from, until) = (time(validity.not_before), time(validity.not_after));
        Ok(Self { identity: check_pair((chain, key))?, from, until })
    }

    /// Returns the time when two thirds of the lifetime are over. The last third is left for retries.
    pub fn renew_at(&self) -> SystemTime {
        self.from + self.until.duration_since(self.from).unwrap_or_default() * 2 / 3
    }
}

fn unusable() -> &'static str {
    "cannot use the folder of the account key and the certificates; name another folder in tls.acme.cache"
}
