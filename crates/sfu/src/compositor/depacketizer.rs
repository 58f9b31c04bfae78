use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use super::nal::{KEY_SLICE, PICTURE_PARAMETERS, SEQUENCE_PARAMETERS, SLICE, START_CODE, TYPE_MASK};

/// Maximum time that a missing packet is waited for. A retransmission takes a round trip.
const REORDER_TIME_MAX: Duration = Duration::from_millis(250);
/// Maximum number of buffered packets; if there are more, the oldest ones are dropped.
const PACKETS_MAX: usize = 1024;
/// Maximum size of an access unit.
pub const UNIT_BYTES_MAX: usize = 512 * 1024;
/// A sequence number that differs from the expected one by more than this belongs to a new stream.
const SEQUENCE_JUMP_MAX: u64 = 3000;

/// Types of payloads. Source: RFC 6184, table 1.
const SINGLE_MAX: u8 = 23;
const AGGREGATE: u8 = 24;
pub const FRAGMENT: u8 = 28;
/// Bits of the second byte of a fragment.
pub const FRAGMENT_START: u8 = 0x80;
pub const FRAGMENT_END: u8 = 0x40;

/// One RTP packet of an H.264 stream.
#[derive(Clone, Debug)]
pub struct VideoPacket {
    /// Sequence number that does not wrap.
    pub sequence: u64,
    /// Timestamp in units of the clock, which does not wrap.
    pub time: u64,
    pub marker: bool,
    pub payload: Arc<[u8]>,
}

/// One coded picture with its parameter sets: NAL units with start codes (Annex B).
#[derive(Debug, PartialEq)]
pub struct AccessUnit {
    /// Arrival time of its first packet.
    pub arrived: Instant,
    pub is_key: bool,
    pub bytes: Vec<u8>,
}

/// Puts the RTP packets of an H.264 stream in order and joins them to access units.
///
/// ```text
///   waiting ── packet with parameter sets ──► in order ── packet missing for 250 ms, or invalid packet ──► waiting
/// ```
///
/// Source: RFC 6184, packetization modes 0 and 1.
#[derive(Default)]
pub struct Depacketizer {
    /// Packets with their arrival times, by sequence number.
    packets: BTreeMap<u64, (VideoPacket, Instant)>,
    /// Sequence number of the next packet; `None`: a keyframe is needed.
    next: Option<u64>,
    unit: Option<Assembly>,
}

/// Access unit that is not complete yet.
struct Assembly {
    time: u64,
    unit: AccessUnit,
    fragment: Fragment,
}

#[derive(PartialEq)]
enum Fragment {
    None,
    /// Fragments of a NAL unit that is kept.
    Kept,
    /// Fragments of a NAL unit that no decoder needs.
    Dropped,
}

/// The packet is invalid, or its access unit is too large.
struct Invalid;

impl Depacketizer {
    /// Returns whether the stream continues only with a keyframe.
    pub fn is_waiting(&self) -> bool {
        self.next.is_none()
    }

    /// Buffers a packet that has arrived. A packet that is late or a duplicate is dropped.
    pub fn push(&mut self, packet: VideoPacket, now: Instant) {
        if self.next.is_some_and(|next| packet.sequence.abs_diff(next) > SEQUENCE_JUMP_MAX) {
            // The sender has started a new stream.
            *self = Self::default();
        }
        if self.next.is_some_and(|next| packet.sequence < next) {
            return;
        }
        self.packets.entry(packet.sequence).or_insert((packet, now));
        if self.packets.len() > PACKETS_MAX {
            self.packets.pop_first();
        }
    }

    /// Returns the next access unit that is complete. `None`: packets are missing.
    pub fn poll(&mut self, now: Instant) -> Option<AccessUnit> {
        loop {
            let next = match self.next {
                Some(next) => next,
                None => self.begin()?,
            };
            let Some((packet, arrived)) = self.packets.remove(&next) else {
                let oldest = self.packets.values().map(|(_, arrived)| *arrived).min()?;
                if now.saturating_duration_since(oldest) <= REORDER_TIME_MAX {
                    return None;
                }
                self.lose();
                continue;
            };
            // A packet with another timestamp ends the access unit, too.
            if self.unit.as_ref().is_some_and(|assembly| assembly.time != packet.time) {
                let unit = self.finish();
                self.packets.insert(next, (packet, arrived));
                match unit {
                    Some(unit) => return Some(unit),
                    None => continue,
                }
            }
            self.next = Some(next + 1);
            let assembly = self.unit.get_or_insert_with(|| Assembly::new(packet.time, arrived));
            assembly.unit.arrived = assembly.unit.arrived.min(arrived);
            if assembly.append(&packet.payload).is_err() {
                self.lose();
            } else if packet.marker
                && let Some(unit) = self.finish()
            {
                return Some(unit);
            }
        }
    }

