use std::time::{Duration, Instant};

use str0m::rtp::Vp8Descriptor;

use crate::egress::Patch;

/// Rewrites the numbers of one track for one receiver, so that sequence numbers and timestamps continue across changes
/// of the layer.
///
/// ```text
///   (nothing) ── keyframe of the wanted layer ──► layer a ── wanted: b, keyframe of b ──► layer b ..
/// ```
///
/// A packet that is lost or late between the publisher and the SFU keeps its sequence number. The receiver therefore
/// sees the loss and requests a retransmission.
#[derive(Debug, Default)]
pub struct StreamRewriter {
    layer: Option<usize>,
    pub wanted: usize,
    /// Numbers of the current layer (`base`) and of the stream (`start`) at the keyframe with which the layer began.
    base: Numbers,
    start: Numbers,
    /// Highest numbers sent.
    last: Numbers,
    sent_at: Option<Instant>,
    /// Number of changes from one layer to another.
    pub switches: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    sequence: u64,
    time: u64,
    picture: u16,
    first_layer: u8,
}

/// One packet of a layer, parsed once for all receivers.
pub struct Packet<'a> {
    pub layer: usize,
    /// Extended sequence number, which does not wrap.
    pub sequence: u64,
    /// Extended timestamp in units of the clock, which does not wrap.
    pub time: u64,
    pub clock_hz: u32,
    /// A keyframe begins with this packet. Always true for audio, where every packet can be decoded alone.
    pub is_key: bool,
    pub vp8: Option<&'a Vp8Descriptor>,
}

/// Numbers of a packet in a receiver's stream.
#[derive(Debug, PartialEq)]
pub struct Renumbered {
    pub sequence: u64,
    pub time: u32,
    pub patch: Option<Patch>,
}

/// First sequence number of a stream. It is far enough from 0 to leave numbers for packets that arrive late, from
/// before the first one. It is below 65,536 because the receiver cannot learn the rollover count.
const FIRST_SEQUENCE: u64 = 1000;
const PICTURE_MASK: u16 = 0x7fff;

impl StreamRewriter {
    /// Returns the layer that is being sent now.
    pub fn layer(&self) -> Option<usize> {
        self.layer
    }

    /// Returns whether the receiver waits for a keyframe of the wanted layer.
    pub fn is_waiting(&self) -> bool {
        self.layer != Some(self.wanted)
    }

    /// Detaches the stream from its source. The next source begins with a keyframe.
    pub fn detach(&mut self) {
        self.layer = None;
        self.wanted = 0;
    }

    /// Returns the numbers of the packet in this receiver's stream. `None`: the packet is not sent to this receiver.
    pub fn renumber(&mut self, packet: &Packet<'_>, now: Instant) -> Option<Renumbered> {
        if packet.layer == self.wanted && self.is_waiting() && packet.is_key {
            self.begin(packet, now);
        }
        if self.layer != Some(packet.layer) {
            return None;
        }
        // The packet precedes the keyframe that began this layer: it is useless, and its number belongs to the previous
        // layer.
        let ahead = packet.sequence.checked_sub(self.base.sequence)?;
        let sequence = self.start.sequence + ahead;
        let time = self.start.time.wrapping_add(packet.time.wrapping_sub(self.base.time));
        let patch = packet.vp8.and_then(|descriptor| self.patch(descriptor));
        if sequence > self.last.sequence {
            (self.last.sequence, self.last.time) = (sequence, time);
            self.sent_at = Some(now);
        }
        Some(Renumbered { sequence, time: time as u32, patch })
    }

    fn begin(&mut self, packet: &Packet<'_>, now: Instant) {
        self.base = Numbers {
            sequence: packet.sequence,
            time: packet.time,
            picture: packet.vp8.and_then(Vp8Descriptor::picture_id).unwrap_or(0),
            first_layer: packet.vp8.and_then(Vp8Descriptor::tl0_pic_idx).unwrap_or(0),
        };
        self.start = match self.sent_at {
            None => Numbers { sequence: FIRST_SEQUENCE, ..self.base },
            Some(sent_at) => {
                self.switches += 1;
                let pause = now.saturating_duration_since(sent_at).max(Duration::from_millis(1));
                Numbers {
                    sequence: self.last.sequence + 1,
                    time: self.last.time.wrapping_add((pause.as_secs_f64() * f64::from(packet.clock_hz)) as u64),
                    picture: self.last.picture.wrapping_add(1) & PICTURE_MASK,
                    first_layer: self.last.first_layer.wrapping_add(1),
                }
            }
        };
        (self.last.picture, self.last.first_layer) = (self.start.picture, self.start.first_layer);
        self.layer = Some(packet.layer);
    }

