//! TLS: admission, the cost of a stranger's handshake, and complete, ordered delivery through TLS records.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use millrace_server::tls::ClientAuth;
use rcgen::{CertificateParams, CertifiedIssuer, DnType, KeyPair};
use rustls::{
    ClientConfig, HandshakeKind,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    client::raw::{handshake, masked},
    server::{SECURED, Server, secure, trusting, trusting_as, trusting_with, until, within},
};

fn secured(change: impl FnOnce(&mut millrace_server::Config)) -> Server {
    SECURED.sync_scope(true, || Server::with(change))
}

async fn connect(config: ClientConfig, address: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
    over(TcpStream::connect(address).await?, config).await
}

async fn over(stream: TcpStream, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    let name = "localhost".try_into().expect("a name");
    within(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
}

async fn ask(stream: &mut TlsStream<TcpStream>) -> String {
    within(stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")).await.expect("sent");
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.expect("an answer, and a proper end");
    answer
}

#[tokio::test]
async fn tls_sessions_resume_on_every_shard() {
    let server = secured(|config| config.server.shards = 4);
    for versions in [[&rustls::version::TLS13], [&rustls::version::TLS12]] {
        let config = trusting_with(&versions, &["http/1.1"]);
        let mut kinds = Vec::new();
        for _ in 0..8 {
            let mut stream = connect(config.clone(), server.address).await.expect("a handshake");
            assert!(ask(&mut stream).await.contains("alive"));
            kinds.push(stream.get_ref().1.handshake_kind().expect("it is over"));
        }
        assert_eq!(kinds[0], HandshakeKind::Full, "{versions:?}");
        assert!(kinds[1..].iter().all(|kind| *kind == HandshakeKind::Resumed), "{versions:?} {kinds:?}");
    }
    until("all are counted", async || server.metric("millrace_tls_resumed_total").await >= 14).await;
}

#[tokio::test]
async fn oldest_tls_version_is_configurable() {
    let server = secured(|config| config.tls.min_version = "1.3".into());
    let old = trusting_with(&[&rustls::version::TLS12], &[]);
    assert!(connect(old, server.address).await.is_err());
    assert!(connect(trusting(&[]), server.address).await.is_ok());
}

#[tokio::test]
async fn plain_http_is_redirected_to_https() {
    let server = secured(|_| {});
    let mut stream = TcpStream::connect(server.address).await.expect("a connection");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").await.expect("sent");
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("https://"), "{answer}");
}

#[tokio::test]
async fn unfinished_handshake_times_out() {
    let server = secured(|config| {
        config.tls.handshake_timeout = Duration::from_millis(300);
        config.tls.handshakes_max = 4;
        config.server.shards = 1;
    });
    // A truncated first record of a handshake; no bytes; and input that is not TLS.
    let mut silent = Vec::new();
    for said in [&[22, 3, 1, 2, 0][..], &[], &[0x80, 0x2e, 1, 3], &[22, 3, 1, 0, 4, 99, 0, 0, 0]] {
        let mut stream = TcpStream::connect(server.address).await.expect("a connection");
        stream.write_all(said).await.expect("sent");
        silent.push(stream);
    }
    for mut stream in silent {
        let mut rest = Vec::new();
        // The stream ends with an alert, a reset or nothing.
        let _ = within(stream.read_to_end(&mut rest)).await;
    }
    until("they are counted", async || server.metric("millrace_tls_failed_total").await >= 4).await;
    server.assert_well().await;
}

#[tokio::test]
async fn concurrent_handshakes_are_limited() {
    let server = secured(|config| {
        config.tls.handshakes_max = 2;
        config.tls.handshake_timeout = Duration::from_secs(60);
        config.server.shards = 1;
    });
    let mut waiting = Vec::new();
    for _ in 0..2 {
        waiting.push(TcpStream::connect(server.address).await.expect("a connection"));
    }
    let mut third = TcpStream::connect(server.address).await.expect("a connection");
    assert_eq!(within(third.read(&mut [0])).await.unwrap_or(0), 0, "closed at once");
    drop(waiting);
    until("there is room again", async || connect(trusting(&[]), server.address).await.is_ok()).await;
    assert!(server.metric("millrace_tls_refused_total").await >= 1);
}

/// A reader that pauses receives every publication once and in order, through whole and partial writes.
#[tokio::test]
async fn slow_tls_reader_gets_every_byte_in_order() {
    const COUNT: usize = 3000;
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let server = secured(|config| config.limits.message_bytes_max = 1 << 20);
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(8192).expect("a small window");
        let tcp = socket.connect(server.address).await.expect("a connection");
        let mut reader = over(tcp, trusting_with(&[version], &["http/1.1"])).await.expect("a handshake");
        within(reader.write_all(handshake("/v1/channels/slow", None).as_bytes())).await.expect("sent");
        server.await_presence("slow", 1).await;
        let filling = "x".repeat(3000);
        for hundreds in 0..COUNT / 100 {
            let data = (0..100).map(|n| json!(format!("{} {filling}", hundreds * 100 + n)));
            server.publish_all("slow", data).await;
        }
        let mut received = bytes::BytesMut::new();
        while !received.windows(4).any(|end| end == b"\r\n\r\n") {
            within(reader.read_buf(&mut received)).await.expect("the head");
        }
        let at = received.windows(4).position(|end| end == b"\r\n\r\n").expect("it is there") + 4;
        let mut frames = received.split_off(at);
        for n in 0..COUNT {
            let payload = format!("{n} {filling}");
            let mut frame = vec![0x81, 126];
            frame.extend_from_slice(&(payload.len() as u16).to_be_bytes());
            frame.extend_from_slice(payload.as_bytes());
            while frames.len() < frame.len() {
                // Small reads make the server write in pieces.
                let mut piece = [0; 5000];
                let length = within(reader.read(&mut piece)).await.expect("more");
                assert!(length > 0, "the end before message {n}");
                frames.extend_from_slice(&piece[..length]);
            }
            assert!(frames.split_to(frame.len()) == frame, "message {n}");
        }
        // The opposite direction still works.
        within(reader.write_all(&masked(0x81, b"\"over\""))).await.expect("sent");
        let mut rest = frames.to_vec();
        while !rest.ends_with(b"\"over\"") {
            within(reader.read_buf(&mut rest)).await.expect("the answer");
        }
        assert_eq!(rest.len(), 2 + "\"over\"".len(), "nothing else came");
    }
}

