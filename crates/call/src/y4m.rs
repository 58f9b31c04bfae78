//! The synthetic camera as a raw video file (YUV4MPEG2, 4:2:0), which browsers play as a fake camera.

use crate::{scene::Scene, source::FRAMES_PER_S};

/// Limits of width and height in pixels.
const SIDE: std::ops::RangeInclusive<u32> = 16..=4096;

/// Why a size is no size of a video.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    #[error("{0}x{1}: width and height must be 16 to 4096 pixels, for example 640x480")]
    Range(u32, u32),
    #[error("{0}x{1}: width and height must be even, because four pixels share their color, for example 640x480")]
    Odd(u32, u32),
    #[error("expected WIDTHxHEIGHT, for example 640x480")]
    Format,
}

/// Size of a video in pixels: even, and within limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    width: u32,
    height: u32,
}

impl Size {
    /// Errors: see [`SizeError`].
    pub fn new(width: u32, height: u32) -> Result<Self, SizeError> {
        match () {
            () if !SIDE.contains(&width) || !SIDE.contains(&height) => Err(SizeError::Range(width, height)),
            () if width % 2 + height % 2 > 0 => Err(SizeError::Odd(width, height)),
            () => Ok(Self { width, height }),
        }
    }

    pub fn width(self) -> u32 {
        self.width
    }

    pub fn height(self) -> u32 {
        self.height
    }
}

impl std::str::FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (width, height) = text.split_once('x').ok_or(SizeError::Format)?;
        let side = |text: &str| text.parse().map_err(|_| SizeError::Format);
        Self::new(side(width)?, side(height)?)
    }
}

/// Iterator over the pieces of a file: its header, then one piece per frame.
pub struct Y4m {
    size: Size,
    scene: Scene,
    left: u64,
    is_begun: bool,
}

impl Y4m {
    /// `frames`: number of frames at 30 per second.
    pub fn new(size: Size, frames: u64, seed: u64) -> Self {
        Self { size, scene: Scene::new(seed), left: frames, is_begun: false }
    }

    fn frame(&mut self) -> Vec<u8> {
        self.scene.advance();
        let Size { width, height } = self.size;
        let pixels = (width * height) as usize;
        let mut bytes = Vec::with_capacity(6 + pixels * 3 / 2);
        bytes.extend_from_slice(b"FRAME\n");
        bytes.extend(
            (0..height)
                .flat_map(|y| (0..width).map(move |x| (x, y)))
                .map(|(x, y)| self.scene.luma(x, y, (width, height))),
        );
        let blocks = || (0..height / 2).flat_map(|y| (0..width / 2).map(move |x| (x * 2, y * 2)));
        bytes.extend(blocks().map(|(x, y)| self.scene.chroma(x, y, (width, height)).0));
        bytes.extend(blocks().map(|(x, y)| self.scene.chroma(x, y, (width, height)).1));
        bytes
    }
}

impl Iterator for Y4m {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if !self.is_begun {
            self.is_begun = true;
            let Size { width, height } = self.size;
            return Some(format!("YUV4MPEG2 W{width} H{height} F{FRAMES_PER_S}:1 Ip A1:1 C420jpeg\n").into_bytes());
        }
        self.left = self.left.checked_sub(1)?;
        Some(self.frame())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_a_header_and_frames_that_differ() {
        let pieces: Vec<Vec<u8>> = Y4m::new("64x48".parse().expect("a size"), 3, 7).collect();
        assert_eq!(pieces[0], b"YUV4MPEG2 W64 H48 F30:1 Ip A1:1 C420jpeg\n");
        assert_eq!(pieces.len(), 4);
        assert!(pieces[1..].iter().all(|frame| frame.len() == 6 + 64 * 48 * 3 / 2 && frame.starts_with(b"FRAME\n")));
        assert_ne!(pieces[1], pieces[2]);
        assert!(Y4m::new("64x48".parse().expect("a size"), 3, 7).eq(pieces.clone()), "same seed, same bytes");
        assert!(!Y4m::new("64x48".parse().expect("a size"), 3, 8).eq(pieces));
    }

    #[test]
    fn wrong_sizes_are_refused() {
        for (text, error) in [
            ("0x480", SizeError::Range(0, 480)),
            ("640x4098", SizeError::Range(640, 4098)),
            ("641x480", SizeError::Odd(641, 480)),
            ("640x481", SizeError::Odd(640, 481)),
            ("640", SizeError::Format),
            ("640x-2", SizeError::Format),
            ("99999999999x2", SizeError::Format),
            ("", SizeError::Format),
        ] {
            assert_eq!(text.parse::<Size>(), Err(error), "{text}");
        }
        assert_eq!("640x480".parse(), Size::new(640, 480));
    }
}
