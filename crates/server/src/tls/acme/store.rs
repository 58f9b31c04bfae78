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
    certified,
    files::{certificates, make_private_dir, write},
};

const ACCOUNT: &str = "account.json";
/// Key and chain in one, so that they always belong together.
const CERTIFICATE: &str = "certificate.pem";

/// What has to outlive the process: an account of one ACME server, and the certificate that it signed last. For the owner's eyes only.
pub struct Store {
    folder: PathBuf,
}

/// A certificate with its key, and how long it is good.
#[derive(Clone)]
pub struct Issued {
    pub identity: Arc<CertifiedKey>,
    pub from: SystemTime,
    pub until: SystemTime,
}

impl Store {
    /// Below `cache`, a folder of its own for each directory: what a trial's server has signed is of no use elsewhere.
    ///
    /// Errors: it cannot be written.
    pub fn open(cache: &Path, directory: &str) -> anyhow::Result<Self> {
        let url = directory.trim_start_matches("https://");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        let name: String = url.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        let folder = cache.join(name.trim_start_matches('.'));
        make_private_dir(&folder).with_context(unusable)?;
        let store = Self { folder };
        let trial = store.path("trial");
        write(&trial, "", 0o600).with_context(unusable)?;
        fs::remove_file(&trial).with_context(|| format!("{} cannot be removed", trial.display()))?;
        Ok(store)
    }

    /// Errors: there is one, but it cannot be used.
    pub fn account(&self) -> anyhow::Result<Option<AccountCredentials>> {
        let Some(text) = self.read(ACCOUNT)? else { return Ok(None) };
        // The text stays out of the error: it is a key.
        let account = serde_json::from_str(&text).ok();
        account.map(Some).with_context(|| format!("{} is no account: move it away", self.path(ACCOUNT).display()))
    }

    pub fn keep_account(&self, account: &AccountCredentials) -> anyhow::Result<()> {
        write(&self.path(ACCOUNT), &serde_json::to_string(account)?, 0o600)
    }

    /// Its server does not know it any more.
    pub fn forget_account(&self) {
        let _ = fs::remove_file(self.path(ACCOUNT));
    }

    /// The last one, if it is for all of these names.
    ///
    /// Errors: there is one, but it cannot be used.
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
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Issued {
    /// From key and chain in PEM.
    ///
    /// Errors: they do not belong together, or are not for all of these names.
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
        Ok(Self { identity: certified((chain, key))?, from, until })
    }

    /// When two thirds of its life are over: one in three is left for whatever goes wrong then.
    pub fn renew_at(&self) -> SystemTime {
        self.from + self.until.duration_since(self.from).unwrap_or_default() * 2 / 3
    }
}

fn unusable() -> &'static str {
    "the `cache`, where the account's key and the certificates are kept, cannot be used; name another folder by tls.acme.cache"
}
