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

/// One line of the description over which a stream is sent: how its packets look, what is kept of them, and what is told of them.
pub struct Line {
    pub mid: Mid,
    pub ssrc: u32,
    /// What is sent again goes under a number of its own. Source: RFC 4588.
    resends: Option<Resends>,
    extensions: Extensions,
    /// The other end has reported of this stream, and so knows which line it is of.
    is_known: bool,
    kept: VecDeque<Kept>,
    /// The time of the newest packet, in its clock's units, and when it left.
    last: Option<(u32, u32, Instant)>,
    packets: u32,
    bytes: u32,
    /// The middle of the clock in its newest report, and when that left.
    pub reported: Option<(u32, Instant)>,
}

struct Resends {
    ssrc: u32,
    next: u64,
}

/// What the other end calls the extensions of a packet's head. Source: RFC 8285.
struct Extensions {
    number: Option<u8>,
    mid: Option<u8>,
    audio_level: Option<u8>,
    orientation: Option<u8>,
}

/// A packet that is to leave.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Of its payload, as the other end calls it.
    pub format: u8,
    /// The same for one that is sent again; `None`: it cannot be.
    pub resend_format: Option<u8>,
    /// Does not wrap; the first is below 65,536.
    pub sequence: u64,
    pub time: u32,
    pub clock_hz: u32,
    pub marker: bool,
    /// Decibels below the loudest, and whether somebody speaks.
    pub audio_level: Option<(u8, bool)>,
    pub orientation: Option<u8>,
    pub patch: Option<Patch>,
    pub payload: Arc<[u8]>,
}

/// For whoever asks for it again.
struct Kept {
    packet: Packet,
    at: Instant,
    again: Option<Instant>,
}

/// What is kept of a stream.
const KEPT_MAX: usize = 512;
const KEPT_FOR: Duration = Duration::from_secs(2);
/// So many of the newest are sent again where only the bytes matter.
const FILLERS: usize = 16;
const FILLER_BYTES_MIN: usize = 200;
const HEAD_BYTES: usize = 12;
/// Of the extensions that are written, at most.
const EXTENSIONS_BYTES: usize = 4 + 32;
/// One-byte heads have no other names.
const EXTENSION_MAX: u8 = 14;
const WITH_EXTENSIONS: u16 = 0xbede;

/// A packet as it leaves, but for its seal: the bytes, how many of them are its head, and its number for the seal.
pub struct Written {
    pub bytes: Vec<u8>,
    pub head: usize,
    pub index: u64,
}

impl Line {
    /// `extensions`: as the other end has named them; `resends`: the number of the stream for what is sent again, if there is one.
    pub fn new(mid: Mid, extensions: &ExtensionMap, ssrc: u32, resends: Option<u32>) -> Self {
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
            kept: VecDeque::new(),
            last: None,
            packets: 0,
            bytes: 0,
            reported: None,
        }
    }

    /// Its packets are counted together with all others, so that the other end tells when each has come.
    pub fn is_numbered(&self) -> bool {
        self.extensions.number.is_some()
    }

    pub fn is_known(&mut self) {
        self.is_known = true;
    }

    /// `number`: what is told of the packet by the extension for it.
    pub fn write(&mut self, packet: &Packet, number: u64, now: Instant) -> Written {
        let (bytes, head) = self.begin((packet.format, packet.sequence, self.ssrc), packet, number, 0);
        let written = append(bytes, head, packet);
        self.last = Some((packet.time, packet.clock_hz, now));
        self.packets = self.packets.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(packet.payload.len() as u32);
        if self.resends.is_some() && packet.resend_format.is_some() {
            let is_old = |kept: &Kept| now.saturating_duration_since(kept.at) > KEPT_FOR;
            while self.kept.len() >= KEPT_MAX || self.kept.front().is_some_and(is_old) {
                self.kept.pop_front();
            }
            self.kept.push_back(Kept { packet: packet.clone(), at: now, again: None });
        }
        written
    }

    /// What was asked for again, if it is still there and was not sent again within `pause`.
    pub fn write_again(&mut self, sequence: u16, number: u64, pause: Duration, now: Instant) -> Option<Written> {
        let at = self.kept.iter().rposition(|kept| kept.packet.sequence as u16 == sequence)?;
        let kept = &mut self.kept[at];
        if kept.again.is_some_and(|again| now.saturating_duration_since(again) < pause) {
            return None;
        }
        kept.again = Some(now);
        self.resend(at, number)
    }

    /// One of the newest packets, which the other end throws away: for its bytes alone. Another one with another `turn`.
    pub fn write_filler(&mut self, turn: usize, number: u64) -> Option<Written> {
        let newest = self.kept.len().min(FILLERS);
        let at = self.kept.len() - 1 - turn.checked_rem(newest)?;
        self.resend(at, number)
    }

    /// Whether there are fillers, of a size that is worth a packet.
    pub fn has_fillers(&self) -> bool {
        self.is_numbered() && self.kept.back().is_some_and(|kept| kept.packet.payload.len() >= FILLER_BYTES_MIN)
    }

    fn resend(&mut self, at: usize, number: u64) -> Option<Written> {
        let packet = self.kept.get(at)?.packet.clone();
        let (format, resends) = (packet.resend_format?, self.resends.as_mut()?);
        let name = (format, resends.next, resends.ssrc);
        resends.next += 1;
        let (mut bytes, head) = self.begin(name, &packet, number, 2);
        bytes.extend_from_slice(&(packet.sequence as u16).to_be_bytes());
        Some(Written { index: name.1, ..append(bytes, head, &packet) })
    }

    /// The head of a packet, in a buffer that has room for all of it.
    fn begin(
        &self,
        (format, sequence, ssrc): (u8, u64, u32),
        packet: &Packet,
        number: u64,
        more: usize,
    ) -> (Vec<u8>, usize) {
        let room = HEAD_BYTES + EXTENSIONS_BYTES + more + packet.payload.len() + OVERHEAD_BYTES;
        let mut bytes = Vec::with_capacity(room);
        bytes.extend_from_slice(&[0x90, format | u8::from(packet.marker) << 7]);
        bytes.extend_from_slice(&(sequence as u16).to_be_bytes());
        bytes.extend_from_slice(&packet.time.to_be_bytes());
        bytes.extend_from_slice(&ssrc.to_be_bytes());
        bytes.extend_from_slice(&WITH_EXTENSIONS.to_be_bytes());
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
        if let Some((below, speaks)) = packet.audio_level {
            extend(named.audio_level, &[below & 0x7f | u8::from(speaks) << 7]);
        }
        if let Some(orientation) = packet.orientation {
            extend(named.orientation, &[orientation]);
        }
        let words = (bytes.len() - HEAD_BYTES - 4).div_ceil(4);
        let head = HEAD_BYTES + 4 + 4 * words;
        bytes.resize(head, 0);
        bytes[HEAD_BYTES + 3] = words as u8;
        (bytes, head)
    }

    /// What a report of this stream says now, in place of the library's, which has seen none of it. False: there is nothing to report of.
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

fn append(mut bytes: Vec<u8>, head: usize, packet: &Packet) -> Written {
    let at = bytes.len();
    bytes.extend_from_slice(&packet.payload);
    if let Some(patch) = packet.patch {
        patch.apply(&mut bytes[at..]);
    }
    Written { bytes, head, index: packet.sequence }
}
