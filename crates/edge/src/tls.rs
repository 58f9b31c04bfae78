//! Whom this program believes to be a server: the authorities of the system, a developer's own, or one that was named.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::wire::Server;

/// What was decided when the program started; a process trusts the same authorities everywhere.
static TRUST: OnceLock<ClientConfig> = OnceLock::new();

/// Who is trusted beside the authorities of the system.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// An authority (PEM) that must be there.
    pub ca: Option<PathBuf>,
    /// One that is trusted if it is there.
    pub dev_ca: Option<PathBuf>,
    /// Whoever answers is believed: anybody on the way can read and change everything.
    pub anybody: bool,
}

impl Trust {
    /// From now on, in the whole process. Only the first decision counts.
    ///
    /// Errors: a file that cannot be read, or has no certificate.
    pub fn decide(&self) -> Result<(), String> {
        let config = self.config()?;
        let _ = TRUST.set(config);
        Ok(())
    }

    fn config(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        if self.anybody {
            let anybody = Arc::new(Anybody(provider));
            return Ok(builder.dangerous().with_custom_certificate_verifier(anybody).with_no_client_auth());
        }
        let mut roots = RootCertStore::empty();
        // Some of a system's certificates are too old to be parsed: they are not needed either.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let own = self.dev_ca.iter().filter(|path| path.is_file()).chain(&self.ca);
        for path in own {
            let bad = |error: &dyn std::fmt::Display| format!("{} is no authority in PEM: {error}", path.display());
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| bad(&error))? {
                let certificate = certificate.map_err(|error| bad(&error))?;
                roots.add(certificate).map_err(|error| bad(&error))?;
            }
        }
        Ok(builder.with_root_certificates(roots).with_no_client_auth())
    }
}

/// For a connection that offers these protocols.
pub fn config(alpn: &[&str]) -> ClientConfig {
    let trusted = TRUST.get_or_init(|| Trust::default().config().expect("what rustls supports, and no files"));
    let mut config = trusted.clone();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    config
}

/// An HTTP client that speaks TLS with whom is trusted.
pub fn http() -> reqwest::ClientBuilder {
    reqwest::Client::builder().no_proxy().tcp_nodelay(true).tls_backend_preconfigured(config(&["h2", "http/1.1"]))
}

/// Why an error of TLS does not go away by trying again, and what to do about it.
pub fn hopeless(error: &(dyn std::error::Error + 'static), server: &Server) -> Option<String> {
    match error.downcast_ref() {
        Some(rustls::Error::InvalidCertificate(why)) => {
            return Some(format!("the server's certificate is not trusted ({why}); name its authority: --ca FILE"));
        }
        // What came is no record of TLS; most likely an answer of HTTP.
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            let shown = server.shown();
            let plain = shown.replacen("https://", "http://", 1);
            return Some(format!("the server at {shown} does not speak TLS; use {plain}"));
        }
        _ => {}
    }
    // The source of an error of I/O is that of the error which it wraps, not that error itself.
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref());
    match wrapped {
        Some(wrapped) => hopeless(wrapped, server),
        None => error.source().and_then(|source| hopeless(source, server)),
    }
}

/// Checks that the server has the key of its certificate, and nothing else about it.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
