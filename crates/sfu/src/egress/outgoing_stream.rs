use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use str0m::{
    media::Mid,
    rtp::{Extension, ExtensionMap},
};

use super::{patch::Patch, srtp::OVERHEAD_BYTES};
use crate::rtcp::ReportBlock;

/// One outgoing RTP stream: its header format, its retransmission cache and its counters.
pub struct OutgoingStream {
    pub mid: Mid,
    pub ssrc: u32,
    /// Separate stream for retransmissions, with its own sequence numbers. Source: RFC 4588.
    rtx: Option<RtxStream>,
    extensions: Extensions,
    /// The client has reported on this stream, so it knows the stream's media section. Its packets need no `mid`
    /// extension any more; retransmissions always have it.
    is_known: bool,
    born: Instant,
    sent_sequences: SentSequenceWindow,
    cached: VecDeque<CachedPacket>,
    /// RTP timestamp and clock rate of the newest packet, and its send time.
    last: Option<(u32, u32, Instant)>,
    packets: u32,
    bytes: u32,
    /// Middle 32 bits of the NTP timestamp in the newest sender report, and the send time of that report.
    pub last_report: Option<(u32, Instant)>,
    /// Highest sequence number that the client has reported.
    highest_reported: Option<u32>,
}

struct RtxStream {
    ssrc: u32,
    next: u64,
}

/// IDs of the header extensions, as the client has negotiated them. Source: RFC 8285.
struct Extensions {
    stamp: Option<Stamp>,
    mid: Option<u8>,
    audio_level: Option<u8>,
    orientation: Option<u8>,
}

/// Extension by which the client estimates the bandwidth, or lets the sender do so, with its ID.
#[derive(Clone, Copy)]
enum Stamp {
    /// Transport-wide sequence number: the client reports arrival times.
    Number(u8),
    /// Absolute send time: the client estimates the bandwidth itself and reports it (REMB). Source:
    /// <https://webrtc.googlesource.com/src/+/refs/heads/main/docs/native-code/rtp-hdrext/abs-send-time>.
    SendTime(u8),
}

/// A packet to send.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Payload type, as negotiated with the client.
    pub payload_type: u8,
    /// Payload type of a retransmission. `None`: the packet cannot be retransmitted.
    pub rtx_payload_type: Option<u8>,
    /// Extended sequence number, which does not wrap. The first one is below 65,536.
    pub sequence: u64,
    pub time: u32,
    pub clock_hz: u32,
    pub marker: bool,
    /// Audio level in decibels below the maximum, and whether the packet contains speech.
    pub audio_level: Option<(u8, bool)>,
    pub orientation: Option<u8>,
    pub patch: Option<Patch>,
    pub payload: Arc<[u8]>,
}

/// Packet cached for retransmission. Each receiver has hundreds of them, so the type is small to stay in the CPU cache.
struct CachedPacket {
    payload: Arc<[u8]>,
    sequence: u64,
    time: u32,
    /// Send time in milliseconds since the stream was created.
    at_ms: u32,
    /// Time of the last retransmission in the same unit; 0: never.
    retransmitted_ms: u32,
    patch: Option<Patch>,
    rtx_payload_type: u8,
    marker: bool,
    orientation: Option<u8>,
}

/// Limits of the retransmission cache of one stream: number of packets, and age.
const CACHE_PACKETS_MAX: usize = 512;
const CACHE_TIME: Duration = Duration::from_secs(2);
/// Expired packets are removed once per this number of packets. A check of the oldest packet for each new one would
/// load memory that nothing else needs.
const SWEEP_EVERY: u64 = 16;
/// Number of newest packets that are repeated as probe padding, where only the size matters.
const PADDING_PACKETS: usize = 16;
const PADDING_BYTES_MIN: usize = 200;
/// Maximum number of packets that one reception report covers.
const REPORT_PACKETS_MAX: u32 = 1 << 15;
const HEADER_BYTES: usize = 12;
/// Maximum size of the header extensions that are written.
const EXTENSIONS_BYTES: usize = 4 + 32;
/// Bits of the fraction of a second in an absolute send time. Its upper 6 bits are seconds.
const SEND_TIME_FRACTION_BITS: u32 = 18;
/// Highest extension ID that a one-byte extension header can hold.
const EXTENSION_MAX: u8 = 14;
/// First byte of a packet without padding and without contributing sources.
const WITH_EXTENSIONS: u8 = 0x90;
const WITHOUT_EXTENSIONS: u8 = 0x80;
/// Marker of a block of extensions with one-byte headers.
const ONE_BYTE_HEADS: u16 = 0xbede;

