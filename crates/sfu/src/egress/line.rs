use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use str0m::{
    media::Mid,
    rtp::{Extension, ExtensionMap},
};

use super::{patch::Patch, seal::OVERHEAD_BYTES};

/// One line of the SDP over which a stream is sent: its header format, its retransmission cache and its counters.
pub struct Line {
    pub mid: Mid,
    pub ssrc: u32,
    /// Separate stream for retransmissions, with its own sequence numbers. Source: RFC 4588.
    resends: Option<Resends>,
    extensions: Extensions,
    /// The client has reported on this stream, so it knows the line of the stream. The packets need no `mid` extension
    /// any more.
    is_known: bool,
    born: Instant,
    left: SentSequenceWindow,
    kept: VecDeque<CachedPacket>,
    /// RTP timestamp and clock rate of the newest packet, and its send time.
    last: Option<(u32, u32, Instant)>,
    packets: u32,
    bytes: u32,
    /// Middle 32 bits of the NTP timestamp in the newest sender report, and the send time of that report.
    pub reported: Option<(u32, Instant)>,
}

struct Resends {
    ssrc: u32,
    next: u64,
}

/// IDs of the header extensions, as the client has negotiated them. Source: RFC 8285.
struct Extensions {
    number: Option<u8>,
    mid: Option<u8>,
    audio_level: Option<u8>,
    orientation: Option<u8>,
}

/// A packet to send.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Payload type, as negotiated with the client.
    pub format: u8,
    /// Payload type of a retransmission. `None`: the packet cannot be retransmitted.
    pub resend_format: Option<u8>,
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

/// Packet kept for retransmission. Each receiver has hundreds of them, so the type is small to stay in the CPU cache.
struct CachedPacket {
    payload: Arc<[u8]>,
    sequence: u64,
    time: u32,
    /// Send time in milliseconds since the line was created.
    at_ms: u32,
    /// Time of the last retransmission in the same unit; 0: never.
    again_ms: u32,
    patch: Option<Patch>,
    resend_format: u8,
    marker: bool,
    orientation: Option<u8>,
}

/// Limits of the retransmission cache of one stream: number of packets, and age.
const KEPT_MAX: usize = 512;
const KEPT_FOR: Duration = Duration::from_secs(2);
/// Expired packets are removed once per this number of packets. A check of the oldest packet for each new one would
/// load memory that nothing else needs.
const SWEEP_EVERY: u64 = 16;
/// Number of newest packets that are repeated as probe padding, where only the size matters.
const FILLERS: usize = 16;
const FILLER_BYTES_MIN: usize = 200;
const HEAD_BYTES: usize = 12;
/// Maximum size of the header extensions that are written.
const EXTENSIONS_BYTES: usize = 4 + 32;
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
    /// One bit for each of the last `LEFT` numbers, at the index number modulo `LEFT`.
    bits: [u64; LEFT / 64],
}

/// Maximum distance of a packet behind the highest number.
const LEFT: usize = 1024;

impl SentSequenceWindow {
    /// Records a number. Returns false if it was sent already, or is too far behind to know.
    fn note(&mut self, sequence: u64) -> bool {
        let behind = self.next.saturating_sub(sequence);
        if behind > LEFT as u64 {
            return false;
        }
        // The bits of the skipped numbers still belong to numbers that are now outside the window: clear them.
        if sequence >= self.next + LEFT as u64 {
            self.bits = [0; LEFT / 64];
        } else {
            for skipped in self.next..sequence {
                let (word, bit) = self.place(skipped);
                *word &= !bit;
            }
        }
        let is_new = sequence >= self.next;
        self.next = self.next.max(sequence + 1);
        let (word, bit) = self.place(sequence);
        let has_left = !is_new && *word & bit != 0;
        *word |= bit;
        !has_left
    }

    fn place(&mut self, sequence: u64) -> (&mut u64, u64) {
        let place = sequence as usize % LEFT;
        (&mut self.bits[place / 64], 1 << (place % 64))
    }
}

/// Fields of an RTP header.
struct Head {
    format: u8,
    marker: bool,
    sequence: u64,
    time: u32,
    ssrc: u32,
    audio_level: Option<(u8, bool)>,
    orientation: Option<u8>,
}

/// A packet before sealing: its bytes, the length of its header, and its extended sequence number for the cipher.
pub struct Written {
    pub bytes: Vec<u8>,
    pub head: usize,
    pub index: u64,
}