/// Commands arrive in the same record as the upgrade, in many small records, and in one record that is split.
#[tokio::test]
async fn early_and_split_tls_input_is_read() {
    let server = secured(|_| {});
    let mut stream = connect(trusting(&["http/1.1"]), server.address).await.expect("a handshake");
    let mut said = handshake("/v1/channels/early", None).into_bytes();
    said.extend(masked(0x81, b"\"first\""));
    within(stream.write_all(&said)).await.expect("sent");
    for byte in masked(0x81, b"\"second\"") {
        within(stream.write_all(&[byte])).await.expect("sent");
        within(stream.flush()).await.expect("sent");
    }
    within(stream.write_all(&masked(0x82, &vec![7; 100_000]))).await.expect("sent");
    until("three publications", async || {
        let answer = server.get("/v1/channels/early?since=earliest").await;
        answer.status == 200 && answer.json()["messages"].as_array().is_some_and(|all| all.len() == 3)
    })
    .await;
}

#[tokio::test]
async fn connection_ends_with_close_notify() {
    let server = secured(|_| {});
    let mut stream = connect(trusting(&["http/1.1"]), server.address).await.expect("a handshake");
    within(stream.write_all(handshake("/v1/channels/end", None).as_bytes())).await.expect("sent");
    server.await_presence("end", 1).await;
    within(stream.write_all(&masked(0x88, &1000_u16.to_be_bytes()))).await.expect("sent");
    let mut rest = Vec::new();
    // Without `close_notify` this read would fail.
    within(stream.read_to_end(&mut rest)).await.expect("an end that nobody on the way can fake");
    assert!(rest.ends_with(&[0x88, 2, 3, 232]), "{rest:?}");
}

struct Ca {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "devices");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).expect("written");
        Self { folder, issuer }
    }

    fn path(&self) -> String {
        self.folder.path().join("ca.pem").display().to_string()
    }

    fn client(&self, name: &str) -> ClientConfig {
        let mut params = CertificateParams::new([format!("{name}.devices.test")]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        trusting_as(vec![certificate.der().clone()], key)
    }
}

#[tokio::test]
async fn devices_authenticate_by_certificate() {
    let (ours, others) = (Ca::new(), Ca::new());
    let works = async |config: ClientConfig, server: &Server| {
        // With TLS 1.3 a client learns only when it reads that the server refused its certificate.
        let Ok(mut stream) = connect(config, server.address).await else { return false };
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").await;
        let mut answer = Vec::new();
        let _ = within(stream.read_to_end(&mut answer)).await;
        answer.starts_with(b"HTTP/1.1 200 ")
    };
    for (auth, without) in [(ClientAuth::Required, false), (ClientAuth::Optional, true)] {
        let server = secured(|config| {
            config.tls.client_ca = ours.path();
            config.tls.client_auth = auth;
            config.tls.client_subject = "cn".into();
        });
        assert!(works(ours.client("car-7"), &server).await, "{auth:?}");
        assert!(!works(others.client("car-7"), &server).await, "{auth:?}");
        assert_eq!(works(trusting(&[]), &server).await, without, "{auth:?}");
    }
}

#[tokio::test]
async fn unusable_certificate_file_is_named() {
    let (ca, mut config) = (Ca::new(), millrace_server::Config::default());
    config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    secure(&mut config);
    let good = config.clone();
    config.tls.cert = "/nowhere/cert.pem".into();
    let error = millrace_server::start(config).err().expect("there is no such file");
    assert!(format!("{error:#}").contains("/nowhere/cert.pem"), "{error:#}");
    let mut config = good;
    config.tls.cert = ca.path();
    let error = millrace_server::start(config).err().expect("the key is another one's");
    assert!(format!("{error:#}").contains("do not match"), "{error:#}");
}
