//! TLS trust of this program: the certificate authorities of the system, a development authority, or a configured
//! one.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::server::Server;

/// TLS configuration set at program start; the whole process trusts the same authorities.
static TRUST: OnceLock<ClientConfig> = OnceLock::new();

/// Reason why trust settings cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file cannot be read or is not a certificate authority; the text is the reason.
    #[error("{} is not a certificate authority in PEM: {}", .0.display(), .1)]
    Authority(PathBuf, String),
    /// The cryptographic provider supports no protocol version.
    #[error(transparent)]
    Protocols(rustls::Error),
}

/// Trust settings in addition to the authorities of the system.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// PEM file of an authority; the file must exist.
    pub ca: Option<PathBuf>,
    /// PEM file of an authority that is trusted if the file exists.
    pub dev_ca: Option<PathBuf>,
    /// Skip certificate verification (insecure): an attacker on the path can read and change everything.
    pub accept_any: bool,
}

impl Trust {
    /// Applies the settings to the whole process. Only the first call has an effect.
    ///
    /// Errors: a file cannot be read, or has no certificate.
    pub fn apply(&self) -> Result<(), TrustError> {
        let config = self.config()?;
        let _ = TRUST.set(config);
        Ok(())
    }

    fn config(&self) -> Result<ClientConfig, TrustError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(TrustError::Protocols)?;
        if self.accept_any {
            let verifier = Arc::new(AcceptAnyCertificate(provider));
            return Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth());
        }
        let mut roots = RootCertStore::empty();
        // Some certificates of the system are too old to be parsed; they are not needed.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let own = self.dev_ca.iter().filter(|path| path.is_file()).chain(&self.ca);
        for path in own {
            let invalid = |error: &dyn std::fmt::Display| TrustError::Authority(path.clone(), error.to_string());
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| invalid(&error))? {
                let certificate = certificate.map_err(|error| invalid(&error))?;
                roots.add(certificate).map_err(|error| invalid(&error))?;
            }
        }
        Ok(builder.with_root_certificates(roots).with_no_client_auth())
    }
}

/// Returns the TLS configuration for a connection that offers these ALPN protocols.
pub fn config(alpn: &[&str]) -> ClientConfig {
    let trusted = TRUST.get_or_init(|| Trust::default().config().expect("what rustls supports, and no files"));
    let mut config = trusted.clone();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    config
}

/// Returns a builder of an HTTP client that uses the trust settings of the process.
pub fn http() -> reqwest::ClientBuilder {
    reqwest::Client::builder().no_proxy().tcp_nodelay(true).tls_backend_preconfigured(config(&["h2", "http/1.1"]))
}

/// Returns why a TLS error is permanent and what to do about it; `None` if a retry may succeed.
pub fn permanent_reason(error: &(dyn std::error::Error + 'static), server: &Server) -> Option<String> {
    match error.downcast_ref() {
        Some(rustls::Error::InvalidCertificate(why)) => {
            return Some(match is_authority(why) {
                true => {
                    "the server presents a certificate authority as its own certificate, which cannot be verified; \
                    give the server a certificate that an authority has signed (`millrace cert dev` creates both), \
                    and name that authority: --ca FILE"
                        .to_owned()
                }
                false => format!("the server's certificate is not trusted ({why}); name its authority: --ca FILE"),
            });
        }
        // The server's response is not a TLS record; most likely it is an HTTP response.
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            let shown = server.shown();
            let plain = shown.replacen("https://", "http://", 1);
            return Some(format!("the server at {shown} does not speak TLS; use {plain}"));
        }
        _ => {}
    }
    // `source()` of an I/O error skips the wrapped error and returns that error's source.
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref());
    match wrapped {
        Some(wrapped) => permanent_reason(wrapped, server),
        None => error.source().and_then(|source| permanent_reason(source, server)),
    }
}

/// Returns true if the server's certificate is itself an authority, for example a self-signed certificate of `openssl
/// req -x509`. rustls reports it as an error of its library, of which only the text is public.
fn is_authority(error: &rustls::CertificateError) -> bool {
    matches!(error, rustls::CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity"))
}

/// Verifier that checks only that the server has the private key of its certificate.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
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

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use rustls::client::WebPkiServerVerifier;

    use super::*;

    /// Returns the reason for which a server with a self-signed certificate is refused, although `--ca` names the
    /// certificate.
    fn refused(is_ca: IsCa) -> String {
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.is_ca = is_ca;
        let key = KeyPair::generate().expect("a key");
        let certificate: CertificateDer<'static> = params.self_signed(&key).expect("a certificate").into();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).expect("an authority");
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build().expect("roots");
        let name = ServerName::try_from("localhost").expect("a name");
        let error = verifier.verify_server_cert(&certificate, &[], &name, &[], UnixTime::now()).map(drop);
        let server = Server::parse("https://localhost").expect("a URL");
        error.err().and_then(|error| permanent_reason(&error, &server)).unwrap_or_default()
    }

    #[test]
    fn self_signed_authority_as_server_certificate_has_a_remedy() {
        let reason = refused(IsCa::Ca(BasicConstraints::Unconstrained));
        assert!(reason.contains("millrace cert dev") && reason.contains("--ca FILE"), "{reason}");
        assert_eq!(refused(IsCa::NoCa), "");
    }
}
