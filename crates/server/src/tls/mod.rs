//! Certificates and keys: from files, created for development, or from an ACME server. The transport uses them.

pub mod acme;
mod config;
pub mod dev;
mod files;
mod state;
pub(crate) mod storage;

pub use config::{ClientAuth, Config, Source};

use std::{sync::Arc, thread::JoinHandle};

use anyhow::Context as _;
use bytes::Bytes;
use millrace_transport::tls::Settings;
use tokio::sync::watch;

use acme::Acme;
use state::TlsState;

/// TLS settings of all shards, until a reload or a new certificate changes them.
pub struct Tls {
    state: Arc<TlsState>,
    acme: Option<Acme>,
}

impl Tls {
    /// Loads the certificate. Returns `None` if TLS is not configured.
    ///
    /// Errors: a file that is missing, not PEM, or does not match the other file; a cache that cannot be written. The
    /// error names the path.
    pub fn load(config: &Config, shards: usize) -> anyhow::Result<Option<Self>> {
        if !config.is_on() {
            return Ok(None);
        }
        let (acme, identity) = match config.source() {
            Source::Acme => {
                let (acme, identity) = Acme::open(&config.acme).context("`tls.acme`")?;
                (Some(acme), identity)
            }
            _ => (None, Some(files::certified_key(config)?)),
        };
        Ok(Some(Self { state: Arc::new(TlsState::new(config, identity, shards)?), acme }))
    }

    /// Starts the ACME thread, which runs until `stop` completes. Returns `None` if the certificate is from files.
    ///
    /// Errors: the system refuses a thread.
    pub fn keep_certified(
        &self,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<Option<JoinHandle<()>>> {
        self.acme.as_ref().map(|acme| acme.start(self.state.clone(), stop)).transpose()
    }

    /// Returns the ACME metrics, if certificates are from an ACME server.
    pub fn acme(&self) -> Option<Arc<acme::Metrics>> {
        self.acme.as_ref().map(|acme| acme.metrics.clone())
    }

    /// Reads the files again, for new connections. If an ACME request has failed, retries it now.
    ///
    /// Errors: as [`Self::load`]; the old settings then stay in use.
    pub fn reload(&mut self, config: &Config) -> anyhow::Result<()> {
        let identity = if self.acme.is_some() { None } else { Some(files::certified_key(config)?) };
        self.state.reload(config, identity)?;
        if let Some(acme) = &self.acme {
            acme.retry();
        }
        Ok(())
    }

    pub fn subscribe(&self) -> watch::Receiver<Settings> {
        self.state.subscribe()
    }
}

/// Returns the certificate of `give_out_ca` as DER.
///
/// Errors: the file is missing or has no certificate.
pub fn given_out(config: &Config) -> anyhow::Result<Option<Bytes>> {
    let path = config.give_out_ca.as_str();
    if path.is_empty() {
        return Ok(None);
    }
    let read = || files::certificates(&std::fs::read(path)?);
    let ca = read().with_context(|| format!("`tls.give_out_ca`: {path} has no certificate in PEM"))?;
    Ok(ca.first().map(|ca| Bytes::copy_from_slice(ca)))
}
