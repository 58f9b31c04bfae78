//! TLS: the handshake, then ciphertext instead of plaintext in the same places. Nobody else in this crate knows of it.
//!
//! ```text
//!   accepted ── first byte ─┬─ 22 ──► handshake ──► hyper ──► a socket of the event loop
//!                           │  │         [`Session`] goes along, from one owner to the next
//!                           │  └─ to prove whose name this is: answered, and no more
//!                           └─ a letter: it is plain HTTP, and is told so
//! ```
//!
//! - [`session`]: one connection's records, without sockets
//! - [`stream`]: what hyper reads from and writes to
//! - [`challenge`]: telling an ACME server that asks for proof from a client
//!
//! rustls does the cryptography; its unbuffered interface lets all connections of a thread share one buffer.

mod challenge;
mod session;
mod stream;

use std::{cell::Cell, rc::Rc, sync::Arc, time::Duration};

use rustls::{ServerConfig, pki_types::CertificateDer};
use tokio::sync::watch;
use x509_parser::{extensions::GeneralName, prelude::FromDer, x509::X509Name};

pub use challenge::ACME_TLS;
pub(crate) use session::{Received, Session};
pub(crate) use stream::{Accepted, Parts, Stream, accept, is_tls};

/// What every new connection of a listener is met with.
#[derive(Clone)]
pub struct Settings {
    pub config: Arc<ServerConfig>,
    /// While an ACME server wants proof that a name leads here (TLS-ALPN-01): what it is met with. Never a client.
    pub challenge: Option<Arc<ServerConfig>>,
    /// From the first byte to the end of the handshake.
    pub handshake_timeout: Duration,
    /// Most handshakes of one shard at the same time; who comes then is turned away.
    pub handshakes_max: usize,
    pub client_subject: ClientSubject,
}

/// Which part of a client's certificate names the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientSubject {
    /// None: the certificate lets its owner connect, nothing more.
    #[default]
    Nothing,
    /// The common name of its subject.
    CommonName,
    /// Its first alternative name: DNS name, URI or mail address.
    AlternativeName,
}

/// What a client's certificate says about who it is; an extension of each of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSubject(pub Arc<str>);

/// The settings that hold now, and how many handshakes a shard has under way.
pub(crate) struct Acceptor {
    settings: watch::Receiver<Settings>,
    under_way: Rc<Cell<usize>>,
}

/// One handshake that is under way.
pub(crate) struct Permit(Rc<Cell<usize>>);

impl Acceptor {
    pub(crate) fn new(settings: watch::Receiver<Settings>) -> Self {
        Self { settings, under_way: Rc::default() }
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings.borrow().clone()
    }

    /// `None`: there are too many already.
    pub(crate) fn permit(&self) -> Option<Permit> {
        let under_way = self.under_way.get();
        if under_way >= self.settings.borrow().handshakes_max {
            return None;
        }
        self.under_way.set(under_way + 1);
        Some(Permit(self.under_way.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl ClientSubject {
    /// `None` if the certificate does not say it.
    fn of(self, certificate: &CertificateDer<'_>) -> Option<PeerSubject> {
        let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(certificate).ok()?;
        let name = match self {
            ClientSubject::Nothing => None,
            ClientSubject::CommonName => common_name(certificate.subject()),
            ClientSubject::AlternativeName => {
                let names = certificate.subject_alternative_name().ok()??;
                names.value.general_names.iter().find_map(|name| match name {
                    GeneralName::DNSName(name) | GeneralName::URI(name) | GeneralName::RFC822Name(name) => Some(*name),
                    _ => None,
                })
            }
        }?;
        Some(PeerSubject(name.into()))
    }
}

fn common_name<'a>(subject: &'a X509Name<'_>) -> Option<&'a str> {
    subject.iter_common_name().next()?.as_str().ok()
}
