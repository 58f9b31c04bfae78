use std::{
    cell::Cell,
    io,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    task::coop,
};

use super::{PeerSubject, Received, Session, Settings, challenge::read_hello};

/// First byte of a handshake record, such as a ClientHello. Source: RFC 8446, section 5.1.
const HANDSHAKE: u8 = 22;
/// Cost of a read in tokio's cooperative budget of 128 steps, after which other connections run. One read may return a
/// thousand small frames.
const READ_COST: usize = 16;

/// Maximum size of a head and body that are copied into one buffer, in bytes. For small sizes a gathered write costs
/// more than the copy.
const JOINED_BYTES_MAX: usize = 1024;

/// Connection as hyper sees it: plain, or through TLS.
pub struct Stream {
    tcp: TcpStream,
    tls: Option<Box<Session>>,
    /// Data that was read from the socket, but not yet by hyper.
    head: BytesMut,
    /// True if the socket has not taken everything that hyper wrote.
    unsent: Rc<Cell<bool>>,
}

/// Parts of a stream, once hyper has finished with it.
pub(crate) struct Parts {
    pub(crate) tcp: TcpStream,
    pub(crate) tls: Option<Box<Session>>,
    /// Bytes that were read from the socket, but not by hyper.
    pub(crate) head: BytesMut,
}

/// Result of a handshake.
pub enum Accepted {
    Client(Stream, Option<PeerSubject>),
    /// An ACME server received its challenge response and needs nothing else.
    Challenge,
}

/// Performs the server side of the handshake.
///
/// Errors: protocol errors of the client, after an alert was sent. The caller must set a timeout.
pub async fn accept(tcp: TcpStream, settings: &Settings) -> io::Result<Accepted> {
    let Some(challenge) = &settings.challenge else {
        let mut stream = Stream::secured(tcp, settings.config.clone())?;
        std::future::poll_fn(|cx| stream.poll_handshake(cx)).await?;
        return Ok(stream.into_client(settings));
    };
    // The ClientHello selects the configuration: an ACME server has no client certificate and gets no session ticket.
    let hello = read_hello(&tcp).await?;
    let config = if hello.is_challenge { challenge } else { &settings.config };
    let mut stream = Stream::secured(tcp, config.clone())?;
    let taken = stream.take_tls(&hello.bytes);
    std::future::poll_fn(|cx| stream.poll_flush_tls(cx)).await?;
    taken?;
    std::future::poll_fn(|cx| stream.poll_handshake(cx)).await?;
    if !hello.is_challenge {
        return Ok(stream.into_client(settings));
    }
    std::future::poll_fn(|cx| Pin::new(&mut stream).poll_shutdown(cx)).await?;
    Ok(Accepted::Challenge)
}

/// Returns true unless the first byte is an upper-case letter, as in plain HTTP. Does not consume the byte.
pub(crate) async fn is_tls(tcp: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    match tcp.peek(&mut first).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(first[0] == HANDSHAKE || !first[0].is_ascii_uppercase()),
    }
}

impl Stream {
    pub fn plain(tcp: TcpStream) -> Self {
        Self { tcp, tls: None, head: BytesMut::new(), unsent: Rc::default() }
    }

    fn secured(tcp: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        let session = Session::new(config).map_err(io::Error::other)?;
        Ok(Self { tls: Some(Box::new(session)), ..Self::plain(tcp) })
    }

    fn into_client(self, settings: &Settings) -> Accepted {
        let certificate = self.tls.as_ref().and_then(|tls| tls.peer_certificate());
        let subject = certificate.and_then(|certificate| settings.client_subject.of(certificate));
        Accepted::Client(self, subject)
    }

    pub(crate) fn unsent(&self) -> Rc<Cell<bool>> {
        self.unsent.clone()
    }

    /// Restores a stream from its parts; `head` was read already.
    pub(crate) fn from_parts(Parts { tcp, tls, head }: Parts) -> Self {
        Self { tcp, tls, head, unsent: Rc::default() }
    }

    pub(crate) fn into_parts(self) -> Parts {
        Parts { tcp: self.tcp, tls: self.tls, head: self.head }
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(crate) fn is_resumed(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_resumed())
    }

