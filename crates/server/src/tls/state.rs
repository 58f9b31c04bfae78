use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use anyhow::Context as _;
use millrace_transport::tls::{ClientSubject, Settings};
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, ring},
    server::{ClientHello, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
};
use tokio::sync::watch;

use super::{ClientAuth, Config, files};

/// ALPN protocols that the server offers, in order of preference.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// TLS state that is shared with the ACME thread.
pub struct TlsState {
    settings: watch::Sender<Settings>,
    inputs: Mutex<Inputs>,
    shards: usize,
}

/// Values from which the settings are built.
#[derive(Clone)]
struct Inputs {
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

/// Resolver without a certificate: every handshake fails, and the first failure is logged.
#[derive(Debug, Default)]
struct NoCertificate(AtomicBool);

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if !self.0.swap(true, Relaxed) {
            tracing::warn!("no certificate yet; TLS handshakes fail until the ACME server issues one");
        }
        None
    }
}

impl TlsState {
    /// Builds the settings. `identity`: `None` until there is a certificate.
    ///
    /// Errors: an unreadable or invalid `client_ca`.
    pub fn new(config: &Config, identity: Option<Arc<CertifiedKey>>, shards: usize) -> anyhow::Result<Self> {
        let inputs = Inputs { tickets: Tickets::new(files::client_ca(config)?)?, config: config.clone(), identity };
        let settings = watch::Sender::new(inputs.settings(shards)?);
        Ok(Self { settings, inputs: Mutex::new(inputs), shards })
    }

    pub fn subscribe(&self) -> watch::Receiver<Settings> {
        self.settings.subscribe()
    }

    /// Applies a new configuration. `identity`: the new certificate; `None` keeps the old one.
    ///
    /// Errors: an unreadable or invalid `client_ca`; the old settings then stay in use.
    pub fn reload(&self, config: &Config, identity: Option<Arc<CertifiedKey>>) -> anyhow::Result<()> {
        let client_ca = files::client_ca(config)?;
        self.change(|inputs| {
            if client_ca != inputs.tickets.client_ca {
                inputs.tickets = Tickets::new(client_ca)?;
            }
            inputs.config = config.clone();
            inputs.identity = identity.or(inputs.identity.take());
            Ok(())
        })
    }

    /// Replaces the certificate, for new connections.
    pub fn certify(&self, identity: Arc<CertifiedKey>) -> anyhow::Result<()> {
        self.change(|inputs| {
            inputs.identity = Some(identity);
            Ok(())
        })
    }

    /// Sets the TLS configuration for ACME challenges. `None`: ACME servers are handled like clients.
    pub fn set_challenge(&self, challenge: Option<Arc<ServerConfig>>) {
        self.settings.send_modify(|settings| settings.challenge = challenge);
    }

    /// Applies a change of the state completely, or not at all.
    fn change(&self, change: impl FnOnce(&mut Inputs) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut inputs = self.inputs.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = inputs.clone();
        change(&mut changed)?;
        let settings = changed.settings(self.shards)?;
        *inputs = changed;
        self.settings.send_modify(|old| *old = Settings { challenge: old.challenge.take(), ..settings });
        Ok(())
    }
}

impl Tickets {
    fn new(client_ca: Vec<u8>) -> anyhow::Result<Self> {
        Ok(Self { producer: ring::Ticketer::new()?, client_ca })
    }
}

impl Inputs {
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
            None => builder.with_cert_resolver(Arc::new(NoCertificate::default())),
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