impl Line {
    /// Creates a line. `extensions`: IDs that the client negotiated. `resends`: SSRC of the retransmission stream, if
    /// there is one.
    pub fn new(mid: Mid, extensions: &ExtensionMap, ssrc: u32, resends: Option<u32>, now: Instant) -> Self {
        let named = |extension| extensions.id_of(extension).filter(|id| *id <= EXTENSION_MAX);
        Self {
            mid,
            ssrc,
            resends: resends.map(|ssrc| Resends { ssrc, next: 1 }),
            extensions: Extensions {
                number: named(Extension::TransportSequenceNumber),
                mid: named(Extension::RtpMid),
                audio_level: named(Extension::AudioLevel),
                orientation: named(Extension::VideoOrientation),
            },
            is_known: false,
            born: now,
            left: SentSequenceWindow::default(),
            kept: VecDeque::new(),
            last: None,
            packets: 0,
            bytes: 0,
            reported: None,
        }
    }

    /// Returns whether packets carry the transport-wide sequence number, by which the client reports their arrival
    /// times.
    pub fn is_numbered(&self) -> bool {
        self.extensions.number.is_some()
    }

    /// Records that the client has reported on this stream.
    pub fn know(&mut self) {
        self.is_known = true;
    }

    /// Writes a packet with the transport-wide sequence number `number`. `None`: a packet with its sequence number was
    /// sent already, or is too old to know.
    pub fn write(&mut self, packet: &Packet, number: u64, now: Instant) -> Option<Written> {
        if !self.left.note(packet.sequence) {
            return None;
        }
        let head = Head {
            format: packet.format,
            marker: packet.marker,
            sequence: packet.sequence,
            time: packet.time,
            ssrc: self.ssrc,
            audio_level: packet.audio_level,
            orientation: packet.orientation,
        };
        let (mut bytes, head) = self.begin(&head, number, packet.payload.len());
        append(&mut bytes, &packet.payload, packet.patch);
        self.last = Some((packet.time, packet.clock_hz, now));
        self.packets = self.packets.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(packet.payload.len() as u32);
        if let (Some(_), Some(resend_format)) = (&self.resends, packet.resend_format) {
            self.keep(packet, resend_format, now);
        }
        Some(Written { bytes, head, index: packet.sequence })
    }

    fn keep(&mut self, packet: &Packet, resend_format: u8, now: Instant) {
        let at_ms = self.ms(now);
        if packet.sequence.is_multiple_of(SWEEP_EVERY) || self.kept.len() >= KEPT_MAX {
            let is_old = |kept: &CachedPacket| at_ms.saturating_sub(kept.at_ms) > KEPT_FOR.as_millis() as u32;
            while self.kept.len() >= KEPT_MAX || self.kept.front().is_some_and(is_old) {
                self.kept.pop_front();
            }
        }
        let Packet { sequence, time, patch, marker, orientation, .. } = *packet;
        let payload = packet.payload.clone();
        self.kept.push_back(CachedPacket {
            payload,
            sequence,
            time,
            at_ms,
            again_ms: 0,
            patch,
            resend_format,
            marker,
            orientation,
        });
    }

    /// Returns the milliseconds since the line was created, plus 1, because 0 means never. The range is 49 days.
    fn ms(&self, now: Instant) -> u32 {
        now.saturating_duration_since(self.born).as_millis() as u32 + 1
    }

    /// Writes the retransmission of a packet. `None`: the packet is not in the cache, is too old, or was retransmitted
    /// within `pause`.
    pub fn write_again(&mut self, sequence: u16, number: u64, pause: Duration, now: Instant) -> Option<Written> {
        let now_ms = self.ms(now);
        let at = self.kept.iter().rposition(|kept| kept.sequence as u16 == sequence)?;
        let kept = &mut self.kept[at];
        let is_late = now_ms.saturating_sub(kept.at_ms) > KEPT_FOR.as_millis() as u32;
        let is_again = kept.again_ms > 0 && now_ms.saturating_sub(kept.again_ms) < pause.as_millis() as u32;
        if is_late || is_again {
            return None;
        }
        kept.again_ms = now_ms;
        self.resend(at, number)
    }