    /// Reads until the first bytes are `expected` or differ from it. The bytes stay in the stream. Returns true if all
    /// of `expected` was read.
    pub(crate) async fn starts_with(&mut self, expected: &[u8]) -> io::Result<bool> {
        while self.head.len() < expected.len() && expected.starts_with(&self.head) {
            if std::future::poll_fn(|cx| self.poll_receive(cx)).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.head.starts_with(expected))
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            let received = ready!(self.poll_receive_tls(cx));
            // Send an alert before returning its error.
            let flushed = self.poll_flush_tls(cx);
            if received? == Received::End {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            ready!(flushed)?;
        }
        self.poll_flush_tls(cx)
    }

    /// Appends received data to `head`. Returns the number of bytes, 0 at the end of the stream.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let before = self.head.len();
        loop {
            let ended = if self.tls.is_some() {
                let received = ready!(self.poll_receive_tls(cx));
                // Flush a response to a key update, or an alert. It is not urgent: the rest leaves with the next write.
                let _ = self.poll_flush_tls(cx)?;
                received? == Received::End
            } else {
                ready!(self.tcp.poll_read_ready(cx))?;
                match self.tcp.try_read_buf(&mut self.head) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
                    received => received? == 0,
                }
            };
            if ended || self.head.len() > before {
                return Poll::Ready(Ok(self.head.len() - before));
            }
        }
    }

    fn poll_receive_tls(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Received>> {
        let Self { tcp, tls: Some(tls), head, .. } = self else { return Poll::Ready(Ok(Received::End)) };
        loop {
            ready!(tcp.poll_read_ready(cx))?;
            match tls.read(head, |buffer| tcp.try_read(buffer)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return Poll::Ready(received),
            }
        }
    }

    /// Passes bytes to the session that were read from the socket before the session existed.
    fn take_tls(&mut self, received: &[u8]) -> io::Result<()> {
        let Self { tls: Some(tls), head, .. } = self else { return Ok(()) };
        let copy = |buffer: &mut [u8]| {
            let room = buffer.get_mut(..received.len()).ok_or(io::ErrorKind::InvalidData)?;
            room.copy_from_slice(received);
            Ok(received.len())
        };
        tls.read(head, copy).map(drop)
    }

    fn poll_flush_tls(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { tcp, tls: Some(tls), .. } = self else { return Poll::Ready(Ok(())) };
        while !tls.flush(|bytes| tcp.try_write(bytes))? {
            ready!(tcp.poll_write_ready(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_tls(&mut self, cx: &mut Context<'_>, plain: &[u8]) -> Poll<io::Result<usize>> {
        let Self { tcp, tls: Some(tls), .. } = self else { return Poll::Ready(Ok(plain.len())) };
        loop {
            let taken = tls.write(plain, |bytes| tcp.try_write(bytes))?;
            if taken > 0 || plain.is_empty() {
                return Poll::Ready(Ok(taken));
            }
            ready!(tcp.poll_write_ready(cx))?;
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.head.is_empty() {
            for _ in 1..READ_COST {
                ready!(coop::poll_proceed(cx)).made_progress();
            }
            if this.tls.is_none() {
                return Pin::new(&mut this.tcp).poll_read(cx, buf);
            }
            if ready!(this.poll_receive(cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        let length = this.head.len().min(buf.remaining());
        buf.put_slice(&this.head[..length]);
        this.head.advance(length);
        if this.head.is_empty() {
            this.head = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = match this.tls {
            None => Pin::new(&mut this.tcp).poll_write(cx, buf),
            Some(_) => this.poll_write_tls(cx, buf),
        };
        this.unsent.set(!matches!(written, Poll::Ready(Ok(taken)) if taken == buf.len()));
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_flush_tls(cx))?;
        Pin::new(&mut this.tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(tls) = &mut this.tls {
            tls.end();
        }
        ready!(this.poll_flush_tls(cx))?;
        Pin::new(&mut this.tcp).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.tls.is_some() {
            let first = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
            return self.poll_write(cx, first);
        }
        let offered = bufs.iter().map(|buf| buf.len()).sum::<usize>();
        if offered <= JOINED_BYTES_MAX {
            let (mut joined, mut length) = ([0; JOINED_BYTES_MAX], 0);
            for buf in bufs {
                joined[length..length + buf.len()].copy_from_slice(buf);
                length += buf.len();
            }
            return self.poll_write(cx, &joined[..length]);
        }
        let this = self.get_mut();
        let written = Pin::new(&mut this.tcp).poll_write_vectored(cx, bufs);
        this.unsent.set(!matches!(written, Poll::Ready(Ok(taken)) if taken == offered));
        written
    }

    /// Returns false for TLS, so that hyper joins head and body, which then share one record.
    fn is_write_vectored(&self) -> bool {
        self.tls.is_none() && self.tcp.is_write_vectored()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::{
        ClientConfig, RootCertStore,
        pki_types::{CertificateDer, PrivateKeyDer},
        server::WebPkiClientVerifier,
    };
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::tls::{ACME_TLS, ClientSubject};

    /// Returns the settings of a server that requires client certificates, while an ACME challenge is pending.
    pub fn settings() -> (Settings, CertificateDer<'static>) {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = || PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let builder =
            || ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
        let config =
            builder().with_client_cert_verifier(verifier).with_single_cert(vec![cert.der().clone()], key()).unwrap();
        let mut challenge = builder().with_no_client_auth().with_single_cert(vec![cert.der().clone()], key()).unwrap();
        challenge.alpn_protocols = vec![ACME_TLS.to_vec()];
        let settings = Settings {
            config: Arc::new(config),
            challenge: Some(Arc::new(challenge)),
            handshake_timeout: Duration::from_secs(10),
            handshakes_max: 1,
            client_subject: ClientSubject::Nothing,
        };
        (settings, cert.der().clone())
    }

    pub fn trusting(ca: &CertificateDer<'static>, alpn: &[&[u8]]) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        config
    }

    /// Connects a client with these ALPN protocols, in pieces of `piece` bytes. Returns whether the server saw a
    /// challenge, and what the client read.
    async fn meets(
        settings: &Settings,
        ca: &CertificateDer<'static>,
        alpn: &[&[u8]],
        piece: usize,
    ) -> (bool, io::Result<Vec<u8>>) {
        let config = trusting(ca, alpn);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = async {
            let (near, far) = tokio::io::duplex(piece);
            let tcp = TcpStream::connect(address).await.unwrap();
            tcp.set_nodelay(true).unwrap();
            let (mut tcp, mut far) = (tcp, far);
            let copying = tokio::spawn(async move { tokio::io::copy_bidirectional(&mut tcp, &mut far).await });
            let talk = async {
                let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
                let mut stream = connector.connect("localhost".try_into().unwrap(), near).await?;
                let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
                let mut read = Vec::new();
                stream.read_to_end(&mut read).await?;
                Ok(read)
            };
            let said = talk.await;
            copying.abort();
            said
        };
        let server = async {
            let (tcp, _) = listener.accept().await.unwrap();
            matches!(accept(tcp, settings).await, Ok(Accepted::Challenge))
        };
        let both = async { tokio::join!(server, client) };
        tokio::time::timeout(Duration::from_secs(10), both).await.expect("both come to an end")
    }

    #[tokio::test]
    async fn acme_challenge_is_answered_only_to_acme_server() {
        let (mut settings, ca) = settings();
        for piece in [1 << 16, 7] {
            let (is_challenge, read) = meets(&settings, &ca, &[ACME_TLS], piece).await;
            assert!(is_challenge && read.as_ref().is_ok_and(Vec::is_empty), "{piece} {read:?}");
        }
        // A hello with other or further protocols is a client's. This client lacks the required certificate.
        for alpn in [&[ACME_TLS, b"http/1.1"][..], &[b"http/1.1", ACME_TLS], &[b"h2"], &[]] {
            let (is_challenge, read) = meets(&settings, &ca, alpn, 1 << 16).await;
            assert!(!is_challenge && read.is_err(), "{alpn:?} {read:?}");
        }
        settings.challenge = None;
        let (is_challenge, read) = meets(&settings, &ca, &[ACME_TLS], 1 << 16).await;
        assert!(!is_challenge && read.is_err(), "{read:?}");
    }
}