    /// Continues with the first keyframe that has arrived, and drops what precedes it.
    fn begin(&mut self) -> Option<u64> {
        let mut begins = self.packets.iter().filter(|(_, (packet, _))| has_parameters(&packet.payload));
        let begin = *begins.next()?.0;
        self.packets = self.packets.split_off(&begin);
        self.next = Some(begin);
        Some(begin)
    }

    /// Takes the access unit. `None`: it is empty, or its last NAL unit is incomplete.
    fn finish(&mut self) -> Option<AccessUnit> {
        let assembly = self.unit.take()?;
        if assembly.fragment != Fragment::None {
            self.lose();
            return None;
        }
        Some(assembly.unit).filter(|unit| !unit.bytes.is_empty())
    }

    fn lose(&mut self) {
        self.unit = None;
        self.next = None;
    }
}

impl Assembly {
    fn new(time: u64, arrived: Instant) -> Self {
        let unit = AccessUnit { arrived, is_key: false, bytes: Vec::new() };
        Self { time, unit, fragment: Fragment::None }
    }

    fn append(&mut self, payload: &[u8]) -> Result<(), Invalid> {
        // A packet without payload is padding.
        let Some((head, rest)) = payload.split_first() else { return Ok(()) };
        let kind = head & TYPE_MASK;
        if self.fragment != Fragment::None && kind != FRAGMENT {
            return Err(Invalid);
        }
        match kind {
            1..=SINGLE_MAX => self.append_unit(payload),
            AGGREGATE => {
                let mut rest = rest;
                while !rest.is_empty() {
                    let (length, after) = rest.split_first_chunk().ok_or(Invalid)?;
                    let length = usize::from(u16::from_be_bytes(*length));
                    let unit = after.get(..length).filter(|unit| !unit.is_empty()).ok_or(Invalid)?;
                    self.append_unit(unit)?;
                    rest = &after[length..];
                }
                Ok(())
            }
            FRAGMENT => {
                let (flags, data) = rest.split_first().ok_or(Invalid)?;
                let is_start = flags & FRAGMENT_START != 0;
                if is_start != (self.fragment == Fragment::None) {
                    return Err(Invalid);
                }
                if is_start {
                    let kind = flags & TYPE_MASK;
                    self.fragment = if is_needed(kind) { Fragment::Kept } else { Fragment::Dropped };
                    if self.fragment == Fragment::Kept {
                        self.unit.is_key |= kind == KEY_SLICE;
                        self.extend(&START_CODE)?;
                        self.extend(&[head & !TYPE_MASK | kind])?;
                    }
                }
                if self.fragment == Fragment::Kept {
                    self.extend(data)?;
                }
                if flags & FRAGMENT_END != 0 {
                    self.fragment = Fragment::None;
                }
                Ok(())
            }
            _ => Err(Invalid),
        }
    }

    fn append_unit(&mut self, unit: &[u8]) -> Result<(), Invalid> {
        let kind = unit[0] & TYPE_MASK;
        if !is_needed(kind) {
            return Ok(());
        }
        self.unit.is_key |= kind == KEY_SLICE;
        self.extend(&START_CODE)?;
        self.extend(unit)
    }

