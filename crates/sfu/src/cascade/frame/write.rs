//! Encoding of frames.

use super::{
    ACK, FIRST_BYTE, FRAME_BYTES_MAX, HAS_LEVEL, HAS_ORIENTATION, HEAD_BYTES, HELLO, Head, IS_SPEECH, KEYFRAME,
    LAYER_BITS, LEVELS, MARKER, MEDIA, MEDIA_HEAD_BYTES, MISSING, NACK, NACK_MAX, PADDING, RATES, REPORT, REPORT_MAX,
    SENDER_REPORT, SenderReport, TABLE, TICK_US, Table, VERSION, push_text,
};
use crate::cascade::{
    OVERHEAD_BYTES,
    packet::{Handle, LAYERS_MAX, NODE_BYTES_MAX, NodeId, Packet},
};

fn begin(kind: u8, head: Head, capacity: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + capacity);
    bytes.extend_from_slice(&[FIRST_BYTE + VERSION, kind]);
    bytes.extend_from_slice(&head.epoch.to_be_bytes());
    bytes.extend_from_slice(&head.sequence.to_be_bytes());
    bytes
}

pub fn hello(head: Head, node: &NodeId, known_epoch: u32) -> Vec<u8> {
    let mut bytes = begin(HELLO, head, 5 + NODE_BYTES_MAX);
    bytes.extend_from_slice(&known_epoch.to_be_bytes());
    push_text(&mut bytes, node.as_str());
    bytes
}

/// Returns the frame of a media packet. `None`: the payload is too large.
pub fn media(head: Head, handle: Handle, packet: &Packet) -> Option<Vec<u8>> {
    if packet.payload.len() > FRAME_BYTES_MAX - MEDIA_HEAD_BYTES {
        return None;
    }
    let mut bytes = begin(MEDIA, head, 15 + packet.payload.len() + OVERHEAD_BYTES);
    bytes.extend_from_slice(&handle.0.to_be_bytes());
    let (mut flags, mut extra) = (u8::from(packet.marker) * MARKER, 0);
    if let Some((level, is_speech)) = packet.audio_level {
        (flags, extra) = (flags | HAS_LEVEL | (u8::from(is_speech) * IS_SPEECH), level & 0x7f);
    } else if let Some(orientation) = packet.orientation {
        (flags, extra) = (flags | HAS_ORIENTATION, orientation);
    }
    bytes.extend_from_slice(&[packet.codec.number() << 4 | packet.layer & LAYER_BITS, flags, extra]);
    bytes.extend_from_slice(&(packet.sequence as u32).to_be_bytes());
    bytes.extend_from_slice(&(packet.time as u32).to_be_bytes());
    bytes.extend_from_slice(&packet.payload);
    Some(bytes)
}

/// Returns an arrival report. `times`: arrival times in microseconds of the receiver's clock; `None`: not arrived.
pub fn report(head: Head, first: u64, delay_us: u32, times: impl Iterator<Item = Option<i64>> + Clone) -> Vec<u8> {
    let base_us = times.clone().flatten().min().unwrap_or(0);
    let mut bytes = begin(REPORT, head, 20 + 2 * REPORT_MAX);
    bytes.extend_from_slice(&first.to_be_bytes());
    bytes.extend_from_slice(&delay_us.to_be_bytes());
    bytes.extend_from_slice(&(base_us as u64).to_be_bytes());
    for time in times.take(REPORT_MAX) {
        let ticks = time.map_or(MISSING, |time| ((time - base_us) / TICK_US).clamp(0, i64::from(MISSING - 1)) as u16);
        bytes.extend_from_slice(&ticks.to_be_bytes());
    }
    bytes
}

/// Returns a NACK of these numbers, which are in increasing order and at most [`NACK_MAX`].
pub fn nack(head: Head, missing: &[u64]) -> Vec<u8> {
    let first = missing.first().copied().unwrap_or(0);
    let mut bytes = begin(NACK, head, 8 + 4 * missing.len());
    bytes.extend_from_slice(&first.to_be_bytes());
    for number in missing.iter().take(NACK_MAX) {
        bytes.extend_from_slice(&((number - first) as u32).to_be_bytes());
    }
    bytes
}

pub fn table(head: Head, table: Table, version: u32, (part, last_part): (u8, u8), entries: &[u8]) -> Vec<u8> {
    let mut bytes = begin(TABLE, head, 7 + entries.len());
    bytes.push(table as u8);
    bytes.extend_from_slice(&version.to_be_bytes());
    bytes.extend_from_slice(&[part, last_part]);
    bytes.extend_from_slice(entries);
    bytes
}

pub fn ack(head: Head, table: Table, version: u32, part: u8) -> Vec<u8> {
    let mut bytes = begin(ACK, head, 6);
    bytes.push(table as u8);
    bytes.extend_from_slice(&version.to_be_bytes());
    bytes.push(part);
    bytes
}

pub fn keyframe(head: Head, handle: Handle, layer: u8) -> Vec<u8> {
    let mut bytes = begin(KEYFRAME, head, 5);
    bytes.extend_from_slice(&handle.0.to_be_bytes());
    bytes.push(layer);
    bytes
}

/// Maximum number of tracks in one frame of rates, and of levels.
pub const RATES_MAX: usize = 60;
pub const LEVELS_MAX: usize = 250;

pub fn rates(head: Head, rates: &[(Handle, [u32; LAYERS_MAX])]) -> Vec<u8> {
    let mut bytes = begin(RATES, head, 20 * rates.len());
    for (handle, kbps) in rates.iter().take(RATES_MAX) {
        bytes.extend_from_slice(&handle.0.to_be_bytes());
        kbps.iter().for_each(|kbps| bytes.extend_from_slice(&kbps.to_be_bytes()));
    }
    bytes
}

pub fn levels(head: Head, levels: &[(Handle, u8)]) -> Vec<u8> {
    let mut bytes = begin(LEVELS, head, 5 * levels.len());
    for (handle, level) in levels.iter().take(LEVELS_MAX) {
        bytes.extend_from_slice(&handle.0.to_be_bytes());
        bytes.push(*level);
    }
    bytes
}

pub fn sender_report(head: Head, report: SenderReport) -> Vec<u8> {
    let mut bytes = begin(SENDER_REPORT, head, 17);
    bytes.extend_from_slice(&report.handle.0.to_be_bytes());
    bytes.push(report.layer);
    bytes.extend_from_slice(&report.rtp.to_be_bytes());
    bytes.extend_from_slice(&report.ntp.to_be_bytes());
    bytes
}

/// Returns a frame of `size` bytes that only tests the bandwidth.
pub fn padding(head: Head, size: usize) -> Vec<u8> {
    let mut bytes = begin(PADDING, head, size);
    bytes.resize(size.clamp(HEAD_BYTES, FRAME_BYTES_MAX), 0);
    bytes
}