/// Window of the sequence numbers that were sent. No number is sent twice, whatever the publisher sends: two packets
/// sealed under one number would give away the key.
#[derive(Default)]
struct SentSequenceWindow {
    /// One more than the highest number sent.
    next: u64,
    /// One bit for each of the last `WINDOW` numbers, at the index number modulo `WINDOW`.
    bits: [u64; WINDOW / 64],
}

/// Maximum distance of a packet behind the highest number.
const WINDOW: usize = 1024;

impl SentSequenceWindow {
    /// Records a number. Returns false if it was sent already, or is too far behind to know.
    fn insert(&mut self, sequence: u64) -> bool {
        let behind = self.next.saturating_sub(sequence);
        if behind > WINDOW as u64 {
            return false;
        }
        // The bits of the skipped numbers still belong to numbers that are now outside the window: clear them.
        if sequence >= self.next + WINDOW as u64 {
            self.bits = [0; WINDOW / 64];
        } else {
            for skipped in self.next..sequence {
                let (word, bit) = self.bit_of(skipped);
                *word &= !bit;
            }
        }
        let is_new = sequence >= self.next;
        self.next = self.next.max(sequence + 1);
        let (word, bit) = self.bit_of(sequence);
        let was_sent = !is_new && *word & bit != 0;
        *word |= bit;
        !was_sent
    }

    fn bit_of(&mut self, sequence: u64) -> (&mut u64, u64) {
        let at = sequence as usize % WINDOW;
        (&mut self.bits[at / 64], 1 << (at % 64))
    }
}

/// Fields of an RTP header.
struct Header {
    payload_type: u8,
    marker: bool,
    sequence: u64,
    time: u32,
    ssrc: u32,
    audio_level: Option<(u8, bool)>,
    orientation: Option<u8>,
    names_mid: bool,
}

/// A packet before sealing: its bytes, the length of its header, and its extended sequence number for the cipher.
pub struct UnsealedPacket {
    pub bytes: Vec<u8>,
    pub head: usize,
    pub index: u64,
}

impl OutgoingStream {
    /// Creates a stream. `extensions`: IDs that the client negotiated. `rtx`: SSRC of the retransmission stream, if
    /// there is one. `now`: zero of its clock; all streams of one client have the same.
    pub fn new(mid: Mid, extensions: &ExtensionMap, ssrc: u32, rtx: Option<u32>, now: Instant) -> Self {
        let named = |extension| extensions.id_of(extension).filter(|id| *id <= EXTENSION_MAX);
        let send_time = || named(Extension::AbsoluteSendTime).map(Stamp::SendTime);
        Self {
            mid,
            ssrc,
            rtx: rtx.map(|ssrc| RtxStream { ssrc, next: 1 }),
            extensions: Extensions {
                // A client that reports arrival times needs no send times.
                stamp: named(Extension::TransportSequenceNumber).map(Stamp::Number).or_else(send_time),
                mid: named(Extension::RtpMid),
                audio_level: named(Extension::AudioLevel),
                orientation: named(Extension::VideoOrientation),
            },
            is_known: false,
            born: now,
            sent_sequences: SentSequenceWindow::default(),
            cached: VecDeque::new(),
            last: None,
            packets: 0,
            bytes: 0,
            last_report: None,
            highest_reported: None,
        }
    }

    /// Returns whether packets carry the transport-wide sequence number, by which the client reports their arrival
    /// times.
    pub fn is_numbered(&self) -> bool {
        matches!(self.extensions.stamp, Some(Stamp::Number(_)))
    }

    /// Sets the zero of the clock from which send times are counted.
    pub fn set_born(&mut self, born: Instant) {
        self.born = born;
    }

    /// Records a report of the client on this stream. Returns the packets that it covers, and those that were lost.
    ///
    /// The first report, and one whose sequence number has not grown or has jumped, covers no packets.
    pub fn handle_report(&mut self, report: &ReportBlock) -> (usize, usize) {
        self.is_known = true;
        let before = self.highest_reported.replace(report.highest);
        let covered = before.map_or(0, |before| report.highest.wrapping_sub(before));
        let covered = if covered <= REPORT_PACKETS_MAX { covered as usize } else { 0 };
        (covered, (covered * usize::from(report.fraction_lost) + 128) / 256)
    }

    pub fn rtx_ssrc(&self) -> Option<u32> {
        self.rtx.as_ref().map(|rtx| rtx.ssrc)
    }

