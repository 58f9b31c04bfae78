//! TLS: the handshake, then encryption below the HTTP and event loop code, which sees only plaintext.
//!
//! ```text
//!   accepted ── first byte ─┬─ 22 ──► handshake ──► hyper ──► a socket of the event loop
//!                           │  │         [`Session`] moves along, from one owner to the next
//!                           │  └─ ACME challenge: answered, then closed
//!                           └─ a letter: plain HTTP, answered with an error
//! ```
//!
//! - [`session`]: one connection's records, without sockets
//! - [`stream`]: the stream that hyper reads from and writes to
//! - [`challenge`]: distinguishes ACME servers from clients
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
pub use stream::{Accepted, Stream, accept};
pub(crate) use stream::{Parts, is_tls};

/// TLS settings of every new connection of a listener.
#[derive(Clone)]
pub struct Settings {
    pub config: Arc<ServerConfig>,
    /// Configuration for connections from an ACME server while a TLS-ALPN-01 challenge is pending. Never used for
    /// clients.
    pub challenge: Option<Arc<ServerConfig>>,
    /// Timeout from the first byte to the end of the handshake.
    pub handshake_timeout: Duration,
    /// Maximum number of concurrent handshakes per shard; further connections are refused.
    pub handshakes_max: usize,
    pub client_subject: ClientSubject,
}

/// Part of a client certificate that names the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientSubject {
    /// None: the certificate only allows the client to connect.
    #[default]
    Nothing,
    /// The common name of the certificate's subject.
    CommonName,
    /// The first subject alternative name: DNS name, URI or mail address.
    AlternativeName,
}

/// Device name from a client certificate. It is an extension of each request of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSubject(pub Arc<str>);

/// Current settings, and the number of handshakes in progress on a shard.
pub struct Acceptor {
    settings: watch::Receiver<Settings>,
    under_way: Rc<Cell<usize>>,
}

/// Slot of one handshake in progress; dropping it frees the slot.
pub struct HandshakeSlot(Rc<Cell<usize>>);

impl Acceptor {
    pub fn new(settings: watch::Receiver<Settings>) -> Self {
        Self { settings, under_way: Rc::default() }
    }

    pub fn settings(&self) -> Settings {
        self.settings.borrow().clone()
    }

    /// Reserves a slot for a handshake; `None` if too many are in progress.
    pub fn handshake_slot(&self) -> Option<HandshakeSlot> {
        let under_way = self.under_way.get();
        if under_way >= self.settings.borrow().handshakes_max {
            return None;
        }
        self.under_way.set(under_way + 1);
        Some(HandshakeSlot(self.under_way.clone()))
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl ClientSubject {
    /// Returns the device name of a client certificate; `None` if the certificate lacks it.
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
