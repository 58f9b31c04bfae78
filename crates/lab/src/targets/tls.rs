//! Targets over TLS: the same servers and clients, with a certificate from a certificate authority that is created
//! for the lab.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Context;
use rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

use super::{
    ClientOptions, Options, Server, Target, TlsTarget, Transport, install,
    millrace::{self, Millrace},
    nchan::Nchan,
};
use crate::load::{Dialect, Secured};

/// Host name in the certificate, independent of the server's address.
const NAME: &str = "localhost";
/// Maximum age of a certificate. An older one is replaced, long before it expires.
const KEPT: Duration = Duration::from_secs(200 * 86_400);

/// A target over TLS.
pub struct OverTls {
    name: &'static str,
    plain: &'static dyn TlsTarget,
    /// True if its clients resume their earlier TLS sessions; false for a full handshake each time.
    resumes: bool,
    client: OnceLock<Arc<ClientConfig>>,
}

impl OverTls {
    const fn new(name: &'static str, plain: &'static dyn TlsTarget, resumes: bool) -> Self {
        Self { name, plain, resumes, client: OnceLock::new() }
    }
}

pub static MILLRACE: OverTls = OverTls::new("millrace-tls", &Millrace, false);
pub static RESUMED_MILLRACE: OverTls = OverTls::new("millrace-tls-resumed", &Millrace, true);
pub static NCHAN: OverTls = OverTls::new("nchan-tls", &Nchan, false);

impl Target for OverTls {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self, options: &Options) -> anyhow::Result<String> {
        self.plain.version(options)
    }

    fn transports(&self) -> &'static [Transport] {
        self.plain.transports_over_tls()
    }

    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        let folder = certificates(options)?;
        if self.client.get().is_none() {
            let _ = self.client.set(Arc::new(client(&folder.join("ca.pem"), self.resumes)?));
        }
        self.plain.start_with_certificate(&folder, options)
    }

    fn dialect(&self, transport: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        let config = self.client.get().expect("it was started before it is spoken to").clone();
        let name = NAME.try_into().expect("a name");
        Box::new(Secured::new(self.plain.dialect(transport, ask), config, name))
    }
}

/// Returns the folder of the certificates. Creates them if they are missing or too old.
fn certificates(options: &Options) -> anyhow::Result<PathBuf> {
    let folder = options.cache.join("tls");
    let made = fs::metadata(folder.join("cert.pem")).and_then(|file| file.modified());
    if made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age < KEPT)) {
        return Ok(folder);
    }
    // Create the certificates in a separate folder, so that other processes never see an incomplete set.
    fs::create_dir_all(&options.cache)?;
    let fresh = tempfile::tempdir_in(&options.cache)?;
    // Use the default program: the target's own program may be a different one.
    install::run(
        Command::new(millrace::binary(&Options::default())?).args(["cert", "dev", "--dir"]).arg(fresh.path()),
    )?;
    let _ = fs::remove_dir_all(&folder);
    match fs::rename(fresh.path(), &folder) {
        Ok(()) => drop(fresh.keep()),
        // Another process has created the certificates first.
        Err(_) if folder.join("cert.pem").is_file() => {}
        Err(error) => return Err(error).with_context(|| format!("cannot create {}", folder.display())),
    }
    Ok(folder)
}

fn client(ca: &Path, resumes: bool) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca)?)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let mut config = builder.with_safe_default_protocol_versions()?.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    if !resumes {
        config.resumption = Resumption::disabled();
    }
    Ok(config)
}
