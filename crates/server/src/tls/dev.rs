//! Development certificates: a local certificate authority (CA), and a certificate for this machine's names and
//! addresses. A developer's phone can be made to trust this CA. The CA is kept, so that it must be trusted only once.
//! It may sign for private networks only, which limits the damage of a stolen key.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv6Addr},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, NameConstraints, SanType,
};
use rustls::pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use time::{Duration, OffsetDateTime};
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
};

use super::{
    files::certificates,
    storage::{data_dir, make_private_dir, write},
};

/// Lifetime of a certificate. Phones accept at most 825 days from a CA that their owner installed. Source: Apple,
/// HT210176.
const CERT_DAYS: i64 = 397;
/// Minimum remaining lifetime; a certificate with less is replaced.
const RENEW_DAYS: i64 = 30;
const CA_DAYS: i64 = 3650;
/// Suffixes that no public name has. Source: RFC 6762, RFC 8375, RFC 6761, and ICANN's reservation of `internal`.
const PRIVATE_NAMES: &[&str] = &["localhost", "local", "lan", "home.arpa", "internal", "test"];
/// Private networks. Source: RFC 1918, RFC 3927, RFC 6598, RFC 4193, RFC 4291; loopback.
const PRIVATE_NETS: &[&str] = &[
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "100.64.0.0/10",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
];

/// Files of one CA and the certificate that it signed.
pub struct Files {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// Result of [`make`].
pub struct Made {
    pub files: Files,
    /// True if the CA was created now, so that devices do not trust it yet.
    pub new_ca: bool,
    /// Names and addresses that the certificate covers.
    pub names: Vec<String>,
    /// SHA-256 fingerprint of the CA certificate, as devices show it.
    pub fingerprint: String,
}

/// Returns the default folder for the files.
pub fn default_dir() -> PathBuf {
    data_dir("tls")
}

impl Files {
    pub fn at(dir: &Path) -> Self {
        Self { ca: dir.join("ca.pem"), cert: dir.join("cert.pem"), key: dir.join("key.pem") }
    }
}

/// Creates a certificate for `localhost`, this machine's name and private addresses, and `names`; creates the CA, too,
/// if there is none. `keep`: keep an existing certificate that covers all of these and does not expire soon.
///
/// Errors: a directory that cannot be written; a name that is invalid, or that the CA may not sign for.
pub fn make(dir: &Path, names: &[String], keep: bool) -> anyhow::Result<Made> {
    make_private_dir(dir)?;
    let files = Files::at(dir);
    let ca_key = dir.join("ca.key");
    let new_ca = !files.ca.exists();
    if new_ca {
        let key = KeyPair::generate()?;
        let ca = authority(names)?.self_signed(&key)?;
        write(&ca_key, &key.serialize_pem(), 0o600)?;
        write(&files.ca, &ca.pem(), 0o644)?;
    }
    let pem = read(&files.ca)?;
    let der = certificate(&pem, &files.ca)?;
    let permitted = Permitted::of(&der)?;
    let mut wanted = own_names();
    wanted.retain(|name| permitted.covers(name));
    for name in names {
        ensure!(
            permitted.covers(name),
            "the authority in {} may not sign for {name}: it is limited to private names and addresses{}. Create another authority: --dir DIR --name {name}",
            dir.display(),
            if new_ca { "" } else { " and the --name values given when it was created" }
        );
        wanted.insert(name.clone());
    }
    let fingerprint = fingerprint(&der);
    let made = |names: BTreeSet<String>, files| Made { files, new_ca, names: names.into_iter().collect(), fingerprint };
    if keep
        && !new_ca
        && let Some(has) = lasting_names(&files)
        && wanted.is_subset(&has)
    {
        return Ok(made(has, files));
    }
    let issuer = Issuer::from_ca_cert_pem(&pem, KeyPair::from_pem(&read(&ca_key)?)?)
        .with_context(|| format!("{} is not usable", files.ca.display()))?;
    let key = KeyPair::generate()?;
    let signed = server_certificate(&wanted)?.signed_by(&key, &issuer)?;
    write(&files.key, &key.serialize_pem(), 0o600)?;
    write(&files.cert, &signed.pem(), 0o644)?;
    Ok(made(wanted, files))
}

fn authority(names: &[String]) -> anyhow::Result<CertificateParams> {
    let mut permitted: Vec<_> = PRIVATE_NAMES.iter().map(|name| GeneralSubtree::DnsName((*name).into())).collect();
    for net in PRIVATE_NETS {
        let net = net.parse::<CidrSubnet>().map_err(|()| anyhow::anyhow!("{net} is not a network"))?;
        permitted.push(GeneralSubtree::IpAddress(net));
    }
    for name in host_name().iter().chain(names) {
        permitted.push(match name.parse::<IpAddr>() {
            Ok(ip) => GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(ip, if ip.is_ipv4() { 32 } else { 128 })),
            Err(_) => GeneralSubtree::DnsName(name.trim_start_matches("*.").into()),
        });
    }
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::OrganizationName, "Millrace development");
    let host = host_name().unwrap_or_else(|| "localhost".into());
    let today = OffsetDateTime::now_utc().date();
    params.distinguished_name.push(DnType::CommonName, format!("Millrace CA of {host}, {today}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.name_constraints = Some(NameConstraints { permitted_subtrees: permitted, excluded_subtrees: Vec::new() });
    lasts(&mut params, CA_DAYS);
    Ok(params)
}

fn server_certificate(names: &BTreeSet<String>) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Millrace");
    for name in names {
        params.subject_alt_names.push(match name.parse::<IpAddr>() {
            Ok(ip) => SanType::IpAddress(ip),
            Err(_) => SanType::DnsName(name.as_str().try_into().with_context(|| format!("{name} is no name"))?),
        });
    }
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    lasts(&mut params, CERT_DAYS);
    Ok(params)
}