    /// Number of packets sent, which wraps.
    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// Writes a packet with the transport-wide sequence number `number`. `None`: a packet with its sequence number was
    /// sent already, or is too old to know.
    pub fn write(&mut self, packet: &Packet, number: u64, now: Instant) -> Option<UnsealedPacket> {
        if !self.sent_sequences.insert(packet.sequence) {
            return None;
        }
        let head = Header {
            payload_type: packet.payload_type,
            marker: packet.marker,
            sequence: packet.sequence,
            time: packet.time,
            ssrc: self.ssrc,
            audio_level: packet.audio_level,
            orientation: packet.orientation,
            names_mid: !self.is_known,
        };
        let (mut bytes, head) = self.write_header(&head, (number, now), packet.payload.len());
        append(&mut bytes, &packet.payload, packet.patch);
        self.last = Some((packet.time, packet.clock_hz, now));
        self.packets = self.packets.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(packet.payload.len() as u32);
        if let (Some(_), Some(rtx_payload_type)) = (&self.rtx, packet.rtx_payload_type) {
            self.cache_packet(packet, rtx_payload_type, now);
        }
        Some(UnsealedPacket { bytes, head, index: packet.sequence })
    }

    fn cache_packet(&mut self, packet: &Packet, rtx_payload_type: u8, now: Instant) {
        let at_ms = self.ms(now);
        if packet.sequence.is_multiple_of(SWEEP_EVERY) || self.cached.len() >= CACHE_PACKETS_MAX {
            let is_old = |cached: &CachedPacket| at_ms.saturating_sub(cached.at_ms) > CACHE_TIME.as_millis() as u32;
            while self.cached.len() >= CACHE_PACKETS_MAX || self.cached.front().is_some_and(is_old) {
                self.cached.pop_front();
            }
        }
        let Packet { sequence, time, patch, marker, orientation, .. } = *packet;
        let payload = packet.payload.clone();
        self.cached.push_back(CachedPacket {
            payload,
            sequence,
            time,
            at_ms,
            retransmitted_ms: 0,
            patch,
            rtx_payload_type,
            marker,
            orientation,
        });
    }

    /// Returns the milliseconds since the stream was created, plus 1, because 0 means never. The range is 49 days.
    fn ms(&self, now: Instant) -> u32 {
        now.saturating_duration_since(self.born).as_millis() as u32 + 1
    }

    /// Returns the absolute send time: 24 bits of seconds since the clock's zero, which wrap after 64 s.
    fn send_time(&self, now: Instant) -> [u8; 3] {
        let since = now.saturating_duration_since(self.born);
        let units = (since.as_nanos() << SEND_TIME_FRACTION_BITS) / Duration::from_secs(1).as_nanos();
        let [_, time @ ..] = (units as u32).to_be_bytes();
        time
    }

    /// Writes the retransmission of a packet. `None`: the packet is not in the cache, is too old, or was retransmitted
    /// within `pause`.
    pub fn write_retransmission(
        &mut self,
        sequence: u16,
        number: u64,
        pause: Duration,
        now: Instant,
    ) -> Option<UnsealedPacket> {
        let now_ms = self.ms(now);
        let at = self.cached.iter().rposition(|cached| cached.sequence as u16 == sequence)?;
        let cached = &mut self.cached[at];
        let is_late = now_ms.saturating_sub(cached.at_ms) > CACHE_TIME.as_millis() as u32;
        let is_duplicate =
            cached.retransmitted_ms > 0 && now_ms.saturating_sub(cached.retransmitted_ms) < pause.as_millis() as u32;
        if is_late || is_duplicate {
            return None;
        }
        cached.retransmitted_ms = now_ms;
        self.write_rtx(at, number, now)
    }

    /// Writes one of the newest packets again as probe padding, which the client discards. Another `turn` selects
    /// another packet.
    pub fn write_probe_padding(&mut self, turn: usize, number: u64, now: Instant) -> Option<UnsealedPacket> {
        let newest = self.cached.len().min(PADDING_PACKETS);
        let at = self.cached.len() - 1 - turn.checked_rem(newest)?;
        self.write_rtx(at, number, now)
    }

    /// Returns whether probe padding is available and large enough.
    pub fn has_padding(&self) -> bool {
        self.extensions.stamp.is_some()
            && self.cached.back().is_some_and(|cached| cached.payload.len() >= PADDING_BYTES_MIN)
    }

    fn write_rtx(&mut self, at: usize, number: u64, now: Instant) -> Option<UnsealedPacket> {
        let (cached, rtx) = (self.cached.get(at)?, self.rtx.as_mut()?);
        let index = rtx.next;
        rtx.next += 1;
        let head = Header {
            payload_type: cached.rtx_payload_type,
            marker: cached.marker,
            sequence: index,
            time: cached.time,
            ssrc: rtx.ssrc,
            audio_level: None,
            orientation: cached.orientation,
            // No client reports on this stream. Firefox drops its packets unless they name the media section, although
            // the offer contains the SSRC.
            names_mid: true,
        };
        let cached = self.cached.get(at)?;
        let (mut bytes, head) = self.write_header(&head, (number, now), 2 + cached.payload.len());
        bytes.extend_from_slice(&(cached.sequence as u16).to_be_bytes());
        append(&mut bytes, &cached.payload, cached.patch);
        Some(UnsealedPacket { bytes, head, index })
    }

