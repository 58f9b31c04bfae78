//! DTLS: dimpl's handshake and records, with ring's cryptography.
//!
//! dimpl checks the cryptography with its own test vectors whenever a configuration is built. This check is the
//! most expensive part of a join (four fifths of it), so all peers share one configuration.

use std::{
    cell::Cell,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use aes::Aes128;
use dimpl::{
    Config, CryptoError as Failed, CryptoOperation, SrtpProfile,
    crypto::{
        Aad, ActiveKeyExchange, Buf, Cipher, CryptoProvider, Dtls12CipherSuite, Dtls13CipherSuite, HashAlgorithm,
        HashContext, HashProvider, HmacProvider, KeyProvider, NamedGroup, Nonce, SecureRandom, SignatureAlgorithm,
        SignatureVerifier, SigningKey, SupportedDtls12CipherSuite, SupportedDtls13CipherSuite, SupportedKxGroup,
        TmpBuf, check_verify_scheme,
    },
};
use ring::{
    aead, agreement, digest, hmac,
    rand::{SecureRandom as _, SystemRandom},
    signature::{self, EcdsaKeyPair, UnparsedPublicKey},
};
use str0m::{
    config::DtlsCert,
    crypto::{
        CryptoError,
        dtls::{DtlsImplError, DtlsInstance, DtlsOutput, DtlsProvider, DtlsVersion, ProtocolVersion},
    },
};
use x509_parser::{
    certificate::X509Certificate,
    oid_registry::{OID_EC_P256, OID_NIST_EC_P384},
    prelude::FromDer,
};

use super::aes_modes::aes_block;

/// Initial retransmission timeout of a handshake flight, in the library's time.
///
/// It is 100 ms of real time for a `Peer`, whose time runs five times as fast. Typical paths of browsers are
/// shorter than the 1 s of RFC 6347, and a needless retransmission costs only one to three datagrams.
const FLIGHT_RTO: Duration = Duration::from_millis(500);
/// Maximum number of retransmissions of a flight. The timeout doubles with each one.
///
/// For a `Peer`, the last retransmission is sent about 12.7 s after the flight. This is similar to RFC 6347's
/// initial second with four retransmissions (15 s).
const FLIGHT_RETRIES: usize = 7;
/// Timeout of the whole handshake, in the library's time: 15 s of real time for a `Peer`.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(75);
const TAG_BYTES: usize = 16;
/// Maximum number of signing keys that are kept loaded.
const KEYS_MAX: usize = 4;

/// SRTP profile and keying material that a handshake has negotiated.
pub struct KeyingMaterial {
    pub profile: SrtpProfile,
    /// Both keys, then both salts; those of the client first. Source: RFC 5764, section 4.2.
    pub bytes: Box<[u8]>,
    /// This end began the handshake (DTLS client).
    pub is_client: bool,
}

#[derive(Debug)]
pub struct Provider {
    pub for_media: bool,
}

/// Generates a P-256 key and a self-signed certificate for it, as every WebRTC endpoint does.
pub fn generate_certificate() -> Option<DtlsCert> {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).ok()?;
    let certificate = rcgen::CertificateParams::new(Vec::new()).ok()?.self_signed(&key).ok()?;
    Some(DtlsCert { certificate: certificate.der().to_vec(), private_key: key.serialize_der() })
}

thread_local! {
    static EXPORTED: Cell<Option<KeyingMaterial>> = const { Cell::new(None) };
}

/// Returns the media keys of a handshake that has completed on this thread since the last call. The caller must
/// take the keys right after it has processed a connection. The library does not pass them on.
pub fn take_keying_material() -> Option<KeyingMaterial> {
    EXPORTED.take()
}

impl DtlsProvider for Provider {
    fn generate_certificate(&self) -> Option<DtlsCert> {
        generate_certificate()
    }

    fn new_dtls(
        &self,
        cert: &DtlsCert,
        now: Instant,
        version: DtlsVersion,
        mtu: Option<usize>,
    ) -> Result<Box<dyn DtlsInstance>, CryptoError> {
        let (config, cert) = (config(mtu)?, cert.clone());
        let dtls = match version {
            DtlsVersion::Dtls13 => dimpl::Dtls::new_13(config, cert, now),
            DtlsVersion::Auto => dimpl::Dtls::new_auto(config, cert, now),
            _ => dimpl::Dtls::new_12(config, cert, now),
        };
        Ok(Box::new(Instance { dtls, for_media: self.for_media }))
    }
}

