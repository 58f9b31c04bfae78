use rusty_h264::YuvFrame;

use super::grid::{Cell, half};

/// How the luma and chroma of a video become colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Color {
    pub matrix: Matrix,
    /// Values from 0 to 255 instead of 16 to 235 (luma) and 16 to 240 (chroma).
    pub is_full_range: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Matrix {
    /// Matrix of browsers' cameras, and of the composite video.
    #[default]
    Bt601,
    /// Matrix of many programs that stream to a room, for example OBS Studio.
    Bt709,
}

/// Luma, blue and red chroma of BT.601 by those of BT.709: summands for each blue and each red chroma of limited range.
/// Luma is also added to itself.
///
/// Source: the conversion to RGB and back, with the coefficients of ITU-R BT.709 and BT.601.
const FROM_BT709: [[f32; 2]; 3] = [[0.099_312, 0.191_700], [0.989_854, -0.110_653], [-0.072_453, 0.983_398]];
const FROM_BT601: [[f32; 2]; 3] = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]];

impl Color {
    /// Converts a part of a frame to BT.601 with limited range.
    pub fn convert(self, frame: &mut YuvFrame, part: Cell) {
        if self == Self::default() {
            return;
        }
        let (low, luma_scale, chroma_scale) = match self.is_full_range {
            true => (16.0, 219.0 / 255.0, 224.0 / 255.0),
            false => (0.0, 1.0, 1.0),
        };
        let rows = match self.matrix {
            Matrix::Bt601 => FROM_BT601,
            Matrix::Bt709 => FROM_BT709,
        };
        let YuvFrame { width, y, u, v, .. } = frame;
        let (stride, part) = (*width, half(part));
        // A conversion to `u8` saturates.
        let round = |value: f32| (value + 0.5) as u8;
        for row in part.y..part.y + part.height {
            for column in part.x..part.x + part.width {
                let at = row * (stride / 2) + column;
                let [blue, red] = [u[at], v[at]].map(|value| (f32::from(value) - 128.0) * chroma_scale);
                let [shift, new_blue, new_red] = rows.map(|[by_blue, by_red]| blue * by_blue + red * by_red);
                (u[at], v[at]) = (round(128.0 + new_blue), round(128.0 + new_red));
                let corner = 2 * row * stride + 2 * column;
                for at in [corner, corner + 1, corner + stride, corner + stride + 1] {
                    y[at] = round(low + f32::from(y[at]) * luma_scale + shift);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: Cell = Cell { x: 2, y: 4, width: 4, height: 2 };

    /// Converts a part of a frame of one color. Returns its color, after a check that the rest is unchanged.
    fn convert(color: Color, [y, u, v]: [u8; 3]) -> [u8; 3] {
        let mut frame = YuvFrame::black(8, 8);
        frame.y.fill(y);
        frame.u.fill(u);
        frame.v.fill(v);
        color.convert(&mut frame, PART);
        let is_inside = |x: usize, y: usize, part: Cell| {
            (part.x..part.x + part.width).contains(&x) && (part.y..part.y + part.height).contains(&y)
        };
        let mut inside = Vec::new();
        for (at, value) in frame.y.iter().enumerate() {
            match is_inside(at % 8, at / 8, PART) {
                true => inside.push([*value, frame.u[at / 16 * 4 + at % 8 / 2], frame.v[at / 16 * 4 + at % 8 / 2]]),
                false => assert_eq!(*value, y, "outside"),
            }
        }
        inside.dedup();
        assert_eq!(inside.len(), 1, "{inside:?}");
        inside[0]
    }

    #[test]
    fn colors_become_those_of_bt601() {
        let bt709 = Color { matrix: Matrix::Bt709, is_full_range: false };
        let full = Color { matrix: Matrix::Bt601, is_full_range: true };
        let full_bt709 = Color { matrix: Matrix::Bt709, is_full_range: true };
        // Red, green, blue, white and gray in each of them.
        for (color, values) in [
            (bt709, [[63, 102, 240], [173, 42, 26], [32, 240, 118], [235, 128, 128], [126, 128, 128]]),
            (full, [[76, 85, 255], [150, 44, 21], [29, 255, 107], [255, 128, 128], [128, 128, 128]]),
            (full_bt709, [[54, 99, 255], [182, 30, 12], [18, 255, 116], [255, 128, 128], [128, 128, 128]]),
            (Color::default(), [[81, 90, 240], [145, 54, 34], [41, 240, 110], [235, 128, 128], [126, 128, 128]]),
        ] {
            let expected = [[81, 90, 240], [145, 54, 34], [41, 240, 110], [235, 128, 128], [126, 128, 128]];
            for (value, expected) in values.into_iter().zip(expected) {
                let converted = convert(color, value);
                let is_near = converted.iter().zip(expected).all(|(got, expected)| got.abs_diff(expected) <= 1);
                assert!(is_near, "{color:?}: {value:?} becomes {converted:?}, expected {expected:?}");
            }
        }
        assert_eq!(convert(bt709, [255, 255, 255])[0], 255, "no overflow");
    }
}
