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

/// Protocol version that the clients offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    Tls12,
    Tls13,
}

/// Key of the server's certificate, and of the authority that has signed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    EcdsaP256,
    Rsa2048,
}

/// TLS as a target uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    pub version: TlsVersion,
    pub key: KeyKind,
    /// True if clients resume their earlier TLS sessions; false for a full handshake each time.
    pub resumes: bool,
}

const TLS13: TlsOptions = TlsOptions { version: TlsVersion::Tls13, key: KeyKind::EcdsaP256, resumes: false };
const TLS12: TlsOptions = TlsOptions { version: TlsVersion::Tls12, ..TLS13 };

/// A target over TLS.
pub struct OverTls {
    name: &'static str,
    plain: &'static dyn TlsTarget,
    tls: TlsOptions,
    client: OnceLock<Arc<ClientConfig>>,
}

impl OverTls {
    const fn new(name: &'static str, plain: &'static dyn TlsTarget, tls: TlsOptions) -> Self {
        Self { name, plain, tls, client: OnceLock::new() }
    }
}

pub static MILLRACE: OverTls = OverTls::new("millrace-tls", &Millrace, TLS13);
pub static RESUMED_MILLRACE: OverTls =
    OverTls::new("millrace-tls-resumed", &Millrace, TlsOptions { resumes: true, ..TLS13 });
pub static RSA_MILLRACE: OverTls =
    OverTls::new("millrace-tls-rsa", &Millrace, TlsOptions { key: KeyKind::Rsa2048, ..TLS13 });
pub static MILLRACE12: OverTls = OverTls::new("millrace-tls12", &Millrace, TLS12);
pub static RESUMED_MILLRACE12: OverTls =
    OverTls::new("millrace-tls12-resumed", &Millrace, TlsOptions { resumes: true, ..TLS12 });
pub static RSA_MILLRACE12: OverTls =
    OverTls::new("millrace-tls12-rsa", &Millrace, TlsOptions { key: KeyKind::Rsa2048, ..TLS12 });
pub static NCHAN: OverTls = OverTls::new("nchan-tls", &Nchan, TLS13);

/// Starts Millrace with a certificate of this kind.
///
/// Errors: the certificate cannot be created, or the server does not start.
pub fn start_secured(key: KeyKind, options: &Options) -> anyhow::Result<Server> {
    Millrace.start_with_certificate(&certificates(key, options)?, options)
}

/// Returns the configuration of a client of [`start_secured`], with no session to resume yet.
///
/// Errors: the certificate cannot be created or read.
pub fn secured_client(tls: TlsOptions, options: &Options) -> anyhow::Result<Arc<ClientConfig>> {
    Ok(Arc::new(client(&certificates(tls.key, options)?.join("ca.pem"), tls)?))
}

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
        self.prepare_clients(options)?;
        let folder = certificates(self.tls.key, options)?;
        self.plain.start_with_certificate(&folder, options)
    }

    fn prepare_clients(&self, options: &Options) -> anyhow::Result<()> {
        if self.client.get().is_none() {
            let _ = self.client.set(secured_client(self.tls, options)?);
        }
        Ok(())
    }

    fn dialect(&self, transport: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        let config = self.client.get().expect("it was started before it is spoken to").clone();
        let name = NAME.try_into().expect("a name");
        Box::new(Secured::new(self.plain.dialect(transport, ask), config, name))
    }
}

/// Returns the folder of the certificates. Creates them if they are missing or too old.
fn certificates(key: KeyKind, options: &Options) -> anyhow::Result<PathBuf> {
    let folder = options.cache.join(match key {
        KeyKind::EcdsaP256 => "tls",
        KeyKind::Rsa2048 => "tls-rsa",
    });
    let made = fs::metadata(folder.join("cert.pem")).and_then(|file| file.modified());
    if made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age < KEPT)) {
        return Ok(folder);
    }
    // Create the certificates in a separate folder, so that other processes never see an incomplete set.
    fs::create_dir_all(&options.cache)?;
    let fresh = tempfile::tempdir_in(&options.cache)?;
    match key {
        // Use the default program: the target's own program may be a different one.
        KeyKind::EcdsaP256 => drop(install::run(
            Command::new(millrace::binary(&Options::default())?).args(["cert", "dev", "--dir"]).arg(fresh.path()),
        )?),
        KeyKind::Rsa2048 => create_rsa(fresh.path())?,
    }
    let _ = fs::remove_dir_all(&folder);
    match fs::rename(fresh.path(), &folder) {
        Ok(()) => drop(fresh.keep()),
        // Another process has created the certificates first.
        Err(_) if folder.join("cert.pem").is_file() => {}
        Err(error) => return Err(error).with_context(|| format!("cannot create {}", folder.display())),
    }
    Ok(folder)
}

/// Creates an authority and a certificate with RSA keys of 2048 bits, like the thesis' server. `millrace cert dev`
/// creates no RSA keys.
///
/// Errors: `openssl` is missing.
fn create_rsa(folder: &Path) -> anyhow::Result<()> {
    let run = |arguments: &[&str]| install::run(Command::new("openssl").args(arguments).current_dir(folder)).map(drop);
    let key = ["-newkey", "rsa:2048", "-nodes"];
    let authority =
        ["req", "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-days", "398", "-subj", "/CN=Millrace lab"];
    run(&[&authority[..], &key].concat())?;
    run(&[&["req", "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=localhost"][..], &key].concat())?;
    fs::write(
        folder.join("extensions"),
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n",
    )?;
    let sign = ["x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"];
    run(&[&sign[..], &["-days", "398", "-extfile", "extensions", "-out", "cert.pem"]].concat())
}

fn client(ca: &Path, tls: TlsOptions) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca)?)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let version: &[_] = match tls.version {
        TlsVersion::Tls12 => &[&rustls::version::TLS12],
        TlsVersion::Tls13 => &[&rustls::version::TLS13],
    };
    let mut config = builder.with_protocol_versions(version)?.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    if !tls.resumes {
        config.resumption = Resumption::disabled();
    }
    Ok(config)
}
