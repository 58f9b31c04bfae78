//! Bytes of handshakes and records against Millrace.

use millrace_lab::{
    targets::{KeyKind, Options, TlsOptions, TlsVersion, secured_client, start_secured},
    wire::handshake::{CountedTls, Exchange, Handshake},
};

const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: lab\r\n\r\n";

fn is_answer(received: &[u8]) -> bool {
    received.windows(4).any(|bytes| bytes == b"\r\n\r\n") && received.ends_with(b"\n")
}

/// Returns a full handshake, a resumed one, the tickets of the first connection, and a request on it.
fn measure(key: KeyKind, version: TlsVersion) -> anyhow::Result<(Handshake, Handshake, u64, Exchange)> {
    let options = Options::default();
    let server = start_secured(key, &options)?;
    let client = secured_client(TlsOptions { version, key, resumes: true }, &options)?;
    let mut first = CountedTls::open(server.address, client.clone())?;
    let (_, counted) = first.exchange(REQUEST, is_answer)?;
    let second = CountedTls::open(server.address, client)?;
    Ok((first.handshake, second.handshake, first.ticket_bytes, counted))
}

#[test]
fn handshakes_have_the_round_trips_of_their_version() {
    for (version, full_trips, overhead) in [(TlsVersion::Tls12, 2, 29), (TlsVersion::Tls13, 1, 22)] {
        let (full, resumed, ticket_bytes, request) = measure(KeyKind::EcdsaP256, version).expect("a server");
        let what = format!("{version:?}: {full:?} {resumed:?}");
        assert_eq!((full.round_trips, full.is_resumed), (full_trips, false), "{what}");
        assert_eq!((resumed.round_trips, resumed.is_resumed), (1, true), "{what}");
        assert!(resumed.bytes.down + 300 < full.bytes.down, "a resumed handshake has no certificate: {what}");
        assert_eq!(ticket_bytes > 0, version == TlsVersion::Tls13, "{ticket_bytes} bytes of tickets, {what}");
        // RFC 8446, section 5.2: head 5, type 1, tag 16. RFC 5288: head 5, explicit nonce 8, tag 16.
        assert_eq!(request.secured.up - request.plain.up, overhead, "{what}");
    }
}

#[test]
fn rsa_certificate_is_larger_than_ecdsa() {
    let ecdsa = measure(KeyKind::EcdsaP256, TlsVersion::Tls12).expect("a server");
    let rsa = match measure(KeyKind::Rsa2048, TlsVersion::Tls12) {
        Ok(rsa) => rsa,
        Err(error) => return eprintln!("SKIPPED: no RSA certificate here: {error:#}"),
    };
    // A signature of 256 bytes instead of 70 to 72, twice, and a longer key.
    assert!(rsa.0.bytes.down > ecdsa.0.bytes.down + 300, "{rsa:?} {ecdsa:?}");
    assert_eq!(rsa.0.bytes.up, ecdsa.0.bytes.up, "the client sends the same");
}