    /// Writes the header of a packet into a buffer with capacity for the whole packet. Returns the buffer and the
    /// header length.
    fn write_header(&self, what: &Header, (number, now): (u64, Instant), payload: usize) -> (Vec<u8>, usize) {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + EXTENSIONS_BYTES + payload + OVERHEAD_BYTES);
        bytes.extend_from_slice(&[WITH_EXTENSIONS, what.payload_type | u8::from(what.marker) << 7]);
        bytes.extend_from_slice(&(what.sequence as u16).to_be_bytes());
        bytes.extend_from_slice(&what.time.to_be_bytes());
        bytes.extend_from_slice(&what.ssrc.to_be_bytes());
        bytes.extend_from_slice(&ONE_BYTE_HEADS.to_be_bytes());
        bytes.extend_from_slice(&[0, 0]);
        let named = &self.extensions;
        let mut extend = |id: Option<u8>, value: &[u8]| {
            if let Some(id) = id {
                bytes.push(id << 4 | (value.len() - 1) as u8);
                bytes.extend_from_slice(value);
            }
        };
        match named.stamp {
            Some(Stamp::Number(id)) => extend(Some(id), &(number as u16).to_be_bytes()),
            Some(Stamp::SendTime(id)) => extend(Some(id), &self.send_time(now)),
            None => {}
        }
        if what.names_mid {
            extend(named.mid, self.mid.as_bytes());
        }
        if let Some((below, is_speech)) = what.audio_level {
            extend(named.audio_level, &[below & 0x7f | u8::from(is_speech) << 7]);
        }
        if let Some(orientation) = what.orientation {
            extend(named.orientation, &[orientation]);
        }
        if bytes.len() == HEADER_BYTES + 4 {
            bytes.truncate(HEADER_BYTES);
            bytes[0] = WITHOUT_EXTENSIONS;
            return (bytes, HEADER_BYTES);
        }
        let words = (bytes.len() - HEADER_BYTES - 4).div_ceil(4);
        let head = HEADER_BYTES + 4 + 4 * words;
        bytes.resize(head, 0);
        bytes[HEADER_BYTES + 3] = words as u8;
        (bytes, head)
    }

    /// Replaces the contents of the library's sender report, because the library has not seen the packets of this
    /// stream. Returns false if there is nothing to report.
    ///
    /// Source: RFC 3550, section 6.4.1.
    pub fn correct(&mut self, report: &mut [u8], now: Instant) -> bool {
        let Some((time, clock_hz, at)) = self.last else { return false };
        let Some(fields) = report.get_mut(8..28) else { return false };
        let since = now.saturating_duration_since(at).as_secs_f64() * f64::from(clock_hz);
        fields[8..12].copy_from_slice(&time.wrapping_add(since as u32).to_be_bytes());
        fields[12..16].copy_from_slice(&self.packets.to_be_bytes());
        fields[16..20].copy_from_slice(&self.bytes.to_be_bytes());
        self.last_report = fields[2..6].first_chunk().map(|middle| (u32::from_be_bytes(*middle), now));
        true
    }
}

fn append(bytes: &mut Vec<u8>, payload: &[u8], patch: Option<Patch>) {
    let at = bytes.len();
    bytes.extend_from_slice(payload);
    if let Some(patch) = patch {
        patch.apply(&mut bytes[at..]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand_pcg::rand_core::Rng;

    use super::*;

    /// Compares the window with a set that forgets nothing.
    #[test]
    fn sequence_number_is_never_sent_twice() {
        let (mut sent_sequences, mut all, mut highest) = (SentSequenceWindow::default(), HashSet::new(), 1000);
        let mut dice = rand_pcg::Pcg32::new(3, 3);
        let mut refused = 0;
        for _ in 0..200_000 {
            let roll = u64::from(dice.next_u32());
            let sequence = match roll % 16 {
                0 => highest + roll / 16 % 3000,
                1..=8 => highest + 1,
                _ => highest.saturating_sub(roll / 16 % 1500),
            };
            let is_near = sequence + WINDOW as u64 > highest;
            let may_leave = sent_sequences.insert(sequence);
            assert!(!may_leave || all.insert(sequence), "{sequence} was sent twice");
            assert!(may_leave || !is_near || all.contains(&sequence), "{sequence} is refused, highest {highest}");
            refused += usize::from(!may_leave);
            highest = highest.max(sequence);
        }
        assert!(refused > 10_000 && all.len() > 100_000);
    }
}
