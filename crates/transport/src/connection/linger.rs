//! The end of a connection that the server closes.

use std::{os::fd::OwnedFd, time::Duration};

use rustix::net::Shutdown;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::tls::Session;

/// Time that the peer of a closed WebSocket has to read the close frame and to disconnect.
const LINGER: Duration = Duration::from_secs(2);

/// Closes a connection after the peer has had time to read the close frame. Closing at once, with unread bytes from
/// the peer, would reset the connection and lose the frame.
pub(crate) fn linger(fd: OwnedFd, tls: Option<Box<Session>>) {
    let last = tls.map_or_else(Vec::new, |mut tls| {
        tls.end();
        tls.into_pending()
    });
    if last.is_empty() {
        let _ = rustix::net::shutdown(&fd, Shutdown::Write);
    }
    let Ok(mut stream) = tokio::net::TcpStream::from_std(fd.into()) else { return };
    tokio::task::spawn_local(async move {
        let mut rest = [0; 4096];
        let read_all = async {
            if !last.is_empty() && (stream.write_all(&last).await.is_err() || stream.shutdown().await.is_err()) {
                return;
            }
            while matches!(stream.read(&mut rest).await, Ok(n) if n > 0) {}
        };
        let _ = tokio::time::timeout(LINGER, read_all).await;
    });
}
