use std::{net::SocketAddr, time::Instant};

use str0m::{media::Mid, rtp::Extension};

use crate::{
    connection::Connection,
    egress::{Keys, ReportIndex, write_arrivals},
};

/// A viewer that opens nothing: it reads the heads of packets, and reports when each has come, as browsers do. For a load generator, whose own
/// work is not to be the limit.
pub struct Sink {
    sends: Keys,
    to: SocketAddr,
    /// What the extension is called here that numbers packets.
    number_id: u8,
    born: Instant,
    /// Number, and microseconds since it was born.
    came: Vec<(u16, i64)>,
    /// Of the stream.
    ssrc: u32,
    reports: u32,
}

/// Far from what the library's own reports are numbered with.
const FIRST_REPORT: u32 = 1 << 30;
const WITH_EXTENSIONS: u8 = 0x10;
const SELF: u32 = 1;

impl Sink {
    /// Takes over a connection's line, once its handshake is done and packets are numbered on it.
    pub(crate) fn new(connection: &mut Connection, mid: Mid, now: Instant) -> Option<Self> {
        let (sends, _) = connection.take_exported()?.keys()?;
        let number_id = connection.rtc.media(mid)?.remote_extmap().id_of(Extension::TransportSequenceNumber)?;
        let ssrc = *connection.rtc.direct_api().stream_rx_by_mid(mid, None)?.ssrc();
        let to = connection.remote()?;
        Some(Self { sends, to, number_id, born: now, came: Vec::new(), ssrc, reports: FIRST_REPORT })
    }

    /// A packet of media (all else is the connection's): the time that it says it is of, in units of its clock. `None`: it is none of this stream, but one that is sent again.
    pub fn hear(&mut self, datagram: &[u8], now: Instant) -> Option<u32> {
        let word = |at: usize| datagram.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        let (time, ssrc) = (word(4)?, word(8)?);
        if let Some(number) = self.number(datagram) {
            self.came.push((number, now.saturating_duration_since(self.born).as_micros() as i64));
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

    /// The report of what has come since the last, and where it goes. `None`: nothing has.
    pub fn report(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        let mut report = write_arrivals((SELF, self.ssrc), self.reports as u8, &self.came)?;
        self.came.clear();
        self.sends.seal_report(&mut report, ReportIndex::numbered(self.reports))?;
        self.reports += 1;
        Some((self.to, report))
    }
}
