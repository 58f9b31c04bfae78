//! Certificates and keys: from files, made for a developer, or from an ACME server. What is done with them is the transport's business.

mod config;
pub mod dev;
mod files;

pub use config::{ClientAuth, Config};

use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use millrace_transport::tls::{ClientSubject, Settings};
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, ring},
    server::{ProducesTickets, WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tokio::sync::watch;

/// What is offered for the connection after the handshake; the client's first choice of these counts.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// What all shards speak TLS with, until a reload.
pub struct Tls {
    settings: watch::Sender<Settings>,
    tickets: Tickets,
    shards: usize,
}

/// One for all shards, so that a client resumes on any of them. A ticket stands for the certificate that its client has shown, so another
/// `client_ca` begins anew.
struct Tickets {
    producer: Arc<dyn ProducesTickets>,
    client_ca: Vec<u8>,
}

impl Tls {
    /// `None` if nothing of it is configured.
    ///
    /// Errors: a file that is missing, no PEM, or does not belong to the other; each with its path.
    pub fn load(config: &Config, shards: usize) -> anyhow::Result<Option<Self>> {
        if !config.is_on() {
            return Ok(None);
        }
        let tickets = Tickets::new(files::client_ca(config)?)?;
        let settings = settings(config, shards, &tickets)?;
        Ok(Some(Self { settings: watch::Sender::new(settings), tickets, shards }))
    }

    /// Reads the files again, for connections from now on.
    ///
    /// Errors: as [`Self::load`]; then all stays as it was.
    pub fn reload(&mut self, config: &Config) -> anyhow::Result<()> {
        let client_ca = files::client_ca(config)?;
        let fresh = (client_ca != self.tickets.client_ca).then(|| Tickets::new(client_ca)).transpose()?;
        let settings = settings(config, self.shards, fresh.as_ref().unwrap_or(&self.tickets))?;
        if let Some(fresh) = fresh {
            self.tickets = fresh;
        }
        self.settings.send_replace(settings);
        Ok(())
    }

    pub fn subscribe(&self) -> watch::Receiver<Settings> {
        self.settings.subscribe()
    }
}

/// What `give_out_ca` names, as DER.
///
/// Errors: there is no certificate.
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

fn settings(config: &Config, shards: usize, tickets: &Tickets) -> anyhow::Result<Settings> {
    let provider = Arc::new(ring::default_provider());
    let versions: &[_] = match config.min_version.as_str() {
        "1.3" => &[&rustls::version::TLS13],
        _ => &[&rustls::version::TLS13, &rustls::version::TLS12],
    };
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions)?;
    let builder = match tickets.client_ca.as_slice() {
        [] => builder.with_no_client_auth(),
        pem => builder.with_client_cert_verifier(client_verifier(config, pem, provider)?),
    };
    let (chain, key) = files::identity(config)?;
    let mut server = builder
        .with_single_cert(chain, key)
        .with_context(|| format!("{} and {} do not belong together, or cannot be used", config.cert, config.key))?;
    server.alpn_protocols = ALPN.map(<[u8]>::to_vec).into();
    server.ticketer = tickets.producer.clone();
    Ok(Settings {
        config: Arc::new(server),
        handshake_timeout: config.handshake_timeout,
        handshakes_max: config.handshakes_max.div_ceil(shards),
        client_subject: match config.client_subject.as_str() {
            "cn" => ClientSubject::CommonName,
            "san" => ClientSubject::AlternativeName,
            _ => ClientSubject::Nothing,
        },
    })
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