/// Sets the validity. It begins an hour ago, for devices whose clocks are slow.
fn lasts(params: &mut CertificateParams, days: i64) {
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - Duration::hours(1), now + Duration::days(days));
}

/// Names and networks that a CA may sign for.
struct Permitted {
    names: Vec<String>,
    /// Network address and mask, as bytes.
    nets: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Permitted {
    fn of(ca: &CertificateDer<'_>) -> anyhow::Result<Self> {
        let (_, ca) = X509Certificate::from_der(ca)?;
        let mut permitted = Self { names: Vec::new(), nets: Vec::new() };
        let subtrees = ca.name_constraints()?.and_then(|constraints| constraints.value.permitted_subtrees.as_ref());
        for subtree in subtrees.into_iter().flatten() {
            match &subtree.base {
                GeneralName::DNSName(name) => permitted.names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => {
                    let (net, mask) = bytes.split_at(bytes.len() / 2);
                    permitted.nets.push((net.to_vec(), mask.to_vec()));
                }
                _ => {}
            }
        }
        Ok(permitted)
    }

    fn covers(&self, name: &str) -> bool {
        let Ok(ip) = name.parse::<IpAddr>() else {
            return self
                .names
                .iter()
                .any(|end| name == end || name.strip_suffix(end.as_str()).is_some_and(|rest| rest.ends_with('.')));
        };
        let ip = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let within =
            |net: &[u8], mask: &[u8]| ip.iter().zip(mask).map(|(byte, mask)| byte & mask).eq(net.iter().copied());
        self.nets.iter().any(|(net, mask)| net.len() == ip.len() && within(net, mask))
    }
}

/// Returns the names and addresses of this machine in its own network.
fn own_names() -> BTreeSet<String> {
    let mut names: BTreeSet<String> = ["localhost", "127.0.0.1", "::1"].map(String::from).into();
    if let Some(host) = host_name() {
        names.insert(format!("{host}.local"));
        names.insert(host);
    }
    let own = if_addrs::get_if_addrs().unwrap_or_default().into_iter().map(|interface| interface.ip());
    // A link-local IPv6 address cannot be used in a URL.
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if Ipv6Addr::is_unicast_link_local(ip));
    names.extend(own.filter(|ip| !is_link_local(ip)).map(|ip| ip.to_string()));
    names
}

fn host_name() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?.trim().to_lowercase();
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    (!name.is_empty() && is_name(&name) && name != "localhost" && name.parse::<IpAddr>().is_err()).then_some(name)
}

/// Returns the names of the existing certificate, if it does not expire soon, was signed by the CA and has its key.
fn lasting_names(files: &Files) -> Option<BTreeSet<String>> {
    let pem = fs::read_to_string(&files.cert).ok()?;
    let der = certificate(&pem, &files.cert).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    let left = certificate.validity().not_after.to_datetime() - OffsetDateTime::now_utc();
    let ca = certificate_der(&files.ca)?;
    let (_, ca) = X509Certificate::from_der(&ca).ok()?;
    if left < Duration::days(RENEW_DAYS) || certificate.issuer() != ca.subject() || !files.key.exists() {
        return None;
    }
    let names = certificate.subject_alternative_name().ok()??;
    let name = |name: &GeneralName| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match *bytes {
            [a, b, c, d] => Some(IpAddr::from([*a, *b, *c, *d]).to_string()),
            bytes => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_string()),
        },
        _ => None,
    };
    Some(names.value.general_names.iter().filter_map(name).collect())
}

fn certificate_der(path: &Path) -> Option<CertificateDer<'static>> {
    certificate(&fs::read_to_string(path).ok()?, path).ok()
}

fn certificate(pem: &str, path: &Path) -> anyhow::Result<CertificateDer<'static>> {
    let all = certificates(pem.as_bytes()).with_context(|| format!("{} is no certificate in PEM", path.display()))?;
    match all.into_iter().next() {
        Some(first) => Ok(first),
        None => bail!("{} is empty", path.display()),
    }
}

/// Returns the SHA-256 hash as pairs of hexadecimal digits, separated by colons.
fn fingerprint(der: &CertificateDer<'_>) -> String {
    Sha256::digest(der).iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}