    /// Continues the numbers inside the VP8 payload. `None`: the payload needs no change.
    fn patch(&mut self, descriptor: &Vp8Descriptor) -> Option<Patch> {
        let picture = descriptor.picture_id()?;
        let ahead = picture.wrapping_sub(self.base.picture) & PICTURE_MASK;
        let ours = self.start.picture.wrapping_add(ahead) & PICTURE_MASK;
        // A distance of more than half of the number range means that the number is older.
        if ours.wrapping_sub(self.last.picture) & PICTURE_MASK < PICTURE_MASK / 2 {
            self.last.picture = ours;
        }
        let mut patch = Patch { picture: ours, first_layer: None };
        let mut is_same = ours == picture;
        if let Some(index) = descriptor.tl0_pic_idx() {
            let ours = self.start.first_layer.wrapping_add(index.wrapping_sub(self.base.first_layer));
            if ours.wrapping_sub(self.last.first_layer) < u8::MAX / 2 {
                self.last.first_layer = ours;
            }
            patch.first_layer = Some(ours);
            is_same &= ours == index;
        }
        (!is_same).then_some(patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn start() -> Instant {
        Instant::now()
    }

    fn packet(layer: usize, sequence: u64, time: u64, is_key: bool) -> Packet<'static> {
        Packet { layer, sequence, time, clock_hz: 90_000, is_key, vp8: None }
    }

    #[test]
    fn stream_begins_at_keyframe_and_keeps_gaps() {
        let (mut rewriter, now) = (StreamRewriter::default(), start());
        assert_eq!(rewriter.renumber(&packet(0, 70_000, 5, false), now), None);
        let sequences = [(70_001, true), (70_002, false), (70_005, false), (70_003, false), (70_000, false)].map(
            |(sequence, is_key)| rewriter.renumber(&packet(0, sequence, 9, is_key), now).map(|sent| sent.sequence),
        );
        assert_eq!(sequences, [Some(1000), Some(1001), Some(1004), Some(1002), None]);
    }

    #[test]
    fn layer_switch_begins_at_keyframe() {
        let (mut rewriter, now) = (StreamRewriter::default(), start());
        rewriter.renumber(&packet(0, 10, 1000, true), now).unwrap();
        rewriter.renumber(&packet(0, 11, 1000 + 3000, false), now + Duration::from_millis(33)).unwrap();
        rewriter.wanted = 1;
        assert!(rewriter.is_waiting());
        let later = now + Duration::from_millis(66);
        assert_eq!(rewriter.renumber(&packet(1, 500_000, 77, false), later), None, "no key frame");
        assert_eq!(
            rewriter.renumber(&packet(0, 12, 7000, false), later).unwrap().sequence,
            1002,
            "until then the old one"
        );
        let later = later + Duration::from_millis(33);
        let first = rewriter.renumber(&packet(1, 500_009, 99, true), later).unwrap();
        assert_eq!((first.sequence, first.time), (1003, 7000 + 2970));
        assert_eq!(rewriter.renumber(&packet(0, 13, 10_000, false), later), None, "the old one has ended");
        assert_eq!((rewriter.layer(), rewriter.switches), (Some(1), 1));
    }

    #[test]
    fn vp8_picture_ids_continue_across_layers() {
        let (mut rewriter, now) = (StreamRewriter::default(), start());
        // A descriptor with extension and a 15-bit picture ID; partition 0 of a keyframe begins.
        let payload = |picture: u16| [0x90, 0x80, 0x80 | (picture >> 8) as u8, picture as u8, 0, 0];
        let mut pass = |layer, sequence, picture: u16| {
            let payload = payload(picture);
            let descriptor = Vp8Descriptor::parse(&payload).unwrap();
            rewriter.wanted = layer;
            let packet = Packet { vp8: Some(&descriptor), ..packet(layer, sequence, 0, true) };
            let sent = rewriter.renumber(&packet, now).unwrap();
            let mut ours = payload;
            if let Some(patch) = sent.patch {
                patch.apply(&mut ours);
            }
            u16::from_be_bytes([ours[2] & 0x7f, ours[3]])
        };
        assert_eq!(pass(0, 1, 0x7ffe), 0x7ffe);
        assert_eq!(pass(0, 2, 0x7fff), 0x7fff);
        assert_eq!(pass(1, 900, 40), 0, "the next of the stream, not of the layer");
        assert_eq!(pass(1, 901, 41), 1);
    }
}