    /// Writes one of the newest packets again as probe padding, which the client discards. Another `turn` selects
    /// another packet.
    pub fn write_probe_padding(&mut self, turn: usize, number: u64) -> Option<Written> {
        let newest = self.kept.len().min(FILLERS);
        let at = self.kept.len() - 1 - turn.checked_rem(newest)?;
        self.resend(at, number)
    }

    /// Returns whether probe padding is available and large enough.
    pub fn has_fillers(&self) -> bool {
        self.is_numbered() && self.kept.back().is_some_and(|kept| kept.payload.len() >= FILLER_BYTES_MIN)
    }

    fn resend(&mut self, at: usize, number: u64) -> Option<Written> {
        let (kept, resends) = (self.kept.get(at)?, self.resends.as_mut()?);
        let index = resends.next;
        resends.next += 1;
        let head = Head {
            format: kept.resend_format,
            marker: kept.marker,
            sequence: index,
            time: kept.time,
            ssrc: resends.ssrc,
            audio_level: None,
            orientation: kept.orientation,
        };
        let kept = self.kept.get(at)?;
        let (mut bytes, head) = self.begin(&head, number, 2 + kept.payload.len());
        bytes.extend_from_slice(&(kept.sequence as u16).to_be_bytes());
        append(&mut bytes, &kept.payload, kept.patch);
        Some(Written { bytes, head, index })
    }

    /// Writes the header of a packet into a buffer with capacity for the whole packet. Returns the buffer and the
    /// header length.
    fn begin(&self, what: &Head, number: u64, payload: usize) -> (Vec<u8>, usize) {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + EXTENSIONS_BYTES + payload + OVERHEAD_BYTES);
        bytes.extend_from_slice(&[WITH_EXTENSIONS, what.format | u8::from(what.marker) << 7]);
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
        extend(named.number, &(number as u16).to_be_bytes());
        if !self.is_known {
            extend(named.mid, self.mid.as_bytes());
        }
        if let Some((below, speaks)) = what.audio_level {
            extend(named.audio_level, &[below & 0x7f | u8::from(speaks) << 7]);
        }
        if let Some(orientation) = what.orientation {
            extend(named.orientation, &[orientation]);
        }
        if bytes.len() == HEAD_BYTES + 4 {
            bytes.truncate(HEAD_BYTES);
            bytes[0] = WITHOUT_EXTENSIONS;
            return (bytes, HEAD_BYTES);
        }
        let words = (bytes.len() - HEAD_BYTES - 4).div_ceil(4);
        let head = HEAD_BYTES + 4 + 4 * words;
        bytes.resize(head, 0);
        bytes[HEAD_BYTES + 3] = words as u8;
        (bytes, head)
    }

    /// Replaces the contents of the library's sender report, because the library has not seen the packets of this
    /// stream. Returns false if there is nothing to report.
    ///
    /// Source: RFC 3550, section 6.4.1.
    pub fn correct(&mut self, report: &mut [u8], now: Instant) -> bool {
        let Some((time, clock_hz, at)) = self.last else { return false };
        let Some(told) = report.get_mut(8..28) else { return false };
        let since = now.saturating_duration_since(at).as_secs_f64() * f64::from(clock_hz);
        told[8..12].copy_from_slice(&time.wrapping_add(since as u32).to_be_bytes());
        told[12..16].copy_from_slice(&self.packets.to_be_bytes());
        told[16..20].copy_from_slice(&self.bytes.to_be_bytes());
        self.reported = told[2..6].first_chunk().map(|middle| (u32::from_be_bytes(*middle), now));
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
    fn no_sequence_leaves_twice_however_they_come() {
        let (mut left, mut all, mut highest) = (SentSequenceWindow::default(), HashSet::new(), 1000);
        let mut dice = rand_pcg::Pcg32::new(3, 3);
        let mut refused = 0;
        for _ in 0..200_000 {
            let roll = u64::from(dice.next_u32());
            let sequence = match roll % 16 {
                0 => highest + roll / 16 % 3000,
                1..=8 => highest + 1,
                _ => highest.saturating_sub(roll / 16 % 1500),
            };
            let is_near = sequence + LEFT as u64 > highest;
            let may_leave = left.note(sequence);
            assert!(!may_leave || all.insert(sequence), "{sequence} has left twice");
            assert!(may_leave || !is_near || all.contains(&sequence), "{sequence} is refused, highest {highest}");
            refused += usize::from(!may_leave);
            highest = highest.max(sequence);
        }
        assert!(refused > 10_000 && all.len() > 100_000);
    }
}
