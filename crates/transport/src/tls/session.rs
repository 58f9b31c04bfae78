use std::{cell::RefCell, io, sync::Arc};

use bytes::BytesMut;
use rustls::{
    HandshakeKind, ServerConfig,
    pki_types::CertificateDer,
    server::{ServerConnectionData, UnbufferedServerConnection},
    unbuffered::{ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus},
};

/// Maximum plaintext in one record, in bytes. So also the maximum queued, encrypted, for a client that reads nothing.
/// Source: RFC 8446, section 5.1.
const RECORD_BYTES: usize = 16 * 1024;
/// Size of the shared buffer, in bytes: received data, after what was kept from before.
const SCRATCH_BYTES: usize = 64 * 1024;
/// Maximum bytes kept of an incomplete record or handshake message; a certificate chain fits.
pub(super) const KEPT_BYTES_MAX: usize = SCRATCH_BYTES / 2;
/// Maximum bytes of queued protocol responses. A client that causes more without reading them is disconnected.
const ANSWERS_BYTES_MAX: usize = 64 * 1024;

thread_local! {
    /// Ciphertext of the connection that is read from or written to at this moment. An idle connection has no buffer.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_BYTES].into());
}

/// TLS state of one connection. It has no socket: the caller passes non-blocking `recv` and `send` functions.
pub(crate) struct Session {
    conn: UnbufferedServerConnection,
    /// Ciphertext of an incomplete record.
    kept: Vec<u8>,
    /// Ciphertext that the socket has not taken. It must be sent before anything else, because its sequence number is
    /// already used.
    pending: Vec<u8>,
    /// True after a protocol error of the peer. rustls must not be called any more: it may refer to bytes that no
    /// longer exist.
    broken: bool,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// All available data was read.
    All,
    /// The buffer was full, so more data may be available.
    More,
    /// The peer has closed its side.
    End,
}

impl Session {
    pub(crate) fn new(config: Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        let conn = UnbufferedServerConnection::new(config)?;
        Ok(Self { conn, kept: Vec::new(), pending: Vec::new(), broken: false })
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.conn.is_handshaking()
    }

    pub(crate) fn is_resumed(&self) -> bool {
        self.conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Returns the client's own certificate, if it presented one.
    pub(crate) fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.conn.peer_certificates()?.first()
    }

