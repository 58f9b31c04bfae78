use std::{collections::HashMap, sync::Arc};

use millrace_transport::tls::ACME_TLS;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::{
    ServerConfig,
    crypto::ring,
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert},
    sign::CertifiedKey,
};

/// Challenge certificates, one for each domain that is being validated. Source: RFC 8737, section 3.
#[derive(Clone, Debug, Default)]
pub struct Proofs(HashMap<String, Arc<CertifiedKey>>);

impl Proofs {
    /// Adds the certificate of a domain. `digest`: SHA-256 digest of the key authorization.
    pub fn add(&mut self, domain: &str, digest: &[u8]) -> anyhow::Result<()> {
        let mut params = CertificateParams::new([domain.to_owned()])?;
        params.distinguished_name = DistinguishedName::new();
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        let key = KeyPair::generate()?;
        let chain = vec![params.self_signed(&key)?.into()];
        // The certificate is not checked against its key, as others are: its critical ACME extension is unknown to the
        // check.
        let key = ring::sign::any_supported_type(&key.into())?;
        self.0.insert(domain.to_owned(), Arc::new(CertifiedKey::new(chain, key)));
        Ok(())
    }

    /// Returns the TLS configuration for ACME servers. It requests no client certificate, and issues no session tickets
    /// that could be resumed elsewhere.
    pub fn config(&self) -> anyhow::Result<Arc<ServerConfig>> {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
        let mut config = builder.with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = vec![ACME_TLS.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for Proofs {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.get(hello.server_name()?).cloned()
    }
}