/// Returns the configuration for this datagram size. All peers use the same size, so there is one configuration.
fn config(mtu: Option<usize>) -> Result<Arc<Config>, CryptoError> {
    static MADE: Mutex<Vec<(Option<usize>, Arc<Config>)>> = Mutex::new(Vec::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, config)) = made.iter().find(|(of, _)| *of == mtu) {
        return Ok(config.clone());
    }
    let builder = Config::builder()
        .with_crypto_provider(PROVIDER)
        // The return path is already verified: DTLS is accepted only from an address that has sent STUN with the ICE
        // password.
        .use_server_cookie(false)
        .flight_start_rto(FLIGHT_RTO)
        .flight_retries(FLIGHT_RETRIES)
        .handshake_timeout(HANDSHAKE_TIMEOUT);
    let builder = match mtu {
        Some(mtu) => builder.mtu(mtu),
        None => builder,
    };
    let config = Arc::new(builder.build()?);
    made.push((mtu, config.clone()));
    Ok(config)
}

const PROVIDER: CryptoProvider = CryptoProvider {
    kx_groups: &[&X25519, &P256],
    signature_verification: &Signatures,
    key_provider: &Signatures,
    secure_random: &Random,
    hash_provider: &Hashes,
    hmac_provider: &Hashes,
    cipher_suites: &[&Aes128GcmSha256],
    dtls13_cipher_suites: &[&Aes128GcmSha256],
};

#[derive(Debug)]
struct Instance {
    dtls: dimpl::Dtls,
    for_media: bool,
}

impl DtlsInstance for Instance {
    fn set_active(&mut self, active: bool) {
        self.dtls.set_active(active);
    }

    fn handle_packet(&mut self, packet: &[u8]) -> Result<(), DtlsImplError> {
        self.dtls.handle_packet(packet)
    }

    fn poll_output<'a>(&mut self, buf: &'a mut [u8]) -> DtlsOutput<'a> {
        match self.dtls.poll_output(buf) {
            // `Connected` was already reported before the keying material, and reporting it again has no effect.
            DtlsOutput::KeyingMaterial(..) if !self.for_media => DtlsOutput::Connected,
            DtlsOutput::KeyingMaterial(material, profile) => {
                let is_client = self.dtls.is_active();
                EXPORTED.set(Some(KeyingMaterial { profile, bytes: material[..].into(), is_client }));
                DtlsOutput::KeyingMaterial(material, profile)
            }
            output => output,
        }
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), DtlsImplError> {
        self.dtls.handle_timeout(now)
    }

    fn send_application_data(&mut self, data: &[u8]) -> Result<usize, DtlsImplError> {
        self.dtls.send_application_data(data)
    }

    fn is_active(&self) -> bool {
        self.dtls.is_active()
    }

    fn protocol_version(&self) -> Option<ProtocolVersion> {
        self.dtls.protocol_version()
    }

    fn is_closing(&self) -> bool {
        self.dtls.is_closing()
    }

    fn is_closed(&self) -> bool {
        self.dtls.is_closed()
    }

    fn close(&mut self) -> Result<(), DtlsImplError> {
        self.dtls.close()
    }
}

/// TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, which every WebRTC endpoint must support (RFC 8827, section 6.5),
/// and its counterpart in DTLS 1.3.
#[derive(Debug)]
struct Aes128GcmSha256;

impl Aes128GcmSha256 {
    fn cipher(key: &[u8]) -> Result<Box<dyn Cipher>, Failed> {
        let key = aead::UnboundKey::new(&aead::AES_128_GCM, key).map_err(failed(CryptoOperation::CreateCipher))?;
        Ok(Box::new(Gcm(aead::LessSafeKey::new(key))))
    }
}

impl SupportedDtls12CipherSuite for Aes128GcmSha256 {
    fn suite(&self) -> Dtls12CipherSuite {
        Dtls12CipherSuite::ECDHE_ECDSA_AES128_GCM_SHA256
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }

    fn key_lengths(&self) -> (usize, usize, usize) {
        (0, 16, 4)
    }

    fn explicit_nonce_len(&self) -> usize {
        8
    }

    fn tag_len(&self) -> usize {
        TAG_BYTES
    }

    fn create_cipher(&self, key: &[u8]) -> Result<Box<dyn Cipher>, Failed> {
        Self::cipher(key)
    }
}

impl SupportedDtls13CipherSuite for Aes128GcmSha256 {
    fn suite(&self) -> Dtls13CipherSuite {
        Dtls13CipherSuite::AES_128_GCM_SHA256
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }

    fn key_len(&self) -> usize {
        16
    }

    fn iv_len(&self) -> usize {
        12
    }

    fn tag_len(&self) -> usize {
        TAG_BYTES
    }

    fn create_cipher(&self, key: &[u8]) -> Result<Box<dyn Cipher>, Failed> {
        Self::cipher(key)
    }