    /// Returns true if ciphertext is queued for the socket.
    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns the memory of this session, without keys, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.kept.capacity() + self.pending.capacity()
    }

    /// Receives once, and appends the decrypted data to `plain`; no plaintext is kept here. Protocol responses are
    /// queued for [`Self::flush`].
    ///
    /// Errors: those of `recv`; `InvalidData` for invalid TLS, with the alert queued.
    pub(crate) fn read(
        &mut self,
        plain: &mut BytesMut,
        recv: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Received> {
        self.check()?;
        SCRATCH.with_borrow_mut(|scratch| {
            let kept = self.kept.len();
            scratch[..kept].copy_from_slice(&self.kept);
            let received = recv(&mut scratch[kept..])?;
            if received == 0 {
                return Ok(Received::End);
            }
            self.kept = Vec::new();
            let filled = &mut scratch[..kept + received];
            let decrypted = self.decrypt(filled, plain);
            self.broken = decrypted.is_err();
            let Some(used) = decrypted? else { return Ok(Received::End) };
            let rest = &filled[used..];
            if rest.len() > KEPT_BYTES_MAX {
                return Err(invalid("a handshake message is too long"));
            }
            self.kept = rest.to_vec();
            Ok(if kept + received == SCRATCH_BYTES { Received::More } else { Received::All })
        })
    }

    /// Decrypts records in place. Returns the number of bytes used, or `None` once the peer has closed.
    fn decrypt(&mut self, bytes: &mut [u8], plain: &mut BytesMut) -> io::Result<Option<usize>> {
        let mut used = 0;
        loop {
            let UnbufferedStatus { discard, state } = self.conn.process_tls_records(&mut bytes[used..]);
            used += discard;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(invalid)?;
                        plain.extend_from_slice(record.payload);
                        used += record.discard;
                    }
                }
                Ok(ConnectionState::EncodeTlsData(encoding)) => {
                    encode(encoding, &mut self.pending)?;
                    if self.pending.len() > ANSWERS_BYTES_MAX {
                        return Err(invalid("the peer requests key updates but does not read the responses"));
                    }
                }
                Ok(ConnectionState::TransmitTlsData(transmit)) => transmit.done(),
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => return Ok(None),
                Ok(_) => return Ok(Some(used)),
                Err(error) => {
                    // Queue the alert of rustls, and call rustls no more: it may keep offsets of unread messages and
                    // look for them in these bytes, or report the same error again.
                    while self.conn.wants_write()
                        && let Ok(ConnectionState::EncodeTlsData(alert)) = self.conn.process_tls_records(&mut []).state
                    {
                        encode(alert, &mut self.pending)?;
                    }
                    return Err(invalid(error));
                }
            }
        }
    }

    /// Encrypts and sends, a record at a time, until the socket takes no more. Returns the number of bytes of `plain`
    /// taken. The caller must not pass them again, although their last record may still be queued here.
    ///
    /// Errors: those of `send`, except "would block"; exhausted keys.
    pub(crate) fn write(
        &mut self,
        plain: &[u8],
        mut send: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if !self.flush(&mut send)? {
            return Ok(0);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut taken = 0;
            for record in plain.chunks(RECORD_BYTES) {
                let length = self.encrypt(record, scratch)?;
                taken += record.len();
                let sent = send_all(&scratch[..length], &mut send)?;
                if sent < length {
                    self.pending = scratch[sent..length].to_vec();
                    break;
                }
            }
            Ok(taken)
        })
    }

    /// Sends the queued ciphertext. Returns false if some is left.
    ///
    /// Errors: those of `send`, except "would block".
    pub(crate) fn flush(&mut self, send: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<bool> {
        if self.pending.is_empty() {
            return Ok(true);
        }
        let sent = send_all(&self.pending, send)?;
        self.pending.drain(..sent);
        if self.pending.is_empty() {
            self.pending = Vec::new();
        }
        Ok(self.pending.is_empty())
    }

    /// Queues the `close_notify` alert, which the next [`Self::flush`] sends.
    pub(crate) fn end(&mut self) {
        // The alert has two bytes, plus the overhead of its record.
        let mut notify = [0; 128];
        if let Ok(length) = self.process(&mut notify, |traffic, out| traffic.queue_close_notify(out)) {
            self.pending.extend_from_slice(&notify[..length]);
        }
    }

    /// Returns the queued ciphertext when the session ends.
    pub(crate) fn into_pending(self) -> Vec<u8> {
        self.pending
    }

    fn check(&self) -> io::Result<()> {
        if self.broken { Err(invalid("an earlier record of the peer was invalid")) } else { Ok(()) }
    }

    fn encrypt(&mut self, plain: &[u8], out: &mut [u8]) -> io::Result<usize> {
        self.process(out, |traffic, out| traffic.encrypt(plain, out))
    }

    /// Writes pending protocol messages (such as a key update) to `out`, then the output of `write`.
    fn process(
        &mut self,
        out: &mut [u8],
        write: impl Fn(&mut WriteTraffic<'_>, &mut [u8]) -> Result<usize, EncryptError>,
    ) -> io::Result<usize> {
        self.check()?;
        let mut length = 0;
        loop {
            match self.conn.process_tls_records(&mut self.kept).state.map_err(invalid)? {
                ConnectionState::EncodeTlsData(mut encoding) => {
                    length += encoding.encode(&mut out[length..]).map_err(invalid)?;
                }
                ConnectionState::TransmitTlsData(transmit) => transmit.done(),
                ConnectionState::WriteTraffic(mut traffic) => {
                    return Ok(length + write(&mut traffic, &mut out[length..]).map_err(invalid)?);
                }
                _ => return Err(invalid("the TLS connection cannot encrypt data in this state")),
            }
        }
    }
}

type WriteTraffic<'a> = rustls::unbuffered::WriteTraffic<'a, ServerConnectionData>;

fn encode(mut encoding: EncodeTlsData<'_, ServerConnectionData>, out: &mut Vec<u8>) -> io::Result<()> {
    let at = out.len();
    if let Err(EncodeError::InsufficientSize(size)) = encoding.encode(&mut []) {
        out.resize(at + size.required_size, 0);
    }
    encoding.encode(&mut out[at..]).map(drop).map_err(invalid)
}

/// Sends until all is sent or `send` would block. Returns the number of bytes sent.
fn send_all(bytes: &[u8], mut send: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match send(&bytes[sent..]) {
            Ok(taken) => sent += taken,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use rustls::{ClientConnection, pki_types::ServerName};

    use super::*;
    use crate::tls::stream::tests::{settings, trusting};

    /// Uses a client without the required certificate: its error comes first in a flight of several messages.
    #[test]
    fn tls_error_sends_one_alert_only() {
        let (settings, ca) = settings();
        let mut session = Session::new(settings.config).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::new(trusting(&ca, &[])), name).unwrap();
        let mut plain = BytesMut::new();
        let error = loop {
            let mut flight = Vec::new();
            client.write_tls(&mut flight).unwrap();
            assert!(!flight.is_empty(), "the client waits");
            let read = session.read(&mut plain, |buffer| {
                buffer[..flight.len()].copy_from_slice(&flight);
                Ok(flight.len())
            });
            let mut answer = Vec::new();
            session.flush(|bytes| Ok(answer.write(bytes).unwrap())).unwrap();
            let told = client.read_tls(&mut answer.as_slice()).map(|_| client.process_new_packets().map(drop));
            if let Err(error) = read {
                assert!(matches!(told, Ok(Err(rustls::Error::AlertReceived(_)))), "{told:?}");
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        session.end();
        assert!(session.write(b"more", |bytes| Ok(bytes.len())).is_err() && !session.is_pending());
        assert!(session.read(&mut plain, |_| Ok(1)).is_err());
    }
}
