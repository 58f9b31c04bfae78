//! Sequence parameter sets of Baseline: the fields that the compositor needs, and the color description.
//!
//! Source: ITU-T H.264, sections 7.3.2.1.1 and E.1.1.

use super::{
    color::{Color, Matrix},
    error::Unsupported,
    nal::{Bits, SEQUENCE_PARAMETERS, START_CODE, Truncated, kind, nal_units},
};

const BASELINE: u32 = 66;
/// `aspect_ratio_idc` of an aspect ratio that follows. Source: table E-1.
const EXTENDED_ASPECT_RATIO: u32 = 255;
/// `matrix_coefficients` of BT.709. Source: table E-5.
const BT709: u32 = 1;
/// Values and sizes of the fields that describe BT.601 with limited range, as cameras of browsers send it. They follow
/// the cropping of a frame.
const BT601_DESCRIPTION: [(u32, u32); 9] = [
    // VUI parameters; neither aspect ratio nor overscan; a video signal.
    (0b1001, 4),
    // `video_format`: unspecified.
    (5, 3),
    // Limited range; a color description.
    (0b01, 2),
    // `colour_primaries`, `transfer_characteristics`, `matrix_coefficients`. Source: tables E-3 to E-5.
    (6, 8),
    (6, 8),
    (6, 8),
    // No chroma location, no timing.
    (0b00, 2),
    // No parameters of a hypothetical decoder.
    (0b00, 2),
    // No structure of pictures, no restriction of the bitstream.
    (0b00, 2),
];

/// Fields of a sequence parameter set.
pub struct SequenceParameters {
    pub id: u32,
    /// Maximum number of reference frames.
    pub references: u32,
    /// Size of a frame in macroblocks of 16x16 pixels.
    pub width: u32,
    pub height: u32,
}

impl SequenceParameters {
    /// Reads a set of a progressive Baseline stream up to its size.
    ///
    /// Errors: [`Unsupported::Profile`], [`Unsupported::Order`], [`Unsupported::Truncated`].
    pub fn read(bits: &mut Bits) -> Result<Self, Unsupported> {
        if bits.read(8)? != BASELINE {
            return Err(Unsupported::Profile);
        }
        // Constraints, and the level, which says less than the size.
        bits.read(16)?;
        let id = bits.golomb()?;
        bits.golomb()?;
        match bits.golomb()? {
            0 => {
                bits.golomb()?;
            }
            2 => {}
            _ => return Err(Unsupported::Order),
        }
        let references = bits.golomb()?;
        bits.read(1)?;
        let (width, height) = (bits.golomb()?.saturating_add(1), bits.golomb()?.saturating_add(1));
        match bits.read_flag()? {
            true => Ok(Self { id, references, width, height }),
            false => Err(Unsupported::Order),
        }
    }
}

/// Returns the color description of an access unit. Without one, it is that of browsers' cameras.
pub fn color_of(access_unit: &[u8]) -> Color {
    let sets = nal_units(access_unit).filter(|unit| kind(unit) == Some(SEQUENCE_PARAMETERS));
    let described = sets.last().and_then(|unit| read_color(&mut Bits::new(&unit[1..])).ok());
    described.unwrap_or_default()
}

fn read_color(bits: &mut Bits) -> Result<Color, Unsupported> {
    SequenceParameters::read(bits)?;
    skip_cropping(bits)?;
    let has_parameters = bits.read_flag()?;
    // The aspect ratio.
    if has_parameters && bits.read_flag()? && bits.read(8)? == EXTENDED_ASPECT_RATIO {
        bits.read(32)?;
    }
    // The overscan.
    if has_parameters && bits.read_flag()? {
        bits.read(1)?;
    }
    if !has_parameters || !bits.read_flag()? {
        return Ok(Color::default());
    }
    bits.read(3)?;
    let is_full_range = bits.read_flag()?;
    let matrix = match bits.read_flag()? {
        true => {
            bits.read(16)?;
            bits.read(8)?
        }
        false => 0,
    };
    Ok(Color { matrix: if matrix == BT709 { Matrix::Bt709 } else { Matrix::Bt601 }, is_full_range })
}

/// Reads the fields between the size of a frame and the VUI parameters.
fn skip_cropping(bits: &mut Bits) -> Result<(), Truncated> {
    bits.read(1)?;
    if bits.read_flag()? {
        for _ in 0..4 {
            bits.golomb()?;
        }
    }
    Ok(())
}

/// Adds the color description of BT.601 to the sequence parameter sets of a byte stream. Sets that cannot be read, or
/// that have VUI parameters, stay as they are.
pub fn describe_color(stream: &[u8]) -> Vec<u8> {
    add_parameters(stream, &BT601_DESCRIPTION)
}

/// Adds VUI parameters, with the flag before them, to the sequence parameter sets of a byte stream.
pub(super) fn add_parameters(stream: &[u8], parameters: &[(u32, u32)]) -> Vec<u8> {
    let mut changed = Vec::with_capacity(stream.len() + 16);
    for unit in nal_units(stream) {
        changed.extend(START_CODE);
        match with_parameters(unit, parameters) {
            Some(unit) => changed.extend(unit),
            None => changed.extend(unit),
        }
    }
    changed
}

fn with_parameters(unit: &[u8], parameters: &[(u32, u32)]) -> Option<Vec<u8>> {
    let (head, content) = unit.split_first().filter(|_| kind(unit) == Some(SEQUENCE_PARAMETERS))?;
    let mut bits = Bits::new(content);
    SequenceParameters::read(&mut bits).ok()?;
    skip_cropping(&mut bits).ok()?;
    let mut writer = bits.copy_before();
    if bits.read_flag().ok()? || !bits.ends() {
        return None;
    }
    parameters.iter().for_each(|(value, count)| writer.write(*value, *count));
    Some(writer.finish(*head))
}