    fn encrypt_sn(&self, sn_key: &[u8], sample: &[u8; 16]) -> [u8; 16] {
        aes_block::<Aes128>(sn_key, sample)
    }
}

#[derive(Debug)]
struct Gcm(aead::LessSafeKey);

impl Cipher for Gcm {
    fn encrypt(&mut self, text: &mut Buf, aad: Aad, nonce: Nonce) -> Result<(), Failed> {
        let nonce = aead::Nonce::assume_unique_for_key(nonce.0);
        let sealed = self.0.seal_in_place_append_tag(nonce, aead::Aad::from(&aad[..]), text);
        sealed.map_err(failed(CryptoOperation::Encrypt))
    }

    fn decrypt(&mut self, sealed: &mut TmpBuf, aad: Aad, nonce: Nonce) -> Result<(), Failed> {
        let nonce = aead::Nonce::assume_unique_for_key(nonce.0);
        let opened = self.0.open_in_place(nonce, aead::Aad::from(&aad[..]), sealed.as_mut());
        let length = opened.map_err(failed(CryptoOperation::Decrypt))?.len();
        sealed.truncate(length);
        Ok(())
    }
}

#[derive(Debug)]
struct X25519;

#[derive(Debug)]
struct P256;

impl SupportedKxGroup for X25519 {
    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }

    fn start_exchange(&self, buf: Buf) -> Result<Box<dyn ActiveKeyExchange>, Failed> {
        Exchange::start(NamedGroup::X25519, &agreement::X25519, buf)
    }
}

impl SupportedKxGroup for P256 {
    fn name(&self) -> NamedGroup {
        NamedGroup::Secp256r1
    }

    fn start_exchange(&self, buf: Buf) -> Result<Box<dyn ActiveKeyExchange>, Failed> {
        Exchange::start(NamedGroup::Secp256r1, &agreement::ECDH_P256, buf)
    }
}

/// Ephemeral key of this side for one handshake.
#[derive(Debug)]
struct Exchange {
    group: NamedGroup,
    private: agreement::EphemeralPrivateKey,
    public: Buf,
}

impl Exchange {
    fn start(
        group: NamedGroup,
        algorithm: &'static agreement::Algorithm,
        mut public: Buf,
    ) -> Result<Box<dyn ActiveKeyExchange>, Failed> {
        let private = agreement::EphemeralPrivateKey::generate(algorithm, &SystemRandom::new())
            .map_err(failed(CryptoOperation::GenerateEphemeralKey))?;
        let key = private.compute_public_key().map_err(failed(CryptoOperation::ComputePublicKey))?;
        public.clear();
        public.extend_from_slice(key.as_ref());
        Ok(Box::new(Self { group, private, public }))
    }
}

impl ActiveKeyExchange for Exchange {
    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn complete(self: Box<Self>, peer: &[u8], out: &mut Buf) -> Result<(), Failed> {
        let peer = agreement::UnparsedPublicKey::new(self.private.algorithm(), peer);
        let agreed = agreement::agree_ephemeral(self.private, &peer, |secret| {
            out.clear();
            out.extend_from_slice(secret);
        });
        agreed.map_err(|_| Failed::InvalidPublicKey(self.group))
    }

    fn group(&self) -> NamedGroup {
        self.group
    }
}

#[derive(Debug)]
struct Signatures;

impl SignatureVerifier for Signatures {
    fn verify_signature(
        &self,
        certificate: &[u8],
        data: &[u8],
        signature: &[u8],
        hash: HashAlgorithm,
        algorithm: SignatureAlgorithm,
    ) -> Result<(), Failed> {
        let (_, certificate) = X509Certificate::from_der(certificate).map_err(|_| Failed::CertificateParseFailed)?;
        let key = certificate.public_key();
        let curve = key.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
        let group = match curve.ok_or(Failed::MissingEcCurveParameter)? {
            curve if curve == OID_EC_P256 => NamedGroup::Secp256r1,
            curve if curve == OID_NIST_EC_P384 => NamedGroup::Secp384r1,
            _ => return Err(Failed::UnsupportedEcCurve),
        };
        check_verify_scheme(algorithm, hash, group)?;
        let scheme = match (group, hash) {
            (NamedGroup::Secp256r1, HashAlgorithm::SHA256) => &signature::ECDSA_P256_SHA256_ASN1,
            (NamedGroup::Secp256r1, _) => &signature::ECDSA_P256_SHA384_ASN1,
            (_, HashAlgorithm::SHA256) => &signature::ECDSA_P384_SHA256_ASN1,
            (_, _) => &signature::ECDSA_P384_SHA384_ASN1,
        };
        let verified = UnparsedPublicKey::new(scheme, &key.subject_public_key.data).verify(data, signature);
        verified.map_err(|_| Failed::SignatureVerificationFailed { signature: algorithm, hash, group })
    }
}

