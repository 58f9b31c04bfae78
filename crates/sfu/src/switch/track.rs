use std::time::{Duration, Instant};

use str0m::{
    format::Codec,
    media::{MediaKind, Mid, Rid},
    rtp::{Ssrc, Vp8Descriptor},
};

use crate::{
    cascade::{self, Handle, Layers},
    loudness::Loudness,
    member_id::MemberId,
};

/// End of the name of a stream that carries a shared screen. Source: docs/reference/rooms.md, "Screen share".
const SCREEN_SUFFIX: &str = ".screen";

/// One published track of a member, in one stream or in several layers of different quality.
#[derive(Debug)]
pub struct Track {
    pub mid: Mid,
    pub kind: MediaKind,
    /// Layers in the order of their first packets.
    pub layers: Vec<Layer>,
    /// Receivers: the member, and the index of its slot.
    pub receivers: Vec<(MemberId, usize)>,
    /// Loudness of an audio track.
    pub loudness: Loudness,
    /// A moderator has muted this track: it is not forwarded.
    pub is_muted: bool,
    /// Number of a local track on the links to other nodes.
    pub exported: Option<Handle>,
    /// Layers of a track of another node, as that node announces them.
    pub announced: Option<Announced>,
    /// Whether the track is a shared screen.
    pub is_screen: bool,
    /// Layer that the compositor gets, if the room has one.
    pub composed_layer: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    pub kbps: [u32; cascade::LAYERS_MAX],
    /// Layers that cross the link.
    pub carried: Layers,
}

/// One layer: a stream of a track.
#[derive(Debug)]
pub struct Layer {
    pub ssrc: Ssrc,
    pub rid: Option<Rid>,
    rate: Rate,
    requested: Option<Instant>,
}

/// Average bit rate, measured over windows of one second.
#[derive(Debug, Default)]
struct Rate {
    since: Option<Instant>,
    bytes: usize,
    bits_per_s: u64,
}

/// Maximum number of layers per track; a browser sends at most three.
pub const LAYERS_MAX: usize = 4;
/// Minimum interval between two keyframe requests for one layer. A keyframe costs the publisher ten times as much as
/// another frame. A request within this interval is served by the keyframe requested before.
const KEYFRAME_INTERVAL_MIN: Duration = Duration::from_millis(300);
const RATE_WINDOW: Duration = Duration::from_secs(1);

impl Track {
    /// Returns the name of the stream of this track, by the name of its member.
    pub fn stream_name(&self, member: &str) -> String {
        let suffix = if self.is_screen { SCREEN_SUFFIX } else { "" };
        format!("{member}{suffix}")
    }

    /// Returns whether the track is video other than a shared screen.
    pub fn is_camera(&self) -> bool {
        self.kind == MediaKind::Video && !self.is_screen
    }

    /// Returns the bit rates of all layers in bit/s; 0 for a layer that is not being sent.
    pub fn rates(&self, now: Instant) -> Vec<u64> {
        match &self.announced {
            Some(announced) => announced.rates(self.layers.len(), |_| true),
            None => self.layers.iter().map(|layer| layer.bits_per_s(now)).collect(),
        }
    }

    /// Returns the bit rates of the layers that arrive at this node.
    pub fn arriving_rates(&self, now: Instant) -> Vec<u64> {
        match &self.announced {
            Some(announced) => announced.rates(self.layers.len(), |layer| announced.carried.contains(layer)),
            None => self.rates(now),
        }
    }
}

impl Announced {
    fn rates(&self, layers: usize, is_counted: impl Fn(usize) -> bool) -> Vec<u64> {
        let rate = |(layer, kbps): (usize, &u32)| if is_counted(layer) { u64::from(*kbps) * 1000 } else { 0 };
        self.kbps.iter().enumerate().take(layers).map(rate).collect()
    }

    /// Returns the layer with the lowest bit rate; `None`: no layer is being sent.
    pub fn least(&self) -> Option<usize> {
        let sent = self.kbps.iter().enumerate().filter(|(_, kbps)| **kbps > 0);
        sent.min_by_key(|(_, kbps)| **kbps).map(|(layer, _)| layer)
    }
}

impl Layer {
    pub fn new(ssrc: Ssrc, rid: Option<Rid>) -> Self {
        Self { ssrc, rid, rate: Rate::default(), requested: None }
    }

