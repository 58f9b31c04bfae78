//! Checks NAL units before the decoder reads them, so that only the tools of Constrained Baseline and frames of level
//! 3.1 reach it.
//!
//! Source: ITU-T H.264, sections 7.3.2.2, 7.3.3, and table A-1.

use super::{
    error::Unsupported,
    nal::{Bits, KEY_SLICE, PICTURE_PARAMETERS, SEQUENCE_PARAMETERS, SLICE, TYPE_MASK, nal_units},
    sps::SequenceParameters,
};

/// Maximum size of a frame in macroblocks of 16x16 pixels: 1280x720.
const FRAME_MACROBLOCKS_MAX: u32 = 3600;
/// Maximum number of macroblocks of all reference frames.
const REFERENCE_MACROBLOCKS_MAX: u32 = 18_000;
const REFERENCES_MAX: u32 = 16;
/// Maximum number of slices of one frame.
const SLICES_MAX: u32 = 64;
/// The decoder keeps one entry for each id.
const SEQUENCE_PARAMETERS_ID_MAX: u32 = 31;
const PICTURE_PARAMETERS_ID_MAX: u32 = 255;

/// Checks all NAL units of an access unit.
pub fn check(access_unit: &[u8]) -> Result<(), Unsupported> {
    let (mut slices, mut pictures) = (0, 0);
    for unit in nal_units(access_unit) {
        let Some((head, rest)) = unit.split_first() else { continue };
        let mut bits = Bits::new(rest);
        match head & TYPE_MASK {
            SEQUENCE_PARAMETERS => check_sequence_parameters(&mut bits)?,
            PICTURE_PARAMETERS => check_picture_parameters(&mut bits)?,
            SLICE | KEY_SLICE => {
                slices += 1;
                pictures += u32::from(bits.golomb()? == 0);
                // P and I slices, each with two numbers.
                if !matches!(bits.golomb()?, 0 | 2 | 5 | 7) || slices > SLICES_MAX || pictures > 1 {
                    return Err(Unsupported::Slices);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_sequence_parameters(bits: &mut Bits) -> Result<(), Unsupported> {
    let SequenceParameters { id, references, width, height } = SequenceParameters::read(bits)?;
    if id > SEQUENCE_PARAMETERS_ID_MAX {
        return Err(Unsupported::Id);
    }
    let macroblocks = width.saturating_mul(height);
    if macroblocks > FRAME_MACROBLOCKS_MAX
        || references > REFERENCES_MAX
        || references * macroblocks > REFERENCE_MACROBLOCKS_MAX
    {
        return Err(Unsupported::FrameSize);
    }
    Ok(())
}

fn check_picture_parameters(bits: &mut Bits) -> Result<(), Unsupported> {
    if bits.golomb()? > PICTURE_PARAMETERS_ID_MAX || bits.golomb()? > SEQUENCE_PARAMETERS_ID_MAX {
        return Err(Unsupported::Id);
    }
    let has_cabac = bits.read(1)? == 1;
    bits.read(1)?;
    match has_cabac || bits.golomb()? > 0 {
        true => Err(Unsupported::Tool),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parameter sets and the head of a keyframe of OpenH264 in Chromium, 640x480.
    const CHROMIUM: &[u8] = &[
        0, 0, 0, 1, 0x67, 0x42, 0xc0, 0x1f, 0x8c, 0x8d, 0x40, 0x50, 0x1e, 0xd3, 0x50, 0x60, 0x60, 0x60, 0x78, 0x44,
        0x23, 0x50, 0, 0, 0, 1, 0x68, 0xce, 0x3c, 0x80, 0, 0, 0, 1, 0x65, 0xb8, 0, 4, 0,
    ];

    /// A sequence parameter set: profile, references, and size in macroblocks.
    fn sequence_parameters(profile: u8, references: u32, width: u32, height: u32) -> Vec<u8> {
        let golomb = |value: u32| {
            let code = format!("{:b}", value + 1);
            "0".repeat(code.len() - 1) + &code
        };
        let heads = [0, 0, 2, references].map(golomb).concat();
        let mut bits = heads + "0" + &[width - 1, height - 1].map(golomb).concat() + "11";
        bits.push_str(&"0".repeat(8 - bits.len() % 8));
        let byte = |at: usize| u8::from_str_radix(&bits[at..at + 8], 2).unwrap();
        let bytes = (0..bits.len()).step_by(8).map(byte);
        [0, 0, 0, 1, 0x67, profile, 0xc0, 31].into_iter().chain(bytes).collect()
    }

    #[test]
    fn stream_of_browser_is_supported() {
        assert_eq!(check(CHROMIUM), Ok(()));
        let heads: Vec<u8> = nal_units(CHROMIUM).map(|unit| unit[0]).collect();
        assert_eq!(heads, [0x67, 0x68, 0x65]);
        assert_eq!(check(&[0, 0, 0, 1, 0x41, 0xe0, 0, 0x40]), Ok(()), "P slice");
    }

    #[test]
    fn other_profiles_and_sizes_are_refused() {
        assert_eq!(check(&sequence_parameters(66, 5, 80, 45)), Ok(()), "1280x720");
        assert_eq!(check(&sequence_parameters(100, 1, 40, 30)), Err(Unsupported::Profile));
        assert_eq!(check(&sequence_parameters(66, 1, 120, 68)), Err(Unsupported::FrameSize), "1920x1088");
        assert_eq!(check(&sequence_parameters(66, 6, 80, 45)), Err(Unsupported::FrameSize), "six reference frames");
        assert_eq!(check(&sequence_parameters(66, 17, 1, 1)), Err(Unsupported::FrameSize));
        assert_eq!(check(&sequence_parameters(66, 1, 60_000, 70_000)), Err(Unsupported::FrameSize));
        assert_eq!(check(&[0, 0, 0, 1, 0x68, 0b1110_0000]), Err(Unsupported::Tool), "CABAC");
        assert_eq!(check(&[0, 0, 0, 1, 0x41, 0b1010_0000]), Err(Unsupported::Slices), "B slice");
        assert_eq!(check(&[0, 0, 0, 1, 0x67, 66]), Err(Unsupported::Truncated));
    }

    #[test]
    fn access_unit_has_one_picture() {
        let slice = [0, 0, 0, 1, 0x41, 0xe0, 0, 0x40];
        assert_eq!(check(&[slice, slice].concat()), Err(Unsupported::Slices));
        let later = [0, 0, 0, 1, 0x41, 0b0101_1000];
        let many = |count| [&slice[..], &later.repeat(count)].concat();
        assert_eq!(check(&many(63)), Ok(()));
        assert_eq!(check(&many(64)), Err(Unsupported::Slices));
    }
}
