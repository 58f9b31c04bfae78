//! Bytes and time of one TLS connection: its handshake, its session tickets, and single messages.
//!
//! Counts what the TLS library hands to the socket, so the counts are exact and contain no TCP headers.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use rustls::{ClientConfig, ClientConnection, HandshakeKind};

/// Timeout of each read.
const PATIENCE: Duration = Duration::from_secs(10);
/// Type, version and length of a record (RFC 8446, section 5.1).
const RECORD_HEAD_BYTES: usize = 5;
/// Maximum payload of a segment on Ethernet without TCP options, as in the thesis.
const SEGMENT_BYTES: u64 = 1460;

/// Bytes in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlsBytes {
    pub up: u64,
    pub down: u64,
}

/// A completed handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    pub bytes: TlsBytes,
    pub is_resumed: bool,
    /// Number of times that the client waited for an answer before it could send data.
    pub round_trips: u32,
    /// Number of segments of at most 1,460 bytes. All bytes of one flight are together.
    pub segments: u64,
    /// Time from the first byte until the client can send data.
    pub time: Duration,
}

/// A TLS connection whose bytes are counted.
pub struct CountedTls {
    socket: TcpStream,
    tls: ClientConnection,
    /// Received bytes that are no complete record yet.
    partial: Vec<u8>,
    pub handshake: Handshake,
    /// Bytes of session tickets after the handshake (TLS 1.3). They arrive before the first response.
    pub ticket_bytes: u64,
}

/// Bytes of a request or message, and of its answer: as the application sees them, and as records of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    pub plain: TlsBytes,
    pub secured: TlsBytes,
}

impl CountedTls {
    /// Connects and makes a handshake.
    ///
    /// Errors: the server refuses the connection, or its certificate is not valid.
    pub fn open(address: SocketAddr, config: Arc<ClientConfig>) -> anyhow::Result<Self> {
        let socket = TcpStream::connect_timeout(&address, PATIENCE)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let tls = ClientConnection::new(config, "localhost".try_into().context("a name")?)?;
        let mut this = Self { socket, tls, partial: Vec::new(), handshake: Handshake::default(), ticket_bytes: 0 };
        let began = Instant::now();
        // Length of the flight of the server that is arriving.
        let mut flight = 0;
        while this.tls.is_handshaking() || this.tls.wants_write() {
            // A flight of the server is processed whole before the client answers.
            if this.tls.wants_write() && this.complete().is_none() {
                this.handshake.segments += u64::div_ceil(std::mem::take(&mut flight), SEGMENT_BYTES);
                let sent = this.flush()?;
                this.handshake.bytes.up += sent;
                this.handshake.segments += sent.div_ceil(SEGMENT_BYTES);
            } else {
                this.handshake.round_trips += u32::from(flight == 0);
                let record = this.record()?;
                flight += record.len() as u64;
                this.handshake.bytes.down += record.len() as u64;
                this.process(&record)?;
            }
        }
        this.handshake.segments += flight.div_ceil(SEGMENT_BYTES);
        this.handshake.time = began.elapsed();
        this.handshake.is_resumed = this.tls.handshake_kind() == Some(HandshakeKind::Resumed);
        Ok(this)
    }

    /// Sends data as one write, and reads until `is_complete` is true for the received plaintext.
    ///
    /// Errors: the connection ends before that.
    pub fn exchange(
        &mut self,
        data: &[u8],
        is_complete: impl Fn(&[u8]) -> bool,
    ) -> anyhow::Result<(Vec<u8>, Exchange)> {
        self.tls.writer().write_all(data)?;
        let mut counted = Exchange::default();
        counted.plain.up = data.len() as u64;
        counted.secured.up = self.flush()?;
        let mut received = Vec::new();
        while !is_complete(&received) {
            let record = self.record()?;
            let length = record.len() as u64;
            let plain = self.process(&record)?;
            match plain.is_empty() {
                true => self.ticket_bytes += length,
                false => counted.secured.down += length,
            }
            received.extend_from_slice(&plain);
        }
        counted.plain.down = received.len() as u64;
        Ok((received, counted))
    }

    /// Writes all pending records and returns their length.
    fn flush(&mut self) -> anyhow::Result<u64> {
        let mut out = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut out)?;
        }
        self.socket.write_all(&out)?;
        Ok(out.len() as u64)
    }

    /// Returns the length of the first received record, if it is complete.
    fn complete(&self) -> Option<usize> {
        let &[_, _, _, high, low] = self.partial.first_chunk::<RECORD_HEAD_BYTES>()?;
        let length = RECORD_HEAD_BYTES + usize::from(u16::from_be_bytes([high, low]));
        (self.partial.len() >= length).then_some(length)
    }

    /// Reads one record.
    fn record(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut buffer = [0; 32 * 1024];
        loop {
            if let Some(length) = self.complete() {
                return Ok(self.partial.drain(..length).collect());
            }
            match self.socket.read(&mut buffer)? {
                0 => bail!("the server closed the connection"),
                length => self.partial.extend_from_slice(&buffer[..length]),
            }
        }
    }

    /// Decrypts one record and returns its plaintext, which is empty for a record of the handshake.
    fn process(&mut self, record: &[u8]) -> anyhow::Result<Vec<u8>> {
        let mut rest = record;
        while !rest.is_empty() {
            ensure!(self.tls.read_tls(&mut rest)? > 0, "the TLS library takes no more bytes");
            self.tls.process_new_packets()?;
        }
        let state = self.tls.process_new_packets()?;
        let mut plain = vec![0; state.plaintext_bytes_to_read()];
        self.tls.reader().read_exact(&mut plain)?;
        Ok(plain)
    }
}
