use std::{
    cell::Cell,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    task::coop,
};

use super::{PeerSubject, Received, Session, Settings};

/// The first byte of a ClientHello's record. Source: RFC 8446, section 5.1.
const HANDSHAKE: u8 = 22;
/// What a read costs of the 128 steps after which the runtime lets other connections go first: in one there may be a thousand small frames.
const READ_COST: usize = 16;

/// A connection as hyper sees it: plain, or through TLS.
pub(crate) struct Stream {
    tcp: TcpStream,
    tls: Option<Box<Session>>,
    /// What was read, but not yet by hyper.
    head: BytesMut,
    /// The socket has not taken all that hyper had for it.
    unsent: Rc<Cell<bool>>,
}

/// What a stream is made of, once hyper is done with it.
pub(crate) struct Parts {
    pub(crate) tcp: TcpStream,
    pub(crate) tls: Option<Box<Session>>,
    /// Bytes that were read, but not by hyper.
    pub(crate) head: BytesMut,
}

/// Does the server's part of the handshake.
///
/// Errors: the client's mistakes, which it was told by an alert; its silence is the caller's business.
pub(crate) async fn accept(tcp: TcpStream, settings: &Settings) -> io::Result<(Stream, Option<PeerSubject>)> {
    let session = Session::new(settings.config.clone()).map_err(io::Error::other)?;
    let mut stream = Stream { tls: Some(Box::new(session)), ..Stream::plain(tcp) };
    std::future::poll_fn(|cx| stream.poll_handshake(cx)).await?;
    let certificate = stream.tls.as_ref().and_then(|tls| tls.peer_certificate());
    let subject = certificate.and_then(|certificate| settings.client_subject.of(certificate));
    Ok((stream, subject))
}

/// Is this the beginning of a handshake? Nothing is taken from the stream.
pub(crate) async fn is_tls(tcp: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    match tcp.peek(&mut first).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(first[0] == HANDSHAKE || !first[0].is_ascii_uppercase()),
    }
}

impl Stream {
    pub(crate) fn plain(tcp: TcpStream) -> Self {
        Self { tcp, tls: None, head: BytesMut::new(), unsent: Rc::default() }
    }

    pub(crate) fn unsent(&self) -> Rc<Cell<bool>> {
        self.unsent.clone()
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

    /// Reads the first bytes, as long as they are those of `expected`; they are read again, first. True if all of it is there.
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
            // An alert, too.
            let flushed = self.poll_flush_tls(cx);
            if received? == Received::End {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            ready!(flushed)?;
        }
        self.poll_flush_tls(cx)
    }

    /// Appends to `head`; how much, so 0 at the end.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let before = self.head.len();
        loop {
            let ended = if self.tls.is_some() {
                let received = ready!(self.poll_receive_tls(cx));
                // An answer to a new key or an alert: nobody waits for it, so what does not leave now leaves with the next answer.
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
        let this = self.get_mut();
        let written = Pin::new(&mut this.tcp).poll_write_vectored(cx, bufs);
        let offered = bufs.iter().map(|buf| buf.len()).sum::<usize>();
        this.unsent.set(!matches!(written, Poll::Ready(Ok(taken)) if taken == offered));
        written
    }

    /// Not through TLS: hyper then puts head and body together, into one record.
    fn is_write_vectored(&self) -> bool {
        self.tls.is_none() && self.tcp.is_write_vectored()
    }
}