#[cfg(test)]
mod tests {
    use rusty_h264::{Encoder, EncoderConfig, YuvFrame};

    use super::*;

    /// Set of OpenH264 in Chromium: 640x480, with a color description of BT.601.
    const CHROMIUM: &[u8] =
        &[0x67, 0x42, 0xc0, 0x1f, 0x8c, 0x8d, 0x40, 0x50, 0x1e, 0xd3, 0x50, 0x60, 0x60, 0x60, 0x78, 0x44, 0x23, 0x50];

    /// Returns a keyframe as the encoder writes it.
    fn keyframe(width: usize, height: usize) -> Vec<u8> {
        let mut config = EncoderConfig::baseline(width, height);
        config.level_idc = 31;
        let mut encoder = Encoder::new(config).unwrap();
        encoder.try_encode(&YuvFrame::black(width, height)).unwrap()
    }

    fn set_of(stream: &[u8]) -> Vec<u8> {
        nal_units(stream).find(|unit| kind(unit) == Some(SEQUENCE_PARAMETERS)).unwrap().to_vec()
    }

    #[test]
    fn sets_of_the_encoder_get_a_color_description() {
        for size in [(640, 480), (320, 240), (638, 478), (16, 16), (1280, 720)] {
            let plain = keyframe(size.0, size.1);
            let described = describe_color(&plain);
            let [before, after] = [&plain, &described].map(|stream| set_of(stream));
            let mut bits = Bits::new(&after[1..]);
            let read = SequenceParameters::read(&mut bits).unwrap();
            assert_eq!((read.width, read.height), (size.0.div_ceil(16) as u32, size.1.div_ceil(16) as u32));
            skip_cropping(&mut bits).unwrap();
            for (value, count) in BT601_DESCRIPTION {
                assert_eq!(bits.read(count), Ok(value), "{size:?}: {after:02x?}");
            }
            assert!(bits.ends(), "{size:?}: {after:02x?}");
            // The other units are the same.
            let others = |stream: &[u8], set: &[u8]| -> Vec<Vec<u8>> {
                nal_units(stream).filter(|unit| *unit != set).map(<[u8]>::to_vec).collect()
            };
            assert_eq!(others(&plain, &before), others(&described, &after));
            assert_eq!(describe_color(&described), described, "described once");
        }
    }

    #[test]
    fn described_set_of_composite_video_is_known() {
        let plain = keyframe(640, 480);
        assert_eq!(set_of(&plain), [0x67, 0x42, 0x40, 0x1f, 0xe5, 0x40, 0x50, 0x1e, 0xc8]);
        let described = [0x67, 0x42, 0x40, 0x1f, 0xe5, 0x40, 0x50, 0x1e, 0xd3, 0x50, 0x60, 0x60, 0x60, 0x20].as_slice();
        assert_eq!(set_of(&describe_color(&plain)), described);
    }

    fn described(set: &[u8]) -> Option<Vec<u8>> {
        with_parameters(set, &BT601_DESCRIPTION)
    }

    #[test]
    fn unknown_sets_stay_as_they_are() {
        let plain = keyframe(640, 480);
        let mut set = set_of(&plain);
        assert_eq!(described(CHROMIUM), None, "it has VUI parameters");
        for length in 0..set.len() {
            assert_eq!(described(&set[..length]), None, "truncated");
        }
        assert_eq!(described(&[&set[..], &[0x80]].concat()), None, "another field follows");
        assert!(described(&set).is_some());
        set[1] = 100;
        assert_eq!(described(&set), None, "High profile");
        assert_eq!(described(&[0x68, 0xce, 0x3c, 0x80]), None, "picture parameters");
        assert!(describe_color(&[1, 2, 3]).is_empty(), "no NAL unit");
    }

    #[test]
    fn color_of_a_stream_is_read() {
        let (bt601, bt709) = (Color::default(), Color { matrix: Matrix::Bt709, is_full_range: false });
        assert_eq!(color_of(&[&START_CODE[..], CHROMIUM].concat()), bt601);
        assert_eq!(color_of(&keyframe(638, 478)), bt601, "not described");
        let color_with = |fields: &[(u32, u32)]| color_of(&add_parameters(&keyframe(640, 480), fields));
        // As x264 writes it: an aspect ratio of its own, an overscan, and BT.709.
        let aspect = [(0b11, 2), (EXTENDED_ASPECT_RATIO, 8), (1, 16), (1, 16), (0b10, 2)];
        let signal = [(1, 1), (5, 3), (0b01, 2), (1, 8), (1, 8), (BT709, 8), (0, 6)];
        assert_eq!(color_with(&[&aspect[..], &signal].concat()), bt709);
        assert_eq!(color_with(&[&[(0b100, 3)][..], &signal].concat()), bt709);
        let full = [(0b1001, 4), (5, 3), (0b10, 2), (0, 6)];
        assert_eq!(color_with(&full), Color { matrix: Matrix::Bt601, is_full_range: true });
        for matrix in [2, 5, 6, 9, 255] {
            let other = [(0b1001, 4), (5, 3), (0b01, 2), (1, 8), (1, 8), (matrix, 8), (0, 6)];
            assert_eq!(color_with(&other), bt601, "{matrix}");
        }
        let set = set_of(&add_parameters(&keyframe(640, 480), &[&aspect[..], &signal].concat()));
        for length in 0..set.len() - 2 {
            assert_eq!(color_of(&[&START_CODE[..], &set[..length]].concat()), bt601, "truncated");
        }
    }
}
