use rusty_h264::YuvFrame;

use super::{
    color::Color,
    grid::{Cell, fit, half},
};

/// Color of cells without video, and of the bars beside a video: dark gray.
const LUMA: u8 = 40;
const CHROMA: u8 = 128;

/// The composite frame.
pub struct Canvas {
    frame: YuvFrame,
}

impl Canvas {
    pub fn new((width, height): (usize, usize)) -> Self {
        let mut canvas = Self { frame: YuvFrame::black(width, height) };
        canvas.clear(Cell { x: 0, y: 0, width, height });
        canvas
    }

    pub fn frame(&self) -> &YuvFrame {
        &self.frame
    }

    /// Fills a cell with the color of cells without video.
    pub fn clear(&mut self, cell: Cell) {
        let YuvFrame { width, y, u, v, .. } = &mut self.frame;
        let half = half(cell);
        for (plane, stride, cell, value) in
            [(y, *width, cell, LUMA), (u, *width / 2, half, CHROMA), (v, *width / 2, half, CHROMA)]
        {
            for row in cell.y..cell.y + cell.height {
                plane[row * stride + cell.x..][..cell.width].fill(value);
            }
        }
    }

    /// Draws a video with these colors into a cell: as large as it fits, in its own aspect ratio, in the middle.
    pub fn draw(&mut self, cell: Cell, video: &YuvFrame, color: Color) {
        let to = fit((video.width, video.height), cell);
        let (size, half_size) = ((video.width, video.height), (video.width / 2, video.height / 2));
        let YuvFrame { width, y, u, v, .. } = &mut self.frame;
        scale(&video.y, size, y, *width, to);
        scale(&video.u, half_size, u, *width / 2, half(to));
        scale(&video.v, half_size, v, *width / 2, half(to));
        color.convert(&mut self.frame, to);
    }
}

/// Writes a plane into a part of another plane. Each pixel is the mean of the pixels that it covers.
fn scale(source: &[u8], (width, height): (usize, usize), target: &mut [u8], stride: usize, to: Cell) {
    let columns: Vec<_> = (0..to.width).map(|x| span(x, to.width, width)).collect();
    for row in 0..to.height {
        let out = &mut target[(to.y + row) * stride + to.x..][..to.width];
        let (top, bottom) = span(row, to.height, height);
        if (width, height) == (to.width, to.height) {
            out.copy_from_slice(&source[row * width..][..width]);
        } else if (width, height) == (2 * to.width, 2 * to.height) {
            // The usual case: four participants with videos of the size of the composite frame.
            let (upper, lower) = source[top * width..][..2 * width].split_at(width);
            for ((out, upper), lower) in out.iter_mut().zip(upper.chunks_exact(2)).zip(lower.chunks_exact(2)) {
                let sum: u16 = upper.iter().chain(lower).map(|value| u16::from(*value)).sum();
                *out = ((sum + 2) / 4) as u8;
            }
        } else {
            for (out, (left, right)) in out.iter_mut().zip(&columns) {
                let rows = (top..bottom).flat_map(|row| &source[row * width + left..row * width + right]);
                let sum: usize = rows.map(|value| usize::from(*value)).sum();
                *out = (sum / ((bottom - top) * (right - left))) as u8;
            }
        }
    }
}

/// Returns the range of the source that one of `of` parts covers; at least one pixel.
fn span(at: usize, of: usize, length: usize) -> (usize, usize) {
    let start = at * length / of;
    (start, ((at + 1) * length / of).max(start + 1))
}

#[cfg(test)]
mod tests {
    use super::{super::grid::grid, *};

    const SIZE: (usize, usize) = (640, 480);

    fn video(width: usize, height: usize, [y, u, v]: [u8; 3]) -> YuvFrame {
        let mut frame = YuvFrame::black(width, height);
        frame.y.fill(y);
        frame.u.fill(u);
        frame.v.fill(v);
        frame
    }

    /// Returns luma and chroma at a place.
    fn color(canvas: &Canvas, x: usize, y: usize) -> [u8; 3] {
        let YuvFrame { width, y: luma, u, v, .. } = canvas.frame();
        let chroma = y / 2 * (width / 2) + x / 2;
        [luma[y * width + x], u[chroma], v[chroma]]
    }

    #[test]
    fn video_keeps_its_aspect_ratio() {
        let mut canvas = Canvas::new(SIZE);
        let cell = Cell { x: 320, y: 240, width: 320, height: 240 };
        canvas.draw(cell, &video(1280, 720, [200, 90, 160]), Color::default());
        assert_eq!(color(&canvas, 480, 360), [200, 90, 160]);
        assert_eq!(color(&canvas, 480, 245), [LUMA, CHROMA, CHROMA], "bar above");
        assert_eq!(color(&canvas, 480, 272), [200, 90, 160], "180 of 240 lines");
        assert_eq!(color(&canvas, 300, 360), [LUMA, CHROMA, CHROMA], "another cell");
        canvas.clear(cell);
        canvas.draw(cell, &video(240, 480, [200, 90, 160]), Color::default());
        assert_eq!([color(&canvas, 330, 360), color(&canvas, 480, 360)], [[LUMA, CHROMA, CHROMA], [200, 90, 160]]);
    }

    #[test]
    fn scaling_averages_pixels() {
        let mut source = YuvFrame::black(4, 4);
        source.y = vec![10, 20, 30, 40, 30, 40, 50, 60, 0, 0, 8, 8, 0, 4, 8, 8];
        let mut canvas = Canvas::new((4, 4));
        canvas.draw(Cell { x: 0, y: 0, width: 2, height: 2 }, &source, Color::default());
        assert_eq!([0, 1].map(|x| [0, 1].map(|y| color(&canvas, x, y)[0])), [[25, 1], [45, 8]]);
        for size in [(2, 2), (16, 16), (640, 480), (1280, 720), (2, 480), (1280, 2), (6, 10)] {
            let mut canvas = Canvas::new(SIZE);
            let video = video(size.0, size.1, [99, 98, 97]);
            grid(5, SIZE).into_iter().for_each(|cell| canvas.draw(cell, &video, Color::default()));
        }
    }
}
