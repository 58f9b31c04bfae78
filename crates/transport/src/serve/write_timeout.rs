use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

use crate::admission::limits::{Limit, Limits, Pending, UNCOUNTED_BYTES};

/// Stream with a write timeout: a write fails if the client has read no bytes for this time. A large buffer for
/// received bytes counts as pending.
pub struct WriteTimeoutStream<S> {
    stream: S,
    limits: Arc<Limits>,
    timeout: Duration,
    /// Count of the read buffer. The reader keeps its buffer as long as the connection is open.
    buffer: Option<Pending>,
    buffer_bytes: usize,
    /// Write timer, created when a write stalls for the first time.
    stalled: Option<Pin<Box<Sleep>>>,
    is_stalled: bool,
}

impl<S> WriteTimeoutStream<S> {
    pub fn new(stream: S, limits: Arc<Limits>, timeout: Duration) -> Self {
        Self { stream, limits, timeout, buffer: None, buffer_bytes: UNCOUNTED_BYTES, stalled: None, is_stalled: false }
    }

    pub fn into_inner(self) -> S {
        self.stream
    }

    /// Counts a read buffer of this size. Errors: `OutOfMemory` if the node has no room for it.
    fn hold(&mut self, bytes: usize) -> io::Result<()> {
        if bytes > self.buffer_bytes {
            let counted = match &mut self.buffer {
                Some(pending) => pending.resize(bytes),
                None => self.limits.pend(bytes).map(|pending| self.buffer = Some(pending)),
            };
            counted.map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error.detail))?;
            self.buffer_bytes = bytes;
        }
        Ok(())
    }

    /// Returns the result of a write, or an error if writes have stalled for the whole timeout.
    fn bear<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_stalled = false;
            return written;
        }
        if !std::mem::replace(&mut self.is_stalled, true) {
            let end = Instant::now() + self.timeout;
            match &mut self.stalled {
                Some(sleep) => sleep.as_mut().reset(end),
                None => self.stalled = Some(Box::pin(tokio::time::sleep_until(end))),
            }
        }
        if let Some(sleep) = &mut self.stalled {
            ready!(sleep.as_mut().poll(cx));
            self.limits.count(Limit::WriteTimeout);
        }
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.hold(buf.capacity())?;
        Pin::new(&mut this.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.bear(cx, written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.bear(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.bear(cx, shut)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.bear(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::Config;

    #[tokio::test]
    async fn large_buffer_is_counted_until_connection_ends() {
        let config = Config { pending_bytes_max: 100_000, ..Config::default() };
        let limits = Limits::new(&config, 1024);
        let (near, mut far) = tokio::io::duplex(10);
        let mut patient = WriteTimeoutStream::new(near, limits.clone(), PATIENCE);
        far.write_all(b"abcdef").await.unwrap();
        for (bytes, counted) in [(8 * 1024, 0), (64 * 1024, 64 * 1024), (1, 64 * 1024)] {
            assert_eq!(patient.read(&mut vec![0; bytes][..bytes]).await.unwrap().min(1), 1);
            assert_eq!(limits.pending_bytes(), counted);
            far.write_all(b"g").await.unwrap();
        }
        let (near, _far) = tokio::io::duplex(10);
        let error =
            WriteTimeoutStream::new(near, limits.clone(), PATIENCE).read(&mut vec![0; 64 * 1024]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        drop(patient);
        assert_eq!(limits.pending_bytes(), 0);
    }

    const PATIENCE: Duration = Duration::from_millis(400);

    #[tokio::test]
    async fn write_timeout_requires_no_progress() {
        let limits = Limits::new(&Config::default(), 1024);
        let refused = || limits.refused().find(|(name, _)| *name == "write_timeout").unwrap().1;
        let (near, mut far) = tokio::io::duplex(10);
        let mut patient = WriteTimeoutStream::new(near, limits.clone(), PATIENCE);
        let slow = tokio::spawn(async move {
            let mut byte = [0; 10];
            for _ in 0..10 {
                tokio::time::sleep(PATIENCE / 4).await;
                far.read_exact(&mut byte).await.unwrap();
            }
            far
        });
        patient.write_all(&[0; 100]).await.unwrap();
        let _far = slow.await.unwrap();
        assert_eq!(refused(), 0);
        let began = Instant::now();
        let error = patient.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!((error.kind(), refused()), (io::ErrorKind::TimedOut, 1));
        assert!((PATIENCE..10 * PATIENCE).contains(&began.elapsed()), "{:?}", began.elapsed());
    }
}