    pub fn count(&mut self, bytes: usize, now: Instant) {
        self.rate.count(bytes, now);
    }

    /// Returns the bit rate of the layer. Returns 0 if the layer has not been sent for two seconds.
    pub fn bits_per_s(&self, now: Instant) -> u64 {
        let is_fresh = |since: Instant| now.saturating_duration_since(since) < 2 * RATE_WINDOW;
        if self.rate.since.is_some_and(is_fresh) { self.rate.bits_per_s.max(1) } else { 0 }
    }

    /// Returns whether a keyframe must be requested now, and records the request.
    pub fn note_request(&mut self, now: Instant) -> bool {
        let is_due =
            self.requested.is_none_or(|requested| now.saturating_duration_since(requested) >= KEYFRAME_INTERVAL_MIN);
        if is_due {
            self.requested = Some(now);
        }
        is_due
    }
}

impl Rate {
    fn count(&mut self, bytes: usize, now: Instant) {
        let since = *self.since.get_or_insert(now);
        self.bytes += bytes;
        let elapsed = now.saturating_duration_since(since);
        if elapsed >= RATE_WINDOW {
            self.bits_per_s = (self.bytes as f64 * 8.0 / elapsed.as_secs_f64()) as u64;
            (self.since, self.bytes) = (Some(now), 0);
        }
    }
}

/// Parses the VP8 descriptor of a payload. `None` for other codecs.
pub fn describe(codec: Codec, payload: &[u8]) -> Option<Vp8Descriptor> {
    match codec {
        Codec::Vp8 => Vp8Descriptor::parse(payload).ok(),
        _ => None,
    }
}

/// Returns whether a keyframe begins with this packet. Always true for audio.
pub fn is_key(codec: Codec, payload: &[u8], vp8: Option<&Vp8Descriptor>) -> bool {
    match codec {
        Codec::Vp8 => vp8.is_some_and(|descriptor| descriptor.starts_keyframe(payload)),
        Codec::H264 => begins_with_parameters(payload),
        // Audio: every packet can be decoded alone.
        _ => true,
    }
}

/// Returns whether an H.264 keyframe, or the parameter sets before it, begins with this payload.
///
/// Source: RFC 6184, sections 5.2, 5.7.1 and 5.8.
fn begins_with_parameters(payload: &[u8]) -> bool {
    const SLICE: u8 = 5;
    const PARAMETERS: u8 = 7;
    const AGGREGATE: u8 = 24;
    const FRAGMENT: u8 = 28;
    let kind = |byte: &u8| byte & 0x1f;
    match payload.first().map(kind) {
        Some(SLICE | PARAMETERS) => true,
        Some(AGGREGATE) => payload.get(3).map(kind) == Some(PARAMETERS),
        Some(FRAGMENT) => payload.get(1).is_some_and(|head| head & 0x80 != 0 && kind(head) == SLICE),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyframes_are_recognized() {
        for (key, payload) in [
            (true, &[0x67, 1][..]),
            (true, &[0x78, 0, 9, 0x67]),
            (true, &[0x7c, 0x85]),
            (false, &[0x7c, 0x05]),
            (false, &[0x41]),
            (false, &[0x78]),
            (false, &[]),
        ] {
            assert_eq!(is_key(Codec::H264, payload, None), key, "{payload:x?}");
        }
        let vp8 = |payload: &[u8]| is_key(Codec::Vp8, payload, Vp8Descriptor::parse(payload).ok().as_ref());
        assert!(vp8(&[0x10, 0x00]) && !vp8(&[0x10, 0x01]) && !vp8(&[0x00, 0x00]) && !vp8(&[]));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn layer_rate_covers_last_second() {
        let (mut layer, now) = (Layer::new(1.into(), None), Instant::now());
        for i in 0..=100 {
            layer.count(1250, now + Duration::from_millis(10 * i));
        }
        let last = now + Duration::from_secs(1);
        assert_eq!(layer.bits_per_s(last), 101 * 1250 * 8);
        assert_eq!(layer.bits_per_s(last + Duration::from_secs(2)), 0);
        assert!(
            layer.note_request(now)
                && !layer.note_request(now + Duration::from_millis(299))
                && layer.note_request(last)
        );
    }
}