    fn extend(&mut self, bytes: &[u8]) -> Result<(), Invalid> {
        if self.unit.bytes.len() + bytes.len() > UNIT_BYTES_MAX {
            return Err(Invalid);
        }
        self.unit.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

fn is_needed(kind: u8) -> bool {
    matches!(kind, SLICE | KEY_SLICE | SEQUENCE_PARAMETERS | PICTURE_PARAMETERS)
}

/// Returns whether a payload contains the sequence parameter set with which a keyframe begins.
fn has_parameters(payload: &[u8]) -> bool {
    let kind = |byte: &u8| byte & TYPE_MASK;
    match payload.first().map(kind) {
        Some(SEQUENCE_PARAMETERS) => true,
        Some(AGGREGATE) => {
            let mut rest = &payload[1..];
            while let Some((length, after)) = rest.split_first_chunk::<2>() {
                if after.first().map(kind) == Some(SEQUENCE_PARAMETERS) {
                    return true;
                }
                rest = after.get(usize::from(u16::from_be_bytes(*length))..).unwrap_or_default();
            }
            false
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn start() -> Instant {
        Instant::now()
    }

    fn packet(sequence: u64, time: u64, marker: bool, payload: &[u8]) -> VideoPacket {
        VideoPacket { sequence, time, marker, payload: payload.into() }
    }

    /// Parameter sets, and a keyframe in three fragments.
    fn keyframe(first: u64, time: u64) -> Vec<VideoPacket> {
        vec![
            packet(first, time, false, &[0x78, 0, 3, 0x67, 1, 2, 0, 2, 0x68, 3]),
            packet(first + 1, time, false, &[0x7c, 0x85, 4]),
            packet(first + 2, time, false, &[0x7c, 0x05, 5]),
            packet(first + 3, time, true, &[0x7c, 0x45, 6]),
        ]
    }

    const KEY: &[u8] = &[0, 0, 0, 1, 0x67, 1, 2, 0, 0, 0, 1, 0x68, 3, 0, 0, 0, 1, 0x65, 4, 5, 6];

    #[test]
    fn packets_in_any_order_become_access_units() {
        let (mut depacketizer, now) = (Depacketizer::default(), start());
        assert!(depacketizer.is_waiting());
        depacketizer.push(packet(9, 1, true, &[0x41, 7]), now);
        let mut packets = keyframe(10, 2);
        packets.push(packet(14, 3, false, &[0x06, 9]));
        packets.push(packet(15, 3, true, &[0x41, 7]));
        packets.push(packet(15, 3, true, &[0x41, 7]));
        packets.swap(1, 3);
        packets.swap(0, 4);
        for one in packets {
            depacketizer.push(one, now);
        }
        let key = depacketizer.poll(now).unwrap();
        assert_eq!((key.is_key, key.bytes.as_slice()), (true, KEY));
        let delta = depacketizer.poll(now).unwrap();
        assert_eq!((delta.is_key, delta.bytes.as_slice()), (false, &[0, 0, 0, 1, 0x41, 7][..]), "no SEI, no duplicate");
        assert_eq!(depacketizer.poll(now), None);
        assert!(!depacketizer.is_waiting());
    }

    #[test]
    fn lost_packet_requires_keyframe_after_timeout() {
        let (mut depacketizer, now) = (Depacketizer::default(), start());
        keyframe(10, 2).into_iter().for_each(|one| depacketizer.push(one, now));
        assert!(depacketizer.poll(now).is_some());
        depacketizer.push(packet(15, 4, true, &[0x41, 8]), now);
        let later = now + REORDER_TIME_MAX;
        assert_eq!((depacketizer.poll(later), depacketizer.is_waiting()), (None, false), "it may be retransmitted");
        let later = later + Duration::from_millis(1);
        assert_eq!((depacketizer.poll(later), depacketizer.is_waiting()), (None, true));
        keyframe(16, 5).into_iter().for_each(|one| depacketizer.push(one, later));
        assert!(depacketizer.poll(later).unwrap().is_key);
    }

    #[test]
    fn invalid_fragments_are_not_decoded() {
        let now = start();
        for (broken, payload) in
            [(1, vec![0x7c, 0x05, 4]), (2, vec![0x7c, 0x85, 5]), (2, vec![0x41, 5]), (3, vec![0x7c])]
        {
            let mut depacketizer = Depacketizer::default();
            let mut packets = keyframe(10, 2);
            packets[broken].payload = payload.into();
            packets.into_iter().for_each(|one| depacketizer.push(one, now));
            assert_eq!((depacketizer.poll(now), depacketizer.is_waiting()), (None, true), "{broken}");
        }
    }

    #[test]
    fn access_unit_without_marker_ends_at_next_timestamp() {
        let (mut depacketizer, now) = (Depacketizer::default(), start());
        let mut packets = keyframe(10, 2);
        packets[3].marker = false;
        packets.push(packet(14, 3, true, &[0x41, 7]));
        packets.into_iter().for_each(|one| depacketizer.push(one, now));
        assert_eq!(depacketizer.poll(now).unwrap().bytes, KEY);
        assert!(!depacketizer.poll(now).unwrap().is_key);
    }

    #[test]
    fn access_unit_and_buffer_are_limited() {
        let (mut depacketizer, now) = (Depacketizer::default(), start());
        depacketizer.push(packet(10, 2, false, &[0x67, 1]), now);
        let chunk = vec![0x41; 1200];
        for sequence in 11..11 + (UNIT_BYTES_MAX / 1200) as u64 + 2 {
            depacketizer.push(packet(sequence, 2, false, &chunk), now);
            assert_eq!(depacketizer.poll(now), None);
        }
        assert!(depacketizer.is_waiting());
        for sequence in 0..10_000 {
            depacketizer.push(packet(sequence, 2, false, &chunk), now);
        }
        assert!(depacketizer.packets.len() <= PACKETS_MAX);
    }
}
