use std::io;

use rustls::server::Acceptor;
use tokio::net::TcpStream;

use super::session::KEPT_BYTES_MAX;

/// The only ALPN protocol that an ACME server offers for a TLS-ALPN-01 challenge. Source: RFC 8737, section 4.
pub const ACME_TLS: &[u8] = b"acme-tls/1";

/// First bytes of a TLS connection.
pub struct Hello {
    pub bytes: Vec<u8>,
    /// True if an ACME server requests a challenge response, so the connection is not from a client.
    pub is_challenge: bool,
}

/// Reads until the ClientHello is complete or cannot be parsed. A malformed ClientHello is returned too: the session
/// gets the same bytes and sends the alert.
///
/// Errors: those of the socket, including the end of the stream.
pub async fn read_hello(tcp: &TcpStream) -> io::Result<Hello> {
    let mut acceptor = Acceptor::default();
    let mut bytes = Vec::with_capacity(2048);
    loop {
        tcp.readable().await?;
        let before = bytes.len();
        match tcp.try_read_buf(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        let client = |bytes| Ok(Hello { bytes, is_challenge: false });
        let mut fresh = &bytes[before..];
        while !fresh.is_empty() {
            if !matches!(acceptor.read_tls(&mut fresh), Ok(1..)) {
                return client(bytes);
            }
        }
        match acceptor.accept() {
            Ok(Some(hello)) => {
                let is_challenge = hello.client_hello().alpn().is_some_and(|offered| offered.eq([ACME_TLS]));
                return Ok(Hello { bytes, is_challenge });
            }
            Ok(None) if bytes.len() < KEPT_BYTES_MAX => {}
            _ => return client(bytes),
        }
    }
}
