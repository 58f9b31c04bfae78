//! Socket options and error logs that all TCP listeners share.

use std::io;

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
