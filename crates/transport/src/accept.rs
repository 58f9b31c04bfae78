//! Socket options and error logs that all TCP listeners share.

use std::{io, os::fd::AsFd, time::Duration};

use millrace_engine::LogRateLimit;
use tokio::net::TcpStream;

/// Maximum unsent bytes in the kernel per WebSocket or stream; the rest of the backlog stays in the shared log.
/// Without this limit, a deep send queue does not recover from a stall (measured in docs/adr/0003).
const NOTSENT_LOWAT_BYTES: u32 = 16 * 1024;

/// Disables Nagle's algorithm, so that data is sent at once, and limits the unsent bytes in the kernel.
pub fn set_options(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = socket2::SockRef::from(stream).set_tcp_notsent_lowat(NOTSENT_LOWAT_BYTES);
}

/// Lets the kernel end a connection whose peer leaves sent bytes unacknowledged, or takes no byte, for this time.
/// Without this limit, the server of a stream notices after 15 minutes that a NAT swallows its packets, because the
/// client of a stream sends nothing. Source: tcp(7), TCP_USER_TIMEOUT.
pub fn limit_unacknowledged(connection: impl AsFd, time: Duration) {
    let ms = time.as_millis().clamp(1, u32::MAX.into()) as u32;
    let _ = rustix::net::sockopt::set_tcp_user_timeout(connection, ms);
}

/// Logs that a listener cannot accept a connection, at most once per minute. The cause is then a lack of file
/// descriptors or memory. An error of a single connection is caused by its peer and is logged at debug level only.
pub fn cannot_accept(error: &io::Error, what: &'static str) {
    static SAID: LogRateLimit = LogRateLimit::new();
    let is_of_peer = matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset);
    match !is_of_peer && SAID.is_due() {
        true => tracing::warn!(%error, what, "cannot accept a connection; check file descriptors and memory"),
        false => tracing::debug!(%error, what, "cannot be accepted"),
    }
}
