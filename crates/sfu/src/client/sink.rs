use std::{net::SocketAddr, time::Instant};

use millrace_rtc::connection::Connection;
use str0m::{media::Mid, rtp::Extension};

use crate::{
    egress::{Keys, ReportIndex},
    rtcp::write_arrivals,
};

/// A viewer that decrypts nothing: it reads the headers of packets and reports their arrival times, as browsers do. A
/// load generator uses it, so that its own work is not the limit.
pub struct Sink {
    sends: Keys,
    to: SocketAddr,
    /// ID of the header extension with the transport-wide sequence number.
    number_id: u8,
    born: Instant,
    /// Packet numbers, and arrival times in microseconds since the sink was created.
    arrivals: Vec<(u16, i64)>,
    /// SSRC of the received stream.
    ssrc: u32,
    reports: u32,
}

/// First index of the reports, far from the indexes of the library's own reports.
const FIRST_REPORT: u32 = 1 << 30;
const WITH_EXTENSIONS: u8 = 0x10;
const SELF: u32 = 1;

impl Sink {
    /// Takes over a line of a connection after the handshake. `None`: the line has no stream yet, or its packets are
    /// not numbered.
    pub(crate) fn new(connection: &mut Connection, mid: Mid, now: Instant) -> Option<Self> {
        let (sends, _) = Keys::pair(&connection.take_keying_material()?)?;
        let number_id = connection.rtc.media(mid)?.remote_extmap().id_of(Extension::TransportSequenceNumber)?;
        let ssrc = *connection.rtc.direct_api().stream_rx_by_mid(mid, None)?.ssrc();
        let to = connection.remote()?;
        Some(Self { sends, to, number_id, born: now, arrivals: Vec::new(), ssrc, reports: FIRST_REPORT })
    }

    /// Records a media packet and returns its RTP timestamp. All other datagrams go to the connection. `None`: the
    /// packet belongs to another stream, such as retransmissions, or is too short.
    pub fn receive(&mut self, datagram: &[u8], now: Instant) -> Option<u32> {
        let word = |at: usize| datagram.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        let (time, ssrc) = (word(4)?, word(8)?);
        if let Some(number) = self.number(datagram) {
            self.arrivals.push((number, now.saturating_duration_since(self.born).as_micros() as i64));
        }
        (ssrc == self.ssrc).then_some(time)
    }

    fn number(&self, datagram: &[u8]) -> Option<u16> {
        let [flags, ..] = datagram else { return None };
        let head = 12 + 4 * usize::from(flags & 0xf);
        let mut left = datagram.get(head + 4..).filter(|_| flags & WITH_EXTENSIONS != 0)?;
        while let [name, rest @ ..] = left {
            let length = usize::from(name & 0xf) + 1;
            match name >> 4 {
                // Padding is one byte.
                0 => left = rest,
                id if id == self.number_id => return rest.first_chunk().map(|number| u16::from_be_bytes(*number)),
                _ => left = rest.get(length..)?,
            }
        }
        None
    }

    /// Returns the report of the packets received since the last call, and its destination. `None`: no packets were
    /// received.
    pub fn report(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        let mut report = write_arrivals((SELF, self.ssrc), self.reports as u8, &self.arrivals)?;
        self.arrivals.clear();
        self.sends.seal_report(&mut report, ReportIndex::numbered(self.reports))?;
        self.reports += 1;
        Some((self.to, report))
    }
}