impl KeyProvider for Signatures {
    fn load_private_key(&self, key: &[u8]) -> Result<Box<dyn SigningKey>, Failed> {
        static LOADED: Mutex<Vec<(Vec<u8>, Arc<EcdsaKeyPair>)>> = Mutex::new(Vec::new());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, pair)) = loaded.iter().find(|(of, _)| of == key) {
            return Ok(Box::new(Key(pair.clone())));
        }
        let scheme = &signature::ECDSA_P256_SHA256_ASN1_SIGNING;
        let pair = EcdsaKeyPair::from_pkcs8(scheme, key, &SystemRandom::new());
        let pair = Arc::new(pair.map_err(|_| Failed::InvalidPrivateKey)?);
        // This process has one key. Any other key comes from the library, which tests its cryptography provider.
        if loaded.len() < KEYS_MAX {
            loaded.push((key.into(), pair.clone()));
        }
        Ok(Box::new(Key(pair)))
    }
}

/// P-256 signing key of [`generate_certificate`]. All peers share it, because loading a key costs two thirds of
/// a signature.
#[derive(Debug)]
struct Key(Arc<EcdsaKeyPair>);

impl SigningKey for Key {
    fn sign(&mut self, data: &[u8], hash: HashAlgorithm, out: &mut Buf) -> Result<(), Failed> {
        if hash != HashAlgorithm::SHA256 {
            return Err(Failed::SigningKeyHashMismatch { key_hash: HashAlgorithm::SHA256, requested: hash });
        }
        let signature = self.0.sign(&SystemRandom::new(), data).map_err(failed(CryptoOperation::Sign))?;
        out.clear();
        out.extend_from_slice(signature.as_ref());
        Ok(())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }

    fn supported_hash_algorithms(&self) -> &[HashAlgorithm] {
        &[HashAlgorithm::SHA256]
    }
}

#[derive(Debug)]
struct Random;

impl SecureRandom for Random {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), Failed> {
        SystemRandom::new().fill(bytes).map_err(failed(CryptoOperation::FillRandom))
    }
}

#[derive(Debug)]
struct Hashes;

struct HashState(digest::Context);

impl std::fmt::Debug for HashState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashState")
    }
}

impl HashProvider for Hashes {
    fn create_hash(&self, algorithm: HashAlgorithm) -> Box<dyn HashContext> {
        let algorithm = if algorithm == HashAlgorithm::SHA384 { &digest::SHA384 } else { &digest::SHA256 };
        Box::new(HashState(digest::Context::new(algorithm)))
    }
}

impl HashContext for HashState {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn clone_and_finalize(&self, out: &mut Buf) {
        out.clear();
        out.extend_from_slice(self.0.clone().finish().as_ref());
    }
}

impl HmacProvider for Hashes {
    fn hmac(&self, hash: HashAlgorithm, key: &[u8], data: &[u8], out: &mut [u8]) -> Result<usize, Failed> {
        let algorithm = if hash == HashAlgorithm::SHA384 { hmac::HMAC_SHA384 } else { hmac::HMAC_SHA256 };
        let tag = hmac::sign(&hmac::Key::new(algorithm, key), data);
        let room = out.get_mut(..tag.as_ref().len()).ok_or(Failed::OperationFailed(CryptoOperation::ComputeHmac))?;
        room.copy_from_slice(tag.as_ref());
        Ok(room.len())
    }
}

fn failed(operation: CryptoOperation) -> impl Fn(ring::error::Unspecified) -> Failed {
    move |_| Failed::OperationFailed(operation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_test_vectors_pass_once() {
        let made = config(Some(1150)).unwrap();
        assert!(Arc::ptr_eq(&made, &config(Some(1150)).unwrap()));
        assert!(!Arc::ptr_eq(&made, &config(Some(1200)).unwrap()));
    }

    #[test]
    fn signature_requires_matching_certificate() {
        let (ours, other) = (generate_certificate().unwrap(), generate_certificate().unwrap());
        let mut signature = Buf::new();
        let mut key = Signatures.load_private_key(&ours.private_key).unwrap();
        key.sign(b"data", HashAlgorithm::SHA256, &mut signature).unwrap();
        let verify = |certificate: &[u8], data: &[u8]| {
            let (hash, algorithm) = (HashAlgorithm::SHA256, SignatureAlgorithm::ECDSA);
            Signatures.verify_signature(certificate, data, &signature, hash, algorithm)
        };
        assert!(verify(&ours.certificate, b"data").is_ok());
        assert!(verify(&ours.certificate, b"other").is_err());
        assert!(verify(&other.certificate, b"data").is_err());
        assert!(verify(b"no certificate", b"data").is_err());
    }
}
