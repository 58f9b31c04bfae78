//! Certificates and keys: from files, created for development, or from an ACME server. The transport uses them.

pub mod acme;
mod config;
pub mod dev;
mod files;

pub use config::{ClientAuth, Config, Source};

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

use anyhow::Context as _;
use bytes::Bytes;
use files::Identity;
use millrace_transport::tls::{ClientSubject, Settings};
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, ring},
    server::{ProducesTickets, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
};
use tokio::sync::watch;

use acme::Acme;

/// ALPN protocols that the server offers, in order of preference.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// TLS settings of all shards, until a reload or a new certificate changes them.
pub struct Tls {
    spoken: Arc<Spoken>,
    acme: Option<Acme>,
}

/// TLS state that is shared with the ACME thread.
struct Spoken {
    settings: watch::Sender<Settings>,
    made_of: Mutex<MadeOf>,
    shards: usize,
}

#[derive(Clone)]
struct MadeOf {
    config: Config,
    tickets: Tickets,
    /// `None` until there is a certificate; until then every handshake fails.
    identity: Option<Arc<CertifiedKey>>,
}

/// Session ticket keys, shared by all shards, so that a client can resume on any of them. A ticket replaces the client
/// certificate, so a change of `client_ca` creates new keys.
#[derive(Clone)]
struct Tickets {
    producer: Arc<dyn ProducesTickets>,
    client_ca: Vec<u8>,
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
            _ => (None, Some(identity_of_files(config)?)),
        };
        let made_of = MadeOf { tickets: Tickets::new(files::client_ca(config)?)?, config: config.clone(), identity };
        let settings = watch::Sender::new(made_of.settings(shards)?);
        Ok(Some(Self { spoken: Arc::new(Spoken { settings, made_of: Mutex::new(made_of), shards }), acme }))
    }

    /// Starts the ACME thread, which runs until `stop` completes. Returns `None` if the certificate is from files.
    ///
    /// Errors: the system refuses a thread.
    pub fn keep_certified(
        &self,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<Option<JoinHandle<()>>> {
        self.acme.as_ref().map(|acme| acme.start(self.spoken.clone(), stop)).transpose()
    }

    /// Returns the ACME metrics, if certificates are from an ACME server.
    pub fn acme(&self) -> Option<Arc<acme::Figures>> {
        self.acme.as_ref().map(|acme| acme.figures.clone())
    }

    /// Reads the files again, for new connections. If an ACME request has failed, retries it now.
    ///
    /// Errors: as [`Self::load`]; the old settings then stay in use.
    pub fn reload(&mut self, config: &Config) -> anyhow::Result<()> {
        let client_ca = files::client_ca(config)?;
        let identity = if self.acme.is_some() { None } else { Some(identity_of_files(config)?) };
        self.spoken.change(|made_of| {
            if client_ca != made_of.tickets.client_ca {
                made_of.tickets = Tickets::new(client_ca)?;
            }
            made_of.config = config.clone();
            made_of.identity = identity.or(made_of.identity.take());
            Ok(())
        })?;
        if let Some(acme) = &self.acme {
            acme.try_again();
        }
        Ok(())
    }

    pub fn subscribe(&self) -> watch::Receiver<Settings> {
        self.spoken.settings.subscribe()
    }
}

impl Spoken {
    /// Replaces the certificate, for new connections.
    fn certify(&self, identity: Arc<CertifiedKey>) -> anyhow::Result<()> {
        self.change(|made_of| {
            made_of.identity = Some(identity);
            Ok(())
        })
    }

    /// Sets the TLS configuration for ACME challenges. `None`: ACME servers are handled like clients.
    fn answer(&self, challenge: Option<Arc<ServerConfig>>) {
        self.settings.send_modify(|settings| settings.challenge = challenge);
    }

    /// Applies a change of the state completely, or not at all.
    fn change(&self, change: impl FnOnce(&mut MadeOf) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut made_of = self.made_of.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = made_of.clone();
        change(&mut changed)?;
        let settings = changed.settings(self.shards)?;
        *made_of = changed;
        self.settings.send_modify(|old| *old = Settings { challenge: old.challenge.take(), ..settings });
        Ok(())
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

impl Tickets {
    fn new(client_ca: Vec<u8>) -> anyhow::Result<Self> {
        Ok(Self { producer: ring::Ticketer::new()?, client_ca })
    }
}

impl MadeOf {
    fn settings(&self, shards: usize) -> anyhow::Result<Settings> {
        let config = &self.config;
        let provider = Arc::new(ring::default_provider());
        let versions: &[_] = match config.min_version.as_str() {
            "1.3" => &[&rustls::version::TLS13],
            _ => &[&rustls::version::TLS13, &rustls::version::TLS12],
        };
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions)?;
        let builder = match self.tickets.client_ca.as_slice() {
            [] => builder.with_no_client_auth(),
            pem => builder.with_client_cert_verifier(client_verifier(config, pem, provider)?),
        };
        let mut server = match &self.identity {
            Some(identity) => builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity.clone()))),
            None => builder.with_cert_resolver(Arc::new(acme::NoneYet::default())),
        };
        server.alpn_protocols = ALPN.map(<[u8]>::to_vec).into();
        server.ticketer = self.tickets.producer.clone();
        Ok(Settings {
            config: Arc::new(server),
            challenge: None,
            handshake_timeout: config.handshake_timeout,
            handshakes_max: config.handshakes_max.div_ceil(shards),
            client_subject: match config.client_subject.as_str() {
                "cn" => ClientSubject::CommonName,
                "san" => ClientSubject::AlternativeName,
                _ => ClientSubject::Nothing,
            },
        })
    }
}

fn identity_of_files(config: &Config) -> anyhow::Result<Arc<CertifiedKey>> {
    certified(files::identity(config)?)
        .with_context(|| format!("{} and {} do not belong together, or cannot be used", config.cert, config.key))
}

/// Checks a certificate chain and key.
///
/// Errors: the key does not match the certificate, or its type is not supported.
fn certified((chain, key): Identity) -> anyhow::Result<Arc<CertifiedKey>> {
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &ring::default_provider())?))
}

fn client_verifier(
    config: &Config,
    pem: &[u8],
    provider: Arc<CryptoProvider>,
) -> anyhow::Result<Arc<dyn ClientCertVerifier>> {
    let roots = files::roots(pem).with_context(|| format!("`tls.client_ca`: {} has no CA in PEM", config.client_ca))?;
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = match config.client_auth {
        ClientAuth::Optional => builder.allow_unauthenticated(),
        ClientAuth::Required => builder,
    };
    Ok(builder.build()?)
}
