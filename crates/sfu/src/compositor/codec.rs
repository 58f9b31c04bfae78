//! Decoder and encoder. Both are Rust without `unsafe`; a panic is contained.

use millrace_rtc::contain;
use rusty_h264::{Decoder, Encoder, EncoderConfig, YuvFrame};

use super::{
    check::check,
    color::Color,
    depacketizer::AccessUnit,
    nal::{KEY_SLICE, kind, nal_units},
    sps::{color_of, describe_color},
};

/// Bit rate of the composite stream.
pub const BITS_PER_S: u32 = 700_000;
/// Level 3.1, as negotiated. Source: ITU-T H.264, table A-1.
const LEVEL: u8 = 31;
/// Maximum number of frames between two keyframes, a minute. Receivers request the keyframes that they need.
const KEYFRAME_INTERVAL_MAX: u32 = 30 * 60;

/// Decoder of one stream.
pub struct VideoDecoder {
    decoder: Box<Decoder>,
    needs_key: bool,
    /// Color description of the last keyframe that was decoded.
    color: Color,
}

/// Encoder of the composite stream.
pub struct VideoEncoder {
    size: (usize, usize),
    frames_per_s: u32,
    encoder: Option<Box<Encoder>>,
}

/// An encoded frame.
pub struct Encoded {
    pub is_key: bool,
    /// NAL units with start codes.
    pub bytes: Vec<u8>,
}

impl Default for VideoDecoder {
    fn default() -> Self {
        Self { decoder: Box::default(), needs_key: true, color: Color::default() }
    }
}

impl VideoDecoder {
    /// Returns whether only a keyframe can be decoded next.
    pub fn needs_key(&self) -> bool {
        self.needs_key
    }

    /// Returns how the frames become colors.
    pub fn color(&self) -> Color {
        self.color
    }

    /// Skips access units up to the next keyframe.
    pub fn skip(&mut self) {
        self.needs_key = true;
    }

    /// Decodes an access unit. `None`: it has no complete frame, or it is not supported. In that case the next access
    /// unit must be a keyframe.
    pub fn decode(&mut self, unit: &AccessUnit) -> Option<YuvFrame> {
        if self.needs_key {
            if !unit.is_key {
                return None;
            }
            *self.decoder = Decoder::default();
        }
        self.needs_key = true;
        check(&unit.bytes).ok()?;
        if unit.is_key {
            self.color = color_of(&unit.bytes);
        }
        let frame = contain(|| self.decoder.decode(&unit.bytes))?.ok()?;
        self.needs_key = false;
        frame.filter(is_complete)
    }
}

fn is_complete(frame: &YuvFrame) -> bool {
    let YuvFrame { width, height, y, u, v } = frame;
    let chroma = (width / 2) * (height / 2);
    chroma > 0 && (y.len(), u.len(), v.len()) == (width * height, chroma, chroma)
}

impl VideoEncoder {
    pub fn new(size: (usize, usize), frames_per_s: u32) -> Self {
        Self { size, frames_per_s, encoder: None }
    }

    /// Encodes a frame of the size of this encoder, whose colors are those of [`Color::default`]. `None`: the encoder
    /// has failed; the next frame begins anew.
    pub fn encode(&mut self, frame: &YuvFrame, is_key: bool) -> Option<Encoded> {
        let Self { size: (width, height), frames_per_s, encoder } = self;
        let mut used = match encoder.take() {
            Some(encoder) => encoder,
            None => {
                let mut config = EncoderConfig::baseline(*width, *height);
                (config.bitrate, config.framerate) = (BITS_PER_S, *frames_per_s as f32);
                (config.level_idc, config.gop_size) = (LEVEL, KEYFRAME_INTERVAL_MAX);
                Box::new(Encoder::new(config).ok()?)
            }
        };
        let work = || {
            if is_key {
                used.request_keyframe();
            }
            let bytes = used.try_encode(frame);
            (used, bytes)
        };
        let (used, bytes) = contain(work)?;
        *encoder = Some(used);
        let bytes = bytes.ok().filter(|bytes| !bytes.is_empty())?;
        let is_key = nal_units(&bytes).any(|unit| kind(unit) == Some(KEY_SLICE));
        // The encoder describes no color, and browsers would show the colors of BT.601 as those of BT.709.
        Some(Encoded { is_key, bytes: if is_key { describe_color(&bytes) } else { bytes } })
    }
}
